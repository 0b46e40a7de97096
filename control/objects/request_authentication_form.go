package objects

import (
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The bounds of heddle-proxy on key sets.
const (
	maxKeySet   = 256 << 10
	maxKeys     = 100
	minRSABytes = 128
	maxRSABytes = 1024
)

func (c *checker) requestAuthentication(r *securityv1.RequestAuthentication) {
	c.labels("spec.selector.matchLabels", r.Spec.GetSelector().GetMatchLabels())
	for i, rule := range r.Spec.JwtRules {
		c.jwtRule(fmt.Sprintf("spec.jwtRules[%d]", i), rule)
	}
}

func (c *checker) jwtRule(at string, r *security.JWTRule) {
	if r.GetIssuer() == "" {
		c.fail(at+".issuer", "missing", "write it as tokens have it in their claim iss")
	}
	switch err := checkKeySet(r.GetJwks()); {
	case r.GetJwks() == "" && r.GetJwksUri() == "":
		// Istio would look for the issuer's OpenID discovery document.
		c.fail(at+".jwks", "missing", "give the issuer's JSON Web Key Set, or its address in jwksUri")
	case r.GetJwks() != "" && r.GetJwksUri() != "":
		c.fail(at+".jwksUri", "contradicts jwks", "leave one of the two")
	case r.GetJwksUri() != "":
		if _, err := ParseKeysURI(r.GetJwksUri()); err != nil {
			c.fail(at+".jwksUri", "cannot be asked for keys: "+err.Error(), "write for example https://accounts.example/keys")
		}
	case r.GetJwks() != "" && err != nil:
		c.fail(at+".jwks", "is no JSON Web Key Set that can be used: "+err.Error(),
			`write for example {"keys": [{"kty": "RSA", "kid": "...", "n": "...", "e": "AQAB"}]}`)
	}
	c.duration(at+".timeout", r.GetTimeout())
	c.positive(at+".timeout", r.GetTimeout())
	for _, l := range []struct {
		name   string
		values []string
	}{
		{"audiences", r.GetAudiences()},
		{"fromParams", r.GetFromParams()},
		{"fromCookies", r.GetFromCookies()},
		{"spaceDelimitedClaims", r.GetSpaceDelimitedClaims()},
	} {
		for i, v := range l.values {
			if v == "" {
				c.fail(fmt.Sprintf("%s.%s[%d]", at, l.name, i), "is empty", "write a value, or remove it")
			}
		}
	}
	for i, h := range r.GetFromHeaders() {
		path := fmt.Sprintf("%s.fromHeaders[%d]", at, i)
		c.plainHeader(path+".name", h.GetName())
		if strings.ContainsAny(h.GetPrefix(), "\r\n\x00") {
			c.fail(path+".prefix", "holds control characters", "remove them")
		}
	}
	if name := r.GetOutputPayloadToHeader(); name != "" {
		c.settableHeader(at+".outputPayloadToHeader", name)
	}
	for i, h := range r.GetOutputClaimToHeaders() {
		path := fmt.Sprintf("%s.outputClaimToHeaders[%d]", at, i)
		c.settableHeader(path+".header", h.GetHeader())
		if h.GetClaim() == "" {
			c.fail(path+".claim", "is empty", "name a claim")
		}
	}
}

// KeysURI is where a key set is.
type KeysURI struct {
	// Host is a name in lower case, or an address without brackets.
	Host string
	Port uint16
	// TLS is whether it is https.
	TLS bool
}

// ParseKeysURI reads a jwksUri.
func ParseKeysURI(text string) (KeysURI, error) {
	u, err := url.Parse(text)
	if err != nil {
		return KeysURI{}, fmt.Errorf("it is no URI: %w", errors.Unwrap(err))
	}
	out := KeysURI{Host: strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), TLS: u.Scheme == "https", Port: 80}
	if out.TLS {
		out.Port = 443
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return KeysURI{}, errors.New("it does not begin with https:// or http://")
	case len(validation.IsDNS1123Subdomain(out.Host)) > 0 && net.ParseIP(out.Host) == nil:
		return KeysURI{}, fmt.Errorf("%q is no host", u.Hostname())
	case u.User != nil:
		return KeysURI{}, errors.New("it has a user")
	case u.Fragment != "":
		return KeysURI{}, errors.New("it has a fragment")
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return KeysURI{}, errors.New("it has characters that are to be escaped")
	}
	if p := u.Port(); p != "" {
		number, err := strconv.ParseUint(p, 10, 16)
		if err != nil || number == 0 {
			return KeysURI{}, fmt.Errorf("%s is no port", p)
		}
		out.Port = uint16(number)
	}
	return out, nil
}

