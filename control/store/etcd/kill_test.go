package etcd

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
)

// writerEnvironment holds the directory of a process that writes until it is killed.
const writerEnvironment = "HEDDLE_TEST_STORE_WRITER"

// kills is how often the writer is killed. Each takes a fraction of a second.
const kills = 200

// batchOf is how many objects each batch of the writer has.
const batchOf = 5

// runWriter opens the store as a controller does, says so, and writes one generation after the other: all objects of a
// generation in one batch, then one object alone.
func runWriter() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	dir := os.Getenv(writerEnvironment)
	keys, err := seal.Open(ctx, seal.Options{File: filepath.Join(dir, "secrets.key")})
	fail(err)
	s, err := OpenEmbedded(ctx, dir, keys, nil)
	fail(err)
	c, err := cache.Open(ctx, cache.Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	fail(err)
	last, err := generation(c.Objects())
	fail(err)
	if n := c.Unfinished(); n > 0 {
		fail(fmt.Errorf("%d batches are not finished", n))
	}
	fmt.Println("opened", last)
	for n := last + 1; ; n++ {
		var batch []store.Write
		for i := range batchOf {
			batch = append(batch, put(generationObject(fmt.Sprintf("part-%d", i), n)))
		}
		fail(c.Apply(ctx, batch))
		fmt.Println("batch", n)
		fail(c.Apply(ctx, []store.Write{put(generationObject("alone", n))}))
		fmt.Println("alone", n)
	}
}

func generationObject(name string, n int) *objects.Object {
	text := fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: shop, labels: {n: \"%d\"}}\n", name, n)
	all, errs := objects.Decode(strings.NewReader(text), "", "")
	if len(errs) > 0 {
		panic(errs)
	}
	return all[0]
}

// generation is which batch the objects are of; an error when they are of several.
func generation(all []*objects.Object) (int, error) {
	found := map[string][]string{}
	for _, o := range all {
		if strings.HasPrefix(o.GetName(), "part-") {
			found[o.GetLabels()["n"]] = append(found[o.GetLabels()["n"]], o.GetName())
		}
	}
	if len(found) == 0 {
		return 0, nil
	}
	for n, names := range found {
		if len(found) == 1 && len(names) == batchOf {
			return strconv.Atoi(n)
		}
	}
	return 0, fmt.Errorf("a part of a batch: %v", found)
}

// TestKilledWriterLosesNothing kills the process in the midst of its writes, again and again. What it had acknowledged is
// there when the next opens the store, and of every batch all or nothing.
func TestKilledWriterLosesNothing(t *testing.T) {
	rounds := kills
	if testing.Short() {
		rounds = 5
	}
	dir := t.TempDir()
	acknowledged, alone, total := 0, 0, 0
	for round := range rounds {
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writerEnvironment+"="+dir)
		var problems strings.Builder
		writer.Stderr = &problems
		out, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		read := func() (string, int, error) {
			line, err := lines.ReadString('\n')
			if err != nil {
				return "", 0, err
			}
			what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.Atoi(number)
			return what, n, err
		}
		what, opened, err := read()
		if err != nil || what != "opened" {
			_ = writer.Process.Kill()
			_ = writer.Wait()
			t.Fatalf("round %d: %s %v: %s", round, what, err, problems.String())
		}
		if opened < acknowledged || opened > acknowledged+1 {
			t.Errorf("round %d: batch %d was acknowledged, and %d is there", round, acknowledged, opened)
		}
		// At another moment each time: after some writes, and a part of the next.
		killed := make(chan error, 1)
		pause := time.Duration(round%23) * 150 * time.Microsecond
		for n := 0; ; n++ {
			what, number, err := read()
			if err != nil {
				break
			}
			total++
			switch what {
			case "batch":
				acknowledged = number
			case "alone":
				alone = number
			}
			if n == round%7 {
				time.AfterFunc(pause, func() { killed <- writer.Process.Kill() })
			}
		}
		if err := <-killed; err != nil {
			t.Fatalf("round %d: %v: %s", round, err, problems.String())
		}
		if err := writer.Wait(); err == nil {
			t.Fatal("the writer was not killed")
		}
		acknowledged = max(acknowledged, opened)
	}
	s := open(t, dir)
	c, err := cache.Open(t.Context(), cache.Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	all := c.Objects()
	last, err := generation(all)
	if err != nil || last < acknowledged {
		t.Errorf("batch %d was acknowledged, %d is there, %v", acknowledged, last, err)
	}
	i := slices.IndexFunc(all, func(o *objects.Object) bool { return o.GetName() == "alone" })
	if i < 0 || all[i].GetLabels()["n"] < "0" {
		t.Fatal("the single object is gone")
	}
	if n, err := strconv.Atoi(all[i].GetLabels()["n"]); err != nil || n < alone {
		t.Errorf("write %d was acknowledged, %d is there, %v", alone, n, err)
	}
	if n := c.Unfinished(); n != 0 {
		t.Errorf("%d batches are not finished", n)
	}
	t.Logf("%d acknowledged writes survived %d kills", total, rounds)
}
