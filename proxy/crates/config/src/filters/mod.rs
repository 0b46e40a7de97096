//! What HTTP filters are configured by: one file a filter. It holds the filter's settings, how they are decoded, and
//! which fields of its messages are implemented. Adding a filter: a file here and a line in the list below; what it does
//! stands in the crate that runs it.

use std::convert::Infallible;
use std::sync::Arc;

use prost_types::Any;

use crate::check::fields::Message;
use crate::decode::Result;
use crate::path::Path;

/// One kind of HTTP filter.
trait Kind: Sized {
    /// The message in `typed_config`; empty for a filter that is configured by a `TypedStruct` only.
    const TYPE: &'static str = "";
    /// The message in `typed_per_filter_config`; empty for a filter that has nothing to say there.
    const ROUTE_TYPE: &'static str = "";
    /// The messages that only this filter's configuration holds.
    const MESSAGES: &'static [Message] = &[];
    /// What `typed_per_filter_config` may say.
    type Route;

    /// Decodes [`Kind::TYPE`].
    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        Err(path.unsupported(heddle_api::message_name(&any.type_url), "remove the filter"))
    }

    /// Decodes [`Kind::ROUTE_TYPE`].
    fn decode_route(any: &Any, path: &Path<'_>) -> Result<Self::Route> {
        Err(path.unsupported(heddle_api::message_name(&any.type_url), "remove it"))
    }

    /// The filter of a `TypedStruct` that holds this message and no settings.
    fn of_struct(_name: &str) -> Option<Self> {
        None
    }
}

macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident in $file:ident, per route $route:ty;)*) => {
        $(pub mod $file;)*

        /// What an HTTP filter is configured to do.
        #[derive(Clone, Debug)]
        pub enum FilterConfig {
            $($(#[$doc])* $name(Arc<$file::$name>),)*
        }

        /// What `typed_per_filter_config` says to an HTTP filter.
        #[derive(Clone, Debug)]
        pub enum RouteFilterConfig {
            $($(#[$doc])* $name(Arc<$route>),)*
        }

        impl FilterConfig {
            /// Whether this is said to such a filter.
            pub fn takes(&self, config: &RouteFilterConfig) -> bool {
                match (self, config) {
                    $((Self::$name(_), RouteFilterConfig::$name(_)) => true,)*
                    _ => false,
                }
            }

            /// Of a message of its own.
            pub(crate) fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
                match heddle_api::message_name(&any.type_url) {
                    $(name if name == <$file::$name as Kind>::TYPE => {
                        <$file::$name as Kind>::decode(any, path).map(|f| Self::$name(Arc::new(f)))
                    })*
                    other => Err(path.unsupported(other, "remove the filter")),
                }
            }

            /// Of a `TypedStruct` that holds this message.
            pub(crate) fn of_struct(name: &str, path: &Path<'_>) -> Result<Self> {
                $(if let Some(filter) = <$file::$name as Kind>::of_struct(name) {
                    return Ok(Self::$name(Arc::new(filter)));
                })*
                Err(path.field("type_url").unsupported(name, "remove the filter"))
            }
        }

        impl RouteFilterConfig {
            /// Whether both are said to the same kind of filter.
            pub(crate) fn is_like(&self, other: &Self) -> bool {
                std::mem::discriminant(self) == std::mem::discriminant(other)
            }

            pub(crate) fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
                match heddle_api::message_name(&any.type_url) {
                    $(name if !name.is_empty() && name == <$file::$name as Kind>::ROUTE_TYPE => {
                        <$file::$name as Kind>::decode_route(any, path).map(|c| Self::$name(Arc::new(c)))
                    })*
                    other => Err(path.unsupported(other, "remove it")),
                }
            }
        }

        /// The messages of all filters, for the table of fields.
        pub(crate) fn messages() -> impl Iterator<Item = &'static Message> {
            const ALL: &[&[Message]] = &[$(<$file::$name as Kind>::MESSAGES,)*];
            ALL.iter().copied().flatten()
        }

        #[cfg(test)]
        const TYPES: &[(&str, [&str; 2])] =
            &[$((stringify!($file), [<$file::$name as Kind>::TYPE, <$file::$name as Kind>::ROUTE_TYPE]),)*];
    };
}

