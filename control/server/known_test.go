package server

import (
	"sync/atomic"
	"testing"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// lookedThrough counts how often everything that is stored was looked at.
type lookedThrough struct {
	store.Batch
	times atomic.Int32
}

func (l *lookedThrough) Objects() []*objects.Object {
	l.times.Add(1)
	return l.Batch.Objects()
}

// A write costs what it changes, whatever else is stored: only what happens to a namespace looks at everything.
func TestAWriteLooksAtNothingElse(t *testing.T) {
	all := &lookedThrough{}
	w := startAll(t, func(s *Server) { all.Batch, s.config.Store = s.config.Store, all })
	for _, step := range []struct {
		name   string
		change func() error
		looks  bool
	}{
		{"apply", func() error { _, err := apply(t, w.client, shop, false); return err }, false},
		{"apply again", func() error { _, err := apply(t, w.client, shop, false); return err }, false},
		{"delete an object", func() error { return w.client.Delete(w.ctx, objects.Service, "shop", "cart") }, false},
		{"delete a namespace", func() error { return w.client.Delete(w.ctx, objects.Namespace, "", "shop") }, true},
	} {
		all.times.Store(0)
		if err := step.change(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if looks := all.times.Load() > 0; looks != step.looks {
			t.Errorf("%s: looks at everything: %t, want %t", step.name, looks, step.looks)
		}
	}
}
