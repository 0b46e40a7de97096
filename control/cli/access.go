package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) accessCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "access", Short: "Say who may do what with a cluster", Args: cobra.NoArgs,
		Long: "Say who may do what with a cluster.\n\n" +
			"Roles are viewer (reads, without secrets), editor (also writes objects and acts on what runs) and admin (also makes tokens; in all\n" +
			"namespaces, everything). Root and the user who started the cluster are admin. Others have the roles that AccessBindings give\n" +
			"them, which grant and revoke write, or that of the token that they show: see `heddle token`.",
		Example: "  heddle access grant editor --user alice -n shop\n  heddle access grant viewer --group operators -A\n  heddle access list\n  heddle access whoami",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.accessGrantCommand(), s.accessRevokeCommand(), s.accessListCommand(), s.whoAmICommand())
	return cmd
}

// subject is who a command is about, and where.
type subject struct {
	user, group, account string
	all                  bool
}

func (s *session) subjectFlags(cmd *cobra.Command, to *subject) {
	cmd.Flags().StringVar(&to.user, "user", "", "a user of the cluster's machine by name or number, or the common name of a client certificate")
	cmd.Flags().StringVar(&to.group, "group", "", "a group of the cluster's machine, or an organization of client certificates")
	cmd.Flags().StringVar(&to.account, "service-account", "", "a workload's identity: NAMESPACE/NAME")
	cmd.Flags().BoolVarP(&to.all, "all-namespaces", "A", false, "in all namespaces, and for what is in none")
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "in this namespace")
}

// binding is the AccessBinding that gives a role to a subject; its name says so.
func (s *session) binding(role string, to subject) (*objects.Object, error) {
	if _, err := access.ParseRole(role); err != nil {
		return nil, usageError{err}
	}
	if to.all == (s.namespace != "") {
		return nil, usageError{errors.New("say where: -n NAMESPACE, or -A for all namespaces")}
	}
	var who []v1alpha1.AccessSubject
	if to.user != "" {
		who = append(who, v1alpha1.AccessSubject{Kind: v1alpha1.SubjectUser, Name: to.user})
	}
	if to.group != "" {
		who = append(who, v1alpha1.AccessSubject{Kind: v1alpha1.SubjectGroup, Name: to.group})
	}
	if to.account != "" {
		namespace, name, ok := strings.Cut(to.account, "/")
		if !ok {
			return nil, usageError{fmt.Errorf("--service-account %s: write NAMESPACE/NAME", to.account)}
		}
		who = append(who, v1alpha1.AccessSubject{Kind: v1alpha1.SubjectServiceAccount, Namespace: namespace, Name: name})
	}
	if len(who) != 1 {
		return nil, usageError{errors.New("say who: one of --user, --group and --service-account")}
	}
	b := &v1alpha1.AccessBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: objects.AccessBinding.APIVersion(), Kind: objects.AccessBinding.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: bindingName(role, who[0], s.namespace)},
		Spec:       v1alpha1.AccessBindingSpec{Role: role, Namespaces: []string{access.Everywhere}, Subjects: who},
	}
	if !to.all {
		b.Spec.Namespaces = []string{s.namespace}
	}
	return &objects.Object{Kind: objects.AccessBinding, Resource: b}, nil
}

// bindingName is the same for the same grant, so that granting twice is granting once and revoking finds it.
func bindingName(role string, who v1alpha1.AccessSubject, namespace string) string {
	parts := []string{role, strings.ToLower(who.Kind)}
	if who.Namespace != "" {
		parts = append(parts, who.Namespace)
	}
	parts = append(parts, who.Name)
	if namespace != "" {
		parts = append(parts, "in", namespace)
	}
	name := strings.Join(parts, ".")
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	// A name that can be no object's.
	sum := sha256.Sum256([]byte(name))
	return role + "." + hex.EncodeToString(sum[:8])
}

