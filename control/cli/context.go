package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/server/client"
)

// contextFile remembers which cluster commands are about: ~/.config/heddle/config.yaml.
type contextFile struct {
	path string
	// here lists the clusters of this machine; nil means [clustersHere].
	here func() []string
}

// clusters lists the clusters that run on this machine.
func (f contextFile) clusters() []string {
	if f.here != nil {
		return f.here()
	}
	return clustersHere()
}

// contextContent is the file's content.
type contextContent struct {
	// Current is the name of a cluster of this machine, or of one of the contexts.
	Current string `json:"current,omitempty"`
	// Contexts are clusters of other machines.
	Contexts []remoteContext `json:"contexts,omitempty"`
}

func contextPath() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "heddle", "config.yaml")
}

func (f contextFile) read() (contextContent, error) {
	var content contextContent
	text, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) || f.path == "" {
		return content, nil
	}
	if err != nil {
		return content, fmt.Errorf("read context: %w", err)
	}
	if err := yaml.UnmarshalStrict(text, &content); err != nil {
		return content, fmt.Errorf("%s: %w; correct or remove the file", f.path, err)
	}
	return content, nil
}

func (f contextFile) write(content contextContent) error {
	if f.path == "" {
		return errors.New("no home directory to keep the context in; use --cluster or set HOME")
	}
	if content.Current == "" && len(content.Contexts) == 0 {
		if err := durable.Remove(f.path); err != nil {
			return fmt.Errorf("forget context: %w", err)
		}
		return nil
	}
	text, err := yaml.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode context: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("keep context: %w", err)
	}
	if err := durable.Write(f.target(), text, 0o600); err != nil {
		return fmt.Errorf("keep context: %w", err)
	}
	return nil
}

// target is the file itself where the path is a link to it, as when people keep their settings elsewhere.
func (f contextFile) target() string {
	if real, err := filepath.EvalSymlinks(f.path); err == nil {
		return real
	}
	return f.path
}

// choose decides which cluster is meant: the flag, the environment, the current context, or the only one here.
func (f contextFile) choose(flag, environment string) (string, error) {
	for _, name := range []string{flag, environment} {
		if name != "" {
			return name, nil
		}
	}
	content, err := f.read()
	if err != nil {
		return "", err
	}
	if content.Current != "" {
		return content.Current, nil
	}
	here := f.clusters()
	switch len(here) {
	case 0:
		return "", &client.Problem{What: "no cluster runs here", Where: cluster.DefaultRunRoot, Remedy: "start one with `sudo heddle up --name cluster1`"}
	case 1:
		return here[0], nil
	}
	return "", &client.Problem{What: "several clusters run here", Where: strings.Join(here, ", "), Remedy: "choose one with --cluster or `heddle context use <name>`"}
}

// clustersHere lists the clusters with a runtime directory on this machine.
func clustersHere() []string {
	entries, err := os.ReadDir(cluster.DefaultRunRoot)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if _, err := cluster.New(e.Name()); e.IsDir() && err == nil {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names
}
