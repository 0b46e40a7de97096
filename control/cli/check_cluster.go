package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
)

// tried makes a finding of what was done: a failure when there is an error.
func tried(subject, name string, err error, detail, remedy string) finding {
	f := finding{Check: agent.Check{Subject: subject, Name: name, How: agent.Tried, OK: err == nil, Detail: detail}}
	if err == nil {
		return f
	}
	// What was asked often knows the remedy, and nothing fails without one.
	var problem *client.Problem
	if errors.As(err, &problem) {
		remedy = cmp.Or(remedy, problem.Remedy)
	}
	f.Detail, f.Remedy = err.Error(), cmp.Or(remedy, "`heddle logs --controller` shows what the controller says")
	return f
}

// said makes a finding of what a part of the cluster says of itself.
func said(subject, name string, err error, detail, remedy string) finding {
	f := tried(subject, name, err, detail, remedy)
	f.How = agent.Read
	return f
}

// warn turns a finding into one that does not count as a failure.
func warn(f finding) finding {
	f.Warning = !f.OK
	return f
}

// unknown turns a finding that does not hold into one that does not tell.
func unknown(f finding) finding {
	f.Unknown = !f.OK
	return f
}

// final turns a finding that does not hold into one that waiting does not heal.
func final(f finding) finding {
	f.final = !f.OK
	return f
}

// checkCluster tries everything in one cluster. A check that cannot be made for want of another's success is left out.
func (s *session) checkCluster(ctx context.Context, name string, settled settledCalls) []finding {
	c, err := s.clientOf(name)
	if err != nil {
		return []finding{final(tried("cluster", "name", err, "", ""))}
	}
	var out []finding
	add := func(subject, name string, err error, detail, remedy string) {
		out = append(out, tried(subject, name, err, detail, remedy))
	}
	status, err := c.Status(ctx)
	add("controller", "answers", err, fmt.Sprintf("pid %d, revision %d, %d objects", status.PID, status.Revision, status.Objects), "`sudo heddle up` repairs the cluster")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			out[0] = final(out[0])
		}
		return out
	}
	if status.Problem != "" {
		out = append(out, said("controller", "state", errors.New(status.Problem), "", "see `heddle logs --controller`"))
	}
	var running agent.Status
	err = c.Do(ctx, http.MethodGet, "/heddle/v1/agent/status", nil, &running)
	add("agent", "answers", err, fmt.Sprintf("pid %d, %d replicas", running.PID, len(running.Replicas)), "`sudo heddle up` starts it again")
	modes, modesErr := peerModes(ctx, c)
	if modesErr != nil {
		add("controller", "lists", modesErr, "", "see `heddle logs --controller`")
	}
	if err == nil {
		var local []agent.Check
		if err := c.Do(ctx, http.MethodGet, "/heddle/v1/agent/checks", nil, &local); err != nil {
			add("agent", "checks", err, "", "see `heddle logs --agent`")
		}
		for _, check := range local {
			if check.Name == "plaintext" {
				check = judgePlaintext(check, running.Replicas, modes)
			}
			out = append(out, finding{Check: check})
		}
	}
	out = append(out, checkProxies(ctx, c)...)
	out = append(out, checkObjects(ctx, c)...)
	out = append(out, checkSecrets(ctx, c)...)
	out = append(out, checkCalls(ctx, c, running.Replicas, modes, settled)...)
	out = append(out, s.checkMesh(ctx, c, name, running.Replicas)...)
	return append(out, checkIngress(ctx, c, name, running.Replicas)...)
}

