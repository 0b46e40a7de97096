package frame

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"heddle.io/heddle/test/hostile/corpus"
)

// TestRightFrames reads what was written with a codec that is not ours.
func TestRightFrames(t *testing.T) {
	e := NewEncoder()
	var wire bytes.Buffer
	for _, line := range []string{
		"SETTINGS 0 | 4=100 | 0x3=0",
		"HEADERS 1 end | @get | x-a: 1 | !x-secret: s | ?X-B: \\x01",
		"HEADERS 3 more | @post",
		"CONTINUATION 3 | size 100 | x-c: d",
		"DATA 3 end | a\\r\\n",
		"PING 0 ack | hex: 0001020304050607",
		"RST_STREAM 3 | 8",
		"WINDOW_UPDATE 0 | 0x7fffffff",
		"GOAWAY 0 | 1 0",
	} {
		verb, text, _ := strings.Cut(line, " ")
		b, err := e.Frame(verb, text)
		if err != nil {
			t.Fatal(err)
		}
		wire.Write(b)
	}
	framer := http2.NewFramer(nil, &wire)
	var kinds []string
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			break
		}
		kinds = append(kinds, f.Header().Type.String())
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if v, _ := f.Value(http2.SettingInitialWindowSize); v != 100 {
				t.Errorf("%v", f)
			}
		case *http2.HeadersFrame:
			if f.StreamID != 1 {
				continue
			}
			fields, err := hpack.NewDecoder(4096, nil).DecodeFull(f.HeaderBlockFragment())
			if err != nil || len(fields) != 7 || !fields[5].Sensitive || fields[6].Name != "X-B" || fields[6].Value != "\x01" {
				t.Errorf("%v, %v", fields, err)
			}
			if !f.HeadersEnded() || !f.StreamEnded() {
				t.Errorf("%v", f)
			}
		case *http2.GoAwayFrame:
			if f.LastStreamID != 1 {
				t.Errorf("%v", f)
			}
		}
	}
	if got := strings.Join(kinds, " "); got != "SETTINGS HEADERS HEADERS CONTINUATION DATA PING RST_STREAM WINDOW_UPDATE GOAWAY" {
		t.Error(got)
	}
}

func TestWrongFrames(t *testing.T) {
	e := NewEncoder()
	if b, err := e.Frame("FRAME", "0xee 0x80000001 0xff length=9 | abc"); err != nil || string(b) != "\x00\x00\x09\xee\xff\x80\x00\x00\x01abc" {
		t.Errorf("%q, %v", b, err)
	}
	if b := Integer(0x20, 5, 1337); string(b) != "\x3f\x9a\x0a" {
		t.Errorf("%x", b)
	}
	for _, wrong := range []string{"HEADERS", "HEADERS x", "HEADERS 1 loud", "HEADERS 1 | nothing", "DATA 1 | hex: 0", "SETTINGS 0 | x=1", "EHLO 1", "HEADERS 1 | :"} {
		verb, text, _ := strings.Cut(wrong, " ")
		if _, err := e.Frame(verb, text); err == nil {
			t.Errorf("no error for %q", wrong)
		}
	}
}

// TestCorpus encodes every frame of the corpus.
func TestCorpus(t *testing.T) {
	for _, folder := range []string{"http2", "answers2"} {
		cases, err := corpus.Folder(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			e := NewEncoder()
			for _, s := range c.Steps {
				if !Known(s.Verb) {
					continue
				}
				if _, err := e.Frame(s.Verb, s.Text); err != nil {
					t.Errorf("%s: %v", c.Place, err)
				}
			}
		}
	}
}
