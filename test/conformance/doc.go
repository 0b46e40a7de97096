// Package conformance compares heddle-proxy with a stock Envoy, request by request, in the same configuration. Its
// README says how to add a case.
package conformance
