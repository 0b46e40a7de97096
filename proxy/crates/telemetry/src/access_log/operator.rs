//! The command operators of a format string: `%NAME(argument):length%`.

use std::borrow::Cow;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use heddle_net::{AddressText, PeerIdentity};
use heddle_simd::{CHUNK, Chunk};
use serde_json::Value;

use super::context::LogContext;
use super::format::write_string;
use super::time::TimeFormat;

/// Headers, response headers or trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderSet {
    Request,
    Response,
    Trailers,
}

/// Which part of an address is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressPart {
    Whole,
    WithoutPort,
    Port,
}

/// An address that can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressOf {
    UpstreamHost,
    UpstreamLocal,
    DownstreamRemote,
    DownstreamDirectRemote,
    DownstreamLocal,
}

/// A certificate's property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerField {
    UriSan,
    DnsSan,
    Subject,
    Issuer,
    Fingerprint,
}

/// How a gRPC status is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcStyle {
    Camel,
    Snake,
    Number,
}

/// One operator, with its arguments checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operator {
    Header {
        set: HeaderSet,
        name: Box<str>,
        alternative: Option<Box<str>>,
        max: Option<usize>,
    },
    StartTime(TimeFormat),
    Protocol,
    ResponseCode,
    ResponseCodeDetails,
    ResponseFlags {
        long: bool,
    },
    BytesReceived,
    BytesSent,
    Duration,
    RequestDuration,
    ResponseDuration,
    ResponseTxDuration,
    Address(AddressOf, AddressPart),
    UpstreamCluster {
        raw: bool,
    },
    UpstreamPeer(PeerField),
    UpstreamFailure,
    Attempts,
    RequestedServerName,
    RouteName,
    VirtualHostName,
    FilterChainName,
    DownstreamPeer(PeerField),
    DownstreamLocalUriSan,
    DownstreamTlsVersion,
    TerminationDetails,
    ConnectionId,
    DynamicMetadata {
        namespace: Box<str>,
        path: Vec<Box<str>>,
        max: Option<usize>,
    },
    GrpcStatus(GrpcStyle),
    /// Known when the format is parsed: host name, environment.
    Fixed(Box<str>),
}

