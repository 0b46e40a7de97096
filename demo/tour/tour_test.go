package tour

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test's own program stands in for heddle: these say what it does.
const (
	fakeDir  = "TOUR_FAKE_DIR"  // where it keeps its clusters and its log
	fakeShop = "TOUR_FAKE_SHOP" // the address that `up` tells
	fakeFail = "TOUR_FAKE_FAIL" // the command that fails
	fakeHang = "TOUR_FAKE_HANG" // the command that waits to be interrupted
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(fakeDir); dir != "" && os.Getenv("HEDDLE_CLUSTER") == "" {
		os.Exit(fakeHeddle(dir, os.Args[1:]))
	}
	os.Exit(m.Run())
}

func fakeHeddle(dir string, args []string) int {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 9
	}
	defer log.Close()
	fmt.Fprintln(log, strings.Join(args, " "))
	if args[0] == "hold" {
		return hold(args[1])
	}
	switch args[0] {
	case os.Getenv(fakeFail):
		fmt.Fprintln(os.Stderr, "error: it does not work")
		return 1
	case os.Getenv(fakeHang):
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGINT)
		fmt.Println("hanging")
		fmt.Fprintln(log, "hanging")
		<-told
		fmt.Fprintln(log, "interrupted")
		return 1
	}
	switch args[0] {
	case "up":
		if os.MkdirAll(filepath.Join(dir, "run", args[2]), 0o700) != nil {
			return 9
		}
		fmt.Printf("Starting\n\n  cluster   %s\n  ingress   %s\n\n  heddle up --name <name> --join 198.18.0.2:15443 --token hdl1.aa.bb.cc\n", args[2], os.Getenv(fakeShop))
	case "down":
		if os.RemoveAll(filepath.Join(dir, "run", args[2])) != nil {
			return 9
		}
	case "logs":
		fmt.Println(`{"msg":"order placed","order":"LS-77"}`)
	}
	return 0
}

// hold keeps a record until it is told to end, as another demo does.
func hold(path string) int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	r, err := openRecord(path)
	if err != nil {
		return 9
	}
	fmt.Println("holding")
	<-told
	if r.close() != nil {
		return 9
	}
	return 0
}

// shop is a shop of canned pages that insists on cookies, forms and their order.
type shop struct {
	broken string
	rows   string
}

const goodRows = `<tr data-testid="mesh-call" data-caller="frontend" data-service="checkoutservice" data-method="PlaceOrder" data-client="spiffe://d/f" data-server="spiffe://d/c" data-client-cluster="cluster2" data-server-cluster="cluster1" data-status="OK"></tr>
<tr data-testid="mesh-call" data-caller="checkoutservice" data-service="cartservice" data-method="GetCart" data-client="spiffe://d/c" data-server="spiffe://d/b" data-client-cluster="cluster1" data-server-cluster="cluster2" data-status="OK"></tr>`

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method+" "+r.URL.Path == s.broken {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "<h1>The shop is catching its breath</h1>")
		return
	}
	cart := 0
	if cookie, err := r.Cookie("cart"); err == nil {
		cart = len(cookie.Value)
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /":
		fmt.Fprint(w, `<li data-testid="product-card" data-product="mug"><li data-testid="product-card" data-product="mug"><li data-testid="product-card" data-product="pot">`)
	case "GET /product/mug", "GET /product/pot":
		fmt.Fprintf(w, `<form action="/cart" method="post"><input name="product_id" value="%s"><select name="quantity"></select></form>`, filepath.Base(r.URL.Path))
	case "POST /cart":
		if r.FormValue("product_id") == "" || r.FormValue("quantity") == "" {
			http.Error(w, "bad form", http.StatusUnprocessableEntity)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "cart", Value: strings.Repeat("x", cart+1)})
		http.Redirect(w, r, "/cart", http.StatusSeeOther)
	case "GET /cart":
		fmt.Fprint(w, `<b id="cart-total">$9</b>`)
	case "GET /checkout":
		fmt.Fprint(w, `<form action="/checkout" method="POST"><input name="email" value="a@b.c"><input type="submit"></form>`)
	case "POST /checkout":
		if cart != 2 || r.FormValue("email") != "a@b.c" {
			http.Error(w, "nothing in the cart", http.StatusConflict)
			return
		}
		fmt.Fprintf(w, `<h1>Thank you</h1><dd id="order-number"> LS-77 </dd><dd id="order-total">$9</dd><table>%s</table>`, s.rows)
	default:
		http.NotFound(w, r)
	}
}