filters! {
    /// `envoy.filters.http.buffer`: waits for the whole request.
    Buffer in buffer, per route buffer::BufferPerRoute;
    /// `envoy.filters.http.compressor`: compresses bodies.
    Compressor in compressor, per route compressor::CompressorPerRoute;
    /// `envoy.filters.http.cors`: which origins may read answers.
    Cors in cors, per route cors::CorsPolicy;
    /// `envoy.filters.http.decompressor`: decompresses bodies.
    Decompressor in decompressor, per route Infallible;
    /// `envoy.filters.http.ext_authz`: a server of its own says who may call what.
    ExtAuthz in ext_authz, per route ext_authz::ExtAuthzPerRoute;
    /// `envoy.filters.http.fault`: delays and aborts.
    Fault in fault, per route fault::Fault;
    /// `envoy.filters.http.grpc_web`: gRPC for browsers.
    GrpcWeb in grpc_web, per route Infallible;
    /// `envoy.filters.http.header_mutation`.
    HeaderMutation in header_mutation, per route header_mutation::Mutations;
    /// `envoy.filters.http.header_to_metadata`: fields as metadata.
    HeaderToMetadata in header_to_metadata, per route header_to_metadata::HeaderToMetadata;
    /// `envoy.filters.http.jwt_authn`: tokens that requests must have.
    JwtAuthn in jwt_authn, per route jwt_authn::JwtAuthnPerRoute;
    /// `envoy.filters.http.local_ratelimit`: token buckets of this proxy.
    LocalRateLimit in local_ratelimit, per route local_ratelimit::LocalRateLimit;
    /// `envoy.filters.http.rbac`.
    Rbac in rbac, per route rbac::RbacPerRoute;
    /// `istio.stats`: Istio's standard metrics for requests.
    IstioStats in istio_stats, per route Infallible;
    /// `istio.metadata_exchange`: swap workload names with the peer in `x-envoy-peer-metadata` headers.
    PeerMetadata in peer_metadata, per route Infallible;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter whose messages are not in the API, or whose fields are in no table, could never be configured.
    #[test]
    fn every_filter_can_be_configured() {
        let mut seen = std::collections::HashSet::new();
        let names = TYPES.iter().flat_map(|(_, names)| names);
        for name in names.filter(|name| !name.is_empty()) {
            assert!(
                heddle_api::pool().get_message_by_name(name).is_some(),
                "{name}: its package is missing in proxy/crates/api/descriptors/main.go"
            );
            assert!(
                messages().any(|m| m.name == *name),
                "{name} is not in its filter's MESSAGES"
            );
            seen.insert(*name);
        }
        assert!(seen.contains("envoy.extensions.filters.http.rbac.v3.RBACPerRoute"));
    }

    /// Istio's filters have no counterpart in a stock Envoy; all others are compared with it.
    #[test]
    fn every_filter_is_compared_with_envoy() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
        for (file, [name, _]) in TYPES.iter().filter(|(_, [name, _])| !name.is_empty()) {
            let cases = format!("{root}/test/conformance/cases/{file}.yaml");
            let text = std::fs::read_to_string(&cases).unwrap_or_else(|e| panic!("{cases}: {e}"));
            assert!(text.contains(name), "{cases} does not configure {name}");
            assert!(
                text.matches("\n- name: ").count() >= 6,
                "{cases} has fewer than six cases"
            );
        }
    }

    /// A file that no list names would be compiled by nobody.
    #[test]
    fn every_file_is_in_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/filters");
        let list = include_str!("mod.rs");
        for entry in std::fs::read_dir(folder).expect("the folder of this file") {
            let path = entry.expect("an entry").path();
            let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_owned();
            assert!(
                stem == "mod" || list.contains(&format!(" in {stem}, per route ")),
                "{stem} is not in the list of filters"
            );
        }
    }
}
