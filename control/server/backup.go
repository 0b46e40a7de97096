package server

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/backup"
)

// handleBackup answers with a file as package backup has it.
func (s *Server) handleBackup(w http.ResponseWriter, r *http.Request) {
	var file bytes.Buffer
	err := s.recorded(r.Context(), audit.Record{Action: audit.TakeBackup}, func() (string, error) {
		n, err := backup.Write(r.Context(), &file, s.config.Store, backup.Header{Cluster: s.config.Cluster, Version: s.config.Version, Taken: s.config.Now().UTC()})
		return fmt.Sprintf("%d objects", n), err
	})
	if err != nil {
		refuseError(w, "no backup was taken", "", err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(file.Len()))
	// A client that went away sees by the digest that its file is cut.
	_, _ = w.Write(file.Bytes())
}

// handleRestore makes the objects what a backup says: what is not in it is deleted.
func (s *Server) handleRestore(w http.ResponseWriter, r *http.Request) {
	const what = "nothing was restored"
	var request client.RestoreRequest
	if err := decode(r, &request); err != nil {
		refuseError(w, what, "", err)
		return
	}
	header, exported, err := backup.Read(request.Backup)
	if err != nil {
		refuse(w, &client.Problem{Status: http.StatusUnprocessableEntity, What: what, Why: err.Error(), Remedy: "give a file that `heddle backup` wrote, as it was written"})
		return
	}
	if header.Cluster != s.config.Cluster {
		refuse(w, &client.Problem{Status: http.StatusConflict, What: what, Why: fmt.Sprintf("the backup is of cluster %q, and this is %q", header.Cluster, s.config.Cluster), Remedy: "make a cluster of that name: `heddle up --name " + header.Cluster + "`"})
		return
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.finish(r.Context()); err != nil {
		refuseError(w, what, "", err)
		return
	}
	writes, response, err := s.restoring(exported)
	if err != nil {
		refuse(w, &client.Problem{Status: http.StatusUnprocessableEntity, What: what, Why: err.Error(), Remedy: "secrets open only with the key of the store that they were backed up from: put its store/secrets.key into this cluster's data directory while it is stopped"})
		return
	}
	if response.Changed+response.Deleted > 0 && !request.Replace {
		refuse(w, &client.Problem{Status: http.StatusConflict, What: what, Why: fmt.Sprintf("the cluster has objects: %d would be changed and %d deleted", response.Changed, response.Deleted), Remedy: "take a backup of them, and say --replace"})
		return
	}
	if writes, err = s.admitRestore(writes, request.Force); err != nil {
		refuseError(w, what, "", err)
		return
	}
	response.Taken, response.Version = header.Taken, header.Version
	if len(writes) > 0 {
		err = s.recorded(r.Context(), audit.Record{Action: audit.RestoreBackup, Detail: fmt.Sprintf("backup of %s; %d created, %d changed, %d deleted%s", header.Taken.Format("2006-01-02T15:04:05Z07:00"), response.Created, response.Changed, response.Deleted, forced(request.Force))}, func() (string, error) {
			return "", s.config.Store.Apply(r.Context(), writes)
		})
	}
	if err != nil {
		refuseError(w, what, "", err)
		return
	}
	reply(w, response)
}

func forced(force bool) string {
	if force {
		return ", forced"
	}
	return ""
}

// admitRestore checks what is restored as what is applied is: the whole as one batch, against what is there. A backup may hold
// what would be refused today, because others have come between or another version of Heddle took it; with force, such an
// object is stored as it is, in force only as far as it can be, and its status says why. What runs as whom is not forced: who
// has not allowed it today has not.
func (s *Server) admitRestore(writes []store.Write, force bool) ([]store.Write, error) {
	var b batch
	for _, w := range writes {
		if w.Object == nil {
			b.deletes = append(b.deletes, w.Key)
		} else {
			b.objects = append(b.objects, w.Object)
		}
	}
	stored := s.known()
	if errs := s.confine(b, stored); len(errs) > 0 {
		return nil, refusedRestore(errs, "allow it first: apply the Namespace with the label "+access.LabelPrivileged+": \"true\", or start the cluster with --privileged-workloads; --force does not")
	}
	admitted, _, found := s.config.Controller.Admit(writes)
	if errs := append(s.protect(b, stored), found...); len(errs) > 0 {
		if !force {
			return nil, refusedRestore(errs, "take care of what is in its way, or say --force: then these objects are stored too, not in force as far as they are refused, and their statuses say why")
		}
		return writes, nil
	}
	return admitted, nil
}

func refusedRestore(errs []error, remedy string) *client.Problem {
	problem := invalid(errs)
	problem.What = fmt.Sprintf("nothing was restored: %d objects of the backup would be refused", len(errs))
	if len(errs) == 1 {
		problem.What = "nothing was restored: 1 object of the backup would be refused"
	}
	problem.Remedy = remedy
	return problem
}

// restoring says what to write to have what was exported. The cluster itself, and its own namespaces, are never deleted.
// Tokens stay as they are, and so do the mesh's members, but for those that are missing; on a member, everything that
// belongs to the primary.
func (s *Server) restoring(exported []store.Exported) ([]store.Write, client.RestoreResponse, error) {
	var response client.RestoreResponse
	all := s.config.Store.Objects()
	sortByKey(all)
	existing := make(map[objects.Key]*objects.Object, len(all))
	for _, o := range all {
		existing[o.Key()] = o
	}
	own := objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: s.config.Cluster}
	builtin := func(key objects.Key) bool {
		return key == own || key.Group == objects.Namespace.Group && key.Kind == objects.Namespace.Kind && slices.Contains(builtinNamespaces, key.Name)
	}
	var writes []store.Write
	wanted := map[objects.Key]bool{}
	for _, e := range exported {
		o, err := s.config.Store.Import(e)
		if err != nil {
			return nil, response, err
		}
		key := o.Key()
		wanted[key] = true
		old := existing[key]
		switch {
		case systems(o):
			// A token that was revoked, or used, since then is not to come back to life.
			continue
		case key == own && old != nil:
			continue
		case primarys(o.Kind) && s.config.Federation.Primary() != s.config.Cluster:
			// The primary tells it.
			continue
		case old != nil && same(o, old):
			continue
		case old == nil:
			response.Created++
		case !builtin(key):
			response.Changed++
		}
		writes = append(writes, store.Write{Key: key, Object: o})
	}
	for _, o := range all {
		key := o.Key()
		if o.Kind == objects.Cluster || primarys(o.Kind) && s.config.Federation.Primary() != s.config.Cluster {
			continue // Who joined since then has not left by that.
		}
		if !wanted[key] && !builtin(key) && !systems(o) {
			response.Deleted++
			writes = append(writes, store.Write{Key: key})
		}
	}
	return writes, response, nil
}
