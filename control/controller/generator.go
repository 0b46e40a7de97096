package controller

import (
	"fmt"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// generator makes proxies' configuration from one model.
type generator struct {
	mesh     *model.Mesh
	revision int64
	uses     *uses
}

// Revision implements [xds.Generator].
func (g generator) Revision() int64 { return g.revision }

// Generate implements [xds.Generator].
func (g generator) Generate(node *core.Node) (xds.Resources, error) {
	parsed, err := translate.ParseNode(node)
	if err != nil {
		return nil, err
	}
	resources, err := translate.Proxy(g.mesh, parsed)
	if err != nil {
		return nil, fmt.Errorf("translate: %w", err)
	}
	g.uses.set(node.GetId(), resources.Sources())
	return resources.ByType(), nil
}

// uses remembers which objects have a part in which proxy's newest configuration.
type uses struct {
	mu    sync.Mutex
	nodes map[string]map[objects.Key]bool
}

func newUses() *uses { return &uses{nodes: map[string]map[objects.Key]bool{}} }

func (u *uses) set(node string, keys []objects.Key) {
	set := make(map[objects.Key]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	u.mu.Lock()
	u.nodes[node] = set
	u.mu.Unlock()
}

// of says whether a proxy's configuration has a part of the object.
func (u *uses) of(node string, key objects.Key) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nodes[node][key]
}

// keep forgets the proxies that are not in the list.
func (u *uses) keep(nodes map[string]xds.NodeStatus) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id := range u.nodes {
		if _, ok := nodes[id]; !ok {
			delete(u.nodes, id)
		}
	}
}
