//! The upstream's end of a try, over either protocol.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use heddle_memory::append;
use heddle_net::Liveness;
use tokio::time::Instant;

use super::drive::{Driven, Parts, drive};
use super::{Job, until_ready, websocket};
use crate::body::{BodyLength, Fill, Sink, Source, StreamError};
use crate::failure::Failure;
use crate::h1::{H1Reader, H1Writer, parse_response};
use crate::h2::{Follows, H2Reader, H2Writer, Stream, content_length};
use crate::hcm::{Facts, Outcome, Reply, RequestBody};
use crate::head::{Fields, Framing, Known, Method, RequestHead, ResponseHead, is_token};
use crate::pool::{Cluster, H1Lease, H2Lease};
use crate::timer::far_future;

/// Where the answer comes from.
pub(super) trait Upstream: Source {
    /// Ready with the next head, interim or final, in `head`.
    fn poll_response(&mut self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>>;
    /// The length of the body that follows this head.
    fn length(&self, head: &ResponseHead) -> BodyLength;
    /// Whether the peer owes an acknowledgement for so long that it is to be taken for dead.
    fn is_dead(&mut self, now: Instant) -> bool;
}

/// Where the request goes.
pub(super) trait UpstreamSink: Sink {
    /// The upgrade was accepted: raw bytes follow.
    fn tunnel(&mut self);
    /// Ready when the upstream was told, or cannot be told, that no more bytes come through the tunnel.
    fn poll_half_close(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

struct H1Up<'c> {
    reader: H1Reader<'c>,
    method: Method,
    liveness: Option<Liveness>,
    /// What a WebSocket server was sent that the client did not send.
    key: Option<websocket::Key>,
    /// The upstream has answered something, if only an interim head, or was given up.
    heard: bool,
}

impl Source for H1Up<'_> {
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>> {
        self.reader.poll_fill(cx, room)
    }

    fn chunk(&self) -> &[u8] {
        self.reader.chunk()
    }

    fn consume(&mut self, n: usize) {
        self.reader.consume(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        self.reader.ends_after(n)
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        self.reader.take_trailers()
    }
}

impl Upstream for H1Up<'_> {
    fn poll_response(&mut self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>> {
        let length = ready!(self.reader.half.poll_head(cx, self.reader.stream))?;
        parse_response(
            self.reader.half.unread().get(..length).unwrap_or_default(),
            self.method,
            head,
        )?;
        self.reader.half.begin_body(length, head.framing);
        self.heard = true;
        if let Some(key) = &self.key
            && head.status == 101
        {
            key.check(head)?;
        }
        Poll::Ready(Ok(()))
    }

    fn length(&self, head: &ResponseHead) -> BodyLength {
        match head.framing {
            Framing::None => BodyLength::Empty,
            Framing::Length(n) => BodyLength::Known(n),
            Framing::Chunked | Framing::UntilClose => BodyLength::Unknown,
        }
    }

    fn is_dead(&mut self, now: Instant) -> bool {
        let tcp = self.reader.stream.tcp();
        let dead = self
            .liveness
            .as_mut()
            .is_some_and(|liveness| liveness.is_dead(tcp, now.into_std()));
        self.heard |= dead;
        dead
    }
}

impl UpstreamSink for H1Writer<'_> {
    fn tunnel(&mut self) {
        self.half.begin_body(Framing::UntilClose);
    }

    fn poll_half_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_shutdown(cx).map(|_| ())
    }
}

/// Writes a request head for HTTP/1.1 and prepares for its body.
fn write_head(head: &RequestHead, facts: &Facts, key: Option<&websocket::Key>, writer: &mut H1Writer<'_>) {
    let out = writer.half.out();
    let host = head.fields.slice(head.authority);
    let target = match head.method {
        Method::Connect => host,
        _ => head.fields.slice(head.path),
    };
    let method = head.fields.slice(head.method_token);
    append(out, [method, b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]);
    head.fields.write(out);
    if facts.upgrade {
        out.extend_from_slice(b"connection: upgrade\r\n");
    }
    if let Some(key) = key {
        key.write(out);
    }
    let framing = match facts.length {
        BodyLength::Empty | BodyLength::Tunnel => {
            let says_length = head.fields.has_known(Known::ContentLength);
            if head.method == Method::Post && !says_length {
                out.extend_from_slice(b"content-length: 0\r\n");
            }
            Framing::None
        }
        BodyLength::Known(n) => {
            if !head.fields.has_known(Known::ContentLength) {
                out.extend_from_slice(b"content-length: ");
                out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Framing::Length(n)
        }
        BodyLength::Unknown => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
            Framing::Chunked
        }
    };
    out.extend_from_slice(b"\r\n");
    writer.half.begin_body(framing);
}

