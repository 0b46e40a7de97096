package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/server/client"
)

// rootPatience is how long commands wait for a change of the root, unless the user says otherwise. It goes on without them.
const rootPatience = 2 * time.Minute

func (s *session) caCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ca", Short: "Look after the mesh's certificate authority", Args: cobra.NoArgs,
		Long: "Look after the mesh's certificate authority: what all certificates hang on, and its replacement.\n\n" +
			"The authority is at the mesh's primary. It is made by the first `heddle up`, or given to it by --ca-cert and --ca-key. It is\n" +
			"replaced in a running mesh, without losing a request, in three phases, each of which everybody must have acknowledged before\n" +
			"the next one begins:\n\n" +
			"  trust   all proxies of all clusters trust the next root beside the previous one\n" +
			"  sign    the next root signs, and every certificate of the previous one is replaced\n" +
			"  retire  nobody trusts the previous root any more\n\n" +
			"The phase is kept on the disk: a change goes on where it was after any crash.",
		Example: "  heddle ca status\n  heddle ca rotate\n  heddle ca csr > mesh.csr\n  heddle ca install --cert mesh.pem --chain corporate.pem",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.caStatusCommand(), s.caRotateCommand(), s.caCSRCommand(), s.caInstallCommand(), s.caAbortCommand())
	return cmd
}

func (s *session) caStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status", Short: "Show the mesh's root, and how far its replacement is", Args: cobra.NoArgs,
		Long: "Show which root the chosen cluster's certificates hang on, which ones it trusts, and, while the root is being replaced, the phase\n" +
			"and who has not acknowledged it yet.",
		Example: "  heddle ca status\n  heddle ca status -o json",
		RunE:    show(s, &output, (*client.Client).Authority, s.printAuthority)}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (s *session) printAuthority(a client.AuthorityStatus) error {
	until := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	fmt.Fprintf(s.out, "primary       %s\n", a.Primary)
	fmt.Fprintf(s.out, "root          %s, until %s\n", a.Root.Subject, until(a.Root.Expires))
	fmt.Fprintf(s.out, "              key %s\n", a.Root.Hash)
	switch {
	case a.Above != "":
		fmt.Fprintf(s.out, "              signed by %s, which proxies do not trust\n", a.Above)
	case a.Elsewhere:
		fmt.Fprintf(s.out, "              made elsewhere\n")
	}
	fmt.Fprintf(s.out, "intermediate  %s, until %s\n", a.Issuer, until(a.IssuerExpires))
	for _, t := range a.Trusted {
		if t != a.Root {
			fmt.Fprintf(s.out, "also trusted  %s, until %s\n", t.Subject, until(t.Expires))
		}
	}
	if a.Requested {
		fmt.Fprintf(s.out, "request       made, and its certificate is not installed yet\n")
	}
	if a.Change == nil {
		fmt.Fprintf(s.out, "change        none\n")
		return nil
	}
	fmt.Fprintf(s.out, "change        %s, phase %s since %s\n", orDefault(a.Change.Kind, "of the primary"), a.Change.Phase, until(a.Change.Since))
	for _, who := range a.Change.Awaited {
		fmt.Fprintf(s.out, "awaited       %s\n", who)
	}
	return nil
}

// followRoot waits until a change is complete, for a while.
func (s *session) followRoot(ctx context.Context, c *client.Client, status client.AuthorityStatus, patience time.Duration) error {
	if status.Change == nil || patience == 0 {
		return s.printAuthority(status)
	}
	id := status.Change.ID
	p := newProgress(s.out)
	p.begin("replace the mesh's root")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for status.Change != nil && status.Change.ID == id {
		p.note("phase " + status.Change.Phase)
		select {
		case <-ctx.Done():
			p.fail()
			return &client.Problem{What: "the change of the root is not complete yet", Where: "phase " + status.Change.Phase,
				Why:    "waiting for " + orDefault(strings.Join(status.Change.Awaited, "; "), "the phase to be acknowledged"),
				Remedy: "it goes on by itself, and nothing is broken meanwhile: `heddle ca status` shows it; in the phase trust, `heddle ca abort` takes it back"}
		case <-tick.C:
		}
		next, err := c.Authority(ctx)
		if err != nil {
			continue // The controller may be restarting; the change goes on with it.
		}
		status = next
	}
	p.done()
	fmt.Fprintf(s.out, "All certificates of the mesh are of the root %s now, until %s.\n", status.Root.Subject, status.Root.Expires.Format(time.DateOnly))
	return nil
}

func (s *session) caRotateCommand() *cobra.Command {
	patience := rootPatience
	cmd := &cobra.Command{Use: "rotate", Short: "Replace the mesh's root by a new one", Args: cobra.NoArgs,
		Long: "Make a new root, have every proxy of every cluster of the mesh trust it, have every certificate replaced by one of it, and then\n" +
			"have the previous root forgotten, and its key destroyed. No request is lost. It is for roots that heddle made; one that was made\n" +
			"elsewhere is replaced by `heddle ca csr` and `heddle ca install`.\n\n" +
			"While the root is being replaced, no cluster can join. Join tokens from before do not work after it, and command lines on other\n" +
			"machines need the new root (`heddle context add`).",
		Example: "  heddle ca rotate\n  heddle ca rotate --wait 0",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			status, err := c.RotateRoot(cmd.Context())
			if err != nil {
				return err
			}
			return s.followRoot(cmd.Context(), c, status, patience)
		}}
	cmd.Flags().DurationVar(&patience, "wait", patience, "how long to wait until it is complete; it goes on without")
	return cmd
}

