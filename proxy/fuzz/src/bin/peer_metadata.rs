//! `x-envoy-peer-metadata`: names that a peer claims. The input is the header's value, and again its decoded bytes.
#![no_main]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heddle_telemetry::istio::PeerMetadata;
use libfuzzer_sys::fuzz_target;

/// Longest name that may become a label.
const MAX_NAME: usize = 253;

fn check(value: &str) {
    let Some(peer) = PeerMetadata::from_header(value) else {
        return;
    };
    let PeerMetadata {
        workload,
        namespace,
        canonical_service,
        canonical_revision,
        app,
        version,
        cluster,
    } = &peer;
    for name in [
        workload,
        namespace,
        canonical_service,
        canonical_revision,
        app,
        version,
        cluster,
    ] {
        assert!(name.len() <= MAX_NAME, "{} bytes", name.len());
    }
    assert!(!peer.is_unknown());
    assert_eq!(
        PeerMetadata::from_header(&peer.to_header()),
        Some(peer),
        "what is sent on means the same"
    );
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = std::str::from_utf8(bytes) {
        check(value);
    }
    check(&STANDARD.encode(bytes));
});
