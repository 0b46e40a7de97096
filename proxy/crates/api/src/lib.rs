//! The Envoy v3 API as Rust types, with its descriptors.
//!
//! Types are laid out by their protobuf package: `envoy.config.cluster.v3.Cluster` is
//! [`envoy::config::cluster::v3::Cluster`]. The descriptors serve reflection: JSON and YAML with `typed_config`, and the
//! question which fields of a message are set.
#![forbid(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use prost_reflect::DescriptorPool;

#[allow(missing_docs, unreachable_pub, dead_code, rustdoc::all, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy_api.rs"));
}

pub use generated::{envoy, google, udpa, xds};

/// The descriptor set as the generator wrote it.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.bin"));

/// The descriptors while they are loaded, and whether they were used since [`release_pool`] was called last.
static POOL: Mutex<(Option<DescriptorPool>, bool)> = Mutex::new((None, false));

/// Descriptors of every message that Heddle can read. Loaded when they are not there, which takes some milliseconds.
pub fn pool() -> DescriptorPool {
    let mut kept = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    kept.1 = true;
    let load = || match DescriptorPool::decode(DESCRIPTORS) {
        Ok(pool) => pool,
        // The bytes are part of the program: a set that does not load is a broken build, not an input.
        Err(e) => unreachable!("the built-in descriptor set does not load: {e}"),
    };
    kept.0.get_or_insert_with(load).clone()
}

/// Lets go of the descriptors, 7 MB, unless they were used since the last call. To be called now and then: between two
/// updates of its configuration nobody in a proxy needs them. Messages made with them keep them until they are gone. True when
/// this call has let go of them.
pub fn release_pool() -> bool {
    let mut kept = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let unused = !std::mem::take(&mut kept.1);
    unused && kept.0.take().is_some()
}

/// The prefix of every type URL.
pub const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

/// The message name in a type URL: what stands behind the last slash.
pub fn message_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_load_and_hold_the_resources() {
        for name in [
            "envoy.config.bootstrap.v3.Bootstrap",
            "envoy.config.listener.v3.Listener",
            "envoy.config.route.v3.RouteConfiguration",
            "envoy.config.cluster.v3.Cluster",
            "envoy.config.endpoint.v3.ClusterLoadAssignment",
            "envoy.extensions.transport_sockets.tls.v3.Secret",
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "udpa.type.v1.TypedStruct",
            "xds.type.v3.TypedStruct",
        ] {
            assert!(pool().get_message_by_name(name).is_some(), "{name} is missing");
        }
    }

    #[test]
    fn descriptors_are_let_go_when_nobody_used_them_and_come_back() {
        let name = "envoy.config.cluster.v3.Cluster";
        let kept = pool().get_message_by_name(name);
        // Other tests use them as well: until nobody does.
        while !release_pool() {}
        assert!(
            kept.is_some_and(|message| message.fields().len() > 10),
            "what is held stays whole"
        );
        assert!(pool().get_message_by_name(name).is_some());
    }

    #[test]
    fn message_name_is_behind_the_last_slash() {
        assert_eq!(message_name("type.googleapis.com/a.b.C"), "a.b.C");
        assert_eq!(message_name("a.b.C"), "a.b.C");
    }
}
