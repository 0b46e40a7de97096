// Package identity shows who answered whom. Applications know nothing of the
// mesh; all they do is to return the x-forwarded-client-cert header that a
// proxy in front of them may have set, and to collect what their own calls
// returned.
package identity

import (
	"regexp"
	"strings"
)

// Header names, lower case as HTTP/2 wants them.
const (
	// HeaderForwarded is set by the server's proxy and describes the client's
	// certificate and the server's own.
	HeaderForwarded = "x-forwarded-client-cert"
	// HeaderClient returns the HeaderForwarded a server saw, or "none".
	HeaderClient = "x-boutique-client"
	// HeaderServedBy returns role/host or role/host/cluster of the server.
	HeaderServedBy = "x-boutique-served-by"
)

// None is what HeaderClient says when there was no HeaderForwarded.
const None = "none"

// maxForwarded bounds what is echoed: a certificate in the header may be long,
// a hostile client's longer.
const maxForwarded = 8 << 10

// Forwarded is what the nearest proxy wrote about one connection.
type Forwarded struct {
	// Client is the URI name in the client's certificate, "" when absent.
	Client string
	// Server is the URI name in the server's own certificate, "" when absent.
	Server string
	// ClientCluster is the cluster that the client's certificate names, "" when
	// it names none.
	ClientCluster string
}

// ParseForwarded reads an x-forwarded-client-cert header. Of several elements
// the last counts: each proxy appends its own, and only the nearest one is
// trusted to speak of this connection. Text that is not in the header's form
// gives empty names, never an error, because the header is for display only.
func ParseForwarded(header string) Forwarded {
	var found Forwarded
	elements := splitQuoted(header, ',')
	for _, pair := range splitQuoted(elements[len(elements)-1], ';') {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		value = unquote(value)
		switch {
		case strings.EqualFold(key, "URI") && found.Client == "":
			found.Client = value
		case strings.EqualFold(key, "By") && found.Server == "":
			found.Server = value
		case strings.EqualFold(key, "DNS") && found.ClientCluster == "":
			found.ClientCluster = clusterOf(value)
		}
	}
	return found
}

// clusterName is <cluster>.clusters.<trust domain>, or
// <membership>.<cluster>.clusters.<trust domain>, where a membership has 32
// hexadecimal digits.
var clusterName = regexp.MustCompile(`^(?:[0-9a-f]{32}\.)?([^.]+)\.clusters\..`)

// clusterOf returns the cluster of such a DNS name, which a mesh may put into the
// certificates of each cluster, and "" for any other name.
func clusterOf(name string) string {
	if found := clusterName.FindStringSubmatch(name); found != nil {
		return found[1]
	}
	return ""
}

// splitQuoted splits at separators outside double quotes. It always returns at
// least one part.
func splitQuoted(text string, separator byte) []string {
	var parts []string
	start, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == separator && !quoted:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

func unquote(value string) string {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return value
	}
	return strings.ReplaceAll(strings.ReplaceAll(value[1:len(value)-1], `\"`, `"`), `\\`, `\`)
}

// ServedBy writes the value of HeaderServedBy; cluster may be empty.
func ServedBy(role, host, cluster string) string {
	if cluster == "" {
		return role + "/" + host
	}
	return role + "/" + host + "/" + cluster
}

// ServingCluster returns the cluster in a value of HeaderServedBy, "" when it
// has none.
func ServingCluster(servedBy string) string {
	parts := strings.SplitN(servedBy, "/", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[2]
}

// Echo returns the value of HeaderClient for the HeaderForwarded values of a
// request. More than 8 KiB are cut from the front, where the farthest proxies'
// elements are.
func Echo(forwarded []string) string {
	value := strings.TrimSpace(strings.Join(forwarded, ","))
	if value == "" {
		return None
	}
	if len(value) > maxForwarded {
		value = value[len(value)-maxForwarded:]
	}
	return value
}
