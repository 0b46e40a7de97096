package resolve

import (
	"reflect"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// setObject takes an object as it is now.
func (m *Model) setObject(key objects.Key, o *objects.Object) {
	old := m.entries[key]
	if old == nil && o == nil || old != nil && old.object == o {
		return
	}
	if old != nil {
		delete(m.readables, old.object)
		if old.valid {
			m.declare(old.object, -1)
		}
	}
	m.restate(key)
	if key.Kind == objects.Service.Kind {
		m.clusterIPs.Set(key, o)
	}
	if o == nil {
		m.forget(key, old)
		delete(m.entries, key)
		return
	}
	e := old
	if e == nil {
		e = &keptObject{}
		m.entries[key] = e
	}
	e.object, e.said[saidForm] = o, nil
	if o.Unreadable != "" {
		m.forget(key, e)
		b := &builder{m: m, report: recorder{m, saidForm}}
		b.report.refuse(key, "Undecryptable", "", o.Unreadable, "until then it is as if it were not there")
		// Who needs a Secret says why it is of no use.
		if e.valid = o.Kind == objects.Secret; e.valid {
			m.declare(o, 1)
		}
		return
	}
	form, known := m.forms[o]
	if !known {
		form = objects.FormOf(o)
	}
	errs := form.Errors
	created := o.GetCreationTimestamp().Time
	if e.valid = len(errs) == 0; !e.valid {
		m.forget(key, e)
		b := &builder{m: m, report: recorder{m, saidForm}}
		for _, err := range errs {
			b.report.refuse(key, "Invalid", err.Path, err.Problem, err.Remedy)
		}
		return
	}
	if !e.created.Equal(created) {
		// What it makes has another place among its like.
		m.setPart(key, e, nil)
		e.created = created
		if m.before != nil {
			m.moved[key] = true
		}
		m.global.reordered = m.global.reordered || key.Kind == objects.GlobalNamespace.Kind
	}
	if len(form.Ignored) > 0 {
		e.said[saidForm] = &findings{fields: form.Ignored}
	}
	m.setRegexSize(key, e, form.RegexSize)
	m.declare(o, 1)
	m.dirty[stratumOf(key)][key] = struct{}{}
}

// forget takes back all that an object came to.
func (m *Model) forget(key objects.Key, e *keptObject) {
	if e == nil {
		return
	}
	m.setRegexSize(key, e, 0)
	m.setReads(key, e, nil)
	m.setPart(key, e, nil)
	m.setCredentials(e, nil)
	clear(e.said[:])
	e.sections = sections{}
	delete(m.idle, key)
	delete(m.dirty[stratumOf(key)], key)
}

// declare takes note of what an object says by being there, or with -1 by being gone.
func (m *Model) declare(o *objects.Object, by int) {
	key, there := o.Key(), by > 0
	inhabit := func(namespace string) {
		was := m.inhabited[namespace]
		if m.inhabited[namespace] = was + by; was+by == 0 {
			delete(m.inhabited, namespace)
		}
		m.globalsChanged = m.globalsChanged || was == 0 || was+by == 0
	}
	switch o.Kind {
	case objects.Namespace:
		if delete(m.namespaces, key.Name); there {
			m.namespaces[key.Name] = true
		}
		m.touch(fact{kind: factNamespace, a: key.Name})
		inhabit(key.Name)
	case objects.ServiceAccount:
		if delete(m.accounts, key); there {
			m.accounts[key] = true
		}
		m.touch(fact{kind: factAccount, a: key.Namespace, b: key.Name})
	case objects.Secret:
		if delete(m.secrets, key); there {
			m.secrets[key] = o
		}
		m.touch(fact{kind: factSecret, a: key.Namespace, b: key.Name})
		m.publicChanged = true
	case objects.WorkloadGroup:
		if delete(m.groups, key); there {
			m.groups[key] = o
		}
		m.touch(fact{kind: factGroup, a: key.Namespace, b: key.Name})
	case objects.ConfigMap:
		m.touch(fact{kind: factConfigMap, a: key.Namespace, b: key.Name})
	case objects.GatewayClass:
		m.touch(fact{kind: factClass, a: key.Name})
	case objects.ReferenceGrant:
		m.grant(key, o, there)
	case objects.Cluster:
		if delete(m.clusterObjects, key); there {
			m.clusterObjects[key] = o
		}
		m.clustersChanged = true
	case objects.GlobalNamespace:
		if delete(m.globalObjects, key); there {
			m.globalObjects[key] = o
		}
		m.globalsChanged = true
	case objects.Service:
		inhabit(key.Namespace)
	case objects.Workload:
		inhabit(key.Namespace)
		if w, ok := o.Resource.(*v1alpha1.Workload); ok {
			m.workloads.set(key.Namespace, key.Name, w, there)
			m.touchLabels(factWorkload, key.Namespace, w.GetLabels())
		}
	}
}

// setInstance takes a replica as it is now; without an address its agent will tell more.
func (m *Model) setInstance(id string, i *registry.Instance) {
	var r *model.Replica
	if i != nil && i.Address.IsValid() {
		r = replicaOf(*i)
	}
	old := m.replicas.find(id)
	switch {
	case old == nil && r == nil || old != nil && r != nil && reflect.DeepEqual(old, r):
		return
	case old != nil:
		m.setReplica(old, false)
	}
	if r != nil {
		m.setReplica(r, true)
	}
}

// setReplica takes note of a replica that is there, or not any more.
func (m *Model) setReplica(r *model.Replica, there bool) {
	m.replicas.set(r.Namespace, r.Name, r, there)
	m.touchLabels(factReplica, r.Namespace, r.Labels)
	m.changed.replicas.set(r, there)
	if model.Selects(ingressLabels, r.Labels) {
		// Where these are stands in the status of Gateways.
		for _, g := range m.gateways {
			if g.Group != "" {
				m.restate(g.Source.Key)
			}
		}
	}
}
