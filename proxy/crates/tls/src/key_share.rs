//! The client's public keys in its ClientHello (RFC 8446 §4.2).

use heddle_keys::X25519_BYTES as BYTES;

const TLS_1_3: [u8; 2] = [3, 4];

/// A group whose exchange has an X25519 in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyShareGroup {
    X25519,
    /// draft-ietf-tls-ecdhe-mlkem: the public key of ML-KEM, then that of X25519.
    X25519MlKem768,
}

impl KeyShareGroup {
    /// That of BoringSSL's names for it.
    pub(crate) fn named(name: &str) -> Option<Self> {
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

/// Those extensions of a ClientHello that say whether, and with what, keys are exchanged by TLS 1.3.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extensions<'a> {
    pub(crate) supported_versions: &'a [u8],
    pub(crate) supported_groups: &'a [u8],
    pub(crate) key_share: &'a [u8],
}

impl Extensions<'_> {
    /// The public key of X25519 in the share that a server with these groups will choose, which is the one that the client
    /// prefers. `None` where there is none, or what is there is malformed, which BoringSSL will say.
    pub(crate) fn x25519(&self, groups: &[KeyShareGroup]) -> Option<[u8; BYTES]> {
        let (_, versions) = self.supported_versions.split_first()?;
        if !versions.as_chunks().0.contains(&TLS_1_3) {
            return None;
        }
        let (_, preferred) = self.supported_groups.split_first_chunk::<2>()?;
        let mut preferred = preferred.as_chunks().0.iter().map(|group| u16::from_be_bytes(*group));
        let group = preferred.find_map(|group| groups.iter().find(|ours| ours.code_point() == group))?;
        let (length, shares) = self.key_share.split_first_chunk()?;
        if shares.len() != usize::from(u16::from_be_bytes(*length)) {
            return None;
        }
        let share = share(shares, group.code_point())?;
        share.get(group.before()..)?.try_into().ok()
    }
}

/// The first share of a group.
fn share(mut shares: &[u8], group: u16) -> Option<&[u8]> {
    loop {
        let (code_point, rest) = shares.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (share, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        if u16::from_be_bytes(*code_point) == group {
            return Some(share);
        }
        shares = rest;
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

    fn found(supported_groups: &[u8], key_share: &[u8], ours: &[KeyShareGroup]) -> Option<[u8; BYTES]> {
        let extensions = Extensions {
            supported_versions: &[4, 3, 4, 3, 3],
            supported_groups,
            key_share,
        };
        extensions.x25519(ours)
    }

    #[test]
    fn the_share_of_the_group_that_the_client_prefers_is_found() {
        let hybrid = [vec![1; 1184], vec![2; BYTES]].concat();
        let plain = [3; BYTES];
        let grease = (0x0a0a, &[0][..]);
        let all = shares(&[grease, (0x001d, &plain), (0x11ec, &hybrid)]);
        assert_eq!(found(HYBRID_FIRST, &all, &BOTH), Some([2; BYTES]));
        assert_eq!(found(PLAIN_FIRST, &all, &BOTH), Some(plain));
        assert_eq!(found(HYBRID_FIRST, &all, &[KeyShareGroup::X25519]), Some(plain));
        assert_eq!(found(HYBRID_FIRST, &all, &[]), None);
        // Another round is needed for the one that is preferred.
        assert_eq!(found(HYBRID_FIRST, &shares(&[(0x001d, &plain)]), &BOTH), None);
        assert_eq!(found(PLAIN_FIRST, &shares(&[grease, (0x0017, &[4; 65])]), &BOTH), None);
    }

    #[test]
    fn older_versions_have_no_share() {
        let key_share = shares(&[(0x001d, &[3; BYTES])]);
        for supported_versions in [&[2, 3, 3][..], &[0], &[], &[3, 3, 3, 3]] {
            let extensions = Extensions {
                supported_versions,
                supported_groups: PLAIN_FIRST,
                key_share: &key_share,
            };
            assert_eq!(extensions.x25519(&BOTH), None, "{supported_versions:?}");
        }
    }

    #[test]
    fn what_is_malformed_has_no_share() {
        let good = shares(&[(0x0017, &[4; 65]), (0x001d, &[3; BYTES])]);
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
        for share in [&[3; BYTES - 1][..], &[3; BYTES + 1], &[]] {
            let shares = shares(&[(0x001d, share), (0x11ec, share)]);
            assert_eq!(found(PLAIN_FIRST, &shares, &BOTH), None);
            assert_eq!(found(HYBRID_FIRST, &shares, &BOTH), None);
        }
        for groups in [&[][..], &[0], &[0, 2, 0]] {
            assert_eq!(found(groups, &good, &BOTH), None, "{groups:?}");
        }
    }
}
