package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable/faults"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// controllerEnvironment holds the directory of a process that is a controller until it is killed.
const controllerEnvironment = "HEDDLE_TEST_CONTROLLER"

// killsEnvironment says how often the controller is killed; shortKills without it. 200 take some five minutes.
const (
	killsEnvironment = "HEDDLE_TEST_KILLS"
	shortKills       = 8
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(controllerEnvironment); dir != "" {
		err := error(nil)
		if os.Getenv(diskEnvironment) != "" {
			err = faults.Enter(diskSocket)
		}
		if err == nil {
			err = runController(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// killedCluster is the cluster whose controller is killed.
func killedCluster(dir string) (cluster.Cluster, error) {
	c, err := cluster.New("killed")
	c.DataRoot, c.RunRoot = filepath.Join(dir, "lib"), filepath.Join(dir, "run")
	return c, err
}

func runController(dir string) error {
	c, err := killedCluster(dir)
	if err != nil {
		return err
	}
	return Run(context.Background(), Config{Cluster: c, Version: "test", Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }})
}

// written is one generation: objects of several kinds, a sealed one among them.
const written = `apiVersion: v1
kind: ServiceAccount
metadata: { name: part-%[1]d, labels: { n: "%[2]d" } }
---
apiVersion: v1
kind: Secret
metadata: { name: part-%[1]d, labels: { n: "%[2]d" } }
stringData: { word: "%[2]d" }
---
apiVersion: v1
kind: Service
metadata: { name: part-%[1]d, labels: { n: "%[2]d" } }
spec: { selector: { app: a }, ports: [{ name: http, port: 80 }] }
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: part-%[1]d, labels: { n: "%[2]d" } }
spec:
  hosts: [part-%[1]d]
  http: [{ route: [{ destination: { host: part-%[1]d } }] }]
`

var writtenKinds = []*objects.Kind{objects.ServiceAccount, objects.Secret, objects.Service, objects.VirtualService}

// writers write at once, each its own objects.
const writers = 3

// TestKilledControllerLosesNothing kills a controller while it takes writes through its API, again and again. What it acknowledged
// is there when the next one answers, and of every batch all or nothing: batches, single objects and what was deleted.
func TestKilledControllerLosesNothing(t *testing.T) {
	rounds := roundsOf(t, killsEnvironment, shortKills)
	dir, c := controllerDirectory(t)
	var all [writers]writer
	for i := range all {
		all[i] = writer{client: c, number: i}
	}
	acknowledged := 0
	for round := range rounds {
		p := startController(t, dir, nil)
		if err := answering(t, c, p); err != nil {
			_ = p.Process.Kill()
			t.Fatalf("round %d: %v: %s", round, err, p.problems.String())
		}
		for i := range all {
			if err := all[i].look(t.Context()); err != nil {
				t.Errorf("round %d: writer %d: %v", round, i, err)
			}
		}
		done := make(chan int, writers)
		ack := make(chan struct{}, 1<<10)
		for i := range all {
			go func() { done <- all[i].write(t.Context(), ack) }()
		}
		// At another moment each time: after some acknowledgements, and a part of what follows.
		for range 1 + round%9 {
			select {
			case <-ack:
			case <-time.After(time.Minute):
				_ = p.Process.Kill()
				t.Fatalf("round %d: nothing is acknowledged: %s", round, p.problems.String())
			}
		}
		pause := time.NewTimer(time.Duration(round%23) * 700 * time.Microsecond)
		<-pause.C
		p.kill(t)
		for range all {
			acknowledged += <-done
		}
	}
	t.Logf("%d writes were acknowledged by %d controllers that were killed", acknowledged, rounds)
}

// controllerDirectory is where controllers of one cluster run, one after the other, and a client of theirs.
func controllerDirectory(t testing.TB) (string, *client.Client) {
	t.Helper()
	// Sockets have short names.
	dir, err := os.MkdirTemp("", "heddle")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	place, err := killedCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{place.Data(), place.Run()} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := place.Keep(cluster.Options{Family: cluster.IPv4}); err != nil {
		t.Fatal(err)
	}
	return dir, client.New(place.APISocket())
}

// controllerProcess is a controller that is going to be killed.
type controllerProcess struct {
	*exec.Cmd
	problems strings.Builder
	// ended is closed when it has; err says how.
	ended chan struct{}
	err   error
}

// startController starts a controller; with a disk, its file operations are asked of the other end.
func startController(t testing.TB, dir string, disk *os.File) *controllerProcess {
	t.Helper()
	p := &controllerProcess{Cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.Env = append(os.Environ(), controllerEnvironment+"="+dir)
	if disk != nil {
		p.Env, p.ExtraFiles = append(p.Env, diskEnvironment+"=1"), []*os.File{disk}
	}
	p.Stderr = &p.problems
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	return p
}

// kill ends the controller, which may have ended by itself.
func (p *controllerProcess) kill(t testing.TB) {
	t.Helper()
	if err := p.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if <-p.ended; p.err == nil {
		t.Fatal("the controller ended without an error")
	}
}

// roundsOf is how often a test does what it does: the environment's number, or a short one.
func roundsOf(t *testing.T, variable string, short int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// answering waits until a controller answers, or has ended.
func answering(t testing.TB, c *client.Client, p *controllerProcess) error {
	t.Helper()
	limit, again := time.NewTimer(time.Minute), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer again.Stop()
	for {
		if _, err := c.Status(t.Context()); err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the controller ended: %w", p.err)
		case <-limit.C:
			return errors.New("the controller does not answer")
		case <-again.C:
		}
	}
}

// writer writes one generation after the other.
type writer struct {
	client *client.Client
	number int
	// acknowledged is the last generation that was, begun the last that was sent; of the single object and its deletion too.
	acknowledged, begun, alone, aloneBegun int
	// there says whether the last acknowledged step of the single object left it there.
	there bool
}

// write goes on until the controller does not answer, and says how many writes it acknowledged.
func (w *writer) write(ctx context.Context, ack chan<- struct{}) (count int) {
	took := func(err error) bool {
		if err == nil {
			count++
			select {
			case ack <- struct{}{}:
			default:
			}
		}
		return err == nil
	}
	for n := max(w.begun, w.aloneBegun) + 1; ; n++ {
		w.begun = n
		if !took(w.apply(ctx, fmt.Sprintf(written, w.number, n), false)) {
			return count
		}
		w.acknowledged, w.aloneBegun = n, n
		alone := fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: alone-%d, labels: { n: \"%d\" } }\n", w.number, n)
		// There with odd generations, gone with even ones.
		if !took(w.apply(ctx, alone, n%2 == 0)) {
			return count
		}
		w.alone, w.there = n, n%2 == 1
	}
}

func (w *writer) apply(ctx context.Context, text string, remove bool) error {
	_, err := w.client.Apply(ctx, client.ApplyRequest{Manifests: []client.Manifest{{File: "written.yaml", Content: text}}, Delete: remove, IgnoreNotFound: true})
	return err
}

// look compares what is there with what was acknowledged.
func (w *writer) look(ctx context.Context) error {
	if w.begun == 0 {
		return nil
	}
	found := map[string]bool{}
	for _, kind := range writtenKinds {
		o, err := w.client.Get(ctx, kind, "default", fmt.Sprintf("part-%d", w.number))
		if err != nil {
			if w.acknowledged > 0 {
				return fmt.Errorf("%s: generation %d was acknowledged: %w", kind.Kind, w.acknowledged, err)
			}
			found["nothing"] = true
			continue
		}
		found[o.GetLabels()["n"]] = true
	}
	if len(found) > 1 {
		return fmt.Errorf("a part of a batch: %v, of %d acknowledged and %d begun", found, w.acknowledged, w.begun)
	}
	for n := range found {
		if n == "nothing" {
			continue
		}
		at, err := strconv.Atoi(n)
		if err != nil || at != w.acknowledged && at != w.begun {
			return fmt.Errorf("generation %s is there, of %d acknowledged and %d begun", n, w.acknowledged, w.begun)
		}
		// What was seen stays, acknowledged or not.
		w.acknowledged = at
	}
	if w.aloneBegun != w.alone {
		return nil // The last step may have been taken or not.
	}
	list, err := w.client.List(ctx, objects.ServiceAccount, "default")
	if err != nil {
		return err
	}
	there := false
	for _, o := range list.Items {
		there = there || o.GetName() == fmt.Sprintf("alone-%d", w.number)
	}
	if there != w.there {
		return fmt.Errorf("generation %d of the single object was acknowledged: there %t, want %t", w.alone, there, w.there)
	}
	return nil
}
