package corpus

import (
	"fmt"
	"strings"
)

// Observed is what happened.
type Observed struct {
	// Answers in the notation of [Outcome], one each.
	Answers []string
	// Connection afterwards.
	Connection string
	// Requests that the upstream saw.
	Requests int
}

func (o Observed) String() string { return describe(o.Answers, o.Connection, o.Requests) }

func (o Outcome) String() string { return describe(o.Answers, o.Connection, o.Requests) }

func describe(answers []string, connection string, requests int) string {
	list := strings.Join(answers, ",")
	if list == "" {
		list = "-"
	}
	if requests < 0 {
		return fmt.Sprintf("%s %s any", list, connection)
	}
	return fmt.Sprintf("%s %s %d", list, connection, requests)
}

// Match finds the acceptable outcome that was observed; nil if none was.
func Match(acceptable []Outcome, seen Observed) *Outcome {
	for i := range acceptable {
		if acceptable[i].holds(seen) {
			return &acceptable[i]
		}
	}
	return nil
}

func (o Outcome) holds(seen Observed) bool {
	if o.Requests >= 0 && o.Requests != seen.Requests {
		return false
	}
	switch {
	case o.Connection == "either", o.Connection == seen.Connection:
	case o.Connection == "closed" && strings.HasPrefix(seen.Connection, "goaway:"):
	default:
		return false
	}
	// What ends a connection may end it before its answers.
	if len(o.Answers) == 1 && o.Answers[0] == "refused" {
		return refused(seen)
	}
	if len(o.Answers) != len(seen.Answers) {
		return false
	}
	for i, want := range o.Answers {
		if !answer(want, seen.Answers[i]) {
			return false
		}
	}
	return true
}

// refused holds when every answer is an error and, without answers, the connection was ended.
func refused(seen Observed) bool {
	for _, a := range seen.Answers {
		if !answer("4xx|5xx|reset", a) && !strings.HasSuffix(a, ":none") {
			return false
		}
		if strings.HasSuffix(a, ":none") && seen.Connection != "closed" && !strings.HasPrefix(seen.Connection, "goaway:") {
			return false
		}
	}
	return len(seen.Answers) > 0 || seen.Connection == "closed" || strings.HasPrefix(seen.Connection, "goaway:")
}

// answer compares one answer with alternatives: 400|403, 4xx, and for HTTP/2 with the stream in front, 1:200,
// 1:reset (whatever the code), 1:reset:CANCEL, 1:none.
func answer(want, seen string) bool {
	stream, alternatives, found := strings.Cut(want, ":")
	if found && isNumber(stream) {
		got, rest, _ := strings.Cut(seen, ":")
		if got != stream {
			return false
		}
		seen = rest
	} else {
		alternatives = want
		if number, rest, found := strings.Cut(seen, ":"); found && isNumber(number) {
			seen = rest
		}
	}
	for _, a := range strings.Split(alternatives, "|") {
		if a == seen || strings.HasPrefix(seen, a+":") {
			return true
		}
		if strings.HasSuffix(a, "xx") && len(seen) == 3 && a[0] == seen[0] {
			return true
		}
	}
	return false
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