// checkProxies says which proxies run what was sent to them.
func checkProxies(ctx context.Context, c *client.Client) []finding {
	proxies, err := c.Proxies(ctx)
	if err != nil {
		return []finding{tried("proxies", "synced", err, "", "")}
	}
	var out []finding
	for _, p := range proxies {
		check := agent.Check{Subject: p.Namespace + "/" + p.Name, Name: "synced", How: agent.Read, OK: true, Detail: "runs revision " + strconv.FormatInt(p.Revision, 10)}
		var wrong []string
		for _, kind := range slices.Sorted(maps.Keys(p.Errors)) {
			wrong = append(wrong, kind+": "+p.Errors[kind])
		}
		for _, kind := range proxyTypes {
			if p.Types[kind] == "STALE" {
				wrong = append(wrong, kind+" not acknowledged")
			}
		}
		if !p.Connected {
			wrong = append(wrong, "not connected to the controller")
		}
		if len(wrong) > 0 {
			check.OK, check.Detail = false, strings.Join(wrong, "; ")
			check.Remedy = fmt.Sprintf("`heddle logs -n %s %s --proxy` shows what the proxy says", p.Namespace, p.Name)
		}
		out = append(out, finding{Check: check})
	}
	return out
}

// checkObjects says which objects are not in force.
func checkObjects(ctx context.Context, c *client.Client) []finding {
	var out []finding
	total := 0
	for _, kind := range objects.Kinds {
		list, err := c.List(ctx, kind, "")
		if err != nil {
			return append(out, tried("objects", "list", err, "", ""))
		}
		for _, o := range list.Items {
			total++
			for _, condition := range o.Status.Conditions {
				if condition.Type != objects.ConditionProgrammed && condition.Status == metav1.ConditionFalse {
					out = append(out, said(client.Result{Key: o.Key()}.Name(), condition.Type, errors.New(condition.Message), "", "written at "+o.Origin.String()))
				}
			}
		}
	}
	if len(out) == 0 {
		out = append(out, said("objects", "accepted", nil, fmt.Sprintf("%d, all that they name exists", total), ""))
	}
	return out
}

// checkSecrets has every Secret decrypted, where the cluster encrypts them by itself.
func checkSecrets(ctx context.Context, c *client.Client) []finding {
	status, err := c.Secrets(ctx)
	var problem *client.Problem
	if errors.As(err, &problem) && problem.Status == http.StatusNotImplemented {
		return nil
	}
	remedy := "`heddle secrets status` shows the keys"
	switch {
	case err == nil && status.Secrets == 0:
		return nil
	case err != nil:
	case len(status.Unreadable) > 0:
		first := status.Unreadable[0]
		err = fmt.Errorf("%s cannot be decrypted; %s: %s", count(len(status.Unreadable), "Secret"), first.Secret, first.Why)
	case status.Problem != "":
		err, remedy = errors.New(status.Problem), "restore "+status.File+", or run `heddle secrets rotate`"
	case slices.ContainsFunc(status.Keys, func(k seal.KeyStatus) bool { return k.Kept != "" }):
		err = errors.New("a key of Secrets is in memory only, and lost when the cluster's agent or its machine is started again")
		remedy = "`heddle secrets status` says why; before that, have the key management service back, or run `heddle secrets rotate`, which writes the key to the file again"
	case status.Unsealed > 0:
		err, remedy = fmt.Errorf("%s not encrypted in the store", areIs(status.Unsealed, "Secret")), "run `heddle secrets rotate`"
	}
	return []finding{tried("secrets", "decrypted", err, fmt.Sprintf("%d, all encrypted in the store", status.Secrets), remedy)}
}

// peerModes reads the rules for mutual TLS.
func peerModes(ctx context.Context, c *client.Client) ([]*objects.Object, error) {
	list, err := c.List(ctx, objects.PeerAuthentication, "")
	return list.Items, err
}

// judgePlaintext says whether not refusing plaintext is what the rules ask for.
func judgePlaintext(check agent.Check, replicas []client.Replica, modes []*objects.Object) agent.Check {
	if check.OK {
		return check
	}
	for _, r := range replicas {
		if r.Namespace+"/"+r.State.Name == check.Subject {
			if mode := effectiveMode(r, check.Port, modes); mode != model.MTLSStrict {
				check.OK, check.Unknown, check.Remedy = true, false, ""
				check.Detail += fmt.Sprintf("; mode %s allows it", mode)
			}
		}
	}
	return check
}
