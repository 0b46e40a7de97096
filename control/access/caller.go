package access

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"heddle.io/heddle/control/server/client"
)

// Kinds of callers, as the audit log names them.
const (
	KindUser           = "user"
	KindToken          = "token"
	KindServiceAccount = "serviceaccount"
)

// Caller is who sent a request.
type Caller struct {
	// Kind and Name: user "bob", token "3f…", serviceaccount "shop/cart".
	Kind, Name string
	// Groups that a user is in.
	Groups []string
	// UID of the process at the other end of the socket; -1 for others.
	UID int
	// From is where the request came from: "unix pid 41", or an address and port.
	From string
	// Note is what an administrator called the token.
	Note string
	// Grants are its roles.
	Grants Grants
}

// nobody called: a request that no authentication has seen.
var nobody = &Caller{UID: -1, Name: "unknown"}

// String names the caller, for messages and logs.
func (c *Caller) String() string {
	switch {
	case c.Kind == "":
		return c.Name
	case c.Note != "":
		return fmt.Sprintf("%s %s (%s)", c.Kind, c.Name, c.Note)
	}
	return c.Kind + " " + c.Name
}

// Agent says whether the caller is the cluster's agent: root on this machine. It attests workloads.
func (c *Caller) Agent() bool { return c.Kind == KindUser && c.UID == 0 }

type callerKey struct{}

// With gives a context that knows its caller.
func With(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// From is the caller of a request. Without one it is somebody without any role.
func From(ctx context.Context) *Caller {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return nobody
}

// Need is what a request needs.
type Need struct {
	// Role in Namespace: a namespace's name, or [Everywhere].
	Role      Role
	Namespace string
	// Somewhere says that the role is needed in any one namespace; the answer holds what the caller may see of it.
	Somewhere bool
	// To says what is to be done: "delete services".
	To string
}

func (n Need) where() string {
	if n.Somewhere {
		return "in some namespace"
	}
	return where(n.Namespace)
}

// May says whether a caller has what is needed: nil, or the answer with status 403 that says who is missing what.
func (c *Caller) May(n Need) *client.Problem {
	if n.Somewhere && c.Grants.Most() >= n.Role || !n.Somewhere && c.Grants.In(n.Namespace) >= n.Role {
		return nil
	}
	return &client.Problem{
		Status: http.StatusForbidden,
		What:   strings.TrimSpace(fmt.Sprintf("%s may not %s %s", c, n.To, c.at(n))),
		Why:    fmt.Sprintf("it needs the role %s %s, and has %s", n.Role, n.where(), c.Grants),
		Remedy: "ask an admin of the cluster for it: " + c.remedy(n),
	}
}

// at is the place of what is to be done, where there is one.
func (c *Caller) at(n Need) string {
	if n.Somewhere || n.Namespace == Everywhere {
		return ""
	}
	return where(n.Namespace)
}

// remedy is the command by which an admin grants what is needed.
func (c *Caller) remedy(n Need) string {
	scope := "-A"
	switch {
	case n.Somewhere:
		scope = "-n <namespace>"
	case n.Namespace != Everywhere:
		scope = "-n " + n.Namespace
	}
	switch c.Kind {
	case KindUser:
		return fmt.Sprintf("`heddle access grant %s --user %s %s`", n.Role, c.Name, scope)
	case KindServiceAccount:
		return fmt.Sprintf("`heddle access grant %s --service-account %s %s`", n.Role, c.Name, scope)
	}
	return fmt.Sprintf("`heddle token create --role %s %s` makes another token", n.Role, scope)
}
