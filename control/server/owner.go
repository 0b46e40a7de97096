package server

import (
	"fmt"
	"net/http"
	"slices"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// primarys says whether objects of a kind belong to the primary and are replicated to every member.
func primarys(kind *objects.Kind) bool { return slices.Contains(federation.Replicated, kind) }

// owner is the cluster that an object belongs to: what its label says, for a Workload also spec.cluster; the primary for
// its kinds; else this one.
func (s *Server) owner(o *objects.Object) (string, error) {
	if primarys(o.Kind) {
		return s.config.Federation.Primary(), nil
	}
	owner, err := o.Owner()
	if err != nil {
		return "", err
	}
	if owner == "" {
		return s.config.Cluster, nil
	}
	return owner, nil
}

// foreign is the error about an object that belongs to another cluster.
func (s *Server) foreign(o *objects.Object, owner string) error {
	if primarys(o.Kind) {
		return s.belongsToPrimary(o, owner)
	}
	path := "metadata.labels[" + objects.LabelCluster + "]"
	if o.GetLabels()[objects.LabelCluster] == "" {
		path = "spec.cluster"
	}
	return &objects.Error{File: o.Origin.File, Line: o.FieldLine(path), Object: o.Key(), Path: path,
		Problem: fmt.Sprintf("belongs to cluster %q, this is %q", owner, s.config.Cluster), Remedy: "apply it with --cluster " + owner}
}

func (s *Server) belongsToPrimary(o *objects.Object, primary string) error {
	return &objects.Error{File: o.Origin.File, Line: o.Origin.Line, Object: o.Key(),
		Problem: fmt.Sprintf("belongs to the primary %q and is replicated to %q", primary, s.config.Cluster), Remedy: "use --cluster " + primary}
}

// protect refuses changes of what belongs to the mesh: on a member all of them, on the primary those of who is in it.
func (s *Server) protect(b batch, stored known) []error {
	var errs []error
	for _, o := range b.objects {
		if !primarys(o.Kind) {
			continue
		}
		if primary := s.config.Federation.Primary(); primary != s.config.Cluster {
			errs = append(errs, s.belongsToPrimary(o, primary))
			continue
		}
		if s.config.Federation.Joining() {
			errs = append(errs, &objects.Error{File: o.Origin.File, Line: o.Origin.Line, Object: o.Key(),
				Problem: fmt.Sprintf("belongs to the primary, and %q is joining another mesh", s.config.Cluster), Remedy: "apply it at that mesh's primary, after the join"})
			continue
		}
		c, ok := o.Resource.(*v1alpha1.Cluster)
		if !ok {
			continue
		}
		fail := func(path, problem, remedy string) {
			errs = append(errs, &objects.Error{File: o.Origin.File, Line: o.FieldLine(path), Object: o.Key(), Path: path, Problem: problem, Remedy: remedy})
		}
		old := stored.object(o.Key())
		if old == nil {
			fail("", "is made when a cluster joins, not by hand", "make a token with `heddle cluster token`, and join with it")
			continue
		}
		before, ok := old.Resource.(*v1alpha1.Cluster)
		if ok && (before.Spec.Primary != c.Spec.Primary || before.Spec.Key != c.Spec.Key || !before.Spec.Joined.Equal(&c.Spec.Joined)) {
			fail("spec", "is written when a cluster joins and cannot be changed", "leave it as it is; `heddle cluster remove` takes a cluster out of the mesh")
		}
	}
	return errs
}

// mayDelete refuses the deletion of what the mesh cannot do without here.
func (s *Server) mayDelete(key objects.Key) error {
	kind := objects.KindOf(key.Group, key.Kind)
	if kind == nil || !primarys(kind) {
		return nil
	}
	if primary := s.config.Federation.Primary(); primary != s.config.Cluster {
		return &client.Problem{Status: http.StatusForbidden, What: fmt.Sprintf("it belongs to the primary %q and is replicated to %q", primary, s.config.Cluster), Where: key.String(),
			Remedy: "use --cluster " + primary}
	}
	if kind == objects.Cluster && key.Name == s.config.Cluster {
		return &client.Problem{Status: http.StatusForbidden, What: "the primary cannot be taken out of its own mesh", Where: key.String(), Remedy: "`heddle down` removes the cluster"}
	}
	return nil
}
