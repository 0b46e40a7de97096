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
	clusters := map[string]clusterInfo{}
	replicas, differing := map[objects.Key]replica{}, map[objects.Key]bool{}
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
		if !bytes.Equal(was.text, text) {
			differing[key] = true
		}
	}
	for key := range before {
		if _, there := replicas[key]; !there {
			differing[key] = true
		}
	}
	regroup := func(key objects.Key) bool { return key.Kind == objects.GlobalNamespace.Kind }
	if !isMember && slices.ContainsFunc(slices.Collect(maps.Keys(differing)), regroup) {
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
	same := len(differing) == 0
	for _, s := range f.streams {
		for key := range differing {
			s.due.object(key)
		}
		s.due.everyPeer = s.due.everyPeer || sharing != f.sharing
	}
	if sharing != f.sharing {
		f.sharing = sharing
		for _, e := range f.book {
			e.stale = true
		}
	}
	// By membership, for the name may be another one's already.
	for _, s := range slices.AppendSeq(slices.Collect(maps.Values(f.streams)), maps.Keys(f.waiting)) {
		if former[s.cluster].membership == s.membership && clusters[s.cluster].membership != s.membership {
			s.end(removedError(s.cluster, f.config.Cluster.Name))
		}
	}
	members := make(map[string]bool, len(clusters))
	for _, c := range clusters {
		members[c.membership] = true
	}
	maps.DeleteFunc(f.rates, func(membership string, _ *rates) bool { return !members[membership] })
	for name := range f.book {
		if _, there := clusters[name]; there {
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
		delete(f.book, name)
		f.mark(name)
		same = false
	}
	if !same {
		signal(f.reroot)
		signal(f.unkept)
		signal(f.reprobe)
		f.wakeAll()
	}
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
