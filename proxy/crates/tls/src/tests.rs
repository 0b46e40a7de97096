//! Handshakes and streams over real loopback sockets.

mod clusters;
mod contexts;
mod handshakes;
mod keys;
mod multibuffer;
mod openssl;
mod qat;
mod streams;
mod tickets;

use bytes::BytesMut;
use heddle_net::ConnectionInfo;
use tokio::net::{TcpListener, TcpStream};

use crate::testing::Authority;
use crate::*;

const SERVER: &str = "spiffe://cluster.local/ns/shop/sa/server";
const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.expect("connects"), server.expect("accepts").0)
}

fn info(tcp: &TcpStream) -> ConnectionInfo {
    ConnectionInfo::plain(tcp.local_addr().expect("address"), tcp.peer_addr().expect("address"))
}

fn trust(root: &Authority, sans: &[&str]) -> Option<Trust> {
    Some(Trust {
        roots_pem: root.pem(),
        sans: sans.iter().map(|s| SanMatcher::exact(SanKind::Uri, s)).collect(),
        trust_domains: Vec::new(),
    })
}

/// Both sides of a mesh connection whose identities are as they should be.
fn mutual(root: &Authority) -> (ServerParams, ClientParams) {
    let server = ServerParams {
        certificates: vec![root.spiffe(SERVER)],
        trust: trust(root, &[CLIENT]),
        require_client_certificate: true,
        alpn: vec![b"istio".as_slice().into(), b"h2".as_slice().into()],
        ..ServerParams::default()
    };
    let client = ClientParams {
        certificate: Some(root.spiffe(CLIENT)),
        trust: trust(root, &[SERVER]),
        alpn: vec![b"h2".as_slice().into(), b"http/1.1".as_slice().into()],
        sni: Some("outbound_.80_._.server".to_owned()),
        ..ClientParams::default()
    };
    (server, client)
}

type Accepted = Result<(Stream, ConnectionInfo), HandshakeError>;
type Dialled = Result<(Stream, Connected), HandshakeError>;

/// Runs both handshakes at once. When one side fails, the other still runs to its own end.
async fn handshake(server: &ServerParams, client: &ClientParams) -> (Accepted, Dialled) {
    let server = ServerContext::new(server).expect("server context");
    let client = ClientContext::new(client).expect("client context");
    let (near, far) = pair().await;
    let accept = async {
        let mut facts = info(&far);
        server
            .accept(far, BytesMut::new(), &mut facts)
            .await
            .map(|stream| (stream, facts))
    };
    let dial = async {
        let (stream, agreed) = client.connect(near, None, None).await?;
        // TLS 1.3 lets the client finish before the server has judged its certificate: the verdict comes with the
        // first read.
        Ok((stream, agreed))
    };
    tokio::join!(accept, dial)
}
