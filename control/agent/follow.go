package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/agent/dns"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// retryPause is between attempts to reach the controller.
const retryPause = 300 * time.Millisecond

// keptName is the file of a kind. Two groups may have kinds of one name, of which Istio's came first.
func keptName(kind *objects.Kind) string {
	if kind.Group == objects.GroupGatewayAPI {
		return kind.Plural + "." + kind.Group + ".db"
	}
	return kind.Plural + ".db"
}

// follow calls f with every object of a kind, now and after each change, for as long as ctx lives; with changed where only
// that one is another than it was told before. While the controller is away, what was last known stays; it is kept on disk,
// so that it is known to the next agent too.
func (a *Agent) follow(ctx context.Context, kind *objects.Kind, f func(known map[objects.Key]*objects.Object, changed *objects.Key)) {
	file, known, err := objectfile.Open(filepath.Join(a.config.Cluster.Run(), "agent", keptName(kind)))
	switch {
	case err != nil:
		a.log.Warn("what the agent before kept is not known; nothing is stopped for want of it, the controller tells what there is", "kind", kind.Plural, "error", err)
	case known != nil:
		f(known, nil)
	}
	defer file.Close()
	// Kept before it is acted upon: an agent that is killed in between leaves what it began to the next one.
	told := func(changed *objects.Key, kept error) {
		if kept != nil {
			a.log.Warn("objects not kept for the next agent", "kind", kind.Plural, "error", kept)
		}
		f(known, changed)
	}
	for {
		list, err := a.client.List(ctx, kind, "")
		if err == nil {
			known = make(map[objects.Key]*objects.Object, len(list.Items))
			for _, o := range list.Items {
				known[o.Key()] = o
			}
			told(nil, file.Replace(known))
			// Everything that the next watch brings is newer than this list.
			err = a.client.Watch(ctx, kind, list.Position, func(c client.Change) {
				if c.Object == nil {
					delete(known, c.Key)
				} else {
					known[c.Key] = c.Object
				}
				told(&c.Key, file.Change(known, c.Key))
			})
		}
		if ctx.Err() != nil {
			return
		}
		a.log.Debug("controller does not answer", "kind", kind.Plural, "error", err)
		if !wait(ctx, retryPause) {
			return
		}
	}
}

// wishes are what the cluster's objects say is to run. A map that is nil was not told yet.
type wishes struct {
	// mu is held while deployments are brought to them, too.
	mu                    sync.Mutex
	workloads, namespaces map[objects.Key]*objects.Object
	// provider is the mesh's default of who uses the keys; nil for none, too.
	provider *objects.KeyProvider
	// specs are the replicas of the workloads as they were placed last.
	specs map[objects.Key]placement
}

// placement is the replicas of a workload, with what they were made from.
type placement struct {
	workload *v1alpha1.Workload
	provider *objects.KeyProvider
	specs    []replicaSpec
}

// followWorkloads keeps the deployments at what the Workload objects say.
func (a *Agent) followWorkloads(ctx context.Context) {
	a.follow(ctx, objects.Workload, func(known map[objects.Key]*objects.Object, changed *objects.Key) {
		if changed != nil {
			a.wishOne(ctx, *changed, known[*changed])
			return
		}
		a.wish(ctx, func(w *wishes) { w.workloads = maps.Clone(known) })
	})
}

// followNamespaces keeps them at what the namespaces allow.
func (a *Agent) followNamespaces(ctx context.Context) {
	a.follow(ctx, objects.Namespace, func(known map[objects.Key]*objects.Object, _ *objects.Key) {
		a.wish(ctx, func(w *wishes) { w.namespaces = maps.Clone(known) })
	})
}

// followMeshConfig has keys used by the mesh's default provider.
func (a *Agent) followMeshConfig(ctx context.Context) {
	var provider *objects.KeyProvider
	a.follow(ctx, objects.ConfigMap, func(known map[objects.Key]*objects.Object, _ *objects.Key) {
		now, err := meshProvider(known)
		if err != nil {
			// A version that admitted more: what was known stays.
			a.log.Warn("the mesh's configuration cannot be read", "error", err)
			return
		}
		if reflect.DeepEqual(now, provider) {
			return
		}
		provider = now
		a.wish(ctx, func(w *wishes) { w.provider = now })
		for key, specs := range gateways(a.options, now) {
			a.deploy(ctx, key, specs)
		}
	})
}

// meshProvider is the default of who uses the keys, nil for none.
func meshProvider(known map[objects.Key]*objects.Object) (*objects.KeyProvider, error) {
	for key, o := range known {
		if m, ok := o.Resource.(*corev1.ConfigMap); ok && objects.IsMeshConfig(key) {
			config, err := objects.MeshConfig(m)
			if err != nil {
				return nil, fmt.Errorf("%s: data.%s: %w", key, objects.MeshConfigKey, err)
			}
			return objects.MeshKeyProvider(config), nil
		}
	}
	return nil, nil
}

