//! The admin interface's socket and connections.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use heddle_config::AdminAddress;
use heddle_net::{AcceptFailure, ListenOptions};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::reply::Reply;
use super::route;
use super::state::AdminState;

/// Connections served at once. A scraper, an agent and some people; a further one waits in the backlog.
const MAX_CONNECTIONS: usize = 64;

/// Longest request head, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Longest request body, in bytes. No path reads one; it is only taken off the wire.
const MAX_BODY: usize = 64 * 1024;

/// A head, or the next one on a kept connection, must come within this.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection lasts no longer, so that slow readers cannot keep all places.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// The admin address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("admin address {address}: {source}{}", remedy(source))]
pub(crate) struct AdminError {
    address: String,
    source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process has it: stop that one or change `admin.address` of the bootstrap"
        }
        io::ErrorKind::PermissionDenied => "; use a port above 1023, or a folder that this user may write to",
        io::ErrorKind::NotFound => "; make the socket's folder first",
        _ => "",
    }
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Socket {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The bound admin interface.
pub(crate) struct AdminServer {
    socket: Socket,
}

impl AdminServer {
    /// Opens the address. A unix socket is made for this user only; one that a dead process left is replaced.
    pub(crate) async fn bind(address: &AdminAddress) -> Result<Self, AdminError> {
        let socket = match address {
            AdminAddress::Tcp(address) => {
                if !address.ip().is_loopback() {
                    tracing::warn!(%address, "the admin interface has no login and is not on loopback: anyone who reaches it controls this proxy");
                }
                // Alone: a second process on the same address is a mistake, and `::` means IPv6 as it does for
                // listeners.
                let options = ListenOptions {
                    reuse_port: false,
                    ..ListenOptions::new(*address)
                };
                heddle_net::listen(&options)
                    .map(Socket::Tcp)
                    .map_err(|source| AdminError {
                        address: address.to_string(),
                        source,
                    })?
            }
            AdminAddress::Unix(path) => bind_unix(path)
                .await
                .map(|listener| Socket::Unix(listener, path.clone()))
                .map_err(|source| AdminError {
                    address: path.display().to_string(),
                    source,
                })?,
        };
        Ok(Self { socket })
    }

    /// The TCP address bound, for a bootstrap that asked for port 0.
    pub(crate) fn local_addr(&self) -> Option<std::net::SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(..) => None,
        }
    }

    /// Serves until dropped. Brings its own `LocalSet`, so it may be awaited from any current-thread runtime.
    pub(crate) async fn run(self, state: Rc<AdminState>) {
        let local = LocalSet::new();
        local.run_until(self.accept(state)).await;
    }

    async fn accept(self, state: Rc<AdminState>) {
        let places = Rc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(place) = Rc::clone(&places).acquire_owned_local().await else {
                return;
            };
            match self.socket.accept().await {
                Ok(stream) => {
                    let state = Rc::clone(&state);
                    tokio::task::spawn_local(async move {
                        serve(stream, state).await;
                        drop(place);
                    });
                }
                Err(error) => match AcceptFailure::of(&error) {
                    AcceptFailure::Connection => {}
                    AcceptFailure::Exhausted(pause) => {
                        tracing::warn!(%error, "admin interface: cannot accept; raise the limit on open files");
                        sleep(pause).await;
                    }
                    AcceptFailure::Listener => {
                        tracing::error!(%error, "admin interface: the listening socket failed");
                        return;
                    }
                },
            }
        }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // Gone already, or not ours any more: either way there is nothing to clean up.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A place among the connections, given back when dropped.
struct Place {
    places: Rc<Semaphore>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.add_permits(1);
    }
}

trait AcquireLocal {
    async fn acquire_owned_local(self) -> Result<Place, tokio::sync::AcquireError>;
}

impl AcquireLocal for Rc<Semaphore> {
    async fn acquire_owned_local(self) -> Result<Place, tokio::sync::AcquireError> {
        self.acquire().await?.forget();
        Ok(Place { places: self })
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file that is not a socket",
            ));
        }
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn serve(stream: Stream, state: Rc<AdminState>) {
    match stream {
        Stream::Tcp(stream) => serve_on(stream, state, true).await,
        Stream::Unix(stream) => serve_on(stream, state, false).await,
    }
}

async fn serve_on(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, state: Rc<AdminState>, tcp: bool) {
    let service = service_fn(move |request| {
        let state = Rc::clone(&state);
        async move { Ok::<_, Infallible>(answer(&state, request, tcp).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off, or sends nonsense, has been answered as far as it can be.
    if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
        tracing::debug!(%error, "admin connection ended");
    }
}

async fn answer(state: &AdminState, request: Request<Incoming>, tcp: bool) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    if Limited::new(body, MAX_BODY).collect().await.is_err() {
        let reply = Reply::error(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long or broke off\n");
        let mut response = reply.into_response();
        // The rest of the body is not read, so the connection cannot be used again.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    let target = head.uri.path_and_query().map_or("/", |p| p.as_str());
    route::answer(state, &head.method, target, &head.headers, tcp).into_response()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
