package cli

import (
	"context"
	"fmt"
	"strings"

	"heddle.io/heddle/control/server/client"
)

// replicasOf finds running replicas by a workload's or a replica's name, optionally after "workload/" and with its
// namespace in front: "cartservice", "cartservice-0", "pinnacle/cartservice-0", "wl/cartservice".
func (s *session) replicasOf(ctx context.Context, c *client.Client, name string) ([]client.Replica, error) {
	namespace := s.namespaceOr()
	if before, after, ok := strings.Cut(name, "/"); ok {
		name = after
		switch strings.ToLower(before) {
		case "workload", "workloads", "wl":
		default:
			if s.namespace != "" && s.namespace != before {
				return nil, usageError{fmt.Errorf("-n %s and %s/%s name different namespaces", s.namespace, before, after)}
			}
			namespace = before
		}
	}
	all, err := c.Replicas(ctx)
	if err != nil {
		return nil, err
	}
	var found []client.Replica
	var elsewhere []string
	for _, r := range all {
		if r.Workload != name && r.State.Name != name {
			continue
		}
		if r.Namespace == namespace {
			found = append(found, r)
		} else {
			elsewhere = append(elsewhere, r.Namespace)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	problem := &client.Problem{What: fmt.Sprintf("no replica of %q runs", name), Where: "namespace " + namespace, Remedy: "`heddle ps -A` lists what runs"}
	if len(elsewhere) > 0 {
		problem.Remedy = fmt.Sprintf("it runs in namespace %s: add -n %s", elsewhere[0], elsewhere[0])
	}
	return nil, problem
}
