#!/bin/sh
# Regenerates the Go code of federationv1/federation.proto. The plugins' versions
# are pinned here and protoc's is written into the output, so a second run with
# the same protoc changes nothing.
set -eu

PROTOC_GEN_GO=v1.36.12
PROTOC_GEN_GO_GRPC=v1.6.2
PROTOC="libprotoc 3.21.12"

cd "$(dirname "$0")"
found=$(protoc --version) || {
	echo "generate.sh: protoc is missing; install it with: apt-get install protobuf-compiler" >&2
	exit 1
}
if [ "$found" != "$PROTOC" ]; then
	echo "generate.sh: $found instead of $PROTOC; the generated headers will name it" >&2
fi
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
GOBIN="$plugins" go install "google.golang.org/protobuf/cmd/protoc-gen-go@$PROTOC_GEN_GO"
GOBIN="$plugins" go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$PROTOC_GEN_GO_GRPC"
PATH="$plugins:$PATH" protoc -I federationv1 \
	--go_out=federationv1 --go_opt=paths=source_relative \
	--go-grpc_out=federationv1 --go-grpc_opt=paths=source_relative \
	federation.proto