impl Operator {
    /// Makes an operator of its name, the text between parentheses and the length after the colon. The error is a
    /// sentence about what is wrong.
    pub(super) fn new(name: &str, argument: Option<&str>, max: Option<usize>) -> Result<Self, String> {
        use AddressOf as A;
        use AddressPart::{Port, Whole, WithoutPort};
        let header = |set| -> Result<Self, String> {
            let argument = argument
                .filter(|a| !a.is_empty())
                .ok_or("it needs a header's name in parentheses")?;
            let (main, alternative) = match argument.split_once('?') {
                Some((main, alternative)) => (main, Some(alternative)),
                None => (argument, None),
            };
            for name in std::iter::once(main).chain(alternative) {
                if name.is_empty()
                    || !name
                        .bytes()
                        .all(|b| b.is_ascii_graphic() && !b"\"(),/;<=>?@[\\]{}".contains(&b))
                {
                    return Err(format!("`{name}` is not a header's name"));
                }
            }
            Ok(Self::Header {
                set,
                name: main.to_ascii_lowercase().into(),
                alternative: alternative.map(|a| a.to_ascii_lowercase().into()),
                max,
            })
        };
        match name {
            "REQ" => return header(HeaderSet::Request),
            "RESP" => return header(HeaderSet::Response),
            "TRAILER" => return header(HeaderSet::Trailers),
            _ => {}
        }
        let operator = match (name, argument) {
            ("START_TIME", None | Some("")) => Self::StartTime(TimeFormat::iso()),
            ("START_TIME", Some(format)) => Self::StartTime(
                TimeFormat::parse(format).map_err(|bad| format!("the time format has `{bad}`, which is not known"))?,
            ),
            ("GRPC_STATUS", argument) => Self::GrpcStatus(match argument {
                None | Some("" | "CAMEL_STRING") => GrpcStyle::Camel,
                Some("SNAKE_STRING") => GrpcStyle::Snake,
                Some("NUMBER") => GrpcStyle::Number,
                Some(other) => {
                    return Err(format!("`{other}` is not CAMEL_STRING, SNAKE_STRING or NUMBER"));
                }
            }),
            ("DYNAMIC_METADATA", Some(argument)) => {
                let mut names = argument.split(':').map(Box::from);
                return Ok(Self::DynamicMetadata {
                    namespace: names.next().unwrap_or_default(),
                    path: names.collect(),
                    max,
                });
            }
            ("DYNAMIC_METADATA", None) => {
                return Err("it needs a namespace in parentheses".to_owned());
            }
            ("ENVIRONMENT", Some(variable)) if !variable.is_empty() => {
                let value = std::env::var(variable).unwrap_or_else(|_| "-".to_owned());
                let end = max.map_or(value.len(), |max| value.floor_char_boundary(max));
                return Ok(Self::Fixed(value[..end].into()));
            }
            ("ENVIRONMENT", _) => {
                return Err("it needs a variable's name in parentheses".to_owned());
            }
            (_, Some(_)) if !name.is_empty() && known_plain(name) => {
                return Err("it takes no argument in parentheses".to_owned());
            }
            ("PROTOCOL", None) => Self::Protocol,
            ("RESPONSE_CODE", None) => Self::ResponseCode,
            ("RESPONSE_CODE_DETAILS", None) => Self::ResponseCodeDetails,
            ("RESPONSE_FLAGS", None) => Self::ResponseFlags { long: false },
            ("RESPONSE_FLAGS_LONG", None) => Self::ResponseFlags { long: true },
            ("BYTES_RECEIVED", None) => Self::BytesReceived,
            ("BYTES_SENT", None) => Self::BytesSent,
            ("DURATION", None) => Self::Duration,
            ("REQUEST_DURATION", None) => Self::RequestDuration,
            ("RESPONSE_DURATION", None) => Self::ResponseDuration,
            ("RESPONSE_TX_DURATION", None) => Self::ResponseTxDuration,
            ("UPSTREAM_HOST" | "UPSTREAM_REMOTE_ADDRESS", None) => Self::Address(A::UpstreamHost, Whole),
            ("UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", None) => Self::Address(A::UpstreamHost, WithoutPort),
            ("UPSTREAM_REMOTE_PORT", None) => Self::Address(A::UpstreamHost, Port),
            ("UPSTREAM_LOCAL_ADDRESS", None) => Self::Address(A::UpstreamLocal, Whole),
            ("UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", None) => Self::Address(A::UpstreamLocal, WithoutPort),
            ("UPSTREAM_LOCAL_PORT", None) => Self::Address(A::UpstreamLocal, Port),
            ("DOWNSTREAM_REMOTE_ADDRESS", None) => Self::Address(A::DownstreamRemote, Whole),
            ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", None) => Self::Address(A::DownstreamRemote, WithoutPort),
            ("DOWNSTREAM_REMOTE_PORT", None) => Self::Address(A::DownstreamRemote, Port),
            ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS", None) => Self::Address(A::DownstreamDirectRemote, Whole),
            ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", None) => {
                Self::Address(A::DownstreamDirectRemote, WithoutPort)
            }
            ("DOWNSTREAM_DIRECT_REMOTE_PORT", None) => Self::Address(A::DownstreamDirectRemote, Port),
            ("DOWNSTREAM_LOCAL_ADDRESS", None) => Self::Address(A::DownstreamLocal, Whole),
            ("DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", None) => Self::Address(A::DownstreamLocal, WithoutPort),
            ("DOWNSTREAM_LOCAL_PORT", None) => Self::Address(A::DownstreamLocal, Port),
            ("UPSTREAM_CLUSTER", None) => Self::UpstreamCluster { raw: false },
            ("UPSTREAM_CLUSTER_RAW", None) => Self::UpstreamCluster { raw: true },
            ("UPSTREAM_PEER_URI_SAN", None) => Self::UpstreamPeer(PeerField::UriSan),
            ("UPSTREAM_PEER_DNS_SAN", None) => Self::UpstreamPeer(PeerField::DnsSan),
            ("UPSTREAM_PEER_SUBJECT", None) => Self::UpstreamPeer(PeerField::Subject),
            ("UPSTREAM_PEER_ISSUER", None) => Self::UpstreamPeer(PeerField::Issuer),
            ("UPSTREAM_TRANSPORT_FAILURE_REASON", None) => Self::UpstreamFailure,
            ("UPSTREAM_REQUEST_ATTEMPT_COUNT", None) => Self::Attempts,
            ("REQUESTED_SERVER_NAME", None) => Self::RequestedServerName,
            ("ROUTE_NAME", None) => Self::RouteName,
            ("VIRTUAL_HOST_NAME", None) => Self::VirtualHostName,
            ("FILTER_CHAIN_NAME", None) => Self::FilterChainName,
            ("DOWNSTREAM_PEER_URI_SAN", None) => Self::DownstreamPeer(PeerField::UriSan),
            ("DOWNSTREAM_PEER_DNS_SAN", None) => Self::DownstreamPeer(PeerField::DnsSan),
            ("DOWNSTREAM_PEER_SUBJECT", None) => Self::DownstreamPeer(PeerField::Subject),
            ("DOWNSTREAM_PEER_ISSUER", None) => Self::DownstreamPeer(PeerField::Issuer),
            ("DOWNSTREAM_PEER_FINGERPRINT_256", None) => Self::DownstreamPeer(PeerField::Fingerprint),
            ("DOWNSTREAM_LOCAL_URI_SAN", None) => Self::DownstreamLocalUriSan,
            ("DOWNSTREAM_TLS_VERSION", None) => Self::DownstreamTlsVersion,
            ("CONNECTION_TERMINATION_DETAILS", None) => Self::TerminationDetails,
            ("CONNECTION_ID", None) => Self::ConnectionId,
            ("GRPC_STATUS_NUMBER", None) => Self::GrpcStatus(GrpcStyle::Number),
            ("HOSTNAME", None) => Self::Fixed(host_name().into()),
            _ => return Err("this operator is not implemented".to_owned()),
        };
        if max.is_some() {
            return Err("it takes no length".to_owned());
        }
        Ok(operator)
    }

    /// Whether JSON logs print the value as a number.
    fn is_number(&self) -> bool {
        matches!(
            self,
            Self::ResponseCode
                | Self::BytesReceived
                | Self::BytesSent
                | Self::Duration
                | Self::RequestDuration
                | Self::ResponseDuration
                | Self::ResponseTxDuration
                | Self::Attempts
                | Self::ConnectionId
                | Self::GrpcStatus(GrpcStyle::Number)
                | Self::Address(_, AddressPart::Port)
        )
    }

    /// Appends the value as JSON logs have it: numbers and metadata as they are, all else as text, null for nothing.
    pub(super) fn write_json(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        let written = match self {
            Self::DynamicMetadata { namespace, path, .. } if !path.is_empty() => {
                let metadata = context.dynamic_metadata();
                match metadata.and_then(|m| m.get(namespace, path.iter().map(|name| &**name))) {
                    Some(Value::String(_)) | None => self.write_quoted(context, out),
                    Some(value) => write!(out, "{value}").is_ok(),
                }
            }
            Self::DynamicMetadata { max: None, .. } => self.write(context, out),
            _ if self.is_number() => self.write(context, out),
            _ => self.write_quoted(context, out),
        };
        if !written {
            out.truncate(start);
            out.extend_from_slice(b"null");
        }
    }

    /// Appends the value as a JSON string.
    fn write_quoted(&self, context: &LogContext<'_>, out: &mut Vec<u8>) -> bool {
        let mut value = Vec::new();
        if !self.write(context, &mut value) {
            return false;
        }
        write_string(&value, out);
        true
    }

    /// Appends the value; false, with nothing appended, when there is none.
    pub(super) fn write(&self, context: &LogContext<'_>, out: &mut Vec<u8>) -> bool {
        let connection = context.connection;
        match self {
            Self::Header {
                set,
                name,
                alternative,
                max,
            } => {
                let find = |name: &str| header(context, *set, name);
                let value = find(name).or_else(|| alternative.as_deref().and_then(find));
                let Some(value) = value else { return false };
                let end = max.map_or(value.len(), |max| value.floor_char_boundary(max));
                text(out, &value[..end])
            }
            Self::StartTime(format) => match context.start {
                Some(start) => {
                    format.write(start, out);
                    true
                }
                None => false,
            },
            Self::Protocol => optional(out, context.protocol),
            Self::ResponseCode => number(out, u64::from(context.response_code.unwrap_or(0))),
            Self::ResponseCodeDetails => underscored(out, context.response_code_details),
            Self::ResponseFlags { .. } if context.flags.is_empty() => text(out, "-"),
            Self::ResponseFlags { long: false } => write!(out, "{}", context.flags).is_ok(),
            Self::ResponseFlags { long: true } => text(out, &context.flags.long()),
            Self::BytesReceived => number(out, context.bytes_received),
            Self::BytesSent => number(out, context.bytes_sent),
            Self::Duration => millis(out, context.duration),
            Self::RequestDuration => millis(out, context.request_duration),
            Self::ResponseDuration => millis(out, context.response_duration),
            Self::ResponseTxDuration => millis(
                out,
                context
                    .duration
                    .zip(context.response_duration)
                    .map(|(whole, first)| whole.saturating_sub(first)),
            ),
            Self::Address(which, part) => match address(context, *which) {
                Some((ip, port)) => print_address(out, ip, port, *part),
                None => false,
            },
            Self::UpstreamCluster { raw } => {
                let stat_name = if *raw { None } else { context.upstream_cluster_stat_name };
                optional(out, stat_name.or(context.upstream_cluster))
            }
            Self::UpstreamPeer(field) => peer_field(out, context.upstream_peer, *field),
            Self::UpstreamFailure => underscored(out, context.upstream_failure),
            Self::Attempts => number(out, u64::from(context.attempts)),
            Self::RequestedServerName => optional(out, connection.and_then(|c| c.sni.as_deref())),
            Self::RouteName => optional(out, context.route_name),
            Self::VirtualHostName => optional(out, context.virtual_host),
            Self::FilterChainName => optional(out, context.filter_chain),
            Self::DownstreamPeer(field) => peer_field(out, connection.and_then(|c| c.peer.as_deref()), *field),
            Self::DownstreamLocalUriSan => optional(out, connection.and_then(|c| c.local_identity.as_deref())),
            Self::DownstreamTlsVersion => optional(out, connection.and_then(|c| c.tls_version)),
            Self::TerminationDetails => underscored(out, context.termination_details),
            Self::ConnectionId => number(out, context.connection_id),
            Self::DynamicMetadata { namespace, path, max } => dynamic_metadata(context, namespace, path, *max, out),
            Self::GrpcStatus(style) => match context.grpc_status {
                None => false,
                Some(code) => match (style, GRPC_NAMES.get(usize::from(code))) {
                    (GrpcStyle::Camel, Some((camel, _))) => text(out, camel),
                    (GrpcStyle::Snake, Some((_, snake))) => text(out, snake),
                    _ => number(out, u64::from(code)),
                },
            },
            Self::Fixed(value) => text(out, value),
        }
    }
}

