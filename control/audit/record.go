// Package audit is a cluster's record of who changed what, and of every certificate that was signed: JSON lines that are
// appended and on the disk before the change is made. What cannot be recorded is not done.
package audit

import (
	"strings"
	"time"

	"heddle.io/heddle/control/server/client"
)

// Results of a [Record].
const (
	// Begun: it is about to be made. Without a later record of the same ID, the controller ended before it knew how it
	// went.
	Begun = "begun"
	// Done and Failed end what was begun; a signing is one record, done.
	Done   = "done"
	Failed = "failed"
	// Refused: the caller has not the role.
	Refused = "refused"
)

// Record is one line.
type Record struct {
	Time time.Time `json:"time"`
	// ID is the same in the records of one action.
	ID string `json:"id"`
	// Who did it, as the API knows the caller, and From where. For is whom a caller who is root says to act for (the user
	// behind sudo), which nothing proves.
	Who  string `json:"who"`
	From string `json:"from,omitempty"`
	For  string `json:"for,omitempty"`
	// Caller is whose part of the log a change is taken from, see changesBurst; empty for root and the controller, who are
	// not bounded. It is not written.
	Caller string `json:"-"`
	Action Action `json:"action"`
	// Objects that it was done to.
	Objects []Object `json:"objects,omitempty"`
	// Detail is what else is to be known: a certificate's serial number, a token's id.
	Detail string `json:"detail,omitempty"`
	Result string `json:"result"`
	// Why it failed or was refused.
	Why string `json:"why,omitempty"`
	// Unrecorded is how many refusals before this one were too many to be recorded.
	Unrecorded uint64 `json:"unrecorded,omitempty"`
}

// Object is what an action was about.
type Object struct {
	// Name is Kind/namespace/name, or an identity.
	Name string `json:"name"`
	// Action is created, configured or deleted, where it differs from object to object.
	Action string `json:"action,omitempty"`
}

// matches says whether a filter chooses the record.
func (r Record) matches(f client.AuditFilter) bool {
	if r.Time.Before(f.Since) || !contains(r.Who, f.Who) && !contains(r.For, f.Who) {
		return false
	}
	if contains(string(r.Action), f.What) || contains(r.Detail, f.What) {
		return true
	}
	for _, o := range r.Objects {
		if contains(o.Name, f.What) {
			return true
		}
	}
	return false
}

func contains(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}
