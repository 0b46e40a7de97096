package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// reportInterval is between looks at the counters of questions that were not answered.
const reportInterval = time.Minute

// Config of a DNS process.
type Config struct {
	// Address to listen on, host:port.
	Address string
	// Table is the file that the agent writes; it is read again whenever it changes.
	Table string
	// Upstreams are host:port of the resolvers for foreign names.
	Upstreams []string
	Log       *slog.Logger
}

// Run serves from a table's file until ctx ends. It is a process of its own, so that names resolve while there is no
// agent: the last known table stays in force.
func Run(ctx context.Context, config Config) error {
	changes, err := watch(ctx, config.Table)
	if err != nil {
		return err
	}
	server, err := Listen(config.Address, config.Upstreams)
	if err != nil {
		return err
	}
	defer server.Close()
	load := func() {
		switch table, err := ReadTable(config.Table); {
		case err == nil:
			server.Set(table)
		case !errors.Is(err, os.ErrNotExist):
			config.Log.Error("names not read; the ones before stay", "error", err)
		}
	}
	load()
	config.Log.Info("answering names", "address", server.Address(), "resolvers", config.Upstreams)
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	var told uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-changes:
			if !ok {
				return fmt.Errorf("watch %s: ended", config.Table)
			}
			if err != nil {
				return err
			}
			load()
		case <-ticker.C:
			c := &server.Counters
			if lost := c.Failed.Load() + c.Refused.Load() + server.streams.Refused.Load(); lost != told {
				told = lost
				config.Log.Warn("questions without an answer", "failed", c.Failed.Load(), "refused", c.Refused.Load(), "connections_refused", server.streams.Refused.Load(),
					"answered", c.Answered.Load(), "negative", c.Negative.Load(), "forwarded", c.Forwarded.Load())
			}
		}
	}
}

// watch tells when a file has been replaced (inotify(7)), until ctx ends or an error.
func watch(ctx context.Context, path string) (<-chan error, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	// Non-blocking, so that closing it ends a read.
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_MOVED_TO); err != nil {
		events.Close()
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	context.AfterFunc(ctx, func() { events.Close() })
	changes := make(chan error, 1)
	go func() {
		defer close(changes)
		// What changed does not matter: looking at the file again when another one changed does no harm.
		buffer := make([]byte, 4096)
		for {
			_, err := events.Read(buffer)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				err = fmt.Errorf("watch %s: %w", path, err)
			}
			select {
			case changes <- err:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return changes, nil
}
