package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// share is what one cluster gets of a batch.
type share struct {
	cluster   string
	manifests []client.Manifest
	// others says that the manifests may hold objects of other clusters, which are passed over.
	others bool
}

// chosen says that the user chose a cluster for this command, or works with one of another machine.
func (s *session) chosen() bool {
	if s.clusterName != "" || s.contextChosen() != "" || os.Getenv("HEDDLE_CLUSTER") != "" {
		return true
	}
	remote, err := s.remote()
	return err == nil && remote != nil
}

// clientOf talks to a cluster: that of the current context when it is a remote one, else one of this machine.
func (s *session) clientOf(name string) (*client.Client, error) {
	remote, err := s.remote()
	if err != nil {
		return nil, err
	}
	if remote != nil && remote.Cluster == name {
		return remote.client()
	}
	c, err := cluster.New(name)
	if err != nil {
		return nil, err
	}
	return s.connect(c.APISocket()), nil
}

// shares says which cluster gets which objects. A cluster that the user chose gets all. Otherwise an object goes to the
// cluster that its label names (a Workload's also: its spec.cluster), a Cluster or GlobalNamespace to the primary, and any
// other to the current context's cluster. With onlyHere, objects of clusters that do not run on this machine are passed
// over instead of refused.
func (s *session) shares(ctx context.Context, manifests []client.Manifest, onlyHere bool) ([]share, error) {
	if s.chosen() {
		c, err := s.cluster()
		return []share{{cluster: c.Name, manifests: manifests, others: onlyHere}}, err
	}
	var all []*objects.Object
	var errs []error
	parts := make([][]part, len(manifests))
	for i, m := range manifests {
		found, problems := objects.Decode(strings.NewReader(m.Content), m.File, s.namespace)
		all, errs = append(all, found...), append(errs, problems...)
		parts[i] = divide(m.Content, found)
	}
	owners, problems := ownersOf(all)
	if errs = append(errs, problems...); len(errs) > 0 {
		return nil, invalidManifests(errs)
	}
	if err := s.completeOwners(ctx, all, owners); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		// Nothing is in the manifests: that is for the server to say.
		c, err := s.cluster()
		return []share{{cluster: c.Name, manifests: manifests}}, err
	}
	mine, err := s.present(all, owners, onlyHere)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range mine {
		if !slices.Contains(names, owners[o]) {
			names = append(names, owners[o])
		}
	}
	slices.Sort(names)
	var out []share
	for _, name := range names {
		sh := share{cluster: name, others: len(names) > 1 || len(mine) < len(all)}
		for i, m := range manifests {
			content, left, err := cut(parts[i], owners, name)
			if err != nil {
				return nil, err
			}
			if left {
				sh.manifests = append(sh.manifests, client.Manifest{File: m.File, Content: content})
			}
		}
		out = append(out, sh)
	}
	return out, nil
}

// ownersOf reads the cluster that each object names; "" for none.
func ownersOf(all []*objects.Object) (map[*objects.Object]string, []error) {
	owners := map[*objects.Object]string{}
	var errs []error
	for _, o := range all {
		owner, err := o.Owner()
		if err != nil {
			errs = append(errs, err)
		}
		owners[o] = owner
	}
	return owners, errs
}

// completeOwners gives the objects that name no cluster to the current one, those of the whole mesh to its primary.
func (s *session) completeOwners(ctx context.Context, all []*objects.Object, owners map[*objects.Object]string) error {
	current, primary := "", ""
	for _, o := range all {
		if owners[o] != "" {
			continue
		}
		if current == "" {
			c, err := s.cluster()
			if err != nil {
				return unowned(err, o)
			}
			current = c.Name
		}
		owners[o] = current
		if o.Kind != objects.Cluster && o.Kind != objects.GlobalNamespace {
			continue
		}
		if primary == "" {
			var err error
			if primary, err = s.primaryOf(ctx, current); err != nil {
				return err
			}
		}
		// Without the primary at hand, the server of a member says best why it refuses.
		if slices.Contains(s.contexts.clusters(), primary) {
			owners[o] = primary
		}
	}
	return nil
}

// unowned adds to the reason why there is no current cluster what it would be needed for.
func unowned(err error, o *objects.Object) error {
	var problem *client.Problem
	if !errors.As(err, &problem) {
		return err
	}
	out := *problem
	out.Why = fmt.Sprintf("%s (%s) names no cluster", o.Key(), o.Origin)
	out.Remedy += ", or give the object the label " + objects.LabelCluster
	return &out
}

func (s *session) primaryOf(ctx context.Context, name string) (string, error) {
	c, err := s.clientOf(name)
	if err != nil {
		return "", err
	}
	mesh, err := c.Federation(ctx)
	return mesh.Primary, err
}

// present returns the objects whose clusters run on this machine. Others are refused, or passed over with a note.
func (s *session) present(all []*objects.Object, owners map[*objects.Object]string, onlyHere bool) ([]*objects.Object, error) {
	here := s.contexts.clusters()
	var mine []*objects.Object
	missing := map[string][]*objects.Object{}
	for _, o := range all {
		if name := owners[o]; slices.Contains(here, name) {
			mine = append(mine, o)
		} else {
			missing[name] = append(missing[name], o)
		}
	}
	switch {
	case len(missing) == 0:
		return mine, nil
	case !onlyHere:
		return nil, elsewhere(missing, here)
	case len(mine) == 0:
		return nil, &client.Problem{What: "nothing was changed: no object belongs to a cluster that runs on this machine", Why: "they belong to " + list(slices.Sorted(maps.Keys(missing))) + "; clusters here: " + list(here)}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		fmt.Fprintf(s.err, "%s of cluster %s passed over\n", count(len(missing[name]), "object"), name)
	}
	return mine, nil
}

