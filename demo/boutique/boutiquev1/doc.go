// Package boutiquev1 holds the messages and services of the sample shop,
// generated from boutique.proto.
package boutiquev1

//go:generate ../generate.sh
