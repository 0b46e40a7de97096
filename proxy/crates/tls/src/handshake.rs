//! Driving a handshake to its end, and reading what it agreed on.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use boring::ssl::{ErrorCode, SslRef, SslStream};
use bytes::BytesMut;
use heddle_keys::x25519_offer;
use heddle_net::PeerIdentity;
use rustix::net::sockopt::set_tcp_quickack;
use tokio::net::TcpStream;

use crate::certificate;
use crate::credential;
use crate::error::{HandshakeError, HandshakeErrorKind, VerifyFailure};
use crate::memory::Memory;
use crate::second_look::Left;
use crate::session::Session;
use crate::socket::Then;
use crate::stream::Stream;
use crate::verify;

/// What a client handshake agreed on.
#[derive(Clone, Debug, Default)]
pub struct Connected {
    /// ALPN value that the server chose.
    pub alpn: Option<Box<[u8]>>,
    /// The server's identity, when its certificate was verified.
    pub peer: Option<Arc<PeerIdentity>>,
    /// Negotiated version (`TLSv1.3`).
    pub tls_version: &'static str,
}

/// Runs the handshake of `ssl`, which is in accept or connect state, over `tcp`.
pub(crate) async fn run(
    ssl: boring::ssl::Ssl,
    tcp: TcpStream,
    already_read: BytesMut,
) -> Result<Stream, HandshakeError> {
    let left = Left::after_another(&already_read);
    let memory = Memory {
        leftover: already_read,
        ..Memory::default()
    };
    let stream =
        SslStream::new(ssl, memory).map_err(|e| HandshakeError::new(HandshakeErrorKind::Engine(e.to_string())))?;
    let mut session = Session::new(stream, left);
    let outcome = poll_fn(|cx| poll_step(&mut session, &tcp, cx)).await;
    credential::finish(session.ssl.ssl_mut());
    outcome?;
    // A client with Nagle's algorithm on holds its first request back until our side acknowledges its Finished, and
    // with nothing to send we would delay that by 40 ms. Failing to set it costs only that delay. Also where a record has
    // come with it: the rest of the request, a body for example, may be held back.
    let _ = set_tcp_quickack(&tcp, true);
    Ok(Stream::tls(tcp, session))
}

fn poll_step(session: &mut Session, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
    loop {
        credential::set_waker(session.ssl.ssl_mut(), cx.waker());
        let outcome = session.ssl.do_handshake();
        x25519_offer::withdraw();
        session.ssl.get_mut().settle_input();
        let drained = session.poll_drain(tcp, cx, Then::Nothing);
        match outcome {
            Ok(()) => {
                return match drained {
                    Poll::Ready(Err(e)) => Poll::Ready(Err(broken(e))),
                    Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                    Poll::Pending => Poll::Pending,
                };
            }
            Err(e) if e.code() == ErrorCode::WANT_READ => {
                if let Poll::Ready(Err(e)) = drained {
                    return Poll::Ready(Err(broken(e)));
                }
                if session.ssl.get_ref().eof {
                    return Poll::Ready(Err(HandshakeError::new(HandshakeErrorKind::Closed)));
                }
                ready!(session.poll_fill(tcp, cx)).map_err(broken)?;
            }
            Err(e)
                if matches!(
                    e.code(),
                    ErrorCode::WANT_PRIVATE_KEY_OPERATION | ErrorCode::PENDING_CERTIFICATE
                ) =>
            {
                return Poll::Pending;
            }
            // The alert, if there is one, was handed to the socket by the drain above.
            Err(e) => {
                return Poll::Ready(Err(HandshakeError::new(classify(session.ssl.ssl(), &e))));
            }
        }
    }
}

fn broken(error: io::Error) -> HandshakeError {
    HandshakeError::new(HandshakeErrorKind::Io(error))
}

/// Reads BoringSSL's error queue. Reasons are its own names (`ssl/ssl_err`), stable since they are its API.
fn classify(ssl: &SslRef, error: &boring::ssl::Error) -> HandshakeErrorKind {
    if let Some(failure) = verify::recorded(ssl) {
        return HandshakeErrorKind::Verify(failure);
    }
    let Some(stack) = error.ssl_error() else {
        return HandshakeErrorKind::Closed;
    };
    let reasons: Vec<&str> = stack.errors().iter().filter_map(|e| e.reason()).collect();
    for reason in &reasons {
        if reason.contains("_ALERT_") {
            return HandshakeErrorKind::PeerAlert((*reason).to_owned());
        }
        match *reason {
            "PEER_DID_NOT_RETURN_A_CERTIFICATE" => {
                return HandshakeErrorKind::Verify(VerifyFailure::NoCertificate);
            }
            "HTTP_REQUEST" | "HTTPS_PROXY_REQUEST" | "WRONG_VERSION_NUMBER" => {
                return HandshakeErrorKind::NotTls;
            }
            "PRIVATE_KEY_OPERATION_FAILED" => return HandshakeErrorKind::Key((*reason).to_owned()),
            _ => {}
        }
    }
    match reasons.first() {
        Some(reason) => HandshakeErrorKind::Protocol((*reason).to_owned()),
        None => HandshakeErrorKind::Protocol(stack.to_string()),
    }
}

/// What both sides read after a handshake.
pub(crate) fn agreed(stream: &Stream, verified: bool) -> Connected {
    stream
        .with_ssl(|ssl| Connected {
            alpn: ssl.selected_alpn_protocol().map(Box::from),
            peer: verified
                .then(|| ssl.peer_certificate())
                .flatten()
                .map(|c| Arc::new(certificate::identity(&c))),
            tls_version: ssl.version_str(),
        })
        .unwrap_or_default()
}
