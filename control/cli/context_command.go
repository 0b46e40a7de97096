package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

func (s *session) contextCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Choose the cluster that commands are about, also one of another machine", Args: cobra.NoArgs,
		Long: "Choose the cluster that commands are about.\n\n" +
			"Clusters of this machine are contexts by themselves. One of another machine, started with `heddle up --api-address`, is added with\n" +
			"its address, the mesh's root, by which it is known, and a token or client certificate, by which it knows you. They are kept in\n" +
			"~/.config/heddle/config.yaml, which only you can read.",
		Example: "  heddle context ca >root.pem; heddle token create --role editor -n shop >token        (there)\n" +
			"  heddle context add cluster1 --server 192.0.2.10:6443 --ca-file root.pem --token-file token\n" +
			"  heddle context use cluster1\n  heddle get services -n shop --context cluster1",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.contextAddCommand(), s.contextUseCommand(), s.contextListCommand(), s.contextCurrentCommand(), s.contextDeleteCommand(), s.contextCACommand())
	return cmd
}

// contextFlags are those of `context add`.
type contextFlags struct {
	server, serverName, caFile, token, tokenFile, certFile, keyFile string
	unchecked                                                       bool
}

func (s *session) contextAddCommand() *cobra.Command {
	var f contextFlags
	cmd := &cobra.Command{Use: "add NAME", Short: "Add, or change, the context of a cluster of another machine", Args: cobra.ExactArgs(1),
		Long: "Add, or change, the context of a cluster of another machine. It is tried before it is kept.\n\n" +
			"The server must prove, by the mesh's root in --ca-file, that it is the API of the cluster NAME, not only of any cluster of the\n" +
			"mesh. Where the context shall have another name than the cluster, or the cluster is a member of another one's mesh, give what\n" +
			"`heddle context ca` there says with --tls-server-name.",
		RunE: func(cmd *cobra.Command, args []string) error { return s.addContext(cmd.Context(), args[0], f) }}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "", "the API's address: https://HOST:PORT")
	flags.StringVar(&f.serverName, "tls-server-name", "", "what the server's certificate must name (default: api.NAME.clusters.cluster.local)")
	flags.StringVar(&f.caFile, "ca-file", "", "the mesh's root certificates (PEM), from 'heddle context ca'")
	flags.StringVar(&f.token, "token", "", "a token, from 'heddle token create'; other users of this machine may see it on the command line")
	flags.StringVar(&f.tokenFile, "token-file", "", "a file with the token, - for standard input")
	flags.StringVar(&f.certFile, "client-certificate", "", "a client certificate (PEM)")
	flags.StringVar(&f.keyFile, "client-key", "", "its key (PEM)")
	flags.BoolVar(&f.unchecked, "unchecked", false, "keep it without trying it; the cluster is called NAME")
	return cmd
}

func (s *session) addContext(ctx context.Context, name string, f contextFlags) error {
	if _, err := cluster.New(name); err != nil {
		return usageError{fmt.Errorf("a context is named as clusters are: %w", err)}
	}
	if slices.Contains(s.contexts.clusters(), name) {
		return usageError{fmt.Errorf("a cluster %q runs on this machine: use another name for the context", name)}
	}
	if f.server == "" || f.caFile == "" {
		return usageError{errors.New("give --server HOST:PORT and --ca-file FILE; see 'heddle context --help'")}
	}
	if f.token != "" && f.tokenFile != "" || (f.certFile == "") != (f.keyFile == "") || f.token == "" && f.tokenFile == "" && f.certFile == "" {
		return usageError{errors.New("say who you are: --token-file, --token, or --client-certificate with --client-key")}
	}
	r := remoteContext{Name: name, Cluster: name, Token: strings.TrimSpace(f.token), ServerName: f.serverName}
	var err error
	if r.Server, err = serverURL(f.server); err != nil {
		return err
	}
	for _, file := range []struct {
		path string
		into *string
	}{{f.caFile, &r.CertificateAuthority}, {f.tokenFile, &r.Token}, {f.certFile, &r.ClientCertificate}, {f.keyFile, &r.ClientKey}} {
		if file.path == "" {
			continue
		}
		content, err := s.readInput(file.path)
		if err != nil {
			return &client.Problem{What: "the context was not added", Where: file.path, Why: reason(err), Remedy: "give a file that can be read"}
		}
		*file.into = strings.TrimSpace(string(content))
	}
	if r.ServerName == "" {
		r.ServerName = serverName(name)
	}
	c, err := r.client()
	if err != nil {
		return err
	}
	said := "not tried"
	if !f.unchecked {
		server, err := c.APIServer(ctx)
		if err != nil {
			return err
		}
		who, err := c.WhoAmI(ctx)
		if err != nil {
			return err
		}
		r.Cluster, said = server.Cluster, "you are "+who.Caller
	}
	content, err := s.contexts.read()
	if err != nil {
		return err
	}
	content.Contexts = append(slices.DeleteFunc(content.Contexts, func(o remoteContext) bool { return o.Name == name }), r)
	if content.Current == "" {
		content.Current = name
	}
	if err := s.contexts.write(content); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "Context %q is kept: cluster %q at %s, %s.\n", name, r.Cluster, r.Server, said)
	if content.Current != name {
		fmt.Fprintf(s.out, "`heddle context use %s` makes it the current one.\n", name)
	}
	return nil
}