// elsewhere says whose clusters do not run on this machine.
func elsewhere(missing map[string][]*objects.Object, here []string) error {
	problem := &client.Problem{What: "nothing was changed: some objects belong to a cluster that does not run on this machine"}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		o := missing[name][0]
		more := ""
		if n := len(missing[name]) - 1; n > 0 {
			more = fmt.Sprintf(", as %d more objects do", n)
			if n == 1 {
				more = ", as one more object does"
			}
		}
		problem.Errors = append(problem.Errors, objects.Error{File: o.Origin.File, Line: o.FieldLine("metadata.labels"), Object: o.Key(),
			Problem: fmt.Sprintf("belongs to cluster %q%s", name, more)})
	}
	problem.Why = "clusters here: " + list(here)
	problem.Remedy = "run the same command with --here on this machine and on theirs, or start the cluster here with `sudo heddle up --name <cluster> --isolated --join ...`"
	if len(here) == 0 {
		problem.Remedy = "start a cluster with `sudo heddle up --name <cluster>`"
	}
	return problem
}

// invalidManifests is the answer to manifests with errors, in the server's words.
func invalidManifests(errs []error) error {
	problem := &client.Problem{What: "nothing was changed: " + count(len(errs), "error"), Remedy: "correct them and try again"}
	if len(errs) == 1 {
		problem.Remedy = "correct it and try again"
	}
	for _, err := range errs {
		var e *objects.Error
		if !errors.As(err, &e) {
			e = &objects.Error{Problem: err.Error()}
		}
		problem.Errors = append(problem.Errors, *e)
	}
	return problem
}

// part is one document of a manifest with the objects that are in it.
type part struct {
	text    string
	objects []*objects.Object
}

// divide cuts a manifest at its document markers (YAML 1.2, section 9.1.2), as objects.Decode does.
func divide(content string, found []*objects.Object) []part {
	var parts []part
	first, line := 1, 0
	var text strings.Builder
	end := func() {
		p := part{text: text.String()}
		for _, o := range found {
			if o.Origin.Line >= first && o.Origin.Line <= line {
				p.objects = append(p.objects, o)
			}
		}
		parts = append(parts, p)
		text.Reset()
		first = line + 1
	}
	for l := range strings.Lines(content) {
		if marker := strings.TrimRight(l, "\r\n"); text.Len() > 0 && (marker == "---" || strings.HasPrefix(marker, "--- ")) {
			end()
		}
		line++
		text.WriteString(l)
	}
	end()
	return parts
}

// cut leaves of a manifest what belongs to a cluster. Every line stays where it is, so that messages and origins name the
// right one. left says that something is left.
func cut(parts []part, owners map[*objects.Object]string, name string) (content string, left bool, err error) {
	var out strings.Builder
	for i, p := range parts {
		var mine []*objects.Object
		for _, o := range p.objects {
			if owners[o] == name {
				mine = append(mine, o)
			}
		}
		lines := strings.Count(p.text, "\n")
		switch {
		case len(mine) == 0:
			out.WriteString(strings.Repeat("\n", lines))
			continue
		case len(mine) == len(p.objects):
			out.WriteString(p.text)
		default:
			// A List with objects of several clusters: those of this one, on the document's first line.
			text, err := oneLine(mine)
			if err != nil {
				return "", false, err
			}
			if i > 0 {
				out.WriteString("--- ")
			}
			out.WriteString(text + strings.Repeat("\n", max(lines, 1)))
		}
		left = true
	}
	return out.String(), left, nil
}

// oneLine writes objects as a List in one line of JSON, which is YAML too.
func oneLine(objs []*objects.Object) (string, error) {
	items := make([]map[string]any, 0, len(objs))
	for _, o := range objs {
		document, err := o.Document()
		if err != nil {
			return "", err
		}
		items = append(items, document)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return "", fmt.Errorf("divide a List: %w", err)
	}
	return string(text), nil
}

// writeShares makes the changes in every cluster, after all of them have agreed to theirs.
func (s *session) writeShares(ctx context.Context, shares []share, request client.ApplyRequest) error {
	responses := make([]client.ApplyResponse, len(shares))
	rounds := []bool{request.DryRun}
	if len(shares) > 1 && !request.DryRun {
		rounds = []bool{true, false}
	}
	for _, dry := range rounds {
		for i, sh := range shares {
			c, err := s.clientOf(sh.cluster)
			if err != nil {
				return err
			}
			request.Manifests, request.SkipOthers, request.DryRun = sh.manifests, sh.others, dry
			if responses[i], err = c.Apply(ctx, request); err != nil {
				if len(shares) == 1 {
					return err
				}
				return shareProblem(err, shares, i, dry)
			}
		}
	}
	for i, sh := range shares {
		where := ""
		if len(shares) > 1 {
			where = sh.cluster
		}
		s.printResults(responses[i], where)
	}
	return nil
}

// shareProblem says in which cluster something went wrong, and what was done before.
func shareProblem(err error, shares []share, failed int, dry bool) error {
	problem := &client.Problem{What: err.Error()}
	var known *client.Problem
	if errors.As(err, &known) {
		*problem = *known
	}
	problem.What = "cluster " + shares[failed].cluster + ": " + problem.What
	var done []string
	for _, sh := range shares[:failed] {
		done = append(done, sh.cluster)
	}
	note := "no cluster was changed"
	if !dry && len(done) > 0 {
		note = strings.Join(done, ", ") + " was changed already; repeat the command when the cause is gone, what is done stays"
	}
	if problem.Remedy != "" {
		note = problem.Remedy + " (" + note + ")"
	}
	problem.Remedy = note
	return problem
}
