package objects

import (
	"fmt"
	"strings"
)

// Error says what is wrong with one field of one manifest: where, what and what to do.
type Error struct {
	// File and Line (1-based) of the field; empty and zero when the object did not come from a file.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// Object that the field belongs to; zero when the document could not be told apart.
	Object Key `json:"object,omitzero"`
	// Path of the field, for example "spec.ports[0].port"; empty for the object as a whole.
	Path string `json:"path,omitempty"`
	// Problem says what is wrong, and Remedy what to do about it.
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"`
}

// Error gives "file:line: Kind/namespace/name: path: problem; remedy".
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	}
	if e.Object.Kind != "" {
		b.WriteString(e.Object.String() + ": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Problem)
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// maxErrorText bounds each part of an error, for most repeat what a hostile manifest said.
const maxErrorText = 1000

// clip shortens the parts that repeat the manifest's own words.
func (e *Error) clip() {
	for _, text := range []*string{&e.Object.Kind, &e.Object.Namespace, &e.Object.Name, &e.Path, &e.Problem, &e.Remedy} {
		if len(*text) > maxErrorText {
			*text = strings.ToValidUTF8((*text)[:maxErrorText], "") + "…"
		}
	}
}