// key is a JSON Web Key (RFC 7517), as far as proxies read it.
type key struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	N     string `json:"n"`
	E     string `json:"e"`
	X     string `json:"x"`
	Y     string `json:"y"`
	K     string `json:"k"`
}

// checkKeySet says why proxies could not use a key set. Keys of unknown kinds are passed over, but one must be left.
func checkKeySet(text string) error {
	if len(text) > maxKeySet {
		return fmt.Errorf("it is longer than %d bytes", maxKeySet)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		return fmt.Errorf("it is not JSON with a list of keys: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return fmt.Errorf("it has more than %d keys", maxKeys)
	}
	problem := errors.New("it has no keys")
	for i, raw := range set.Keys {
		var k key
		err := json.Unmarshal(raw, &k)
		if err == nil {
			err = k.check()
		}
		if err == nil {
			return nil
		}
		if i == 0 {
			problem = fmt.Errorf("its first key: %w", err)
		}
	}
	return problem
}

func (k key) check() error {
	bytes := func(text string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
		if err != nil {
			return nil
		}
		return b
	}
	switch k.Type {
	case "RSA":
		n, e := len(bytes(k.N)), string(bytes(k.E))
		if n < minRSABytes || n > maxRSABytes || e != "\x03" && e != "\x01\x00\x01" {
			return fmt.Errorf("n must be of %d to %d bytes, and e be 3 or 65537", minRSABytes, maxRSABytes)
		}
		return nil
	case "EC":
		curve, size := ecdh.P256(), 32
		switch k.Curve {
		case "", "P-256":
		case "P-384":
			curve, size = ecdh.P384(), 48
		case "P-521":
			curve, size = ecdh.P521(), 66
		default:
			return fmt.Errorf("crv %q is not P-256, P-384 or P-521", k.Curve)
		}
		x, y := bytes(k.X), bytes(k.Y)
		if len(x) > size || len(y) > size {
			return errors.New("x or y is too long")
		}
		point := make([]byte, 1+2*size)
		point[0] = 4
		copy(point[1+size-len(x):], x)
		copy(point[1+2*size-len(y):], y)
		if _, err := curve.NewPublicKey(point); err != nil {
			return errors.New("x and y are not a point of the curve")
		}
		return nil
	case "OKP":
		if k.Curve != "Ed25519" || len(bytes(k.X)) != 32 {
			return errors.New("it is not an Ed25519 key of 32 bytes")
		}
		return nil
	case "oct":
		if len(bytes(k.K)) == 0 {
			return errors.New("k is empty")
		}
		return nil
	}
	return fmt.Errorf("kty %q is not RSA, EC, OKP or oct", k.Type)
}

// routingClaims is the beginning of header names in a VirtualService's matches that stand for claims.
const routingClaims = "@request.auth.claims"

// RoutingClaim reads the name of a header in a match that stands for a claim: @request.auth.claims.group.name or, for
// names with dots in them, @request.auth.claims[group][name]. The second result is false for other names.
func RoutingClaim(name string) ([]string, bool) {
	if len(name) < len(routingClaims) || !strings.EqualFold(name[:len(routingClaims)], routingClaims) {
		return nil, false
	}
	rest := name[len(routingClaims):]
	if dotted, ok := strings.CutPrefix(rest, "."); ok && dotted != "" {
		return named(strings.Split(dotted, "."))
	}
	return ClaimPath(rest)
}

// ClaimPath reads the names of [a][b].
func ClaimPath(text string) ([]string, bool) {
	inner, opened := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !opened || !closed || inner == "" {
		return nil, false
	}
	return named(strings.Split(inner, "]["))
}

// named is false when a part has no name.
func named(parts []string) ([]string, bool) {
	if slices.Contains(parts, "") {
		return nil, false
	}
	return parts, true
}
