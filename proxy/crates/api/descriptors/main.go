// Command descriptors writes the part of the Envoy API that Heddle knows as one FileDescriptorSet.
//
// The Rust side is built from this set, so both halves compile from the one version of go-control-plane that go.mod
// pins. The output is deterministic: files in topological order, ties broken by path.
//
// Of the options only the validation rules (package validate) and map entries are kept; annotations that only
// documentation tools read would double the size of the set, which the proxy keeps in memory.
package main

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	// Every message that a typed_config may hold, and every xDS resource, is named here. Adding one is one line; the
	// packages that it imports come along.
	_ "github.com/cncf/xds/go/udpa/type/v1"
	_ "github.com/cncf/xds/go/xds/type/v3"
	_ "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/network/connection_balance/dlb/v3alpha"
	_ "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/cryptomb/v3alpha"
	_ "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/qat/v3alpha"
	_ "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/regex_engines/hyperscan/v3alpha"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/brotli/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/brotli/decompressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/decompressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/decompressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/decompressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/cgroup_memory/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
)

func main() {
	out := flag.String("out", "", "file to write the set to (required)")
	flag.Parse()
	if *out == "" || flag.NArg() != 0 {
		fmt.Fprintln(os.Stderr, "usage: descriptors -out FILE")
		os.Exit(2)
	}
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "descriptors:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	set := collect()
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		return fmt.Errorf("encode the descriptor set: %w", err)
	}
	if err := os.WriteFile(out, encoded, 0o644); err != nil {
		return fmt.Errorf("write the descriptor set: %w", err)
	}
	return nil
}

// collect returns the registered files of the xDS API and what they import, dependencies first. Files that other
// libraries of this program register, and files that hold annotations only, stay out.
func collect() *descriptorpb.FileDescriptorSet {
	files := map[string]protoreflect.FileDescriptor{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !annotationsOnly(f.Path()) {
			files[f.Path()] = f
		}
		return true
	})
	paths := make([]string, 0, len(files))
	for path := range files {
		paths = append(paths, path)
	}
	sort.Strings(paths)

	set := &descriptorpb.FileDescriptorSet{}
	done := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		f, known := files[path]
		if !known || done[path] {
			return
		}
		done[path] = true
		imports := f.Imports()
		names := make([]string, 0, imports.Len())
		for i := range imports.Len() {
			names = append(names, imports.Get(i).Path())
		}
		sort.Strings(names)
		for _, name := range names {
			visit(name)
		}
		set.File = append(set.File, slim(protodesc.ToFileDescriptorProto(f)))
	}
	// What an answer of xDS may say besides (google.rpc.Status.details), which no file of Envoy's imports.
	visit(errdetails.File_google_rpc_error_details_proto.Path())
	for _, path := range paths {
		if root, _, _ := strings.Cut(path, "/"); root == "contrib" || root == "envoy" || root == "udpa" || root == "xds" {
			visit(path)
		}
	}
	return set
}

// annotationsOnly says whether a file defines nothing but options that Heddle does not read.
func annotationsOnly(path string) bool {
	for _, folder := range []string{"udpa/annotations/", "xds/annotations/", "envoy/annotations/"} {
		if strings.HasPrefix(path, folder) {
			return true
		}
	}
	return false
}

// slim drops the options and imports that nobody reads at run time.
func slim(file *descriptorpb.FileDescriptorProto) *descriptorpb.FileDescriptorProto {
	kept := file.Dependency[:0]
	position := map[int32]int32{}
	for i, path := range file.Dependency {
		if !annotationsOnly(path) {
			position[int32(i)] = int32(len(kept))
			kept = append(kept, path)
		}
	}
	file.Dependency = kept
	file.PublicDependency = moved(file.PublicDependency, position)
	file.WeakDependency = moved(file.WeakDependency, position)
	file.SourceCodeInfo = nil
	file.Options = nil
	for _, message := range file.MessageType {
		slimMessage(message)
	}
	for _, enum := range file.EnumType {
		slimEnum(enum)
	}
	for _, service := range file.Service {
		service.Options = nil
		for _, method := range service.Method {
			method.Options = nil
		}
	}
	return file
}

func moved(indexes []int32, position map[int32]int32) []int32 {
	var out []int32
	for _, i := range indexes {
		if to, kept := position[i]; kept {
			out = append(out, to)
		}
	}
	return out
}

func slimMessage(message *descriptorpb.DescriptorProto) {
	if message.Options != nil && !message.Options.GetMapEntry() {
		message.Options = nil
	}
	for _, field := range message.Field {
		keepValidation(field.Options)
		if field.Options != nil {
			field.Options.Ctype, field.Options.Jstype = nil, nil
		}
	}
	for _, oneof := range message.OneofDecl {
		keepValidation(oneof.Options)
	}
	for _, nested := range message.NestedType {
		slimMessage(nested)
	}
	for _, enum := range message.EnumType {
		slimEnum(enum)
	}
}

func slimEnum(enum *descriptorpb.EnumDescriptorProto) {
	if enum.Options != nil {
		enum.Options = &descriptorpb.EnumOptions{AllowAlias: enum.Options.AllowAlias}
	}
	for _, value := range enum.Value {
		value.Options = nil
	}
}

// keepValidation removes every extension but those of package validate.
func keepValidation(options proto.Message) {
	if !options.ProtoReflect().IsValid() {
		return
	}
	proto.RangeExtensions(options, func(extension protoreflect.ExtensionType, _ any) bool {
		if extension.TypeDescriptor().ParentFile().Package() != "validate" {
			proto.ClearExtension(options, extension)
		}
		return true
	})
	options.ProtoReflect().SetUnknown(nil)
}
