// Package corpus holds hostile inputs as text, one short block a case, and reads them.
package corpus

import (
	"bufio"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

//go:embed http1 http2 answers1 answers2
var files embed.FS

// Case is one hostile input and what must come of it.
type Case struct {
	// Name as it stands behind `case`, with the values of `each` filled in.
	Name string
	// Place is file:line, for messages.
	Place string
	// On is the listener that gets the input; "plain" unless `on` says otherwise.
	On string
	// Steps in the order in which they are done.
	Steps []Step
	// Want lists what is acceptable; one of them must hold.
	Want []Outcome
	// Head is what must be true of the first request that the upstream saw, if it saw any.
	Head Head
	// AnswerAbsent are names that must not be among the trailers of the answer to the client.
	AnswerAbsent []string
	// Envoy lists what Envoy does instead; nil when it does what Want says.
	Envoy []Outcome
	// Reason why Envoy differs.
	Reason string
}

// Step is a verb and its text, which is not decoded yet.
type Step struct {
	Verb, Text string
}

// Outcome is one acceptable end of a case.
type Outcome struct {
	// Answers to the client, each an alternative list such as 400|403; "-" stands for none.
	Answers []string
	// Connection afterwards: kept, closed, open (nothing happened yet), goaway:CODE or either. In the folders of answers it
	// is the answer that is whole or cut.
	Connection string
	// Requests is how many requests the upstream saw; -1 for any number.
	Requests int
	// Unchecked leaves Head alone.
	Unchecked bool
}

// Head is what must be true of a request that the upstream saw; everything is compared byte for byte.
type Head struct {
	// Line is the request line; empty for any.
	Line string
	// Fields are whole field lines that must be there; names in lower case.
	Fields []string
	// Absent are names of fields and trailers that must not be there, in lower case.
	Absent []string
	// Trailers are whole field lines that must be among the trailers; names in lower case.
	Trailers []string
	// Body is the decoded body; nil for any.
	Body *string
}

// Folder reads all cases of a folder (http1, http2, answers1, answers2).
//
// # Errors
// A line that is none of the format's, with file and line.
func Folder(name string) ([]Case, error) {
	var all []Case
	seen := map[string]string{}
	err := fs.WalkDir(files, name, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := files.ReadFile(file)
		if err != nil {
			return err
		}
		cases, err := Parse(path.Base(file), string(text))
		for _, c := range cases {
			if other, twice := seen[c.Name]; twice {
				return fmt.Errorf("%s: the case %q stands at %s already", c.Place, c.Name, other)
			}
			seen[c.Name] = c.Place
		}
		all = append(all, cases...)
		return err
	})
	return all, err
}

// line of a block, with its number in the file.
type line struct {
	number     int
	word, text string
}

