package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// When etcd's database has grown to its quota, etcd raises an alarm and refuses writes until somebody makes room and takes
// the alarm back. Deleting alone does not: what is deleted stays until the history is compacted, and the file keeps its
// size until it is defragmented. An alarm does all of it, once when it is raised, because old history may be all that
// fills the store, and again whenever something was deleted while it stands.
type alarm struct {
	client *clientv3.Client
	log    *slog.Logger
	// defragment a member.
	defragment func(ctx context.Context, endpoint string) error
	// work holds a value when room is to be made; deleted one when something was deleted.
	work, deleted chan struct{}
	stop          context.CancelFunc
	done          chan struct{}
}

const (
	// alarmGather is how long deletions may gather before room is made once for all of them.
	alarmGather = 200 * time.Millisecond
	// alarmPause is between attempts to make room that nothing was deleted for.
	alarmPause = 10 * time.Second
	// alarmLimit bounds one attempt. To defragment takes seconds per gigabyte.
	alarmLimit = 2 * time.Minute
)

func newAlarm(client *clientv3.Client, log *slog.Logger, defragment func(ctx context.Context, endpoint string) error) *alarm {
	ctx, stop := context.WithCancel(context.Background())
	a := &alarm{client: client, log: log, defragment: defragment, work: make(chan struct{}, 1), deleted: make(chan struct{}, 1), stop: stop, done: make(chan struct{})}
	go a.run(ctx)
	// One that stands since before this process: what was deleted then may have made no room yet.
	a.raise()
	return a
}

// close ends it.
func (a *alarm) close() {
	a.stop()
	<-a.done
}

// raise says that a write was refused for want of room.
func (a *alarm) raise() { offer(a.work) }

// freed says that something was deleted.
func (a *alarm) freed() { offer(a.deleted) }

func offer(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

func (a *alarm) run(ctx context.Context) {
	defer close(a.done)
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.work:
		}
		for {
			standing, err := a.makeRoom(ctx)
			if err != nil && ctx.Err() == nil {
				a.log.Error("no room was made in the store", "error", err)
			}
			if !standing {
				break
			}
			next = time.Now().Add(alarmPause)
			pause := time.NewTimer(time.Until(next))
			select {
			case <-ctx.Done():
				pause.Stop()
				return
			case <-pause.C:
			case <-a.deleted:
				pause.Reset(alarmGather)
				select {
				case <-ctx.Done():
					pause.Stop()
					return
				case <-pause.C:
				}
			}
		}
	}
}

// despite gives the revision of a put that etcd refused for want of room and made all the same, and the refusal if it was
// not made: a request that has room when it is taken and none when it is applied is applied, and answered with the error
// (etcd's quotaApplierV3). The key has exactly the value then, and had the version before that the writer demands, if any.
func (s *Store) despite(ctx context.Context, refusal error, key, value string, demanded objects.Version) (int64, error) {
	if !errors.Is(refusal, rpctypes.ErrNoSpace) {
		return 0, s.translate(refusal)
	}
	// Last: making room drops the versions before.
	defer s.full.raise()
	got, err := s.client.Get(ctx, key)
	if err != nil {
		return 0, s.translate(err)
	}
	if len(got.Kvs) == 0 || string(got.Kvs[0].Value) != value {
		return 0, s.translate(refusal)
	}
	revision := got.Kvs[0].ModRevision
	if demanded == "" {
		return revision, nil
	}
	got, err = s.client.Get(ctx, key, clientv3.WithRev(revision-1))
	if err != nil {
		return 0, fmt.Errorf("%w: whether it was written is not known: %w", store.ErrUnavailable, err)
	}
	before := store.Absent
	if len(got.Kvs) > 0 {
		_, before = stored(got.Kvs[0])
	}
	if before != demanded {
		return 0, s.translate(refusal)
	}
	return revision, nil
}

// makeRoom compacts the history, defragments the members, and takes the alarm back when that was enough. It says whether
// the alarm still stands.
func (a *alarm) makeRoom(ctx context.Context) (standing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, alarmLimit)
	defer cancel()
	list, err := a.client.AlarmList(ctx)
	if err != nil {
		return true, fmt.Errorf("ask for alarms: %w", err)
	}
	var full []*pb.AlarmMember
	for _, m := range list.Alarms {
		if m.Alarm == pb.AlarmType_NOSPACE {
			full = append(full, m)
		}
	}
	if len(full) == 0 {
		return false, nil
	}
	got, err := a.client.Get(ctx, root, clientv3.WithCountOnly())
	if err != nil {
		return true, fmt.Errorf("ask for the revision: %w", err)
	}
	if _, err := a.client.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !isCompacted(err) {
		return true, fmt.Errorf("compact: %w", err)
	}
	endpoints := a.client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // The member inside this process.
	}
	used := 0.0
	for _, endpoint := range endpoints {
		if err := a.defragment(ctx, endpoint); err != nil {
			return true, fmt.Errorf("defragment %s: %w", endpoint, err)
		}
		status, err := a.client.Status(ctx, endpoint)
		if err != nil {
			return true, fmt.Errorf("ask for the size of %s: %w", endpoint, err)
		}
		if status.DbSizeQuota > 0 {
			used = max(used, float64(status.DbSize)/float64(status.DbSizeQuota))
		}
	}
	if used > roomForWrites {
		return true, nil
	}
	for _, m := range full {
		if _, err := a.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: m.MemberID, Alarm: m.Alarm}); err != nil {
			return true, fmt.Errorf("take the alarm back: %w", err)
		}
	}
	a.log.Info("the store has room again", "used", fmt.Sprintf("%.0f%%", 100*used))
	return false, nil
}

// roomForWrites is the part of the quota that may be used for the alarm to be taken back: less would raise it again with
// the next batch.
const roomForWrites = 0.9