// maxInput bounds what is read of a file that holds a token, certificate or key.
const maxInput = 1 << 20

func (s *session) readInput(path string) ([]byte, error) {
	in := s.in
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	return io.ReadAll(io.LimitReader(in, maxInput))
}

// contextNames are those of clusters of this machine, and of others.
func (s *session) contextNames() []string {
	out := slices.Clone(s.contexts.clusters())
	if content, err := s.contexts.read(); err == nil {
		for _, r := range content.Contexts {
			if !slices.Contains(out, r.Name) {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

func (s *session) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return s.contextNames(), cobra.ShellCompDirectiveNoFileComp
}

func (s *session) contextUseCommand() *cobra.Command {
	return &cobra.Command{Use: "use NAME", Short: "Make a cluster the current one", Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := cluster.New(args[0]); err != nil {
				return err
			}
			names := s.contextNames()
			if !slices.Contains(names, args[0]) {
				return &client.Problem{What: fmt.Sprintf("no cluster %q runs here, and no context is called so", args[0]), Where: cluster.DefaultRunRoot, Why: "there are: " + strings.Join(names, ", "),
					Remedy: "start it with `sudo heddle up --name " + args[0] + "`, or add the context of a cluster of another machine with `heddle context add`"}
			}
			content, err := s.contexts.read()
			if err != nil {
				return err
			}
			content.Current = args[0]
			if err := s.contexts.write(content); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "Switched to cluster %q.\n", args[0])
			return err
		}}
}

func (s *session) contextListCommand() *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the clusters of this machine, and the contexts of others", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			content, err := s.contexts.read()
			if err != nil {
				return err
			}
			mark := func(name string) string {
				if name == content.Current {
					return "*"
				}
				return ""
			}
			t := newTable("CURRENT", "NAME", "API", "AS")
			for _, name := range s.contexts.clusters() {
				if c, err := cluster.New(name); err == nil {
					t.row(mark(name), name, "unix://"+c.APISocket(), "this user")
				}
			}
			for _, r := range content.Contexts {
				as := "client certificate"
				if r.Token != "" {
					as = "token"
				}
				t.row(mark(r.Name), r.Name, r.Server, as)
			}
			return t.print(s.out)
		}}
}

func (s *session) contextCurrentCommand() *cobra.Command {
	return &cobra.Command{Use: "current", Short: "Print the current context's name", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			remote, err := s.remote()
			if err != nil {
				return err
			}
			if remote != nil {
				_, err = fmt.Fprintln(s.out, remote.Name)
				return err
			}
			c, err := s.cluster()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(s.out, c.Name)
			return err
		}}
}

func (s *session) contextDeleteCommand() *cobra.Command {
	return &cobra.Command{Use: "delete NAME", Short: "Forget the context of a cluster of another machine", Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			content, err := s.contexts.read()
			if err != nil {
				return err
			}
			if content.find(args[0]) == nil {
				problem := &client.Problem{What: fmt.Sprintf("there is no context %q to forget", args[0]), Where: s.contexts.path, Remedy: "`heddle context list` shows them"}
				if slices.Contains(s.contexts.clusters(), args[0]) {
					problem.Why, problem.Remedy = "it is a cluster of this machine", "`heddle down` removes it"
				}
				return problem
			}
			content.Contexts = slices.DeleteFunc(content.Contexts, func(r remoteContext) bool { return r.Name == args[0] })
			if content.Current == args[0] {
				content.Current = ""
			}
			if err := s.contexts.write(content); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "Context %q is forgotten. A token of it works on until it is revoked or ends.\n", args[0])
			return err
		}}
}

func (s *session) contextCACommand() *cobra.Command {
	return &cobra.Command{Use: "ca", Short: "Print the root certificates by which other machines know the cluster", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			server, err := c.APIServer(cmd.Context())
			if err != nil {
				return err
			}
			if server.Address.IsValid() {
				fmt.Fprintf(s.err, "Elsewhere: heddle context add %s --server %s --tls-server-name %s --ca-file FILE --token-file FILE\n", server.Cluster, server.Address, server.ServerName)
			} else {
				fmt.Fprintf(s.err, "The cluster %q answers on this machine only: `heddle up --api-address` opens a port.\n", server.Cluster)
			}
			_, err = fmt.Fprint(s.out, server.Roots)
			return err
		}}
}