func (s *session) caCSRCommand() *cobra.Command {
	var another bool
	cmd := &cobra.Command{Use: "csr", Short: "Print a certificate request for the mesh's authority, to be signed elsewhere", Args: cobra.NoArgs,
		Long: "Print a certificate request (PEM) for the mesh's authority, to be signed by another one as an intermediate. The key is made at the\n" +
			"primary and never leaves it. The same request is printed again until its certificate is installed, or another one is asked for.\n\n" +
			"The signer must grant CA:TRUE with a path length of at least 1, since each cluster has an intermediate below it, keyCertSign, a\n" +
			"subject key identifier, and name constraints, if any, that allow the mesh's names.",
		Example: "  heddle ca csr > mesh.csr",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			answer, err := c.RequestAuthority(cmd.Context(), client.AuthorityRequest{New: another})
			if err != nil {
				return err
			}
			fmt.Fprint(s.out, answer.Request)
			return nil
		}}
	cmd.Flags().BoolVar(&another, "new", false, "make another key and another request than the last time")
	return cmd
}

func (s *session) caInstallCommand() *cobra.Command {
	var certificate, chain string
	patience := rootPatience
	cmd := &cobra.Command{Use: "install --cert FILE [--chain FILE]", Short: "Take a certificate into use that was signed for `heddle ca csr`", Args: cobra.NoArgs,
		Long: "Make a certificate that was signed for the request of `heddle ca csr` the mesh's authority. It is checked fully first; then all\n" +
			"certificates are replaced in the same way as by `heddle ca rotate`, and no request is lost.\n\n" +
			"Proxies trust the authority itself, not the root above it: what else that root signs has no access to the mesh.",
		Example: "  heddle ca install --cert mesh.pem --chain corporate.pem",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if certificate == "" {
				return usageError{errors.New("--cert is missing: give the file with the certificate that was signed")}
			}
			var request client.AuthorityInstall
			for flag, into := range map[string]*string{"--cert " + certificate: &request.Certificate, "--chain " + chain: &request.Chain} {
				_, path, _ := strings.Cut(flag, " ")
				if path == "" {
					continue
				}
				content, err := readAuthorityFile(flag, path)
				if err != nil {
					return err
				}
				*into = string(content)
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			status, err := c.InstallAuthority(cmd.Context(), request)
			if err != nil {
				return err
			}
			return s.followRoot(cmd.Context(), c, status, patience)
		}}
	cmd.Flags().StringVar(&certificate, "cert", "", "the certificate (PEM); those up to its root may follow in the same file")
	cmd.Flags().StringVar(&chain, "chain", "", "the certificates (PEM) from its issuer up to the root")
	cmd.Flags().DurationVar(&patience, "wait", patience, "how long to wait until it is complete; it goes on without")
	return cmd
}

func (s *session) caAbortCommand() *cobra.Command {
	return &cobra.Command{Use: "abort", Short: "Take a replacement of the root back", Args: cobra.NoArgs,
		Long: "Take a replacement of the mesh's root back, and destroy the next root's key. It is possible in the phase trust, before anything\n" +
			"was signed by the next root. After that, let it end, and rotate again.",
		Example: "  heddle ca abort",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			if _, err := c.AbortRootChange(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(s.out, "The change of the root is taken back; proxies are told to forget the next one.")
			return nil
		}}
}

// readAuthorityFile reads a file of certificates or of a key.
func readAuthorityFile(flag, path string) ([]byte, error) {
	file, err := os.Open(path)
	var content []byte
	if err == nil {
		defer file.Close()
		content, err = io.ReadAll(io.LimitReader(file, ca.MaxExternalBytes+1))
	}
	if err == nil && len(content) > ca.MaxExternalBytes {
		err = fmt.Errorf("it is larger than %d bytes", ca.MaxExternalBytes)
	}
	if err != nil {
		return nil, &client.Problem{Status: http.StatusBadRequest, What: "a file of the certificate authority cannot be read", Where: flag, Why: reason(err), Remedy: "give a readable file in PEM"}
	}
	return content, nil
}

// external reads what --ca-cert and --ca-key name, and makes sure that it can be the mesh's authority.
func (o upOptions) external(options ca.Options) (ca.External, error) {
	certificates, err := readAuthorityFile("--ca-cert "+o.caCert, o.caCert)
	if err != nil {
		return ca.External{}, err
	}
	key, err := readAuthorityFile("--ca-key "+o.caKey, o.caKey)
	if err != nil {
		return ca.External{}, err
	}
	if info, err := os.Stat(o.caKey); err == nil && info.Mode().Perm()&0o077 != 0 {
		return ca.External{}, &client.Problem{What: "the certificate authority's key can be read by others", Where: "--ca-key " + o.caKey, Why: fmt.Sprintf("its mode is %04o", info.Mode().Perm()),
			Remedy: "keep it from them: chmod 600 " + o.caKey}
	}
	external, err := ca.NewExternal(options, certificates, nil, key)
	if err != nil {
		return ca.External{}, &client.Problem{What: "this cannot be the mesh's certificate authority", Where: "--ca-cert " + o.caCert + " --ca-key " + o.caKey, Why: err.Error(),
			Remedy: "give a root, or an intermediate with pathlen 1 followed by its chain up to the root, and its own key"}
	}
	return external, nil
}
