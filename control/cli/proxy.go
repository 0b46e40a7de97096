package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) proxyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "proxy", Short: "Look at proxies: what they run and what they refused", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.proxyStatusCommand(), s.proxyConfigCommand())
	return cmd
}

// proxyTypes in the order of istioctl's columns.
var proxyTypes = []string{"CDS", "LDS", "EDS", "RDS", "SDS"}

func (s *session) proxyStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status", Aliases: []string{"ps"}, Short: "Say of every proxy whether it runs what the controller sent", Args: cobra.NoArgs,
		Long: "Say of every proxy whether it runs what the controller sent, by type of resources: SYNCED, all that there is for it is acknowledged;\n" +
			"STALE, something is not, be it sent or held back until the proxy has answered something else; NACK, it refused some of what was sent;\n" +
			"NOT SENT, it asked and there is nothing for it; IGNORED, it did not ask.\n\n" +
			"WAITS FOR is the oldest change that the proxy has not answered. At debug level (see heddle up) the controller's log has a line\n" +
			"with that version, which says what the change was about.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			proxies, err := c.Proxies(cmd.Context())
			if err != nil {
				return err
			}
			switch output {
			case "json", "yaml":
				return objects.EncodeDocument(s.out, output, proxies)
			case "":
			default:
				return usageError{fmt.Errorf("unknown output format %q: use json or yaml", output)}
			}
			t := newTable(append(append([]string{"NAME", "TYPE"}, proxyTypes...), "WAITS FOR", "DEPENDENCIES", "CONNECTED")...)
			for _, p := range proxies {
				row := []string{p.Name + "." + p.Namespace, p.Type}
				for _, name := range proxyTypes {
					state := p.Types[name]
					if state == "" {
						state = "-"
					}
					row = append(row, state)
				}
				row = append(row, waitsFor(p), dependencies(p))
				connected := "no"
				if p.Connected {
					connected = age(p.Since, s.now())
				}
				t.row(append(row, connected)...)
			}
			if err := t.print(s.out); err != nil {
				return err
			}
			for _, p := range proxies {
				for _, kind := range slices.Sorted(maps.Keys(p.Errors)) {
					fmt.Fprintf(s.out, "\n%s.%s refused %s: %s\n", p.Name, p.Namespace, kind, p.Errors[kind])
				}
			}
			return nil
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

// waitsFor is the change that a proxy's answer is waited for.
func waitsFor(p client.ProxyStatus) string {
	if p.Behind == 0 {
		return "-"
	}
	return fmt.Sprintf("change %d", p.Behind)
}

// dependencies says which services a proxy gets.
func dependencies(p client.ProxyStatus) string {
	switch {
	case !p.Connected || p.Type != "sidecar":
		return "-"
	case p.Observed:
		return fmt.Sprintf("%d observed", len(p.Dependencies))
	}
	return "all"
}

// configParts maps what users ask for to the type that the controller sends.
var configParts = map[string]string{"listeners": "LDS", "routes": "RDS", "clusters": "CDS", "endpoints": "EDS", "secrets": "SDS"}

func (s *session) proxyConfigCommand() *cobra.Command {
	var output string
	var live bool
	parts := append(slices.Sorted(maps.Keys(configParts)), "all")
	cmd := &cobra.Command{Use: "config WORKLOAD [" + strings.Join(parts, "|") + "]", Short: "Print what a proxy is to run, or with --live what it runs",
		Example: "  heddle proxy config -n pinnacle frontend routes\n  heddle proxy config -n istio-system istio-ingressgateway listeners -o yaml\n  heddle proxy config -n pinnacle cartservice all --live",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			part := "all"
			if len(args) == 2 {
				part = args[1]
			}
			if _, ok := configParts[part]; !ok && part != "all" {
				return usageError{fmt.Errorf("unknown part %q: use %s", part, strings.Join(parts, ", "))}
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			replicas, err := s.replicasOf(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			r := replicas[0]
			if live {
				var dump any
				if err := c.Do(cmd.Context(), http.MethodGet, agentPath(r)+"/admin/config_dump", nil, &dump); err != nil {
					return err
				}
				return objects.EncodeDocument(s.out, orDefault(output, "json"), dump)
			}
			var config map[string][]map[string]any
			if err := c.Do(cmd.Context(), http.MethodGet, "/heddle/v1/proxies/"+url.PathEscape(r.NodeID)+"/config", nil, &config); err != nil {
				return err
			}
			if part != "all" {
				config = map[string][]map[string]any{configParts[part]: config[configParts[part]]}
			}
			if output != "" {
				return objects.EncodeDocument(s.out, output, config)
			}
			return s.printConfig(config)
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml: everything instead of a summary")
	cmd.Flags().BoolVar(&live, "live", false, "ask the proxy itself")
	s.namespaceFlag(cmd)
	return cmd
}

func agentPath(r client.Replica) string {
	return "/heddle/v1/agent/replicas/" + url.PathEscape(r.Namespace) + "/" + url.PathEscape(r.State.Name)
}

func orDefault(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

// printConfig prints one line per resource.
func (s *session) printConfig(config map[string][]map[string]any) error {
	names := map[string]string{}
	for plural, kind := range configParts {
		names[kind] = strings.ToUpper(strings.TrimSuffix(plural, "s"))
	}
	first := true
	for _, kind := range []string{"LDS", "RDS", "CDS", "EDS", "SDS"} {
		resources, ok := config[kind]
		if !ok {
			continue
		}
		if !first {
			fmt.Fprintln(s.out)
		}
		first = false
		t := newTable(names[kind], "DETAIL")
		rows := [][2]string{}
		for _, r := range resources {
			name, _ := r["name"].(string)
			if kind == "EDS" {
				name, _ = r["clusterName"].(string)
			}
			rows = append(rows, [2]string{name, detail(kind, r)})
		}
		sort.Slice(rows, func(i, j int) bool { return rows[i][0] < rows[j][0] })
		for _, row := range rows {
			t.row(row[0], row[1])
		}
		if err := t.print(s.out); err != nil {
			return err
		}
	}
	return nil
}

// detail is the one thing about a resource that is looked for most.
func detail(kind string, r map[string]any) string {
	switch kind {
	case "LDS":
		return strings.Join(addresses(r["address"]), ",")
	case "RDS":
		hosts, _ := r["virtualHosts"].([]any)
		var names []string
		for _, h := range hosts {
			if host, ok := h.(map[string]any); ok {
				if name, ok := host["name"].(string); ok {
					names = append(names, name)
				}
			}
		}
		if len(names) > 3 {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ","), len(names)-3)
		}
		return strings.Join(names, ",")
	case "CDS":
		text, _ := r["type"].(string)
		return text
	case "EDS":
		return strings.Join(addresses(r["endpoints"]), ",")
	}
	return ""
}

// addresses finds every socket address in a piece of configuration.
func addresses(value any) []string {
	switch v := value.(type) {
	case map[string]any:
		if socket, ok := v["socketAddress"].(map[string]any); ok {
			var port json.Number
			if text, err := json.Marshal(socket["portValue"]); err == nil {
				port = json.Number(text)
			}
			return []string{fmt.Sprintf("%v:%s", socket["address"], port)}
		}
		var out []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out = append(out, addresses(v[key])...)
		}
		return out
	case []any:
		var out []string
		for _, item := range v {
			out = append(out, addresses(item)...)
		}
		return out
	}
	return nil
}