// wish has something else wanted, and brings the deployments to it.
func (a *Agent) wish(ctx context.Context, change func(*wishes)) {
	a.wishes.mu.Lock()
	defer a.wishes.mu.Unlock()
	if change(&a.wishes); a.wishes.workloads == nil {
		return
	}
	wanted, unclear := a.wishes.place(a.config.Cluster.Name, a.options.PrivilegedWorkloads)
	var deleted []string
	a.mu.Lock()
	for key := range a.deployments {
		if _, ok := wanted[key]; !ok && !unclear[key] && !strings.HasPrefix(key, gatewayKeys) {
			deleted = append(deleted, key)
		}
	}
	a.mu.Unlock()
	for _, key := range deleted {
		a.undeploy(ctx, key)
	}
	for key, specs := range wanted {
		a.deploy(ctx, key, specs)
	}
	if len(unclear) > 0 {
		return // What runs of those is neither taken up nor swept away.
	}
	a.mu.Lock()
	a.knowsWorkloads = true
	a.mu.Unlock()
	a.signalPlaced()
	a.sweep(wanted)
}

// wishOne has one workload wanted otherwise, nil when it was deleted. It costs what that one has: the others are as they were
// wished last, and what there was of workloads that nobody knew was swept then.
func (a *Agent) wishOne(ctx context.Context, key objects.Key, o *objects.Object) {
	a.wishes.mu.Lock()
	defer a.wishes.mu.Unlock()
	w, name := &a.wishes, key.Namespace+"/"+key.Name
	if o == nil {
		delete(w.workloads, key)
		delete(w.specs, key)
		if w.namespaces == nil {
			// Processes that an agent before started may have its ids, without a deployment: they are swept first.
			a.want(ctx, name, nil, true)
			return
		}
		a.undeploy(ctx, name)
		return
	}
	w.workloads[key] = o
	p, clear := w.placeOne(key, o, a.config.Cluster.Name, a.options.PrivilegedWorkloads)
	if !clear {
		return // What runs of it stays as it is until the namespaces are known.
	}
	w.specs[key] = p
	a.deploy(ctx, name, p.specs)
	a.signalPlaced()
}

// place is what is to run of each workload, by namespace and name.
func (w *wishes) place(clusterName string, unconfined bool) (wanted map[string][]replicaSpec, unclear map[string]bool) {
	wanted, unclear = make(map[string][]replicaSpec, len(w.workloads)), map[string]bool{}
	specs := make(map[objects.Key]placement, len(w.workloads))
	for key, o := range w.workloads {
		name := key.Namespace + "/" + key.Name
		p, clear := w.placeOne(key, o, clusterName, unconfined)
		if !clear {
			unclear[name] = true
			continue
		}
		specs[key], wanted[name] = p, p.specs
	}
	w.specs = specs
	return wanted, unclear
}

// placeOne is what is to run of one workload. One that asks for more than its namespace allows is not run, whatever it was when
// it was stored: the cluster may have allowed it then. Without the namespaces it is unclear.
func (w *wishes) placeOne(key objects.Key, o *objects.Object, clusterName string, unconfined bool) (p placement, clear bool) {
	workload, ok := o.Resource.(*v1alpha1.Workload)
	if !ok {
		return placement{}, true
	}
	switch privileged := !unconfined && len(access.Beyond(workload)) > 0; {
	case privileged && w.namespaces == nil:
		return placement{}, false
	case privileged && !access.AllowsPrivileged(w.namespaces[objects.Key{Kind: objects.Namespace.Kind, Name: key.Namespace}]):
		return placement{}, true
	}
	if p, known := w.specs[key]; known && p.workload == workload && p.provider == w.provider {
		return p, true
	}
	return placement{workload: workload, provider: w.provider, specs: replicas(workload, clusterName, unconfined, w.provider)}, true
}

// sweepPause is for how long no other try is made to remove what could not be removed: a process that cannot be killed takes each
// of them ten seconds, in which nothing is deployed.
const sweepPause = time.Minute

// sweep removes what replicas have left that nobody wants any more, when an agent died before their workload was deleted:
// namespaces, control groups, and the addresses and logs of workloads that are not known.
func (a *Agent) sweep(known map[string][]replicaSpec) {
	c := a.config.Cluster
	names, err := network.Names(c.NetnsPrefix())
	if err != nil {
		a.log.Warn("stale workloads not looked for", "error", err)
		return
	}
	keep := map[string]bool{}
	// What is wanted counts, not only what has been started: the gateways' deployments begin at the same time.
	a.mu.Lock()
	deployed := map[string]bool{}
	for key, d := range a.deployments {
		deployed[strings.TrimPrefix(key, gatewayKeys)] = true
		d.mu.Lock()
		for _, s := range d.wanted {
			keep[c.Netns(s.Namespace, s.Name)] = true
			deployed[allocation.WorkloadOf(s.key())] = true
		}
		d.mu.Unlock()
	}
	a.mu.Unlock()
	wanted := func(workload string) bool {
		_, ok := known[workload]
		return ok || deployed[workload]
	}
	for _, r := range a.all() {
		keep[r.netns] = true
	}
	failed := map[string]time.Time{}
	for _, name := range names {
		if keep[name] {
			continue
		}
		// Namespaces of objects have no dot, so the first one ends it.
		namespace, replica, ok := strings.Cut(strings.TrimPrefix(name, c.NetnsPrefix()), ".")
		if !ok {
			continue
		}
		workload := namespace + "/" + replica
		at, before := a.unswept[name]
		if !before || a.now().Sub(at) >= sweepPause {
			a.log.Info("removing a workload that is no longer wanted", "workload", workload)
			err := a.discard(namespace, replica)
			if err == nil {
				continue
			}
			a.log.Warn("stale workload not removed", "workload", workload, "error", err, "again_in", sweepPause)
			at = a.now()
		}
		failed[name] = at
		// Its addresses are in use. A later list tries again.
		deployed[allocation.WorkloadOf(workload)] = true
	}
	a.unswept = failed
	if err := errors.Join(a.addresses.Keep(wanted), a.users.Keep(wanted)); err != nil {
		a.log.Warn("addresses or user ids of workloads that are gone are not free yet", "error", err)
	}
	if err := a.sweepLogs(wanted); err != nil {
		a.log.Warn("logs of workloads that are gone are still there", "error", err)
	}
}