// prepare makes a tour of the stand-in.
func prepare(t *testing.T, s shop) (*Tour, *strings.Builder, string) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeDir, dir)
	t.Setenv(fakeShop, server.URL+"/")
	t.Setenv("HEDDLE_CLUSTER", "elsewhere") // must not reach heddle
	out := &strings.Builder{}
	return &Tour{Heddle: self, Manifests: "shop/", Record: filepath.Join(dir, "record.json"), Roots: []string{filepath.Join(dir, "run")}, Out: out, Now: time.Now}, out, dir
}

func log(t *testing.T, dir string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// nothingLeft fails the test when something of the tour is still there.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "run"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		t.Errorf("clusters are left: %v", entries)
	}
	if _, err := os.Stat(filepath.Join(dir, "record.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
}

func TestOnceBuysAndRemoves(t *testing.T) {
	tour, out, dir := prepare(t, shop{rows: goodRows})
	if err := tour.Once(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{
		"up --name cluster1 --isolated",
		"up --name cluster2 --isolated --join 198.18.0.2:15443 --token hdl1.aa.bb.cc",
		"gns create boutique --domain acme.demo --map cluster1/pinnacle --map cluster2/pinnacle --cluster cluster1",
		"apply -f shop/",
		"check",
		"logs -n pinnacle checkoutservice --cluster cluster1",
		"down --name cluster2",
		"down --name cluster1",
	}
	if got := log(t, dir); !slices.Equal(got, want) {
		t.Errorf("commands:\n%s", strings.Join(got, "\n"))
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !regexp.MustCompile(`^purchase ok: 5 commands, \d+ seconds$`).MatchString(last) {
		t.Errorf("last line %q", last)
	}
	for _, part := range []string{"LS-77, mug and pot for $9", "2 behind the order's page, 2 of them between", "--token hdl1.…"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the output lacks %q:\n%s", part, out)
		}
	}
	if strings.Contains(out.String(), "hdl1.aa") {
		t.Error("the output shows a token")
	}
	nothingLeft(t, dir)
}

// The README shows the commands that the tour runs, one of which needs no choice of a cluster when typed by hand.
func TestReadmeShowsTheCommandsOfTheTour(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	tour, out, dir := prepare(t, shop{rows: goodRows})
	tour.Manifests = "demo/boutique/two-clusters/"
	if err := tour.Once(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, command := range log(t, dir)[:5] {
		command = strings.TrimSuffix(command, " --cluster cluster1")
		command = regexp.MustCompile(`--token \S+`).ReplaceAllString(command, "--token hdl1...")
		if !strings.Contains(string(readme), "    $ sudo heddle "+command+"\n") {
			t.Errorf("the README lacks: heddle %s", command)
		}
	}
}

func TestWhatFailsIsSaidAndNothingIsLeft(t *testing.T) {
	crossing := strings.Split(goodRows, "\n")
	for name, c := range map[string]struct {
		fail string
		shop shop
		want string
	}{
		"a command":      {"gns", shop{rows: goodRows}, "error: it does not work"},
		"the first up":   {"up", shop{rows: goodRows}, "heddle up --name cluster1 --isolated: exit status 1"},
		"the shop":       {"", shop{rows: goodRows, broken: "POST /checkout"}, "503 Service Unavailable: The shop is catching its breath"},
		"the home page":  {"", shop{rows: goodRows, broken: "GET /"}, "GET /: 503"},
		"one direction":  {"", shop{rows: crossing[0]}, "no call went from cluster1 to cluster2"},
		"no identities":  {"", shop{rows: strings.ReplaceAll(goodRows, "spiffe://d/f", "plaintext")}, `"plaintext" is no identity`},
		"another status": {"", shop{rows: strings.Replace(goodRows, `"OK"`, `"Unavailable"`, 1)}, "PlaceOrder ended with Unavailable"},
		"no cluster":     {"", shop{rows: strings.ReplaceAll(goodRows, "cluster1", "")}, `cluster "" is none of`},
	} {
		t.Run(name, func(t *testing.T) {
			tour, out, dir := prepare(t, c.shop)
			t.Setenv(fakeFail, c.fail)
			err := tour.Once(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if strings.Contains(out.String(), "purchase ok") {
				t.Errorf("it says that all is well:\n%s", out)
			}
			nothingLeft(t, dir)
		})
	}
}

func TestKeepLeavesWhatFailed(t *testing.T) {
	tour, _, dir := prepare(t, shop{rows: goodRows})
	tour.Keep = true
	t.Setenv(fakeFail, "check")
	if err := tour.Once(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "run", "cluster2")); err != nil {
		t.Error(err)
	}
	if err := tour.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "an earlier demo left") {
		t.Errorf("a second tour: %v", err)
	}
	if err := tour.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir)
}

func TestForeignClustersAreLeftAlone(t *testing.T) {
	tour, out, dir := prepare(t, shop{rows: goodRows})
	if err := os.MkdirAll(filepath.Join(dir, "run", "cluster2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := tour.Once(t.Context()); err == nil || !strings.Contains(err.Error(), `there is a cluster "cluster2" already`) {
		t.Errorf("%v", err)
	}
	if err := tour.Down(t.Context()); err != nil || !strings.Contains(out.String(), "Nothing of the demo is left.") {
		t.Errorf("%v: %s", err, out)
	}
	if got := log(t, dir); len(got) != 1 || got[0] != "" {
		t.Errorf("commands were run: %v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "run", "cluster2")); err != nil {
		t.Error(err)
	}
}

// An interrupted tour ends the command that runs, and removes what there is.
func TestInterruptedTourRemovesEverything(t *testing.T) {
	tour, _, dir := prepare(t, shop{rows: goodRows})
	t.Setenv(fakeHang, "apply")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tour.Stay(ctx) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !slices.Contains(log(t, dir), "hanging") {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-tick.C:
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if got := log(t, dir); !slices.Equal(got[len(got)-3:], []string{"interrupted", "down --name cluster2", "down --name cluster1"}) {
		t.Errorf("commands:\n%s", strings.Join(got, "\n"))
	}
	nothingLeft(t, dir)
}

// Staying ends well when it is told to.
func TestStayEndsOnRequest(t *testing.T) {
	tour, out, dir := prepare(t, shop{rows: goodRows})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := &watcher{Builder: out, want: "make demo-down", found: cancel}
	tour.Out = seen
	if err := tour.Stay(ctx); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "gns describe boutique --cluster cluster1") {
		t.Errorf("it does not say what to try next:\n%s", out)
	}
	nothingLeft(t, dir)
}

// watcher tells when a text was written.
type watcher struct {
	*strings.Builder
	want  string
	found func()
}

func (w *watcher) Write(text []byte) (int, error) {
	if strings.Contains(string(text), w.want) {
		w.found()
	}
	return w.Builder.Write(text)
}

func TestRecordIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	r, err := openRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.add("one"); err != nil {
		t.Fatal(err)
	}
	if err := r.add("two"); err != nil {
		t.Fatal(err)
	}
	if err := r.drop("one"); err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openRecord(path)
	if err != nil || !slices.Equal(again.made.Clusters, []string{"two"}) {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := again.drop("two"); err != nil {
		t.Fatal(err)
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty record is left: %v", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openRecord(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken record: %v", err)
	}
}

// A demo that runs keeps others out, and ends when it is told to.
func TestDownEndsTheDemoThatRuns(t *testing.T) {
	tour, out, dir := prepare(t, shop{})
	other := exec.Command(tour.Heddle, "hold", tour.Record)
	other.Env = append(os.Environ(), "HEDDLE_CLUSTER=")
	holding, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := holding.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	var running errRunning
	if err := tour.Once(t.Context()); !errors.As(err, &running) || running.PID != other.Process.Pid {
		t.Errorf("a second demo: %v", err)
	}
	if err := tour.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if err := other.Wait(); err != nil {
		t.Errorf("the first demo: %v", err)
	}
	if !strings.Contains(out.String(), "telling it to end") {
		t.Errorf("output: %s", out)
	}
	nothingLeft(t, dir)
}

func TestLastLineIsWhatIsShown(t *testing.T) {
	said := ""
	l := &lastLine{say: func(s string) { said = s }}
	for _, c := range []struct{ write, want string }{
		{"Starting\n", "Starting"}, {"\r\x1b[K  … wait", "… wait"}, {" more", "… wait more"}, {"\r\x1b[K", "… wait more"}, {"done\nnext", "next"},
	} {
		if _, err := l.Write([]byte(c.write)); err != nil {
			t.Fatal(err)
		}
		if said != c.want {
			t.Errorf("after %q: %q, want %q", c.write, said, c.want)
		}
	}
	if got := clip("a\tb\x1b[1mcdef", 5); got != "a b …" {
		t.Errorf("clip: %q", got)
	}
}