// Parse reads the cases of one file.
//
// # Errors
// As [Folder].
func Parse(file, text string) ([]Case, error) {
	var all []Case
	var block []line
	flush := func() error {
		if len(block) == 0 {
			return nil
		}
		cases, err := expand(file, block)
		all, block = append(all, cases...), nil
		return err
	}
	scanner := bufio.NewScanner(strings.NewReader(text))
	for number := 1; scanner.Scan(); number++ {
		raw := strings.TrimSpace(scanner.Text())
		switch {
		case raw == "":
			if err := flush(); err != nil {
				return nil, err
			}
		case strings.HasPrefix(raw, "#"):
		default:
			word, rest, _ := strings.Cut(raw, " ")
			block = append(block, line{number, word, strings.TrimSpace(rest)})
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return all, scanner.Err()
}

// expand makes one case of a block for every combination of the values behind its `each` lines.
func expand(file string, block []line) ([]Case, error) {
	combinations := []map[string]string{{}}
	rest := make([]line, 0, len(block))
	for _, l := range block {
		if l.word != "each" {
			rest = append(rest, l)
			continue
		}
		name, values, found := strings.Cut(l.text, ":")
		if !found {
			return nil, fmt.Errorf("%s:%d: want `each NAME: VALUE VALUE…`", file, l.number)
		}
		list, err := ranges(strings.Fields(values))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, l.number, err)
		}
		var more []map[string]string
		for _, c := range combinations {
			for _, v := range list {
				next := map[string]string{name: v}
				for k, v := range c {
					next[k] = v
				}
				more = append(more, next)
			}
		}
		combinations = more
	}
	cases := make([]Case, 0, len(combinations))
	for _, values := range combinations {
		c, err := build(file, rest, values)
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

// ranges writes \x00..\x1f out.
func ranges(values []string) ([]string, error) {
	var out []string
	for _, v := range values {
		from, to, found := strings.Cut(v, "..")
		if !found || !strings.HasPrefix(from, `\x`) || !strings.HasPrefix(to, `\x`) {
			out = append(out, v)
			continue
		}
		first, err := strconv.ParseUint(from[2:], 16, 8)
		if err != nil {
			return nil, err
		}
		last, err := strconv.ParseUint(to[2:], 16, 8)
		if err != nil {
			return nil, err
		}
		for b := first; b <= last; b++ {
			out = append(out, fmt.Sprintf(`\x%02x`, b))
		}
	}
	return out, nil
}

func build(file string, block []line, values map[string]string) (Case, error) {
	c := Case{On: "plain"}
	for _, l := range block {
		word, text := l.word, l.text
		for name, value := range values {
			word = strings.ReplaceAll(word, "{"+name+"}", value)
			text = strings.ReplaceAll(text, "{"+name+"}", value)
		}
		if err := c.take(word, text); err != nil {
			return c, fmt.Errorf("%s:%d: %w", file, l.number, err)
		}
		if word == "case" {
			c.Place = fmt.Sprintf("%s:%d", file, l.number)
		}
	}
	if c.Name == "" || len(c.Want) == 0 || len(c.Steps) == 0 {
		return c, fmt.Errorf("%s:%d: a case needs `case`, `want` and something to send", file, block[0].number)
	}
	return c, nil
}

// take reads one line of a case. What is no word of the format is a step, judged by those who do it.
func (c *Case) take(word, text string) error {
	switch word {
	case "case":
		c.Name = text
	case "on":
		c.On = text
	case "want", "or":
		o, err := outcome(text)
		c.Want = append(c.Want, o)
		return err
	case "saw":
		c.Head.Line = text
	case "saw-field":
		c.Head.Fields = append(c.Head.Fields, text)
	case "saw-trailer":
		c.Head.Trailers = append(c.Head.Trailers, text)
	case "saw-body":
		body, err := Bytes(text)
		decoded := string(body)
		c.Head.Body = &decoded
		return err
	case "absent":
		c.AnswerAbsent = append(c.AnswerAbsent, strings.Fields(text)...)
	case "unseen":
		c.Head.Absent = append(c.Head.Absent, strings.Fields(text)...)
	case "envoy":
		text, reason, found := strings.Cut(text, "#")
		if !found || strings.TrimSpace(reason) == "" {
			return fmt.Errorf("`envoy` wants a reason behind a #")
		}
		for _, part := range strings.Split(text, " or ") {
			o, err := outcome(part)
			if err != nil {
				return err
			}
			c.Envoy = append(c.Envoy, o)
		}
		c.Reason = strings.TrimSpace(reason)
	default:
		c.Steps = append(c.Steps, Step{word, text})
	}
	return nil
}

// outcome reads `ANSWERS CONNECTION REQUESTS [unchecked]`.
func outcome(text string) (Outcome, error) {
	words := strings.Fields(text)
	if len(words) == 4 && words[3] == "unchecked" {
		o, err := outcome(strings.Join(words[:3], " "))
		o.Unchecked = true
		return o, err
	}
	if len(words) != 3 {
		return Outcome{}, fmt.Errorf("%q: want ANSWERS CONNECTION REQUESTS, such as `400 closed 0`", text)
	}
	o := Outcome{Connection: words[1], Requests: -1}
	switch {
	case words[1] == "kept", words[1] == "closed", words[1] == "open", words[1] == "either", words[1] == "cut", words[1] == "whole":
	case strings.HasPrefix(words[1], "goaway:"):
	default:
		return o, fmt.Errorf("%q: want kept, closed, open, either, goaway:CODE, whole or cut", words[1])
	}
	if words[0] != "-" {
		o.Answers = strings.Split(words[0], ",")
	}
	if words[2] != "any" {
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return o, fmt.Errorf("%q is no number of requests", words[2])
		}
		o.Requests = n
	}
	return o, nil
}
