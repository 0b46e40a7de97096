// Package etcd keeps objects in etcd: a member inside this process by default, or an external cluster. It is the only
// package that knows etcd.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"heddle.io/heddle/control/seal"
)

const (
	// startLimit bounds the wait for the embedded member, which needs well under a second unless the disk is stuck.
	startLimit = 30 * time.Second
	// maxObjectBytes is the largest object: what etcd takes by default (1.5 MiB) without the request around it, and what
	// Kubernetes takes.
	maxObjectBytes = 1400 << 10
	// maxRequestBytes is etcd's own default: an object that fits here fits into any cluster.
	maxRequestBytes = 1536 << 10
	// quotaBytes is the size at which etcd stops taking writes.
	quotaBytes = 2 << 30
	// history is how long old revisions are kept for watches that fell behind.
	history = "10m"
)

// OpenEmbedded starts an etcd member in this process with its data below dir, and opens the store on it, which seals
// Secrets with the keys. The member listens on no port: clients in this process are its only ones. Without a log, what ends
// the process is said on standard error.
func OpenEmbedded(ctx context.Context, dir string, keys *seal.Ring, log *zap.Logger) (*Store, error) {
	return openEmbedded(ctx, dir, keys, log, quotaBytes)
}

func openEmbedded(ctx context.Context, dir string, keys *seal.Ring, log *zap.Logger, quota int64) (*Store, error) {
	if log == nil {
		// etcd ends the process by its log: why it did must not be lost.
		log = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewProductionEncoderConfig()), zapcore.Lock(os.Stderr), zap.DPanicLevel))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store directory %s: %w", dir, err)
	}
	place := newDisk(dir)
	if err := place.prepare(); err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Name, config.Dir = "heddle", filepath.Join(dir, "etcd")
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	// One member elects itself: short ticks only shorten the start.
	config.TickMs, config.ElectionMs = 10, 100
	config.MaxRequestBytes, config.QuotaBackendBytes = maxRequestBytes, quota
	config.AutoCompactionMode, config.AutoCompactionRetention = "periodic", history
	config.ListenPeerUrls, config.ListenClientUrls = nil, nil
	// A name for the member list only; nothing listens there.
	peer := url.URL{Scheme: "http", Host: "localhost:2380"}
	config.AdvertisePeerUrls, config.AdvertiseClientUrls = []url.URL{peer}, nil
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	first := newBeginning(dir, config.Dir)
	if err := first.prepare(); err != nil {
		return nil, err
	}
	member, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w; when another controller uses this directory, stop it first", config.Dir, err)
	}
	select {
	case <-member.Server.ReadyNotify():
	case <-ctx.Done():
		member.Close()
		return nil, ctx.Err()
	case err := <-member.Err():
		member.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", config.Dir, err)
	case <-time.After(startLimit):
		member.Close()
		return nil, fmt.Errorf("etcd in %s is not ready after %v: check that the disk answers", config.Dir, startLimit)
	}
	if err := first.done(); err != nil {
		member.Close()
		return nil, err
	}
	s := &Store{client: v3client.New(member.Server), keys: keys, stop: member.Close, room: place.room, endpoints: []string{""}}
	return s.opened(ctx, 0, func(context.Context, string) error { return member.Server.Backend().Defrag() })
}

// opened checks what is in the store within a time, zero for any, and closes it when that cannot be used. The first key is
// made after that: a key management service has a time of its own (package seal).
func (s *Store) opened(ctx context.Context, limit time.Duration, defragment func(ctx context.Context, endpoint string) error) (*Store, error) {
	s.defragment = defragment
	s.full = newAlarm(s.client, slog.Default(), defragment)
	checking, cancel := ctx, context.CancelFunc(func() {})
	if limit > 0 {
		checking, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	err := s.checkFormat(checking)
	if err == nil {
		err = s.claimKeys(checking)
	}
	var first bool
	if err == nil {
		first, err = s.wantsFirstKey(checking)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if first {
		if err := s.keys.Add(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", errFirstKey, err), s.Close())
		}
	}
	return s, nil
}

// errFirstKey: the store answers, and there is no key to seal Secrets with.
var errFirstKey = errors.New("the first key of Secrets cannot be made")
