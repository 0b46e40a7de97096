// Package federationv1 holds the messages and the service by which the controllers of a mesh's clusters talk to each
// other, generated from federation.proto.
package federationv1

//go:generate ../generate.sh
