//! Against OpenSSL's own client and server.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::*;
use crate::testing::Leaf;

pub(super) struct Files(std::path::PathBuf);

impl Files {
    pub(super) fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("heddle-tls-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("folder");
        Self(dir)
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("file");
        path
    }

    /// Where a file of that name is, or would be.
    pub(super) fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Connects `openssl s_client` with `arguments`, sends a line, and returns what it printed and what we got.
async fn s_client(
    server: &ServerParams,
    arguments: &[&str],
) -> (String, Result<(BytesMut, ConnectionInfo), HandshakeError>) {
    let context = ServerContext::new(server).expect("context");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address").to_string();
    let mut child = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &address,
            "-servername",
            "shop.example",
            "-quiet",
            "-no_ign_eof",
        ])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("openssl must be installed for this test");
    let mut stdin = child.stdin.take().expect("stdin");
    let serve = async {
        let (tcp, _) = listener.accept().await.expect("accepts");
        let mut facts = info(&tcp);
        let stream = context.accept(tcp, BytesMut::new(), &mut facts).await?;
        let mut got = BytesMut::new();
        while !got.ends_with(b"\n") {
            if stream.read(&mut got).await.unwrap_or(0) == 0 {
                break;
            }
        }
        stream.write_all(b"answer from heddle\n").await.expect("writes");
        let _ = stream.shutdown().await;
        Ok((got, facts))
    };
    let ask = async {
        // Fails when the handshake was refused: then the outcome is in the other result.
        let _ = stdin.write_all(b"question from openssl\n").await;
        let _ = stdin.flush().await;
        let output = child.wait_with_output().await.expect("openssl ends");
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let (served, printed) = tokio::join!(serve, ask);
    drop(stdin);
    (printed, served)
}

#[tokio::test]
async fn openssl_clients_of_both_versions() {
    let root = Authority::root("root");
    let files = Files::new("versions");
    let ca = files.write("ca.pem", &root.pem());
    for rsa in [false, true] {
        let server = ServerParams {
            certificates: vec![root.issue(&Leaf {
                dns: &["shop.example"],
                rsa,
                ..Leaf::default()
            })],
            alpn: vec![b"http/1.1".as_slice().into()],
            session_tickets: SessionTickets::OwnKeys,
            ..ServerParams::default()
        };
        for (version, expected) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
            let arguments = [
                version,
                "-CAfile",
                &ca,
                "-verify_return_error",
                "-verify_hostname",
                "shop.example",
                "-alpn",
                "h2,http/1.1",
            ];
            let (printed, served) = s_client(&server, &arguments).await;
            let (got, facts) = served.unwrap_or_else(|e| panic!("{version}: {e}\n{printed}"));
            assert_eq!(&got[..], b"question from openssl\n", "{version}");
            assert!(printed.contains("answer from heddle"), "{version}: {printed}");
            assert_eq!(facts.tls_version, Some(expected));
            assert_eq!(facts.alpn.as_deref(), Some(b"http/1.1".as_slice()));
            assert_eq!(facts.sni.as_deref(), Some("shop.example"));
        }
    }
}

#[tokio::test]
async fn openssl_client_with_and_without_certificate() {
    let root = Authority::root("root");
    let files = Files::new("mutual");
    let (server, _) = mutual(&root);
    let client = root.spiffe(CLIENT);
    let chain = files.write("client.pem", &client.chain_pem);
    let key = files.write("client.key", &client.key_pem);
    let (printed, served) = s_client(&server, &["-cert", &chain, "-key", &key]).await;
    let (_, facts) = served.unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert_eq!(facts.principal(), Some(CLIENT));

    let (printed, served) = s_client(&server, &[]).await;
    assert!(matches!(
        served.expect_err("must fail").kind,
        HandshakeErrorKind::Verify(VerifyFailure::NoCertificate)
    ));
    assert!(printed.contains("alert"), "{printed}");
}

#[tokio::test]
async fn old_versions_are_refused() {
    let root = Authority::root("root");
    let server = ServerParams {
        certificates: vec![root.spiffe(SERVER)],
        ..ServerParams::default()
    };
    // SECLEVEL=0 lets OpenSSL offer what it no longer offers by default.
    let (_, served) = s_client(&server, &["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]).await;
    assert!(matches!(
        served.expect_err("must fail").kind,
        HandshakeErrorKind::Protocol(_)
    ));
}
