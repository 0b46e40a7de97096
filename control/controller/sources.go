package controller

import "context"

// source of endpoints: what tells [registry.Instances] which replicas there are. What a source reports gets traffic where a
// service selects it; [Controller.Replicas], and with it `heddle ps`, is of what agents run.
type source struct {
	name string
	// load reports what the source knows when the controller starts, before the first model is made: proxies that are there
	// already lose the endpoints that the first model does not have.
	load func(*Controller) error
	// follow reports what changes, until the context ends.
	follow func(*Controller, context.Context)
}

// sources of endpoints, in no order. A new one is a file and a line here; it reports as [registry.Within].
var sources = []source{
	{"agents", (*Controller).loadReports, (*Controller).silenceLoop},
}
