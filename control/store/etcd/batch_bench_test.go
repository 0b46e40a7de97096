package etcd

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/storetest"
)

// openCache is a cache over an embedded store that ends with the benchmark.
func openCache(b *testing.B) *cache.Cache {
	b.Helper()
	s, err := OpenEmbedded(b.Context(), b.TempDir(), openKeys(b, b.TempDir()), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	c, err := cache.Open(b.Context(), cache.Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// What 5000 objects in one batch cost, and one object among them; through the cache, each synced. syncs/op is how often
// etcd's log of what is proposed is synced.
func BenchmarkApply(b *testing.B) {
	c := openCache(b)
	generation := 0
	writes := func(n int) (out []store.Write) {
		generation++
		for i := range n {
			out = append(out, storetest.Put(storetest.Account(b, fmt.Sprintf("a%d", i), fmt.Sprint(generation))))
		}
		return out
	}
	for _, size := range []int{5000, 1} {
		b.Run(fmt.Sprintf("objects=%d", size), func(b *testing.B) {
			before := syncs(b)
			for b.Loop() {
				b.StopTimer()
				w := writes(size)
				b.StartTimer()
				if err := c.Apply(b.Context(), w); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(syncs(b)-before)/float64(b.N), "syncs/op")
		})
	}
}

// syncs is how often members in this process have synced their logs.
func syncs(b *testing.B) uint64 {
	b.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "etcd_disk_wal_fsync_duration_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	b.Fatal("etcd does not count its syncs")
	return 0
}

// What a small batch costs in a store that has many objects of its kind.
func BenchmarkSmallBatchAmongMany(b *testing.B) {
	c := openCache(b)
	batch := func(n, generation int) (out []store.Write) {
		for i := range n {
			out = append(out, storetest.Put(storetest.Account(b, fmt.Sprintf("a%d", i), fmt.Sprint(generation))))
		}
		return out
	}
	if err := c.Apply(b.Context(), batch(20000, 0)); err != nil {
		b.Fatal(err)
	}
	for generation := 1; b.Loop(); generation++ {
		b.StopTimer()
		writes := batch(20, generation)
		b.StartTimer()
		if err := c.Apply(b.Context(), writes); err != nil {
			b.Fatal(err)
		}
	}
}
