package build

import (
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// GlobalHosts are the full host names that need a virtual address of [model.Settings].Globals: imported services that
// have no Service object here, and external services. They are sorted.
func GlobalHosts(_ model.Settings, _ []*objects.Object, _ []registry.Peer) []string { return nil }

// Names are all full host names that workloads of this cluster may look up, sorted.
func Names(_ *model.Mesh) []model.Name { return nil }
