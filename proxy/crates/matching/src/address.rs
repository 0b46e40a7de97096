//! `envoy.config.core.v3.CidrRange`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why a range was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prefix length {prefix} is longer than the {max} bits of {address}")]
pub struct CidrError {
    address: IpAddr,
    prefix: u32,
    max: u32,
}

/// A range of addresses. IPv4 addresses mapped into IPv6 (`::ffff:a.b.c.d`) are treated as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The range of all addresses that share the first `prefix` bits of `address`. Host bits are cleared.
    pub fn new(address: IpAddr, prefix: u32) -> Result<Self, CidrError> {
        let max = if address.is_ipv4() { 32 } else { 128 };
        match u8::try_from(prefix) {
            Ok(bits) if prefix <= max => Ok(Self {
                network: mask(address, bits),
                prefix: bits,
            }),
            _ => Err(CidrError { address, prefix, max }),
        }
    }

    /// The range of one address.
    pub fn host(address: IpAddr) -> Self {
        Self {
            network: address,
            prefix: if address.is_ipv4() { 32 } else { 128 },
        }
    }

    /// First address of the range.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` lies in the range. Families never match each other.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = if self.network.is_ipv4() {
            address.to_canonical()
        } else {
            address
        };
        address.is_ipv4() == self.network.is_ipv4() && mask(address, self.prefix) == self.network
    }
}

fn mask(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & keep))
        }
        IpAddr::V6(v6) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & keep))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for (network, prefix, address, expected) in [
            ("10.0.0.0", 8, "10.1.2.3", true),
            ("10.9.9.9", 8, "10.1.2.3", true),
            ("10.0.0.0", 8, "11.0.0.0", false),
            ("10.0.0.1", 32, "10.0.0.1", true),
            ("10.0.0.1", 32, "10.0.0.2", false),
            ("0.0.0.0", 0, "255.1.1.1", true),
            ("0.0.0.0", 0, "::1", false),
            ("::", 0, "::1", true),
            ("::", 0, "1.2.3.4", false),
            ("fd00::", 8, "fd12::1", true),
            ("fd00::", 8, "fe80::1", false),
            ("10.0.0.0", 8, "::ffff:10.1.2.3", true),
        ] {
            let range = Cidr::new(network.parse().expect("network"), prefix).expect("range");
            assert_eq!(
                range.contains(address.parse().expect("address")),
                expected,
                "{address} in {network}/{prefix}"
            );
        }
    }

    #[test]
    fn too_long() {
        let error = Cidr::new(IpAddr::from([10, 0, 0, 0]), 33).expect_err("33 bits");
        assert_eq!(
            error.to_string(),
            "prefix length 33 is longer than the 32 bits of 10.0.0.0"
        );
        assert!(Cidr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 129).is_err());
        assert!(Cidr::new(IpAddr::from([10, 0, 0, 0]), 1000).is_err());
    }
}
