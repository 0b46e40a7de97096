package corpus

import (
	"slices"
	"strings"
	"testing"
)

func TestBlocks(t *testing.T) {
	cases, err := Parse("f.txt", `
# a comment
case {b} twice {v}
each b: \x00..\x02 a
each v: \e \s
on policy
send GET / HTTP/1.1\r\n
send x{b}{v}
want 400 closed 0
or 200,4xx kept 2
saw GET / HTTP/1.1
saw-field a: b
unseen te cookie
saw-body \s
envoy 200 kept 1 unchecked or - closed 0 # it says so

case second
send a
want - open any
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) != 4*2+1 {
		t.Fatalf("%d cases", len(cases))
	}
	c := cases[3]
	if c.Name != `\x01 twice \s` || c.Place != "f.txt:3" || c.On != "policy" || c.Steps[1] != (Step{"send", `x\x01\s`}) {
		t.Errorf("%+v", c)
	}
	if len(c.Want) != 2 || c.Want[1].Requests != 2 || c.Head.Line != "GET / HTTP/1.1" || *c.Head.Body != " " || len(c.Head.Absent) != 2 {
		t.Errorf("%+v", c)
	}
	if len(c.Envoy) != 2 || !c.Envoy[0].Unchecked || c.Envoy[1].Unchecked || c.Reason != "it says so" {
		t.Errorf("%+v", c)
	}
	if last := cases[8]; last.Want[0].Requests != -1 || last.Want[0].Answers != nil {
		t.Errorf("%+v", last)
	}
}

func TestWrongBlocks(t *testing.T) {
	for _, wrong := range []string{
		"case a\nsend b",
		"send b\nwant 400 closed 0",
		"case a\nwant 400 closed 0",
		"case a\nsend b\nwant 400 closed",
		"case a\nsend b\nwant 400 ajar 0",
		"case a\nsend b\nwant 400 closed many",
		"case a\nsend b\nwant 400 closed 0\nenvoy 200 kept 1",
		"case a\neach b\nsend b\nwant 400 closed 0",
		"case a\neach b: \\x0g..\\xff\nsend b\nwant 400 closed 0",
	} {
		if _, err := Parse("f.txt", wrong); err == nil {
			t.Errorf("no error for %q", wrong)
		} else if !strings.Contains(err.Error(), "f.txt:") {
			t.Errorf("no place in %v", err)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]string{
		`a\r\n\t\0\\\x7f\s\eb`: "a\r\n\t\x00\\\x7f b",
		`\*3(a\x00)b`:          "a\x00a\x00a\x00b",
	} {
		if got, err := Bytes(text); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, wrong := range []string{`\`, `\q`, `\x1`, `\xzz`, `\*3`, `\*x(a)`, `\*99999999(a)`, `\*1(\q)`} {
		if _, err := Bytes(wrong); err == nil {
			t.Errorf("no error for %q", wrong)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		want string
		seen Observed
		ok   bool
	}{
		{"400 closed 0", Observed{[]string{"400"}, "closed", 0}, true},
		{"400 closed 0", Observed{[]string{"400"}, "closed", 1}, false},
		{"400 closed 0", Observed{[]string{"400", "200"}, "closed", 0}, false},
		{"4xx either any", Observed{[]string{"431"}, "kept", 3}, true},
		{"200cut|502 closed 1", Observed{[]string{"502"}, "closed", 1}, true},
		{"- open 0", Observed{nil, "open", 0}, true},
		{"1:200,3:reset kept 1", Observed{[]string{"1:200", "3:reset:CANCEL"}, "kept", 1}, true},
		{"1:200,3:reset:CANCEL kept 1", Observed{[]string{"1:200", "3:reset:NO_ERROR"}, "kept", 1}, false},
		{"1:200 kept 1", Observed{[]string{"3:200"}, "kept", 1}, false},
		{"1:4xx|reset kept 0", Observed{[]string{"1:400"}, "kept", 0}, true},
		{"- closed 0", Observed{nil, "goaway:PROTOCOL_ERROR", 0}, true},
		{"- goaway:PROTOCOL_ERROR 0", Observed{nil, "closed", 0}, false},
		{"refused either 0", Observed{[]string{"1:reset:PROTOCOL_ERROR"}, "kept", 0}, true},
		{"refused either 0", Observed{[]string{"1:none"}, "goaway:PROTOCOL_ERROR", 0}, true},
		{"refused either 0", Observed{[]string{"1:none"}, "kept", 0}, false},
		{"refused either 0", Observed{[]string{"1:200"}, "kept", 0}, false},
		{"refused either 0", Observed{nil, "kept", 0}, false},
	} {
		o, err := outcome(c.want)
		if err != nil {
			t.Fatal(err)
		}
		if got := Match([]Outcome{o}, c.seen) != nil; got != c.ok {
			t.Errorf("%q against %v: %v", c.want, c.seen, got)
		}
	}
}

// TestFolders holds the corpus against its own rules: it parses, every text decodes, and it has not shrunk.
func TestFolders(t *testing.T) {
	for folder, least := range map[string]int{"http1": 400, "http2": 200, "answers1": 20, "answers2": 10} {
		cases, err := Folder(folder)
		if err != nil {
			t.Error(err)
		}
		if len(cases) < least {
			t.Errorf("%s: %d cases, want at least %d", folder, len(cases), least)
		}
		for _, c := range cases {
			for _, s := range c.Steps {
				if slices.Contains([]string{"send", "raw", "answer"}, s.Verb) {
					if _, err := Bytes(s.Text); err != nil {
						t.Errorf("%s: %v", c.Place, err)
					}
				}
			}
		}
	}
}
