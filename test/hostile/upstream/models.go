package upstream

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

// model of how a kind of server finds the path that its application sees.
type model struct {
	name string
	read func(target string) []string
}

// models of common servers. Each returns every path that some usual setting of it arrives at.
var models = []model{
	{"servlet", servlet},
	{"Go", goServer},
	{"Node", node},
	{"nginx", nginx},
}

// ReadAs says which servers would take a request target for a path at or below prefix, which has no slash at its end.
func ReadAs(target, prefix string) []string {
	var out []string
	for _, m := range models {
		if slices.ContainsFunc(m.read(target), func(p string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }) {
			out = append(out, m.name)
		}
	}
	return out
}

// pathOf cuts query, fragment and, from an absolute target, the authority.
func pathOf(target string) string {
	if _, rest, found := strings.Cut(target, "://"); found && !strings.HasPrefix(target, "/") {
		if at := strings.IndexByte(rest, '/'); at >= 0 {
			target = rest[at:]
		} else {
			target = "/"
		}
	}
	target, _, _ = strings.Cut(target, "?")
	target, _, _ = strings.Cut(target, "#")
	return target
}

func unescape(p string) string {
	if decoded, err := url.PathUnescape(p); err == nil {
		return decoded
	}
	return p
}

func clean(p string) string {
	if p == "" {
		return "/"
	}
	return path.Clean("/" + p)
}

// servlet containers cut path parameters (;…) off each segment, then decode, then resolve dot segments (Jakarta
// Servlet 6, section 3.5.2). Older ones turned backslashes and encoded slashes into slashes.
func servlet(target string) []string {
	segments := strings.Split(pathOf(target), "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	p := unescape(strings.Join(segments, "/"))
	return []string{clean(p), clean(strings.ReplaceAll(p, `\`, "/"))}
}

// goServer: net/http decodes into URL.Path; ServeMux cleans; handlers see either.
func goServer(target string) []string {
	p := unescape(pathOf(target))
	return []string{p, clean(p)}
}

// node: new URL() resolves dot segments, encoded ones too, takes backslashes for slashes and drops tabs and line ends;
// frameworks then decode. Against a base, it takes what follows two slashes or more for a host (WHATWG URL, "special
// authority ignore slashes state").
func node(target string) []string {
	p := strings.NewReplacer(`\`, "/", "\t", "", "\n", "", "\r", "").Replace(pathOf(target))
	read := []string{p}
	for _, p := range []string{p, behindHost(p)} {
		resolved := resolve(p)
		read = append(read, resolved, unescape(resolved))
	}
	return read
}

func behindHost(p string) string {
	host := strings.TrimLeft(p, "/")
	if len(p)-len(host) < 2 {
		return p
	}
	if at := strings.IndexByte(host, '/'); at >= 0 {
		return host[at:]
	}
	return "/"
}

func resolve(p string) string {
	segments := strings.Split(p, "/")
	for i, s := range segments {
		if dots := strings.ReplaceAll(strings.ToLower(s), "%2e", "."); dots == "." || dots == ".." {
			segments[i] = dots
		}
	}
	return clean(strings.Join(segments, "/"))
}

// nginx decodes, resolves dot segments and merges slashes.
func nginx(target string) []string {
	return []string{clean(unescape(pathOf(target)))}
}
