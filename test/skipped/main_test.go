package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"a"}
{"Action":"skip","Package":"a","Elapsed":0}
{"Action":"run","Package":"b","Test":"TestOne"}
{"Action":"output","Package":"b","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"b","Test":"TestOne","Output":"    one_test.go:7: needs root\n"}
{"Action":"output","Package":"b","Test":"TestOne","Output":"--- SKIP: TestOne (0.00s)\n"}
{"Action":"skip","Package":"b","Test":"TestOne"}
{"Action":"output","Package":"b","Test":"TestTwo","Output":"said something\n"}
{"Action":"pass","Package":"b","Test":"TestTwo"}
{"Action":"skip","Package":"b","Test":"TestThree"}
`

const rust = `
running 2 tests
..
successes:

---- tests::dead_link::a_link stdout ----
skipped: no network namespaces with these rules here: not permitted

test result: ok. 2 passed; 0 failed
`

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		all   bool
		want  string
		fails string
	}{
		"all kinds": {map[string]string{"go.json": events, "rust.log": rust, "hostile.log": "seed 1\nskipped: TestX/envoy: no Envoy\n", "other.txt": "skipped: no"}, false,
			"SKIP TestX/envoy: no Envoy\nSKIP b TestOne: one_test.go:7: needs root\nSKIP b TestThree: without a reason\nSKIP tests::dead_link::a_link: no network namespaces with these rules here: not permitted\nskipped tests: 4\n", ""},
		"none":                   {map[string]string{"go.json": `{"Action":"pass","Package":"b","Test":"TestTwo"}`}, true, "skipped tests: 0\n", ""},
		"some, with all at hand": {map[string]string{"go.json": events}, true, "SKIP b TestOne: one_test.go:7: needs root\nSKIP b TestThree: without a reason\nskipped tests: 2\n", "2 tests were skipped"},
		"cut off":                {map[string]string{"go.json": events[:len(events)-9]}, false, "", "go.json"},
		"nothing ran":            {nil, false, "", "no results"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := run([]string{dir}, &out, c.all)
			if out.String() != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