/// A try on an HTTP/1.1 connection, which goes back to its pool when the exchange was clean.
pub(super) fn over_h1<B: RequestBody, R: Reply>(
    job: &Job<'_>,
    mut lease: H1Lease,
    cluster: &Rc<Cluster>,
    parts: &mut Parts<'_, '_, '_, B, R>,
) -> impl Future<Output = Result<Driven, Failure>> {
    async move {
        let driven = {
            let Some(conn) = lease.parts() else {
                return Err(Failure::Upstream(StreamError::Closed));
            };
            let kept = conn.is_kept();
            let (reader, mut writer) = conn.conn.halves();
            let nonce = || job.worker.random().u128(..);
            let key = match job.facts.upgrade {
                true => websocket::Key::for_request(&parts.exchange.request, nonce),
                false => None,
            };
            write_head(&parts.exchange.request, &job.facts, key.as_ref(), &mut writer);
            let mut up = H1Up {
                reader,
                method: parts.exchange.request.method,
                liveness: cluster.config().keepalive.map(|k| Liveness::new(k.patience())),
                key,
                heard: false,
            };
            if let Some(liveness) = &up.liveness {
                // The request's own clock reading is good enough on the first try.
                let now = match parts.exchange.attempts {
                    1 => parts.exchange.begun,
                    _ => Instant::now(),
                };
                parts.deadlines.look_every = liveness.period();
                parts.deadlines.look = now + liveness.period();
            }
            match drive(job, parts, &mut up, &mut writer).await {
                Err(Failure::Upstream(StreamError::Closed)) if kept && !up.heard => {
                    Err(Failure::Upstream(StreamError::Stale))
                }
                driven => driven,
            }
        };
        parts.deadlines.look = far_future(parts.exchange.begun);
        let reusable = match driven {
            Ok(Driven::Finished(Outcome::Complete) | Driven::RetryStatus) => parts.exchange.response.keep_alive,
            _ => false,
        };
        if reusable {
            lease.release(cluster, parts.exchange.ended.unwrap_or_else(Instant::now));
        }
        driven
    }
}

/// An upgrade asked for by an extended CONNECT.
struct Upgrade {
    protocol: Vec<u8>,
    /// What an HTTP/1.1 client waits for in the answer, unless the upstream says it.
    accept: Option<String>,
}

impl Upgrade {
    /// # Errors
    /// The client names none or several protocols, and there is room for one.
    fn of(request: &RequestHead) -> Result<Self, Failure> {
        let mut offers = request.fields.all_known(Known::Upgrade);
        match (offers.next(), offers.next()) {
            (Some(protocol), None) if is_token(protocol) => Ok(Self {
                protocol: protocol.to_vec(),
                accept: websocket::accept_of(request),
            }),
            _ => Err(Failure::UpgradeRefused),
        }
    }

    /// Makes the answer what it is in HTTP/1.1, as in Envoy: whoever asked by HTTP/2 gets it back as it was.
    fn accepted(&self, head: &mut ResponseHead) {
        head.status = 101;
        head.fields.push_known(Known::Upgrade, &self.protocol);
        if let Some(accept) = &self.accept {
            websocket::add_missing(&mut head.fields, accept);
        }
    }
}

struct H2Up {
    stream: Rc<Stream>,
    reader: H2Reader,
    bodyless: bool,
    upgrade: Option<Upgrade>,
    _lease: H2Lease,
}

impl Source for H2Up {
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>> {
        self.reader.poll_fill(cx, room)
    }

    fn chunk(&self) -> &[u8] {
        self.reader.chunk()
    }

    fn consume(&mut self, n: usize) {
        self.reader.consume(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        self.reader.ends_after(n)
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        self.reader.take_trailers()
    }

    fn dropped(&self) -> Option<StreamError> {
        self.reader.dropped()
    }
}

impl Upstream for H2Up {
    fn poll_response(&mut self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>> {
        ready!(self.stream.poll_head(cx, head))?;
        if let Some(upgrade) = &self.upgrade
            && head.status == 200
        {
            upgrade.accepted(head);
        }
        Poll::Ready(Ok(()))
    }

    fn length(&self, head: &ResponseHead) -> BodyLength {
        if self.bodyless || self.reader.is_end() || matches!(head.status, 204 | 304) {
            return BodyLength::Empty;
        }
        content_length(&head.fields).map_or(BodyLength::Unknown, BodyLength::Known)
    }

    fn is_dead(&mut self, _: Instant) -> bool {
        // The connection's own task looks after it, for all streams.
        false
    }
}

impl UpstreamSink for H2Writer {
    fn tunnel(&mut self) {}

    fn poll_half_close(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // END_STREAM has said so.
        Poll::Ready(())
    }
}

/// A try on a stream of a shared HTTP/2 connection.
pub(super) fn over_h2<B: RequestBody, R: Reply>(
    job: &Job<'_>,
    lease: H2Lease,
    parts: &mut Parts<'_, '_, '_, B, R>,
) -> impl Future<Output = Result<Driven, Failure>> {
    async move {
        let upgrade = match job.facts.upgrade {
            true => Some(Upgrade::of(&parts.exchange.request)?),
            false => None,
        };
        let follows = match job.facts.length {
            _ if upgrade.is_some() => Follows::Tunnel,
            BodyLength::Empty => Follows::Nothing,
            _ => Follows::Body,
        };
        // Taken out for the moment: waiting looks at the exchange.
        let mut head = std::mem::take(&mut parts.exchange.request);
        if upgrade.is_some() {
            // Of zero at most, and there is none in CONNECT.
            head.fields.remove_known(Known::ContentLength);
        }
        let opening = async {
            lease.open(&head, follows).await.map_err(|error| match error {
                StreamError::NoTunnel => Failure::UpgradeRefused,
                error => Failure::Upstream(error),
            })
        };
        let opened = until_ready(pin!(opening), parts).await;
        parts.exchange.request = head;
        let stream = opened?;
        let mut sink = H2Writer::new(Rc::clone(&stream), follows == Follows::Nothing);
        let mut up = H2Up {
            reader: H2Reader::new(Rc::clone(&stream)),
            stream,
            bodyless: parts.exchange.request.method == Method::Head,
            upgrade,
            _lease: lease,
        };
        drive(job, parts, &mut up, &mut sink).await
    }
}
