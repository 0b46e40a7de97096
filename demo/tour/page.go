package tour

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// page is a page of the shop, read as a browser reads it.
type page struct{ root *html.Node }

func parsePage(r io.Reader) (page, error) {
	root, err := html.Parse(r)
	if err != nil {
		return page{}, fmt.Errorf("read page: %w", err)
	}
	return page{root}, nil
}

// all returns the elements below n that fit, in the order of the page.
func all(n *html.Node, fits func(*html.Node) bool) []*html.Node {
	var found []*html.Node
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && fits(d) {
			found = append(found, d)
		}
	}
	return found
}

// attribute returns an attribute's value, "" without it.
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// textOf returns what stands in the element with the identifier, "" without it.
func (p page) textOf(id string) string {
	for _, n := range all(p.root, func(n *html.Node) bool { return attribute(n, "id") == id }) {
		return text(n)
	}
	return ""
}

// heading is the page's main heading, for messages.
func (p page) heading() string {
	for _, n := range all(p.root, func(n *html.Node) bool { return n.Data == "h1" }) {
		return text(n)
	}
	return "no heading"
}

// products lists the products that the page offers, each once.
func (p page) products() []string {
	var found []string
	for _, n := range all(p.root, func(n *html.Node) bool { return attribute(n, "data-testid") == "product-card" }) {
		if id := attribute(n, "data-product"); id != "" && !slices.Contains(found, id) {
			found = append(found, id)
		}
	}
	return found
}

// form is a form with what is filled in already.
type form struct {
	action string
	fields map[string][]string
}

// form finds the form that posts to the path.
func (p page) form(action string) (form, error) {
	for _, n := range all(p.root, func(n *html.Node) bool { return n.Data == "form" && attribute(n, "action") == action }) {
		if !strings.EqualFold(attribute(n, "method"), "post") {
			continue
		}
		found := form{action: action, fields: map[string][]string{}}
		for _, field := range all(n, func(n *html.Node) bool { return n.Data == "input" && attribute(n, "name") != "" }) {
			found.fields[attribute(field, "name")] = []string{attribute(field, "value")}
		}
		return found, nil
	}
	return form{}, fmt.Errorf("the page %q has no form for %s", p.heading(), action)
}

// Call is a row of the shop's footer: one call, as the called service saw it.
type Call struct {
	Caller, Service, Method string
	// Client and Server are SPIFFE identities, or say that there was none.
	Client, Server string
	// ClientCluster and ServerCluster are where the two run.
	ClientCluster, ServerCluster string
	Status                       string
}

// calls reads the footer.
func (p page) calls() []Call {
	var found []Call
	for _, n := range all(p.root, func(n *html.Node) bool { return attribute(n, "data-testid") == "mesh-call" }) {
		found = append(found, Call{
			Caller: attribute(n, "data-caller"), Service: attribute(n, "data-service"), Method: attribute(n, "data-method"),
			Client: attribute(n, "data-client"), Server: attribute(n, "data-server"),
			ClientCluster: attribute(n, "data-client-cluster"), ServerCluster: attribute(n, "data-server-cluster"),
			Status: attribute(n, "data-status"),
		})
	}
	return found
}
