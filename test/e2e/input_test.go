//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// answer is what one run of the command line gave.
type answer struct {
	out, err string
	code     int
	took     time.Duration
}

// ask runs the command line with an input and does not mind failures.
func ask(t *testing.T, in string, args ...string) answer {
	t.Helper()
	return askAs(t, nil, in, filepath.Join(harness.Binaries, "heddle"), args...)
}

// askAs is ask with additions to the environment and with a program in front, setpriv for example.
func askAs(t *testing.T, environment []string, in, program string, args ...string) answer {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(append(os.Environ(), "HEDDLE_CLUSTER="+clusterName), environment...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &said
	started := time.Now()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", program, err)
	}
	return answer{out: out.String(), err: said.String(), code: cmd.ProcessState.ExitCode(), took: time.Since(started)}
}

// refused checks an error: its exit code, and that it says everything that it must.
func (a answer) refused(t *testing.T, code int, parts ...string) {
	t.Helper()
	if a.code != code {
		t.Errorf("exit code %d, want %d:\n%s%s", a.code, code, a.out, a.err)
	}
	for _, part := range parts {
		if !strings.Contains(a.err, part) {
			t.Errorf("the message does not say %q:\n%.3000s", part, a.err)
		}
	}
	if len(a.err) > 64<<10 {
		t.Errorf("a message of %d bytes", len(a.err))
	}
}

// service is a manifest of a Service that nothing is wrong with.
func service(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: { name: %s, namespace: pinnacle }\nspec:\n  selector: { app: cartservice }\n  ports:\n  - { name: http, port: 80 }\n", name)
}

// absent says that a Service was not made.
func absent(t *testing.T, name string) {
	t.Helper()
	ask(t, "", "get", "service", name, "-n", harness.ShopSpace).refused(t, 1, "not found", name)
}

func TestBadManifests(t *testing.T) {
	for name, c := range map[string]struct {
		bad  string
		says []string
	}{
		"unknown field": {
			bad:  strings.Replace(service("bad"), "selector", "selectr", 1),
			says: []string{"manifest.yaml:5", "Service/pinnacle/bad", "spec.selectr", "unknown field", `did you mean "selector"?`},
		},
		"wrong type": {
			bad:  strings.Replace(service("bad"), "port: 80", "port: many", 1),
			says: []string{"manifest.yaml:7", "Service/pinnacle/bad", "spec.ports[0].port", "number"},
		},
		"port out of range": {
			bad:  strings.Replace(service("bad"), "port: 80", "port: 80000", 1),
			says: []string{"manifest.yaml:7", "Service/pinnacle/bad", "spec.ports[0].port", "65535"},
		},
		"unknown kind": {
			bad:  strings.Replace(service("bad"), "kind: Service", "kind: Servise", 1),
			says: []string{"manifest.yaml:2", "Servise", "did you mean Service"},
		},
		"kind of another version": {
			bad:  strings.Replace(service("bad"), "apiVersion: v1", "apiVersion: v2", 1),
			says: []string{"manifest.yaml:1", "apiVersion", "v1"},
		},
		"bad name": {
			bad:  service("Not_A_Name"),
			says: []string{"manifest.yaml:3", "metadata.name", "Not_A_Name", "lower"},
		},
		"broken YAML": {
			bad:  "apiVersion: v1\nkind: [Service\nmetadata: }\n",
			says: []string{"manifest.yaml:", "not valid YAML", "check indentation"},
		},
		"refused feature": {
			bad: "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: { name: bad, namespace: pinnacle }\nspec:\n  hosts: [cartservice]\n  http:\n" +
				"  - delegate: { name: others }\n    route: [{ destination: { host: cartservice } }]\n",
			says: []string{"manifest.yaml:7", "VirtualService/pinnacle/bad", "spec.http[0].delegate"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := must(t, "get", "all", "-A", "-o", "name")
			// The bad document is the last of the batch: what stands before it must not be made either.
			dir := t.TempDir()
			first, second := filepath.Join(dir, "a-good.yaml"), filepath.Join(dir, "manifest.yaml")
			write(t, first, service("good"))
			write(t, second, c.bad)
			ask(t, "", "apply", "-f", dir).refused(t, 1, append(c.says, "nothing was changed")...)
			ask(t, "", "apply", "--dry-run", "-f", dir).refused(t, 1, c.says...)
			absent(t, "good")
			if after := must(t, "get", "all", "-A", "-o", "name"); after != before {
				t.Errorf("objects before:\n%s\nand after:\n%s", before, after)
			}
			// The second try works.
			write(t, second, service("bad"))
			t.Cleanup(func() { must(t, "delete", "-f", dir) })
			if out := must(t, "apply", "-f", dir); !strings.Contains(out, "service/good created") || !strings.Contains(out, "service/bad created") {
				t.Errorf("apply said %s", out)
			}
		})
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Two files with an error each, one of them in its second document: both are told at once.
func TestErrorsOfAllFilesAtOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), strings.Replace(service("a"), "port: 80", "port: -1", 1))
	write(t, filepath.Join(dir, "b.yaml"), service("b")+"---\n"+strings.Replace(service("c"), "ports:", "prots:", 1))
	ask(t, "", "apply", "-f", dir).refused(t, 1, "2 errors", "a.yaml:7", "Service/pinnacle/a", "spec.ports[0].port", "b.yaml:14", "Service/pinnacle/c", `did you mean "ports"?`)
	absent(t, "b")
}

