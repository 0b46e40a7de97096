//! The client's public keys in its ClientHello (RFC 8446 §4.2).

use crate::client_hello::Reader;

/// Bytes of a public key of X25519 (RFC 7748 §5).
const X25519_BYTES: usize = 32;

const TLS_1_3: u16 = 0x0304;

/// A group whose exchange has an X25519 in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyShareGroup {
    /// X25519 alone.
    X25519,
    /// draft-ietf-tls-ecdhe-mlkem: the public key of ML-KEM, then that of X25519.
    X25519MlKem768,
}

impl KeyShareGroup {
    /// That of BoringSSL's names for it; `None` for other groups.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "X25519" | "x25519" => Some(Self::X25519),
            "X25519MLKEM768" => Some(Self::X25519MlKem768),
            _ => None,
        }
    }

    fn code_point(self) -> u16 {
        match self {
            Self::X25519 => 0x001d,
            Self::X25519MlKem768 => 0x11ec,
        }
    }

    /// Bytes in front of the public key of X25519.
    fn before(self) -> usize {
        match self {
            Self::X25519 => 0,
            Self::X25519MlKem768 => 1184,
        }
    }
}

/// Those extensions of a ClientHello that say whether, and with what, keys are exchanged by TLS 1.3; empty where they are missing.
#[derive(Clone, Copy, Debug)]
pub struct KeyShares<'a> {
    /// `supported_versions` (RFC 8446 §4.2.1).
    pub supported_versions: &'a [u8],
    /// `supported_groups` (§4.2.7).
    pub supported_groups: &'a [u8],
    /// `key_share` (§4.2.8).
    pub key_share: &'a [u8],
}

impl KeyShares<'_> {
    /// The public key of X25519 in the share that a server with these groups will choose, which is the one that the client
    /// prefers. `None` where there is none, or what is there is malformed, which the TLS engine will say.
    pub fn x25519(&self, groups: &[KeyShareGroup]) -> Option<[u8; X25519_BYTES]> {
        let mut versions = Reader(self.supported_versions).vector8()?;
        while versions.u16()? != TLS_1_3 {}
        let mut preferred = Reader(self.supported_groups).vector16()?;
        let group = loop {
            let preferred = preferred.u16()?;
            if let Some(group) = groups.iter().find(|ours| ours.code_point() == preferred) {
                break group;
            }
        };
        let mut extension = Reader(self.key_share);
        let mut shares = extension.vector16()?;
        if !extension.is_empty() {
            return None;
        }
        loop {
            let (code_point, share) = (shares.u16()?, shares.vector16()?);
            if code_point == group.code_point() {
                return share.0.get(group.before()..)?.try_into().ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [KeyShareGroup; 2] = [KeyShareGroup::X25519MlKem768, KeyShareGroup::X25519];
    const HYBRID_FIRST: &[u8] = &[0, 8, 0x0a, 0x0a, 0x11, 0xec, 0, 0x1d, 0, 0x17];
    const PLAIN_FIRST: &[u8] = &[0, 6, 0, 0x17, 0, 0x1d, 0x11, 0xec];

    fn shares(shares: &[(u16, &[u8])]) -> Vec<u8> {
        let mut all = Vec::new();
        for (group, share) in shares {
            all.extend(group.to_be_bytes());
            all.extend(u16::try_from(share.len()).expect("short").to_be_bytes());
            all.extend(*share);
        }
        let mut extension = u16::try_from(all.len()).expect("short").to_be_bytes().to_vec();
        extension.extend(all);
        extension
    }

    fn found(supported_groups: &[u8], key_share: &[u8], ours: &[KeyShareGroup]) -> Option<[u8; X25519_BYTES]> {
        let shares = KeyShares {
            supported_versions: &[4, 3, 4, 3, 3],
            supported_groups,
            key_share,
        };
        shares.x25519(ours)
    }

    #[test]
    fn the_share_of_the_group_that_the_client_prefers_is_found() {
        let hybrid = [vec![1; 1184], vec![2; X25519_BYTES]].concat();
        let plain = [3; X25519_BYTES];
        let grease = (0x0a0a, &[0][..]);
        let all = shares(&[grease, (0x001d, &plain), (0x11ec, &hybrid)]);
        assert_eq!(found(HYBRID_FIRST, &all, &BOTH), Some([2; X25519_BYTES]));
        assert_eq!(found(PLAIN_FIRST, &all, &BOTH), Some(plain));
        assert_eq!(found(HYBRID_FIRST, &all, &[KeyShareGroup::X25519]), Some(plain));
        assert_eq!(found(HYBRID_FIRST, &all, &[]), None);
        // Another round is needed for the one that is preferred.
        assert_eq!(found(HYBRID_FIRST, &shares(&[(0x001d, &plain)]), &BOTH), None);
        assert_eq!(found(PLAIN_FIRST, &shares(&[grease, (0x0017, &[4; 65])]), &BOTH), None);
    }

    #[test]
    fn older_versions_have_no_share() {
        let key_share = shares(&[(0x001d, &[3; X25519_BYTES])]);
        for supported_versions in [&[2, 3, 3][..], &[0], &[], &[3, 3, 3, 3]] {
            let shares = KeyShares {
                supported_versions,
                supported_groups: PLAIN_FIRST,
                key_share: &key_share,
            };
            assert_eq!(shares.x25519(&BOTH), None, "{supported_versions:?}");
        }
    }

    #[test]
    fn what_is_malformed_has_no_share() {
        let good = shares(&[(0x0017, &[4; 65]), (0x001d, &[3; X25519_BYTES])]);
        for length in 0..good.len() {
            assert_eq!(found(PLAIN_FIRST, &good[..length], &BOTH), None, "{length} bytes");
            // Also where the list says that it ends there.
            let mut cut = good[..length].to_vec();
            if let (Some(to), Ok(says)) = (cut.first_chunk_mut(), u16::try_from(length.saturating_sub(2))) {
                *to = says.to_be_bytes();
            }
            assert_eq!(found(PLAIN_FIRST, &cut, &BOTH), None, "{length} bytes");
        }
        assert_eq!(
            found(PLAIN_FIRST, &[&good[..], &[0]].concat(), &BOTH),
            None,
            "a byte behind"
        );
        for share in [&[3; X25519_BYTES - 1][..], &[3; X25519_BYTES + 1], &[]] {
            let shares = shares(&[(0x001d, share), (0x11ec, share)]);
            assert_eq!(found(PLAIN_FIRST, &shares, &BOTH), None);
            assert_eq!(found(HYBRID_FIRST, &shares, &BOTH), None);
        }
        for groups in [&[][..], &[0], &[0, 2, 0]] {
            assert_eq!(found(groups, &good, &BOTH), None, "{groups:?}");
        }
    }
}
