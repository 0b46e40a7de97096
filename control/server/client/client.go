package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
)

// WireType asks for objects as Heddle's own parts exchange them, with origin and status; without it the API answers
// in Kubernetes' form.
const WireType = "application/vnd.heddle.object+json"

// Client talks to a controller over its unix socket, or by its address. It is safe for concurrent use.
type Client struct {
	// where is the socket or the URL, for messages; base is before all paths.
	where, base string
	remote      bool
	token       string
	http        *http.Client
}

// Options of a client.
type Options struct {
	// Socket is the path of the API's unix socket.
	Socket string
	// URL of an API over TLS, in place of Socket: https://host:port. TLS says what is trusted and shown.
	URL string
	TLS *tls.Config
	// Token to show, empty to be known by what the socket or the certificate says.
	Token string
	// Dial connects; nil means an ordinary dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// New makes a client for a socket. Nothing is connected yet.
func New(socket string) *Client { return With(Options{Socket: socket}) }

// With makes a client. Nothing is connected yet.
func With(o Options) *Client {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := &http.Transport{MaxIdleConns: 8, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx, "unix", o.Socket) }}
	if o.URL != "" {
		transport.DialContext, transport.TLSClientConfig, transport.TLSHandshakeTimeout = o.Dial, o.TLS, dialTimeout
		return &Client{where: o.URL, base: strings.TrimSuffix(o.URL, "/"), remote: true, token: o.Token, http: &http.Client{Transport: transport, CheckRedirect: stay}}
	}
	return &Client{where: o.Socket, base: "http://heddle", token: o.Token, http: &http.Client{Transport: transport}}
}

// stay follows no redirect: a token is for one server.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

const dialTimeout = 5 * time.Second

// Path of a kind's objects in the API: Kubernetes' paths.
func Path(kind *objects.Kind, namespace, name string) string {
	var b strings.Builder
	if kind.Group == "" {
		b.WriteString("/api/" + kind.Version)
	} else {
		b.WriteString("/apis/" + kind.Group + "/" + kind.Version)
	}
	if kind.Namespaced && namespace != "" {
		b.WriteString("/namespaces/" + url.PathEscape(namespace))
	}
	b.WriteString("/" + kind.Plural)
	if name != "" {
		b.WriteString("/" + url.PathEscape(name))
	}
	return b.String()
}

// Open sends a request and returns the body of a successful answer; any other becomes a *Problem. in, when not nil, is
// sent as JSON.
func (c *Client) Open(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var body io.Reader
	if in != nil {
		content, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if _, object := in.(*objects.Object); object {
		request.Header.Set("Content-Type", WireType)
	}
	request.Header.Set("Accept", WireType)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if response.StatusCode/100 == 2 {
		return response.Body, nil
	}
	defer response.Body.Close()
	problem := &Problem{}
	content, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil || json.Unmarshal(content, problem) != nil || problem.What == "" {
		problem = &Problem{What: strings.TrimSpace(method + " " + path + " was answered with " + response.Status), Why: strings.TrimSpace(string(content))}
	}
	problem.Status = response.StatusCode
	return nil, problem
}

// unreachable explains why there was no answer at all.
func (c *Client) unreachable(err error) error {
	problem := &Problem{Status: http.StatusServiceUnavailable, What: "the controller cannot be reached", Where: c.where, Why: err.Error(), cause: err}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case c.remote:
		problem.What, problem.Remedy = "the cluster's API cannot be reached", "check the address of the context (`heddle context list`), the network, and that the cluster was started with --api-address"
		var invalid *tls.CertificateVerificationError
		var name x509.HostnameError
		if errors.As(err, &name) && name.Certificate != nil {
			problem.What, problem.Why = "another cluster, or none, answers there", fmt.Sprintf("it is %s, not %s", strings.Join(name.Certificate.DNSNames, ", "), name.Host)
			problem.Remedy = "if it is the one that you mean, name it: `heddle context add … --tls-server-name`"
		} else if errors.As(err, &invalid) {
			problem.What, problem.Remedy = "what answers there is not trusted", "give the cluster's own root with --ca-file: `heddle context ca` prints it there"
		}
	case errors.Is(err, fs.ErrNotExist):
		problem.Why, problem.Remedy = "there is no such socket", "start the cluster with `sudo heddle up --name <cluster>`, or choose another one with --cluster or `heddle context use`"
	case errors.Is(err, syscall.ECONNREFUSED):
		problem.Why, problem.Remedy = "nobody listens on it", "the controller is restarting or was killed: try again, or run `sudo heddle up` to repair the cluster"
	case errors.Is(err, fs.ErrPermission):
		problem.Why, problem.Remedy = "its directory is closed to this user", "run the command with sudo"
	}
	return problem
}

