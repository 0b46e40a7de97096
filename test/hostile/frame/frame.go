// Package frame turns lines such as `HEADERS 1 end | @get | x-a: 1` into the bytes of HTTP/2 frames, right or wrong
// (RFC 9113 section 6).
package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"heddle.io/heddle/test/hostile/corpus"
)

// Preface that a client sends first.
const Preface = http2.ClientPreface

// macros stand for the pseudo-header fields of common requests.
var macros = map[string][]string{
	"@get":  {":method: GET", ":scheme: http", ":authority: host", ":path: /"},
	"@head": {":method: HEAD", ":scheme: http", ":authority: host", ":path: /"},
	"@post": {":method: POST", ":scheme: http", ":authority: host", ":path: /"},
	"@bare": {":method: GET", ":scheme: http", ":path: /"},
	"@ok":   {":status: 200"},
	// RFC 8441 section 4.
	"@connect": {":method: CONNECT", ":protocol: websocket", ":scheme: http", ":authority: host", ":path: /"},
}

var flagBits = map[string]byte{"end": 0x1, "ack": 0x1, "headers-end": 0x4, "padded": 0x8, "priority": 0x20}

// Encoder keeps what one connection's header compression remembers.
type Encoder struct {
	// Current is the stream that @ stands for.
	Current uint32
	block   bytes.Buffer
	hpack   *hpack.Encoder
}

// NewEncoder for one connection.
func NewEncoder() *Encoder {
	e := &Encoder{}
	e.hpack = hpack.NewEncoder(&e.block)
	return e
}

// Known says whether a verb names a frame.
func Known(verb string) bool {
	_, ok := types[verb]
	return ok || verb == "FRAME" || verb == "raw"
}

var types = map[string]http2.FrameType{
	"DATA": http2.FrameData, "HEADERS": http2.FrameHeaders, "PRIORITY": http2.FramePriority, "RST_STREAM": http2.FrameRSTStream,
	"SETTINGS": http2.FrameSettings, "PUSH_PROMISE": http2.FramePushPromise, "PING": http2.FramePing, "GOAWAY": http2.FrameGoAway,
	"WINDOW_UPDATE": http2.FrameWindowUpdate, "CONTINUATION": http2.FrameContinuation,
}

// Frame encodes one line. Its text is `STREAM [FLAG…] [length=N] | PART | PART…`. Parts by type:
//   - HEADERS, CONTINUATION, PUSH_PROMISE: `name: value` (Huffman and the tables as the encoder likes), `!name: value`
//     (never indexed), `?name: value` (literal, neither Huffman nor indexed; name and value may hold escapes),
//     `size N` (a table size update), `hex: …` (raw bytes of the block), `@get`, `@post`, `@head`, `@bare`, `@ok`, `@connect`. The
//     flag `more` leaves END_HEADERS away. In front may stand `promise: N`, `pad: N`, `prio: HEX`.
//   - SETTINGS: `NUMBER=VALUE` each. RST_STREAM: the code's number. WINDOW_UPDATE: the increment. GOAWAY: `LAST CODE`.
//   - everything else, DATA and FRAME (`FRAME TYPE STREAM…`) too: text with escapes, or `hex: …`.
//
// The verb `raw` is text with escapes and no frame at all.
//
// # Errors
// What cannot be read.
func (e *Encoder) Frame(verb, text string) ([]byte, error) {
	if verb == "raw" {
		return corpus.Bytes(text)
	}
	parts := strings.Split(text, " | ")
	words := strings.Fields(parts[0])
	kind, known := types[verb]
	if verb == "FRAME" && len(words) > 1 {
		n, err := strconv.ParseUint(words[0], 0, 8)
		if err != nil {
			return nil, err
		}
		kind, known, words = http2.FrameType(n), true, words[1:]
	}
	if !known || len(words) == 0 {
		return nil, fmt.Errorf("%s %s: want TYPE STREAM [FLAG…] | PART…", verb, text)
	}
	stream := uint64(e.Current)
	var err error
	if words[0] != "@" {
		if stream, err = strconv.ParseUint(words[0], 0, 32); err != nil {
			return nil, err
		}
	}
	flags, length := byte(0), -1
	withBlock := kind == http2.FrameHeaders || kind == http2.FrameContinuation || kind == http2.FramePushPromise
	if withBlock && verb != "FRAME" {
		flags = flagBits["headers-end"]
	}
	for _, word := range words[1:] {
		number, isLength := strings.CutPrefix(word, "length=")
		switch {
		case isLength:
			if length, err = strconv.Atoi(number); err != nil {
				return nil, err
			}
		case word == "more":
			flags &^= flagBits["headers-end"]
		case strings.HasPrefix(word, "0x"):
			bits, err := strconv.ParseUint(word, 0, 8)
			if err != nil {
				return nil, err
			}
			flags |= byte(bits)
		case flagBits[word] != 0:
			flags |= flagBits[word]
		default:
			return nil, fmt.Errorf("%s %s: unknown flag %q", verb, text, word)
		}
	}
	payload, err := e.payload(kind, verb == "FRAME", parts[1:])
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, text, err)
	}
	if length < 0 {
		length = len(payload)
	}
	head := []byte{byte(length >> 16), byte(length >> 8), byte(length), byte(kind), flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], uint32(stream))
	return append(head, payload...), nil
}