/// Status codes of gRPC (`doc/statuscodes.md` of gRPC).
const GRPC_NAMES: [(&str, &str); 17] = [
    ("OK", "OK"),
    ("Canceled", "CANCELLED"),
    ("Unknown", "UNKNOWN"),
    ("InvalidArgument", "INVALID_ARGUMENT"),
    ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
    ("NotFound", "NOT_FOUND"),
    ("AlreadyExists", "ALREADY_EXISTS"),
    ("PermissionDenied", "PERMISSION_DENIED"),
    ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
    ("FailedPrecondition", "FAILED_PRECONDITION"),
    ("Aborted", "ABORTED"),
    ("OutOfRange", "OUT_OF_RANGE"),
    ("Unimplemented", "UNIMPLEMENTED"),
    ("Internal", "INTERNAL"),
    ("Unavailable", "UNAVAILABLE"),
    ("DataLoss", "DATA_LOSS"),
    ("Unauthenticated", "UNAUTHENTICATED"),
];

fn known_plain(name: &str) -> bool {
    Operator::new(name, None, None).is_ok()
}

/// Text as it is, other values as JSON.
fn dynamic_metadata(
    context: &LogContext<'_>,
    namespace: &str,
    path: &[Box<str>],
    max: Option<usize>,
    out: &mut Vec<u8>,
) -> bool {
    let Some(metadata) = context.dynamic_metadata() else {
        return false;
    };
    let printed = if path.is_empty() {
        metadata
            .namespace(namespace)
            .and_then(|fields| serde_json::to_string(fields).ok())
    } else {
        match metadata.get(namespace, path.iter().map(|name| &**name)) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(value) => Some(value.to_string()),
        }
    };
    let Some(printed) = printed else { return false };
    let end = max.map_or(printed.len(), |max| printed.floor_char_boundary(max));
    text(out, &printed[..end])
}

