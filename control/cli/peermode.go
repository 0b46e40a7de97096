package cli

import (
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// effectiveMode is the mode of mutual TLS that holds for a replica's port, as the model sees the rules.
func effectiveMode(r client.Replica, port int32, rules []*objects.Object) model.MTLSMode {
	mesh, _ := resolve.Mesh(model.DefaultSettings(r.NodeID), rules, resolve.Runtime{})
	mode, _ := mesh.InboundMode(r.Namespace, r.Labels, uint16(port))
	return mode
}
