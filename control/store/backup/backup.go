// Package backup is the file that a cluster's objects are kept in apart from it: one line of JSON each for the header, every
// object as the store keeps it, and the digest of all before. Secrets in it are sealed with the store's key, which is not
// in it.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"heddle.io/heddle/control/store"
)

// Format of the files that this program writes and reads.
const Format = 1

// maxLine bounds a line: no store takes larger objects than 1.5 MiB, and base64 adds a third.
const maxLine = 4 << 20

// ErrDamaged says that a file is not what was written.
var ErrDamaged = errors.New("the backup is damaged")

// Header begins a file.
type Header struct {
	// Format is [Format].
	Format int `json:"heddleBackup"`
	// Cluster whose objects these are.
	Cluster string `json:"cluster"`
	// Version of the program that wrote it.
	Version string `json:"version"`
	// Taken is when.
	Taken time.Time `json:"taken"`
}

// footer ends a file.
type footer struct {
	Objects int    `json:"objects"`
	SHA256  string `json:"sha256"`
}

// Write writes a store's objects.
func Write(ctx context.Context, to io.Writer, s store.Store, header Header) (n int, err error) {
	sum := sha256.New()
	buffered := bufio.NewWriter(to)
	encoder := json.NewEncoder(io.MultiWriter(buffered, sum))
	header.Format = Format
	if err := encoder.Encode(header); err != nil {
		return 0, fmt.Errorf("write backup: %w", err)
	}
	if err := s.Export(ctx, func(e store.Exported) error { n++; return encoder.Encode(e) }); err != nil {
		return 0, fmt.Errorf("write backup: %w", err)
	}
	if err := json.NewEncoder(buffered).Encode(footer{Objects: n, SHA256: digest(sum)}); err != nil {
		return 0, fmt.Errorf("write backup: %w", err)
	}
	return n, buffered.Flush()
}

func digest(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }

// Read reads a whole file. The error is [ErrDamaged] when a byte of it is not what was written.
func Read(content []byte) (Header, []store.Exported, error) {
	var h Header
	damaged := func(why string) (Header, []store.Exported, error) {
		return h, nil, fmt.Errorf("%w: %s", ErrDamaged, why)
	}
	body, last := bytes.TrimSuffix(content, []byte("\n")), []byte(nil)
	if len(body) == len(content) {
		return damaged("its end is missing")
	}
	cut := bytes.LastIndexByte(body, '\n')
	if cut < 0 {
		return damaged("it is no backup, or its end is missing")
	}
	body, last = content[:cut+1], body[cut+1:]
	var f footer
	if err := json.Unmarshal(last, &f); err != nil || f.SHA256 == "" {
		return damaged("its end is missing")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != f.SHA256 {
		return damaged("its digest is another one")
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, maxLine)
	if !lines.Scan() {
		return damaged("it has no header")
	}
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
		return damaged("its header cannot be read")
	}
	if h.Format != Format {
		return h, nil, fmt.Errorf("the backup has format %d, and this program reads %d: use the version of heddle that wrote it, %s", h.Format, Format, h.Version)
	}
	var all []store.Exported
	for lines.Scan() {
		var e store.Exported
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return damaged(err.Error())
		}
		all = append(all, e)
	}
	if err := lines.Err(); err != nil {
		return damaged(err.Error())
	}
	if len(all) != f.Objects {
		return damaged(fmt.Sprintf("it has %d objects of %d", len(all), f.Objects))
	}
	return h, all, nil
}
