//! Sessions resumed by OpenSSL's client at servers that have, or have not, the key of its ticket.

use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;

use super::openssl::Files;
use super::*;
use crate::testing::Leaf;

const NEW: bool = false;
const RESUMED: bool = true;

/// A key that is told from others by one byte.
fn key(fill: u8) -> TicketKey {
    TicketKey::parse(&[fill; TicketKey::LENGTH]).expect("a whole key")
}

fn server(leaf: KeyPair, keys: &[u8]) -> ServerContext {
    let keys: Arc<[TicketKey]> = keys.iter().map(|fill| key(*fill)).collect();
    ServerContext::new(&ServerParams {
        certificates: vec![leaf],
        session_tickets: SessionTickets::Given(keys),
        ..ServerParams::default()
    })
    .expect("context")
}

fn leaf(root: &Authority, name: &str) -> KeyPair {
    root.issue(&Leaf {
        dns: &[name],
        ..Leaf::default()
    })
}

/// A client that keeps the newest session it was given in a file, and comes with that when it has one.
struct Client<'a> {
    version: &'a str,
    session: &'a str,
}

impl Client<'_> {
    /// Whether the server resumed a session.
    async fn visits(&self, server: &ServerContext) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("address").to_string();
        let mut arguments = vec![
            "s_client",
            "-connect",
            &address,
            self.version,
            "-sess_out",
            self.session,
        ];
        if std::path::Path::new(self.session).exists() {
            arguments.extend(["-sess_in", self.session]);
        }
        let mut child = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("openssl must be installed for this test");
        // It leaves when the server does.
        let stdin = child.stdin.take();
        let (tcp, _) = listener.accept().await.expect("accepts");
        let mut facts = info(&tcp);
        let stream = server
            .accept(tcp, BytesMut::new(), &mut facts)
            .await
            .expect("handshake");
        stream.write_all(b"welcome\n").await.expect("writes");
        let _ = stream.shutdown().await;
        let is_resumed = stream.is_resumed();
        child.wait().await.expect("openssl ends");
        drop((stdin, stream));
        is_resumed
    }
}

#[tokio::test]
async fn sessions_are_resumed_where_the_key_is_known() {
    let root = Authority::root("root");
    let shop = || leaf(&root, "shop.example");
    let first = server(shop(), &[1]);
    // Another proxy, with a certificate of its own for the same names.
    let second = server(shop(), &[1]);
    let rotated = server(shop(), &[2, 1]);
    let forgotten = server(shop(), &[2]);
    let stranger = server(shop(), &[3]);
    // OpenSSL writes down the ticket that replaces another one in TLS 1.3 only.
    for (version, replaced) in [("-tls1_2", NEW), ("-tls1_3", RESUMED)] {
        let files = Files::new(&format!("tickets{version}"));
        let session = files.path("session.pem");
        let client = Client {
            version,
            session: &session,
        };
        for (server, expected, what) in [
            (&first, NEW, "nothing to resume"),
            (&first, RESUMED, "by the same"),
            (&second, RESUMED, "by another with the same key"),
            (&rotated, RESUMED, "by one where the key is the second"),
            (&forgotten, replaced, "under the new key, given out with the last"),
            (&stranger, NEW, "by one without the key"),
        ] {
            assert_eq!(client.visits(server).await, expected, "{version}: {what}");
        }
    }
}

/// Who shares a key between different servers shares no sessions between them.
#[tokio::test]
async fn sessions_of_other_names_are_not_resumed() {
    let root = Authority::root("root");
    let (shop, bank) = (leaf(&root, "shop.example"), leaf(&root, "bank.example"));
    let (shop, bank) = (server(shop, &[1]), server(bank, &[1]));
    for version in ["-tls1_2", "-tls1_3"] {
        let files = Files::new(&format!("tickets-names{version}"));
        let session = files.path("session.pem");
        let client = Client {
            version,
            session: &session,
        };
        assert_eq!(client.visits(&shop).await, NEW, "{version}");
        assert_eq!(client.visits(&bank).await, NEW, "{version}");
        assert_eq!(client.visits(&bank).await, RESUMED, "{version}");
    }
}

#[tokio::test]
async fn contexts_draw_keys_of_their_own_or_give_out_no_tickets() {
    let root = Authority::root("root");
    let with = |session_tickets| {
        ServerContext::new(&ServerParams {
            certificates: vec![leaf(&root, "shop.example")],
            session_tickets,
            ..ServerParams::default()
        })
        .expect("context")
    };
    let (own, other, off) = (
        with(SessionTickets::OwnKeys),
        with(SessionTickets::OwnKeys),
        with(SessionTickets::Off),
    );
    let files = Files::new("tickets-own");
    let session = files.path("session.pem");
    let client = Client {
        version: "-tls1_3",
        session: &session,
    };
    for (server, expected) in [
        (&own, NEW),
        (&own, RESUMED),
        (&other, NEW),
        (&other, RESUMED),
        (&off, NEW),
    ] {
        assert_eq!(client.visits(server).await, expected);
    }
}

#[test]
fn keys_have_one_length() {
    for length in [0, 16, TicketKey::LENGTH - 1, TicketKey::LENGTH + 1] {
        assert_eq!(TicketKey::parse(&vec![0; length]), None, "{length}");
    }
    let shown = format!("{:?}", key(0xab));
    assert_eq!(shown.matches("171").count(), 16, "only the name is shown: {shown}");
}

#[test]
fn keys_that_cannot_be_used_are_refused() {
    let root = Authority::root("root");
    let refused = |params: ServerParams| ServerContext::new(&params).expect_err("must fail");
    let (mut params, _) = mutual(&root);
    params.session_tickets = SessionTickets::Given(Arc::new([key(1)]));
    assert!(matches!(refused(params), TlsConfigError::TicketKeysWithTrust));
    let params = ServerParams {
        certificates: vec![root.spiffe(SERVER)],
        session_tickets: SessionTickets::Given(Arc::new([])),
        ..ServerParams::default()
    };
    assert!(matches!(refused(params), TlsConfigError::NoTicketKey));
}