func (s *session) accessGrantCommand() *cobra.Command {
	var to subject
	cmd := &cobra.Command{Use: "grant ROLE", Short: "Give somebody a role", Args: cobra.ExactArgs(1), ValidArgs: []string{"viewer", "editor", "admin"},
		Long: "Give somebody a role, by an AccessBinding. It counts with the next request.\n\n" +
			"A user is who opens the API's socket on the cluster's machine, or whom a client certificate names. Remote callers and pipelines\n" +
			"are better given a token, which ends by itself: see `heddle token create`.",
		Example: "  heddle access grant editor --user alice -n shop\n  heddle access grant viewer --service-account monitoring/prometheus -A",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := s.binding(args[0], to)
			if err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			result, err := c.Put(cmd.Context(), o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "%s %s\n", result.Name(), result.Action)
			return err
		}}
	s.subjectFlags(cmd, &to)
	return cmd
}

func (s *session) accessRevokeCommand() *cobra.Command {
	var to subject
	cmd := &cobra.Command{Use: "revoke ROLE", Short: "Take a role from somebody that grant gave", Args: cobra.ExactArgs(1), ValidArgs: []string{"viewer", "editor", "admin"},
		Example: "  heddle access revoke editor --user alice -n shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := s.binding(args[0], to)
			if err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			err = c.Delete(cmd.Context(), objects.AccessBinding, "", o.GetName())
			var problem *client.Problem
			if errors.As(err, &problem) && problem.Status == http.StatusNotFound {
				problem.What, problem.Remedy = "no such role was granted by this command", "`heddle access list` shows the bindings; `heddle delete accessbinding NAME` removes any"
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "%s deleted\n", client.Result{Key: o.Key()}.Name())
			return err
		}}
	s.subjectFlags(cmd, &to)
	return cmd
}

// bindings are AccessBindings, of which the specs are shown.
type bindings []*v1alpha1.AccessBinding

// MarshalJSON implements [json.Marshaler].
func (all bindings) MarshalJSON() ([]byte, error) {
	specs := make([]v1alpha1.AccessBindingSpec, 0, len(all))
	for _, b := range all {
		specs = append(specs, b.Spec)
	}
	return json.Marshal(specs)
}

func listBindings(c *client.Client, ctx context.Context) (bindings, error) {
	list, err := c.List(ctx, objects.AccessBinding, "")
	var all bindings
	for _, o := range list.Items {
		if b, ok := o.Resource.(*v1alpha1.AccessBinding); ok {
			all = append(all, b)
		}
	}
	return all, err
}

func (s *session) accessListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List who was given which role", Args: cobra.NoArgs,
		Long: "List who was given which role by AccessBindings. Root and the user who started the cluster are admin besides, and tokens have\n" +
			"roles of their own: `heddle token list`.",
		RunE: show(s, &output, listBindings, func(all bindings) error {
			t := newTable("SUBJECT", "ROLE", "NAMESPACES", "BINDING", "AGE")
			for _, b := range all {
				for _, who := range b.Spec.Subjects {
					name := who.Name
					if who.Namespace != "" {
						name = who.Namespace + "/" + name
					}
					t.row(strings.ToLower(who.Kind)+" "+name, b.Spec.Role, strings.Join(b.Spec.Namespaces, ","), b.Name, age(b.CreationTimestamp.Time, s.now()))
				}
			}
			if len(t.rows) == 0 {
				_, err := fmt.Fprintln(s.err, "Nobody was given a role. Root and the user who started the cluster are admin.")
				return err
			}
			return t.print(s.out)
		})}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (s *session) whoAmICommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "whoami", Short: "Tell how the cluster knows you, and what you may do", Args: cobra.NoArgs,
		RunE: show(s, &output, (*client.Client).WhoAmI, func(who client.Who) error {
			fmt.Fprintf(s.out, "You are %s, from %s.\n", who.Caller, who.From)
			if len(who.Grants) == 0 {
				_, err := fmt.Fprintln(s.out, "You have no role.")
				return err
			}
			t := newTable("ROLE", "NAMESPACE")
			for _, g := range who.Grants {
				t.row(g.Role, g.Namespace)
			}
			return t.print(s.out)
		})}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}