// Do sends a request and decodes the answer into out, unless out is nil.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	body, err := c.Open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, body)
		return err
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("%s %s: unexpected answer: %w", method, path, err)
	}
	return nil
}

// Get returns one object.
func (c *Client) Get(ctx context.Context, kind *objects.Kind, namespace, name string) (*objects.Object, error) {
	object := &objects.Object{}
	if err := c.Do(ctx, http.MethodGet, Path(kind, namespace, name), nil, object); err != nil {
		return nil, err
	}
	return object, nil
}

// List returns the objects of a kind; an empty namespace means all.
func (c *Client) List(ctx context.Context, kind *objects.Kind, namespace string) (List, error) {
	var list List
	err := c.Do(ctx, http.MethodGet, Path(kind, namespace, ""), nil, &list)
	return list, err
}

// Put writes one object, on condition that it has its Version when that is not empty.
func (c *Client) Put(ctx context.Context, object *objects.Object) (Result, error) {
	var result Result
	err := c.Do(ctx, http.MethodPut, Path(object.Kind, object.GetNamespace(), object.GetName()), object, &result)
	return result, err
}

// Delete removes one object.
func (c *Client) Delete(ctx context.Context, kind *objects.Kind, namespace, name string) error {
	return c.Do(ctx, http.MethodDelete, Path(kind, namespace, name), nil, nil)
}

// Apply writes or deletes a batch.
func (c *Client) Apply(ctx context.Context, request ApplyRequest) (ApplyResponse, error) {
	var response ApplyResponse
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/apply", request, &response)
	return response, err
}

// Watch calls f for every change of a kind after a position, until ctx ends or the stream breaks; it never returns nil.
func (c *Client) Watch(ctx context.Context, kind *objects.Kind, after string, f func(Change)) error {
	query := url.Values{"watch": {"1"}, "resourceVersion": {after}}
	body, err := c.Open(ctx, http.MethodGet, Path(kind, "", "")+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var change Change
		if err := decoder.Decode(&change); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("watch of %s ended: %w", kind.Plural, err)
		}
		if change.Problem != nil {
			return change.Problem
		}
		f(change)
	}
}

// Sign has a certificate request signed; it makes the client an identity.Signer.
func (c *Client) Sign(ctx context.Context, identity ca.Identity, request []byte) (ca.Certificate, error) {
	return c.sign(ctx, identity, SigningRequest{Request: string(request)})
}

// SignOutside has a certificate request signed for a program that renews its certificate by itself.
func (c *Client) SignOutside(ctx context.Context, identity ca.Identity, request []byte, lifetime time.Duration) (ca.Certificate, error) {
	return c.sign(ctx, identity, SigningRequest{Request: string(request), Lifetime: lifetime, Outside: true})
}

func (c *Client) sign(ctx context.Context, identity ca.Identity, request SigningRequest) (ca.Certificate, error) {
	request.Namespace, request.ServiceAccount = identity.Namespace, identity.ServiceAccount
	var response SigningResponse
	if err := c.Do(ctx, http.MethodPost, "/heddle/v1/certificates", request, &response); err != nil {
		return ca.Certificate{}, fmt.Errorf("have certificate of %s signed: %w", identity, err)
	}
	return ca.Certificate{Chain: []byte(response.Chain), Roots: []byte(response.Roots), Expires: response.Expires,
		Serial: response.Serial, Issuer: response.Issuer}, nil
}

// Report tells the controller what an agent runs. When it returns, the endpoints that are not ready have been taken
// out of the configuration that new streams get.
func (c *Client) Report(ctx context.Context, report Report) error {
	return c.Do(ctx, http.MethodPut, "/heddle/v1/report", report, nil)
}

// ReportChange is [Client.Report] for an agent of which the controller has the report before. It is a [*Problem] with status 409 when the
// controller does not have that, and wants a whole report.
func (c *Client) ReportChange(ctx context.Context, change ReportChange) error {
	return c.Do(ctx, http.MethodPut, "/heddle/v1/report/changes", change, nil)
}

// Unchanged tells the controller that what it took as this revision holds. It is a [*Problem] with status 409 when the
// controller does not have that, and wants a whole report.
func (c *Client) Unchanged(ctx context.Context, u Unchanged) error {
	return c.Do(ctx, http.MethodPut, "/heddle/v1/report/unchanged", u, nil)
}

// Replicas lists what all agents reported.
func (c *Client) Replicas(ctx context.Context) ([]Replica, error) {
	var replicas []Replica
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/replicas", nil, &replicas)
	return replicas, err
}

// Status of the controller.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/status", nil, &s)
	return s, err
}

// Proxies lists the proxies that the controller knows.
func (c *Client) Proxies(ctx context.Context) ([]ProxyStatus, error) {
	var p []ProxyStatus
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/proxies", nil, &p)
	return p, err
}
