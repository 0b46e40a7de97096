//! What the connection manager does to a request head before the filters see it.

use std::net::IpAddr;

use heddle_net::{AddressText, ConnectionInfo};

use super::{Environment, HcmRuntime, path, xfcc};
use crate::failure::Failure;
use crate::head::{Known, KnownSet, Method, Protocol, RequestHead, Scheme};

/// Headers that only a trusted caller may set. No address counts as internal here (Envoy's default without
/// `internal_address_config`), so they are always removed.
const INTERNAL_ONLY: KnownSet = KnownSet::of(&[
    Known::Internal,
    Known::RetryOn,
    Known::RetryGrpcOn,
    Known::MaxRetries,
    Known::UpstreamAltStatName,
    Known::UpstreamTimeout,
    Known::UpstreamTimeoutAlt,
    Known::UpstreamTryTimeout,
    Known::ExpectedTimeout,
    Known::ForceTrace,
    Known::IpTags,
    Known::Hedge,
    Known::RetriableStatusCodes,
    Known::RetriableHeaderNames,
    Known::AttemptCount,
    Known::OriginalPath,
    Known::OriginalHost,
]);

/// Also removed at the edge, where `use_remote_address` is on.
const EDGE_ONLY: KnownSet = KnownSet::of(&[
    Known::DecoratorOperation,
    Known::DownstreamServiceCluster,
    Known::DownstreamServiceNode,
    Known::ExternalAddress,
]);

/// About this hop alone.
const HOP_BY_HOP: KnownSet = KnownSet::of(&[
    Known::Te,
    Known::Connection,
    Known::ProxyConnection,
    Known::KeepAlive,
    Known::Http2Settings,
]);