// A name that does not exist yet is no error, for objects come in any order; it is told at once and in the status.
func TestDanglingReferenceIsTold(t *testing.T) {
	file := harness.WriteFile(t, `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: dangling, namespace: pinnacle }
spec:
  hosts: [adservice.pinnacle.svc.cluster.local]
  http:
  - route: [{ destination: { host: nobody.pinnacle.svc.cluster.local } }]
`)
	t.Cleanup(func() { must(t, "delete", "-f", file) })
	a := ask(t, "", "apply", "-f", file)
	if a.code != 0 || !strings.Contains(a.err, "Warning: virtualservice.networking.istio.io/dangling") || !strings.Contains(a.err, "nobody.pinnacle.svc.cluster.local") {
		t.Errorf("apply: %+v", a)
	}
	harness.Eventually(t, 10*time.Second, "a status that names the missing service", func() error {
		if out := must(t, "describe", "vs", "dangling", "-n", harness.ShopSpace); !strings.Contains(out, "ResolvedRefs") || !strings.Contains(out, "nobody.pinnacle") {
			return errors.New(out)
		}
		return nil
	})
	ask(t, "", "check", "--wait", "0").refused(t, 1)
}

func TestDryRunChangesNothing(t *testing.T) {
	before := must(t, "get", "all", "-A", "-o", "yaml")
	if out := must(t, "apply", "--dry-run", "-f", harness.WriteFile(t, service("dry"))); !strings.Contains(out, "service/dry created (dry run)") {
		t.Error(out)
	}
	absent(t, "dry")
	if out := must(t, "delete", "--dry-run", "-f", "../../demo/boutique/manifests/"); !strings.Contains(out, "(dry run)") {
		t.Error(out)
	}
	// Statuses may move meanwhile; objects and their revisions may not.
	names := func(text string) string {
		return harness.OnlyLines(text, "    name: ") + harness.OnlyLines(text, "    resourceVersion: ")
	}
	if after := must(t, "get", "all", "-A", "-o", "yaml"); names(after) != names(before) {
		t.Error("a dry run changed something")
	}
}

func TestApplyFromStandardInput(t *testing.T) {
	a := ask(t, service("piped"), "apply", "-f", "-")
	if a.code != 0 || !strings.Contains(a.out, "service/piped created") {
		t.Errorf("%+v", a)
	}
	if a := ask(t, service("piped"), "delete", "-f", "-"); a.code != 0 || !strings.Contains(a.out, "deleted") {
		t.Errorf("%+v", a)
	}
	ask(t, service("piped"), "delete", "-f", "-").refused(t, 1, "not found", "piped", "--ignore-not-found")
	ask(t, strings.Replace(service("piped"), "ports", "prots", 1), "apply", "-f", "-").refused(t, 1, "standard input:6", "spec.prots")
	ask(t, "", "apply", "-f", "-").refused(t, 1, "no objects")
	ask(t, "# nothing but a comment\n---\n---\n", "apply", "-f", "-").refused(t, 1, "no objects")
}

func TestWrongCommands(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"aply -f x", 2, []string{`"aply"`, "apply", "heddle --help"}},
		{"get services --namspace x", 2, []string{"--namspace", "--namespace"}},
		{"apply", 2, []string{"-f"}},
		{"apply -f no/such/file.yaml", 1, []string{"no/such/file.yaml", "no such file", "remedy"}},
		{"get", 2, []string{"heddle get --help"}},
		{"get servces", 2, []string{`"servces"`, "services"}},
		{"get flowers", 2, []string{`"flowers"`, "services"}},
		{"get services nothing -n pinnacle", 1, []string{"not found", "nothing"}},
		{"get services -o xml", 2, []string{`"xml"`, "json"}},
		{"get services -l a=b=c", 2, []string{"a=b=c"}},
		{"describe service nothing -n pinnacle", 1, []string{"not found", "nothing"}},
		{"delete service nothing -n pinnacle", 1, []string{"not found", "nothing"}},
		{"delete namespace default", 1, []string{"default", "cannot be deleted"}},
		{"logs nothing -n pinnacle", 1, []string{"nothing", "heddle ps"}},
		{"stop nothing -n pinnacle", 1, []string{"nothing"}},
		{"proxy config frontend everything -n pinnacle", 2, []string{"everything", "clusters"}},
		{"up --name Not_A_Name", 2, []string{"Not_A_Name", "cluster1"}},
		{"up --namme x", 2, []string{"--namme", "--name"}},
		{"--cluster elsewhere get services", 1, []string{"elsewhere", "heddle up"}},
		{"check --wait soon", 2, []string{"soon"}},
	} {
		t.Run(c.args, func(t *testing.T) { ask(t, "", strings.Fields(c.args)...).refused(t, c.code, c.says...) })
	}
}

