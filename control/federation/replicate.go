package federation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// Replicated are the kinds that belong to the primary and are replicated to every member.
var Replicated = []*objects.Kind{objects.Cluster, objects.GlobalNamespace}

// replica is one object as it is sent to members.
type replica struct {
	object *objects.Object
	text   []byte
}

// maxObjects is how many objects a primary may replicate.
const maxObjects = 20000

// batchSize is how many objects are written at once.
const batchSize = 1000

// replicaText is an object without what differs between clusters: its version in the store, and its status.
func replicaText(o *objects.Object) ([]byte, error) {
	bare := *o.WithoutLines()
	bare.Status, bare.Version = objects.Status{}, ""
	return json.Marshal(&bare)
}

// SetObjects says which objects there are; those of other kinds than the replicated ones are passed over. At the primary,
// it is what members are told, and who is a member.
func (f *Federation) SetObjects(all []*objects.Object) {
	f.setting.Lock()
	defer f.setting.Unlock()
	f.mu.Lock()
	before, former, sharing, isMember := f.replicas, f.clusters, f.sharing, f.member
	f.mu.Unlock()
	replicas, clusters := f.replicasOf(all, before)
	differing := differingReplicas(before, replicas)
	regroup := func(key objects.Key) bool { return key.Kind == objects.GlobalNamespace.Kind }
	if !isMember && slices.ContainsFunc(differing, regroup) {
		all := make([]*objects.Object, 0, len(replicas))
		for _, r := range replicas {
			all = append(all, r.object)
		}
		sharing = resolve.NewSharing(f.config.Settings, all)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clusters, f.replicas = clusters, replicas
	if f.member {
		return
	}
	for _, s := range f.streams {
		for _, key := range differing {
			s.due.object(key)
		}
		s.due.everyPeer = s.due.everyPeer || sharing != f.sharing
	}
	if sharing != f.sharing {
		f.sharing = sharing
		for _, e := range f.peers {
			e.stale = true
		}
	}
	if removed := f.endMembers(former); removed || len(differing) > 0 {
		signal(f.reroot)
		signal(f.unkept)
		signal(f.reprobe)
		f.wakeAll()
	}
}

// replicasOf are the objects that members are told of, and what they say of clusters. Those that are as they were keep their text.
func (f *Federation) replicasOf(all []*objects.Object, before map[objects.Key]replica) (map[objects.Key]replica, map[string]clusterInfo) {
	replicas, clusters := map[objects.Key]replica{}, map[string]clusterInfo{}
	for _, o := range all {
		switch r := o.Resource.(type) {
		case *v1alpha1.Cluster:
			clusters[o.GetName()] = clusterInfo{primary: r.Spec.Primary, joined: r.Spec.Joined.Time, membership: r.Spec.Key}
		case *v1alpha1.GlobalNamespace:
		default:
			continue
		}
		key := o.Key()
		was, known := before[key]
		text, err := was.text, error(nil)
		if !known || was.object != o {
			text, err = replicaText(o)
		}
		if err != nil || len(replicas) == maxObjects {
			f.counters.add(countReplicaFailures)
			f.config.Log.Error("object not replicated", "object", key.String(), "error", err, "most", maxObjects)
			continue
		}
		replicas[key] = replica{object: o, text: text}
	}
	return replicas, clusters
}

// differingReplicas are those that members have to be told of: new, changed or gone.
func differingReplicas(before, replicas map[objects.Key]replica) []objects.Key {
	var out []objects.Key
	for key, r := range replicas {
		if !bytes.Equal(before[key].text, r.text) {
			out = append(out, key)
		}
	}
	for key := range before {
		if _, there := replicas[key]; !there {
			out = append(out, key)
		}
	}
	return out
}

// endMembers ends the streams of clusters that are no members any more, and forgets what they said; former are the members before. It
// says whether one was forgotten. The caller holds the lock.
func (f *Federation) endMembers(former map[string]clusterInfo) bool {
	// By membership, for the name may be another one's already.
	for _, s := range slices.AppendSeq(slices.Collect(maps.Values(f.streams)), maps.Keys(f.waiting)) {
		if former[s.cluster].membership == s.membership && f.clusters[s.cluster].membership != s.membership {
			s.end(removedError(s.cluster, f.config.Cluster.Name))
		}
	}
	members := make(map[string]bool, len(f.clusters))
	for _, c := range f.clusters {
		members[c.membership] = true
	}
	maps.DeleteFunc(f.rates, func(membership string, _ *rates) bool { return !members[membership] })
	forgotten := false
	for name := range f.peers {
		if _, there := f.clusters[name]; there {
			continue
		}
		s := f.streams[name]
		// One that has only just joined may be newer than these objects; its own stream looks into the store.
		if _, was := former[name]; s != nil && !was {
			continue
		}
		if s != nil {
			s.end(removedError(name, f.config.Cluster.Name))
		}
		delete(f.peers, name)
		f.mark(name)
		forgotten = true
	}
	return forgotten
}

// readReplica reads an object that the primary sent.
func readReplica(text []byte) (*objects.Object, error) {
	o := &objects.Object{}
	if err := json.Unmarshal(text, o); err != nil {
		return nil, err
	}
	if !slices.Contains(Replicated, o.Kind) {
		return nil, fmt.Errorf("a %s is not for the primary to replicate", o.Kind.Kind)
	}
	// Its name becomes a key of the store. What else may be wrong with it, its status says.
	if errs := validation.IsDNS1123Subdomain(o.GetName()); len(errs) > 0 || o.GetNamespace() != "" {
		return nil, fmt.Errorf("%s %q is not named as such objects are", o.Kind.Kind, clip(o.GetNamespace()+"/"+o.GetName()))
	}
	o.Status, o.Version = objects.Status{}, ""
	return o, nil
}

// replicate writes the primary's objects into this cluster's store: all there are when full, else those that changed. The
// writes are made only where something differs, so that an update that says nothing new costs nothing.
func (f *Federation) replicate(ctx context.Context, full bool, fresh map[objects.Key]*objects.Object, gone []objects.Key) error {
	existing := map[objects.Key]*objects.Object{}
	for _, kind := range Replicated {
		all, _, err := f.config.Store.List(ctx, kind, "")
		if err != nil {
			return err
		}
		for _, o := range all {
			existing[o.Key()] = o
		}
	}
	var writes []store.Write
	for key, o := range fresh {
		if old := existing[key]; old != nil {
			before, err := replicaText(old)
			if err != nil {
				return err
			}
			if after, err := replicaText(o); err != nil {
				return err
			} else if bytes.Equal(before, after) {
				continue
			}
		}
		writes = append(writes, store.Write{Key: key, Object: o})
	}
	if full {
		for key := range existing {
			if fresh[key] == nil {
				writes = append(writes, store.Write{Key: key})
			}
		}
	}
	for _, key := range gone {
		if existing[key] != nil {
			writes = append(writes, store.Write{Key: key})
		}
	}
	if n := objectsAfter(existing, writes); n > maxObjects {
		return fmt.Errorf("with the primary's update there are %d objects of the mesh, at most %d are taken", n, maxObjects)
	}
	for from := 0; from < len(writes); from += batchSize {
		if err := f.config.Store.Apply(ctx, writes[from:min(from+batchSize, len(writes))]); err != nil {
			return fmt.Errorf("write the primary's objects: %w", err)
		}
	}
	return nil
}

func keyOf(m *pb.ObjectKey) (objects.Key, bool) {
	for _, kind := range Replicated {
		if m.GetGroup() == kind.Group && m.GetKind() == kind.Kind && len(m.GetName()) <= 253 && m.GetName() != "" {
			return objects.Key{Group: kind.Group, Kind: kind.Kind, Name: m.GetName()}, true
		}
	}
	return objects.Key{}, false
}

// objectsAfter is how many objects there are after these writes, of different keys.
func objectsAfter(existing map[objects.Key]*objects.Object, writes []store.Write) int {
	n := len(existing)
	for _, w := range writes {
		switch {
		case w.Object == nil:
			n--
		case existing[w.Key] == nil:
			n++
		}
	}
	return n
}