/// Checks and completes a request head: forwarding headers, identity, request id, path. Returns the location
/// when the client is to ask for another path (`UNESCAPE_AND_REDIRECT`).
///
/// # Errors
/// The path is refused ([`path::PathError`]).
pub(super) fn prepare(env: Environment<'_>, head: &mut RequestHead, upgrade: bool) -> Result<Option<String>, Failure> {
    let Environment {
        worker,
        hcm,
        connection,
        ..
    } = env;
    let config = &*hcm.config;
    let edge = config.use_remote_address;
    let trailers_wanted = head.fields.get_known(Known::Te).map(|te| {
        te.split(|b| *b == b',')
            .any(|t| t.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    });
    let removed = INTERNAL_ONLY.union(HOP_BY_HOP);
    let removed = if edge { removed.union(EDGE_ONLY) } else { removed };
    head.fields.remove_set(removed);
    hcm.names.sanitize(&mut head.fields);
    if !upgrade {
        head.fields.remove_known(Known::Upgrade);
    }
    if trailers_wanted == Some(true) {
        head.fields.push_known(Known::Te, b"trailers");
    }

    addresses(hcm, head, connection);
    let encrypted = connection.tls_version.is_some();
    let trusted_proto = !edge || config.xff_trusted_hops > 0;
    if !trusted_proto || !head.fields.has_known(Known::ForwardedProto) {
        head.fields
            .set_known(Known::ForwardedProto, if encrypted { b"https" } else { b"http" });
    }
    head.scheme = match head.fields.get_known(Known::ForwardedProto) {
        Some(b"https") => Scheme::Https,
        Some(b"http") => Scheme::Http,
        _ if encrypted => Scheme::Https,
        _ => Scheme::Http,
    };

    let (mode, detail) = (config.xfcc_mode, config.xfcc_detail);
    xfcc::apply_kept(&mut head.fields, mode, detail, connection, env.client_element);

    if config.generate_request_id {
        let replace = edge && !config.preserve_request_id;
        if replace || !head.fields.has_known(Known::RequestId) {
            head.fields.set_known(Known::RequestId, &worker.uuid());
        }
    }
    if let Some(via) = &config.via {
        head.fields.append_known(Known::Via, b", ", via.as_bytes());
    }
    if head.method == Method::Connect {
        return Ok(None);
    }
    match path::normalize(head.target(), hcm.path_rules) {
        Ok(path::Normalized::Unchanged) => {}
        Ok(path::Normalized::Changed(new)) => head.set_target(&new),
        Ok(path::Normalized::Redirect(new)) if !head.grpc => {
            hcm.path_redirected.inc();
            // Two slashes in front would name a host to the client.
            return Ok(Some(match new.starts_with("//") {
                true => format!("{}://{}{new}", head.scheme.as_str(), head.host()),
                false => new,
            }));
        }
        Ok(path::Normalized::Redirect(_)) | Err(_) => {
            hcm.path_refused.inc();
            return Err(Failure::BadPath);
        }
    }
    Ok(None)
}

/// `x-forwarded-for` and the client's address worked out of it.
fn addresses(hcm: &HcmRuntime, head: &mut RequestHead, connection: &ConnectionInfo) {
    let config = &*hcm.config;
    let direct = connection.remote.ip();
    // The address that the last trusted hop saw: so many entries from the right (none: the right-most) when the peer
    // itself is a trusted proxy, the peer's own otherwise.
    let hops = config.xff_trusted_hops as usize;
    let from_header = |skip: usize| -> Option<IpAddr> {
        let value = head.fields.joined(Known::ForwardedFor.name().as_bytes())?;
        let address = value.rsplit(',').nth(skip)?.trim();
        address.parse().ok()
    };
    let client = if config.use_remote_address {
        if hops == 0 { None } else { from_header(hops - 1) }
    } else {
        from_header(hops)
    };
    head.remote_ip = client.filter(|ip| *ip != direct);
    if config.use_remote_address {
        let direct_text = AddressText::of_ip(direct);
        if !config.skip_xff_append {
            head.fields
                .append_known(Known::ForwardedFor, b",", direct_text.as_bytes());
        }
        if !head.fields.has_known(Known::ExternalAddress) {
            let text = head.remote_ip.map_or(direct_text, AddressText::of_ip);
            head.fields.push_known(Known::ExternalAddress, text.as_bytes());
        }
    }
}

/// Whether a request asks for something that this connection manager does not do.
pub(super) fn upgrade_allowed(hcm: &HcmRuntime, head: &RequestHead, upgrade: bool) -> bool {
    let allowed = |name: &[u8]| {
        hcm.config
            .upgrades
            .iter()
            .any(|u| u.as_bytes().eq_ignore_ascii_case(name))
    };
    if head.method == Method::Connect {
        return allowed(b"connect") && head.protocol != Protocol::Http10;
    }
    if !upgrade {
        return true;
    }
    offers(head).all(allowed)
}

/// The protocols that a client offers to change to (RFC 9110 section 7.8).
fn offers(head: &RequestHead) -> impl Iterator<Item = &[u8]> {
    head.fields
        .all_known(Known::Upgrade)
        .flat_map(|value| value.split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
}

/// Takes the offer of HTTP/2 without TLS (`upgrade: h2c`) out of a request, unless the configuration names it: clients
/// make it with any request, RFC 9113 has dropped it, and to ignore it is to serve the request as it is. Returns whether
/// an upgrade is still asked for.
pub(crate) fn decline_h2c(hcm: &HcmRuntime, head: &mut RequestHead) -> bool {
    let is_h2c = |token: &&[u8]| token.eq_ignore_ascii_case(b"h2c");
    let configured = hcm.config.upgrades.iter().any(|u| is_h2c(&u.as_bytes()));
    if configured || !offers(head).any(|token| is_h2c(&token)) {
        return true;
    }
    let others: Vec<&[u8]> = offers(head).filter(|token| !is_h2c(token)).collect();
    let others = others.join(&b", "[..]);
    head.fields.remove_known(Known::Upgrade);
    if others.is_empty() {
        return false;
    }
    head.fields.push_known(Known::Upgrade, &others);
    true
}
