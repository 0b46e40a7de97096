//! Addresses and ranges.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use heddle_matching::Cidr as MatchCidr;

use super::{Result, enumeration, pb, required};
use crate::path::Path;
use crate::snapshot::Cidr;

/// An `Address` that is an IP address with a port.
pub(crate) fn socket_address(address: Option<&pb::core::Address>, path: &Path<'_>) -> Result<SocketAddr> {
    let address = required(address, path)?;
    match &address.address {
        Some(pb::core::address::Address::SocketAddress(socket)) => ip_and_port(socket, &path.field("socket_address")),
        Some(pb::core::address::Address::Pipe(_)) => Err(path
            .field("pipe")
            .unsupported("a unix socket here", "use socket_address")),
        _ => Err(path.error("must be set; use socket_address")),
    }
}

/// The addresses that a listener binds for an `Address`: one, or with `ipv4_compat` on the IPv6 wildcard both wildcards.
///
/// Envoy binds one socket for both families there. Two sockets accept the same connections, show IPv4 peers by their
/// IPv4 addresses, as Envoy does, and know the original destination of redirected connections of either family.
pub(super) fn listening(address: Option<&pb::core::Address>, path: &Path<'_>) -> Result<Vec<SocketAddr>> {
    let compatible = match address.and_then(|a| a.address.as_ref()) {
        Some(pb::core::address::Address::SocketAddress(socket)) if socket.ipv4_compat => socket,
        _ => return Ok(vec![socket_address(address, path)?]),
    };
    let here = path.field("socket_address");
    let bound = parse(compatible, &here)?;
    match bound.ip() {
        IpAddr::V4(_) => Err(here
            .field("ipv4_compat")
            .error("has no meaning with an IPv4 address; remove it")),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), bound.port());
            Ok(vec![bound, v4])
        }
        // An IPv4 address in IPv6 form is that IPv4 address.
        IpAddr::V6(ip) => Ok(vec![SocketAddr::new(ip.to_canonical(), bound.port())]),
    }
}

/// A `SocketAddress` whose address is an IP address.
pub(super) fn ip_and_port(socket: &pb::core::SocketAddress, path: &Path<'_>) -> Result<SocketAddr> {
    if socket.ipv4_compat {
        return Err(path
            .field("ipv4_compat")
            .unsupported("true here", "remove it: it is for the addresses of listeners"));
    }
    parse(socket, path)
}

fn parse(socket: &pb::core::SocketAddress, path: &Path<'_>) -> Result<SocketAddr> {
    let port = tcp_port(socket, path)?;
    let ip: IpAddr = socket.address.parse().map_err(|_| {
        path.field("address").error(format!(
            "{:?} is not an IP address; host names need type STRICT_DNS",
            socket.address
        ))
    })?;
    Ok(SocketAddr::new(ip, port))
}

/// The port of a TCP `SocketAddress`.
pub(super) fn tcp_port(socket: &pb::core::SocketAddress, path: &Path<'_>) -> Result<u16> {
    let protocol: pb::core::socket_address::Protocol = enumeration(socket.protocol, &path.field("protocol"))?;
    if protocol != pb::core::socket_address::Protocol::Tcp {
        return Err(path.field("protocol").unsupported("UDP", "use TCP"));
    }
    match &socket.port_specifier {
        Some(pb::core::socket_address::PortSpecifier::PortValue(port)) => {
            u16::try_from(*port).map_err(|_| path.field("port_value").error(format!("{port} is above 65535")))
        }
        _ => Err(path.field("port_value").error("must be set")),
    }
}

fn range(range: &pb::core::CidrRange, path: &Path<'_>) -> Result<(IpAddr, u8)> {
    let address: IpAddr = range.address_prefix.parse().map_err(|_| {
        path.field("address_prefix")
            .error(format!("{:?} is not an IP address", range.address_prefix))
    })?;
    // Envoy's default is zero: everything of that family.
    let bits = range.prefix_len.unwrap_or(0);
    let most = if address.is_ipv4() { 32 } else { 128 };
    match u8::try_from(bits) {
        Ok(bits) if bits <= most => Ok((address, bits)),
        _ => Err(path.field("prefix_len").error(format!("{bits} is above {most}"))),
    }
}

/// A range of a filter chain match, host bits cleared.
pub(super) fn cidr(value: &pb::core::CidrRange, path: &Path<'_>) -> Result<Cidr> {
    let (address, prefix) = range(value, path)?;
    let address = match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((u32::from(a) & mask).into())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((u128::from(a) & mask).into())
        }
    };
    Ok(Cidr { address, prefix })
}

/// A range of an RBAC rule.
pub(super) fn match_cidr(value: &pb::core::CidrRange, path: &Path<'_>) -> Result<MatchCidr> {
    let (address, prefix) = range(value, path)?;
    MatchCidr::new(address, u32::from(prefix)).map_err(|e| path.error(e.to_string()))
}