fn header<'c>(context: &LogContext<'c>, set: HeaderSet, name: &str) -> Option<Cow<'c, str>> {
    match set {
        HeaderSet::Request => context.request.and_then(|r| r.header(name)),
        HeaderSet::Response => context.response.and_then(|r| r.header(name)),
        HeaderSet::Trailers => context.trailers.and_then(|r| r.header(name)),
    }
}

fn address(context: &LogContext<'_>, which: AddressOf) -> Option<(IpAddr, u16)> {
    let of = |a: SocketAddr| (a.ip(), a.port());
    match which {
        AddressOf::UpstreamHost => context.upstream_host.map(of),
        AddressOf::UpstreamLocal => context.upstream_local.map(of),
        AddressOf::DownstreamLocal => context.connection.map(|c| of(c.destination)),
        AddressOf::DownstreamDirectRemote => context.connection.map(|c| of(c.remote)),
        // An address out of X-Forwarded-For comes without a port; Envoy prints 0 for it.
        AddressOf::DownstreamRemote => context.connection.map(|c| match context.remote_ip {
            Some(ip) if ip != c.remote.ip() => (ip, 0),
            _ => of(c.remote),
        }),
    }
}

fn print_address(out: &mut Vec<u8>, ip: IpAddr, port: u16, part: AddressPart) -> bool {
    match part {
        AddressPart::Whole => AddressText::append(SocketAddr::new(ip, port), out),
        AddressPart::WithoutPort => out.extend_from_slice(AddressText::of_ip(ip).as_bytes()),
        AddressPart::Port => return number(out, u64::from(port)),
    }
    true
}

