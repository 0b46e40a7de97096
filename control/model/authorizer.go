package model

import "time"

// Authorizer is a server that policies of the action [Custom] ask (an extension provider of the mesh's configuration).
type Authorizer struct {
	Name string `json:"name"`
	// Service of the mesh, by its full name.
	Service string `json:"service"`
	Port    uint16 `json:"port"`
	// GRPC is asked by Envoy's Authorization service; others by HTTP.
	GRPC bool `json:"grpc,omitempty"`
	// Timeout of a question; zero for the default of ten minutes.
	Timeout time.Duration `json:"timeout,omitempty"`
	// FailOpen lets requests pass when the server cannot be asked.
	FailOpen bool `json:"failOpen,omitempty"`
	// ClearRouteCache has the route chosen again when the server has changed the request.
	ClearRouteCache bool `json:"clearRouteCache,omitempty"`
	// StatusOnError answers requests when the server cannot be asked; zero for 403.
	StatusOnError uint32 `json:"statusOnError,omitempty"`
	// Body says how much of a request's body the server is shown; nil for none.
	Body *AuthorizerBody `json:"body,omitempty"`
	// PathPrefix stands before the path of a question by HTTP.
	PathPrefix string `json:"pathPrefix,omitempty"`
	// ShowHeaders are the fields that the server is shown besides host, method, path, authorization and length: exact,
	// "prefix*", "*suffix".
	ShowHeaders []string `json:"showHeaders,omitempty"`
	// AddHeaders are fields of the question with fixed values, sorted by name.
	AddHeaders []Header `json:"addHeaders,omitempty"`
	// ToUpstream, ToClientOnDeny and ToClientOnAllow are the server's fields that are passed on, in the form of
	// ShowHeaders.
	ToUpstream      []string `json:"toUpstream,omitempty"`
	ToClientOnDeny  []string `json:"toClientOnDeny,omitempty"`
	ToClientOnAllow []string `json:"toClientOnAllow,omitempty"`
}

// AuthorizerBody is how a request's body is shown.
type AuthorizerBody struct {
	// Max is how many bytes are shown at most; longer requests are refused (413) unless AllowPartial.
	Max          uint32 `json:"max"`
	AllowPartial bool   `json:"allowPartial,omitempty"`
	// AsBytes shows it to a server of gRPC as bytes, not as text.
	AsBytes bool `json:"asBytes,omitempty"`
}