// followNames keeps what DNS answers. While the controller is away, what was last known stays.
func (a *Agent) followNames(ctx context.Context) {
	if kept, err := dns.ReadTable(TablePath(a.config.Cluster)); err == nil {
		a.setNames(kept.Names)
	} else if !errors.Is(err, os.ErrNotExist) {
		a.log.Warn("kept names are unreadable", "error", err)
	}
	for {
		err := a.client.WatchNames(ctx, a.setNames)
		if ctx.Err() != nil {
			return
		}
		a.log.Debug("controller does not tell names", "error", err)
		if !wait(ctx, retryPause) {
			return
		}
	}
}

// TablePath is where the agent keeps the names that DNS answers.
func TablePath(c cluster.Cluster) string { return filepath.Join(c.Run(), "agent", "names.json") }

func (a *Agent) setNames(names client.Names) {
	a.mu.Lock()
	a.names = names
	a.named++
	a.mu.Unlock()
	a.updateDNS()
}

// updateDNS writes the table of names and replicas, for the process that answers, where it changed. It is also what the
// next agent begins with.
func (a *Agent) updateDNS() {
	a.dnsWriting.Lock()
	defer a.dnsWriting.Unlock()
	// Before they are looked at: what moves meanwhile is looked at the next time.
	located := a.located.Load()
	a.mu.Lock()
	names, named := a.names, a.named
	a.mu.Unlock()
	if names.Domain == "" || located == a.dnsLocated && named == a.dnsNamed {
		// Nobody has said yet what there is, or there is nothing new.
		return
	}
	namespaces := map[netip.Addr]string{}
	for _, r := range a.unsorted() {
		r.mu.Lock()
		if r.address.IsValid() {
			namespaces[r.address] = r.spec.Namespace
		}
		r.mu.Unlock()
	}
	table := dns.Table{Names: names, Namespaces: namespaces}
	if !maps.Equal(namespaces, a.dnsWritten.Namespaces) || named != a.dnsNamed && !reflect.DeepEqual(names, a.dnsWritten.Names) {
		if err := dns.WriteTable(TablePath(a.config.Cluster), table); err != nil {
			a.log.Error("DNS answers what it knew before", "error", err)
			return
		}
	}
	a.dnsWritten, a.dnsLocated, a.dnsNamed = table, located, named
}

// dirty says that something worth reporting changed.
func (a *Agent) dirty() {
	a.reexpose()
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// reportLoop tells the controller what runs whenever that changes, and every second in any case: a controller that was
// restarted knows only what it kept, and one that hears nothing takes the replicas out of rotation.
func (a *Agent) reportLoop(ctx context.Context) {
	var pace reportPace
	timer := time.NewTimer(reportInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.kick:
		case <-timer.C:
		}
		a.updateDNS()
		if !pace.due(time.Now()) {
			continue
		}
		err := a.reportNow(ctx)
		pause, news := pace.next(err, time.Now())
		switch {
		case news:
			a.log.Warn("the controller does not take what is reported: what runs here gets no traffic", "error", err)
		case err != nil:
			a.log.Debug("report not delivered", "error", err)
		}
		timer.Reset(pause)
	}
}

// errIncomplete: the agent does not know yet what it is to run.
var errIncomplete = errors.New("not all workloads are known yet")

// reportNow tells the controller what runs, now: what is different where it has the report before, that nothing is, and all of it where it
// has not.
func (a *Agent) reportNow(ctx context.Context) error {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	if complete, _ := a.complete(); !complete {
		return errIncomplete
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("look up host name: %w", err)
	}
	now := a.running()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	last := &a.reported
	if last.replicas != nil {
		if known, err := a.reportSince(ctx, host, now); known {
			return err
		}
		// It knows another one, or none, or is of a version that has to be told all each time.
	}
	if last.run == "" {
		last.run = rand.Text()
	}
	last.number++
	last.replicas = nil
	if err := a.client.Report(ctx, client.Report{Agent: host, Revision: last.revision(), Replicas: sorted(now)}); err != nil {
		return err
	}
	last.take(now)
	return nil
}
