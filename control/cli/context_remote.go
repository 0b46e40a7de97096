package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// remoteContext is how a command line on another machine reaches a cluster. Certificates and keys are in it, so that the
// file is all that is needed.
type remoteContext struct {
	Name string `json:"name"`
	// Cluster is the cluster's own name.
	Cluster string `json:"cluster"`
	// Server is the URL of its API.
	Server string `json:"server"`
	// CertificateAuthority (PEM) is what is trusted, and ServerName what the server's certificate must name.
	CertificateAuthority string `json:"certificate-authority-data"`
	ServerName           string `json:"tls-server-name"`
	// Token, or a client certificate with its key (PEM), says who calls.
	Token             string `json:"token,omitempty"`
	ClientCertificate string `json:"client-certificate-data,omitempty"`
	ClientKey         string `json:"client-key-data,omitempty"`
}

// String shows no secret.
func (r remoteContext) String() string { return r.Name + " at " + r.Server }

// GoString shows none either.
func (r remoteContext) GoString() string { return r.String() }

// client talks to the cluster.
func (r remoteContext) client() (*client.Client, error) {
	broken := func(what string, err error) (*client.Client, error) {
		return nil, &client.Problem{What: fmt.Sprintf("the context %q cannot be used: %s", r.Name, what), Why: err.Error(), Remedy: "add it again: `heddle context add " + r.Name + " …`"}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: r.ServerName, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM([]byte(r.CertificateAuthority)) {
		return broken("it trusts nobody", errors.New("there is no certificate in certificate-authority-data"))
	}
	if r.ClientCertificate != "" {
		pair, err := tls.X509KeyPair([]byte(r.ClientCertificate), []byte(r.ClientKey))
		if err != nil {
			return broken("its client certificate and key do not fit together", err)
		}
		// Whatever authorities the server names: it says itself whom it knows.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return client.With(client.Options{URL: r.Server, TLS: config, Token: r.Token}), nil
}

// contextChosen is the context that the user chose for this command.
func (s *session) contextChosen() string {
	if s.contextName != "" || s.clusterName != "" {
		return s.contextName
	}
	return os.Getenv("HEDDLE_CONTEXT")
}

// remote is the context that the command is about when its cluster is of another machine; else nil. --cluster and
// $HEDDLE_CLUSTER mean clusters of this machine.
func (s *session) remote() (*remoteContext, error) {
	chosen := s.contextChosen()
	if chosen == "" && (s.clusterName != "" || os.Getenv("HEDDLE_CLUSTER") != "") {
		return nil, nil
	}
	if s.contextName != "" && s.clusterName != "" {
		return nil, usageError{errors.New("--context and --cluster go not together: a context is of one cluster")}
	}
	content, err := s.contexts.read()
	if err != nil {
		return nil, err
	}
	name := chosen
	if name == "" {
		name = content.Current
	}
	if found := content.find(name); found != nil {
		return found, nil
	}
	if chosen == "" || slices.Contains(s.contexts.clusters(), chosen) {
		return nil, nil
	}
	return nil, &client.Problem{What: fmt.Sprintf("there is no context %q", chosen), Where: s.contexts.path, Remedy: "`heddle context list` shows them, `heddle context add` adds one"}
}

func (c contextContent) find(name string) *remoteContext {
	for i := range c.Contexts {
		if c.Contexts[i].Name == name {
			return &c.Contexts[i]
		}
	}
	return nil
}

// serverURL completes what people give as --server: host, host:port or a URL.
func serverURL(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", usageError{fmt.Errorf("--server: %w", err)}
	}
	if u.Scheme != "https" || u.Host == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
		return "", usageError{fmt.Errorf("--server %s: write https://HOST:PORT", u.Redacted())}
	}
	return "https://" + net.JoinHostPort(u.Hostname(), u.Port()), nil
}

// serverName is what the certificate of a cluster's API names, for the cluster that holds the root.
func serverName(name string) string {
	return "api." + cluster.Issuer{Cluster: name}.Name(cluster.Domain)
}