// Inputs made to hurt end soon with a message, and the controller is the same process afterwards, hardly larger.
func TestHostileManifests(t *testing.T) {
	controller := controllerPID(t)
	before := residentMiB(t, controller)
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), ", "))
	}
	noise := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{})
	if _, err := random.Read(noise); err != nil {
		t.Fatal(err)
	}
	head := "apiVersion: v1\nkind: Service\nmetadata:\n  name: hostile\n  namespace: pinnacle\n"
	for name, c := range map[string]struct {
		input string
		says  []string
	}{
		"noise":              {string(noise), []string{"standard input:1", "YAML"}},
		"zeros":              {strings.Repeat("\x00", 1<<20), []string{"standard input:1"}},
		"huge":               {strings.Repeat("# a comment that goes on and on\n", 1<<20), []string{"too large", "16 MiB"}},
		"large, many errors": {strings.Repeat("---\nkind: X\napiVersion: v1\n", 1<<18), []string{"too many errors"}},
		"aliases":            {bomb + strings.Replace(service("hostile"), "selector: { app: cartservice }", "selector: *k", 1), []string{"standard input:"}},
		"aliases in labels":  {head + "  annotations:\n    x: y\nspec:\n  " + strings.ReplaceAll(bomb, "\n", "\n  ") + "\n", []string{"standard input:", "unknown field"}},
		"self":               {head + "  labels: &l\n    x: *l\n", []string{"standard input:"}},
		"deep list":          {head + "spec: " + strings.Repeat("[", 100_000), []string{"standard input:"}},
		"deep closed list":   {head + "spec: " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000), []string{"standard input:"}},
		"deep mapping":       {head + "spec: " + strings.Repeat("{a: ", 5_000) + "1" + strings.Repeat("}", 5_000), []string{"standard input:"}},
		"nested lists":       {strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 500) + strings.Repeat("]}", 500), []string{"standard input:1"}},
		"empty documents":    {strings.Repeat("---\n", 1<<20), []string{"no objects"}},
		"many documents":     {strings.Repeat("---\n#\n", 1<<20), []string{"more than 10000 documents"}},
		"long name":          {service(strings.Repeat("a", 1<<16)), []string{"metadata.name"}},
		"many ports":         {head + "spec:\n  ports:\n" + strings.Repeat("  - { name: a, port: 80 }\n", 1<<16), []string{"standard input:"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t, c.input, "apply", "-f", "-")
			a.refused(t, 1, c.says...)
			if a.took > 10*time.Second {
				t.Errorf("the answer took %v", a.took)
			}
		})
	}
	absent(t, "hostile")
	if now := controllerPID(t); now != controller {
		t.Errorf("the controller was restarted: process %d, then %d", controller, now)
	}
	if after := residentMiB(t, controller); after > before+512 {
		t.Errorf("the controller grew from %d to %d MiB", before, after)
	}
}

// Bytes that are no HTTP, and HTTP that is no API, on the controller's and the agent's socket.
func TestHostileRequests(t *testing.T) {
	controller := controllerPID(t)
	for _, socket := range []string{"api.sock", "agent.sock"} {
		path := "/run/heddle/" + clusterName + "/" + socket
		for _, c := range []struct {
			args string
			want string
		}{
			{"http://h/nothing/here", "404"},
			{"-X POST --data-binary @/bin/ls http://h/heddle/v1/apply", "40"},
			{"-X PUT -d {} http://h/api/v1/namespaces/x/services/y", "4"},
			{"-X DELETE http://h/heddle/v1/status", "40"},
			{"http://h/api/v1/namespaces/..%2f..%2fetc/services/x", "40"},
			{"http://h/heddle/v1/logs/..%2f..%2f..%2fetc/passwd/app", "40"},
			{"--path-as-is http://h/heddle/v1/logs/../../../../etc/passwd", "40"},
		} {
			out, err := exec.Command("curl", append([]string{"-sS", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", path}, strings.Fields(c.args)...)...).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), c.want) && !strings.HasPrefix(string(out), "30") {
				t.Errorf("%s %s: %s, %v; want %s", socket, c.args, out, err, c.want)
			}
		}
	}
	if now := controllerPID(t); now != controller {
		t.Errorf("the controller was restarted: process %d, then %d", controller, now)
	}
}