func (e *Encoder) payload(kind http2.FrameType, raw bool, parts []string) ([]byte, error) {
	var out bytes.Buffer
	for _, part := range parts {
		part = strings.TrimSpace(part)
		if digits, found := strings.CutPrefix(part, "hex:"); found {
			decoded, err := hex.DecodeString(strings.NewReplacer(" ", "", `\e`, "").Replace(digits))
			if err != nil {
				return nil, err
			}
			out.Write(decoded)
			continue
		}
		if err := e.part(&out, kind, raw, part); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

func (e *Encoder) part(out *bytes.Buffer, kind http2.FrameType, raw bool, part string) error {
	switch {
	case raw || kind == http2.FrameData || kind == http2.FramePing || kind == http2.FramePriority:
		return text(out, part)
	case kind == http2.FrameSettings:
		name, value, _ := strings.Cut(part, "=")
		id, err := strconv.ParseUint(name, 0, 16)
		if err != nil {
			return err
		}
		out.Write(binary.BigEndian.AppendUint16(nil, uint16(id)))
		return numbers(out, value)
	case kind == http2.FrameRSTStream || kind == http2.FrameWindowUpdate || kind == http2.FrameGoAway:
		return numbers(out, strings.Fields(part)...)
	}
	if fields, found := macros[part]; found {
		for _, field := range fields {
			if err := e.field(out, field); err != nil {
				return err
			}
		}
		return nil
	}
	word, value, _ := strings.Cut(part, " ")
	switch word {
	case "promise:":
		return numbers(out, value)
	case "pad:":
		n, err := strconv.ParseUint(value, 0, 8)
		out.WriteByte(byte(n))
		return err
	case "prio:":
		decoded, err := hex.DecodeString(value)
		out.Write(decoded)
		return err
	case "size":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return err
		}
		out.Write(Integer(0x20, 5, n))
		return nil
	}
	return e.field(out, part)
}

// field writes one header field; the first colon behind the first character ends the name.
func (e *Encoder) field(out *bytes.Buffer, part string) error {
	mode := byte(0)
	if strings.HasPrefix(part, "!") || strings.HasPrefix(part, "?") {
		mode, part = part[0], part[1:]
	}
	if part == "" {
		return fmt.Errorf("an empty field")
	}
	at := strings.Index(part[1:], ":")
	if at < 0 {
		return fmt.Errorf("%q is no `name: value`", part)
	}
	name, err := corpus.Bytes(part[:at+1])
	if err != nil {
		return err
	}
	// One space behind the colon belongs to the notation, as itself or as an escape from an `each` line.
	rest, trimmed := strings.CutPrefix(part[at+2:], " ")
	if !trimmed {
		rest = strings.TrimPrefix(rest, `\s`)
	}
	value, err := corpus.Bytes(rest)
	if err != nil {
		return err
	}
	if mode == '?' {
		out.WriteByte(0)
		out.Write(Integer(0, 7, uint64(len(name))))
		out.Write(name)
		out.Write(Integer(0, 7, uint64(len(value))))
		out.Write(value)
		return nil
	}
	e.block.Reset()
	if err := e.hpack.WriteField(hpack.HeaderField{Name: string(name), Value: string(value), Sensitive: mode == '!'}); err != nil {
		return err
	}
	out.Write(e.block.Bytes())
	return nil
}

// Integer in the representation of RFC 7541 section 5.1, with the bits above the prefix set as in first.
func Integer(first byte, prefix uint, n uint64) []byte {
	most := uint64(1)<<prefix - 1
	if n < most {
		return []byte{first | byte(n)}
	}
	out := []byte{first | byte(most)}
	for n -= most; n >= 128; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}

func text(out *bytes.Buffer, part string) error {
	decoded, err := corpus.Bytes(part)
	out.Write(decoded)
	return err
}

func numbers(out *bytes.Buffer, values ...string) error {
	for _, v := range values {
		n, err := strconv.ParseUint(v, 0, 32)
		if err != nil {
			return err
		}
		out.Write(binary.BigEndian.AppendUint32(nil, uint32(n)))
	}
	return nil
}
