//! The key shares of a ClientHello: the public key that a server exchanges keys with before its TLS engine reads them.
#![no_main]

use heddle_net::{KeyShareGroup, KeyShares};
use libfuzzer_sys::fuzz_target;

const X25519: KeyShareGroup = KeyShareGroup::X25519;
const HYBRID: KeyShareGroup = KeyShareGroup::X25519MlKem768;

/// Whether a share of that group, as long as such a share is, ends with that key.
fn has_share(key_share: &[u8], code_point: [u8; 2], length: u16, key: &[u8; 32]) -> bool {
    let [high, low] = length.to_be_bytes();
    let begins = [code_point[0], code_point[1], high, low];
    key_share
        .windows(4 + usize::from(length))
        .any(|share| share.starts_with(&begins) && share.ends_with(key))
}

fuzz_target!(|extensions: (&[u8], &[u8], &[u8])| {
    let (supported_versions, supported_groups, key_share) = extensions;
    let shares = KeyShares {
        supported_versions,
        supported_groups,
        key_share,
    };
    assert_eq!(shares.x25519(&[]), None);
    let (plain, hybrid) = (shares.x25519(&[X25519]), shares.x25519(&[HYBRID]));
    if let Some(key) = plain {
        assert!(has_share(key_share, [0, 0x1d], 32, &key));
    }
    if let Some(key) = hybrid {
        assert!(has_share(key_share, [0x11, 0xec], 1216, &key));
    }
    // The client's order decides, not ours.
    let both = shares.x25519(&[X25519, HYBRID]);
    assert_eq!(both, shares.x25519(&[HYBRID, X25519]));
    assert!(both.is_none() || both == plain || both == hybrid);
    let others = KeyShares {
        supported_versions: &[2, 3, 3],
        ..shares
    };
    assert_eq!(others.x25519(&[X25519, HYBRID]), None, "TLS 1.2");
});
