//! The client's public keys in its ClientHello (RFC 8446 §4.2.8).

use heddle_keys::X25519_BYTES as BYTES;

/// A group whose exchange has an X25519 in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyShareGroup {
    X25519,
    /// draft-ietf-tls-ecdhe-mlkem: the public key of ML-KEM, then that of X25519.
    X25519MlKem768,
}

impl KeyShareGroup {
    /// That of BoringSSL's name for it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "X25519" => Some(Self::X25519),
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

/// The public key of X25519 in the share that a server with these groups, the preferred one first, will choose. `None` where there is
/// none, or what is there is malformed, which BoringSSL will say.
pub(crate) fn x25519(extension: &[u8], groups: &[KeyShareGroup]) -> Option<[u8; BYTES]> {
    let (length, shares) = extension.split_first_chunk()?;
    if shares.len() != usize::from(u16::from_be_bytes(*length)) {
        return None;
    }
    groups.iter().find_map(|group| {
        let share = share(shares, group.code_point())?;
        share.get(group.before()..)?.try_into().ok()
    })
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

    fn extension(shares: &[(u16, &[u8])]) -> Vec<u8> {
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

    #[test]
    fn the_share_of_the_preferred_group_is_found() {
        let hybrid = [vec![1; 1184], vec![2; BYTES]].concat();
        let plain = [3; BYTES];
        let grease = (0x0a0a, &[0][..]);
        let shares = extension(&[grease, (0x001d, &plain), (0x11ec, &hybrid)]);
        assert_eq!(x25519(&shares, &BOTH), Some([2; BYTES]));
        assert_eq!(x25519(&shares, &[KeyShareGroup::X25519]), Some(plain));
        assert_eq!(x25519(&extension(&[grease, (0x001d, &plain)]), &BOTH), Some(plain));
        assert_eq!(x25519(&extension(&[grease, (0x0017, &[4; 65])]), &BOTH), None);
        assert_eq!(x25519(&shares, &[]), None);
    }

    #[test]
    fn what_is_malformed_has_no_share() {
        let good = extension(&[(0x0017, &[4; 65]), (0x001d, &[3; BYTES])]);
        for length in 0..good.len() {
            assert_eq!(x25519(&good[..length], &BOTH), None, "{length} bytes");
            // Also where the list says that it ends there.
            let mut cut = good[..length].to_vec();
            if let (Some(to), Ok(says)) = (cut.first_chunk_mut(), u16::try_from(length.saturating_sub(2))) {
                *to = says.to_be_bytes();
            }
            assert_eq!(x25519(&cut, &BOTH), None, "{length} bytes");
        }
        assert_eq!(x25519(&[&good[..], &[0]].concat(), &BOTH), None, "a byte behind");
        for share in [&[3; BYTES - 1][..], &[3; BYTES + 1], &[]] {
            assert_eq!(x25519(&extension(&[(0x001d, share), (0x11ec, share)]), &BOTH), None);
        }
    }
}
