package model

import "time"

// Fault delays or aborts some of a route's requests, so that one sees what their callers make of it. A request may get
// both: the delay first.
type Fault struct {
	Delay *FaultDelay `json:"delay,omitempty"`
	Abort *FaultAbort `json:"abort,omitempty"`
}

// FaultDelay holds requests up before they are forwarded.
type FaultDelay struct {
	Time time.Duration `json:"time"`
	// Share of a million requests.
	Share uint32 `json:"share"`
}

// FaultAbort answers requests instead of forwarding them. Exactly one of HTTPStatus and GRPCStatus is set.
type FaultAbort struct {
	HTTPStatus uint32 `json:"httpStatus,omitempty"`
	GRPCStatus uint32 `json:"grpcStatus,omitempty"`
	// Share of a million requests.
	Share uint32 `json:"share"`
}

// Mirror copies some of a route's requests to a service, to see how it does with them.
type Mirror struct {
	To Destination `json:"to"`
	// Share of a million requests.
	Share uint32 `json:"share"`
}

// CORS lets pages of other origins use a route (https://fetch.spec.whatwg.org/#http-cors-protocol): the proxy answers
// their preflight requests and marks the answers to the others.
type CORS struct {
	// Origins of which one must match; an exact "*" is any.
	Origins []StringMatch `json:"origins,omitempty"`
	Methods []string      `json:"methods,omitempty"`
	// Headers that a request may have, and Expose those of an answer that a page may read.
	Headers []string `json:"headers,omitempty"`
	Expose  []string `json:"expose,omitempty"`
	// MaxAge of a preflight's answer, in whole seconds; nil leaves it to the browser.
	MaxAge *time.Duration `json:"maxAge,omitempty"`
	// Credentials, such as cookies, may be sent; nil means not.
	Credentials *bool `json:"credentials,omitempty"`
	// KeepUnmatched answers preflight requests of other origins, instead of forwarding them.
	KeepUnmatched bool `json:"keepUnmatched,omitempty"`
}