fn peer_field(out: &mut Vec<u8>, peer: Option<&PeerIdentity>, field: PeerField) -> bool {
    let Some(peer) = peer else { return false };
    let list = match field {
        PeerField::UriSan => &peer.uri_sans,
        PeerField::DnsSan => &peer.dns_sans,
        PeerField::Subject => return optional(out, Some(peer.subject.as_str())),
        PeerField::Issuer => return optional(out, Some(peer.issuer.as_str())),
        PeerField::Fingerprint => return optional(out, Some(peer.sha256.as_str())),
    };
    for (i, san) in list.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        text(out, san);
    }
    !list.is_empty()
}

fn number(out: &mut Vec<u8>, value: u64) -> bool {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    true
}

fn millis(out: &mut Vec<u8>, value: Option<Duration>) -> bool {
    value.is_some_and(|d| number(out, u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
}

fn optional(out: &mut Vec<u8>, value: Option<&str>) -> bool {
    value.is_some_and(|value| !value.is_empty() && text(out, value))
}

/// Control characters would let a peer forge lines or drive a terminal; they are printed as `\xNN`.
fn text(out: &mut Vec<u8>, value: &str) -> bool {
    if is_plain(value.as_bytes()) {
        out.extend_from_slice(value.as_bytes());
        return true;
    }
    for b in value.bytes() {
        if b.is_ascii_control() {
            let _ = write!(out, "\\x{b:02x}");
        } else {
            out.push(b);
        }
    }
    true
}

/// Whether there is no control character, sixteen bytes at a time: every line has some two hundred to look at.
fn is_plain(value: &[u8]) -> bool {
    let (chunks, rest) = value.as_chunks::<CHUNK>();
    if rest.is_empty() || value.len() > CHUNK {
        // The last sixteen have the rest among them.
        let last = value.len().saturating_sub(CHUNK);
        return chunks.iter().all(|chunk| Chunk::at(chunk, 0).controls() == 0)
            && (rest.is_empty() || Chunk::at(value, last).controls() == 0);
    }
    let present = !(u16::MAX << rest.len());
    Chunk::at(rest, 0).controls() & present == 0
}

/// As Envoy: blanks become underscores, so that a text line stays splittable.
fn underscored(out: &mut Vec<u8>, value: Option<&str>) -> bool {
    let Some(value) = value.filter(|v| !v.is_empty()) else {
        return false;
    };
    let start = out.len();
    text(out, value);
    for b in out.iter_mut().skip(start) {
        if *b == b' ' {
            *b = b'_';
        }
    }
    true
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn a_control_character_is_found_wherever_it_stands() {
        for length in 0..36 {
            assert!(is_plain(&vec![0xff; length]));
            assert!(is_plain(&vec![b' '; length]));
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut value = vec![0x80; length];
                    value[at] = byte;
                    assert_eq!(is_plain(&value), !byte.is_ascii_control(), "{byte} at {at} of {length}");
                }
            }
        }
    }
}
