//! Handshakes of other implementations through the provider of batches.

use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use boring::pkey::{PKey, Private};
use heddle_keys::multibuffer::{Engine, MultibufferProvider};
use heddle_keys::{PrivateKeyProvider, SoftwareProvider};
use heddle_telemetry::Stats;
use heddle_telemetry::prometheus::Gathered;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::testing::Leaf;

const SUITES: [&str; 3] = [
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
];

/// What the servers' keys are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Rsa,
    Ecdsa,
}

/// Makes the provider of a key.
pub(super) type Making = Rc<dyn Fn(PKey<Private>) -> Arc<dyn PrivateKeyProvider>>;

/// Keys in the lanes of this engine.
fn lanes(engine: Engine) -> Making {
    Rc::new(move |key| {
        let provider = MultibufferProvider::new(key, Duration::from_millis(5), engine);
        Arc::new(provider.expect("a good key"))
    })
}

fn context(root: &Authority, making: &Making, keys: Keys) -> Arc<ServerContext> {
    let mut pair = root.issue(&Leaf {
        dns: &["shop.example"],
        rsa: keys == Keys::Rsa,
        ..Leaf::default()
    });
    let software = SoftwareProvider::from_pem(&pair.key_pem).expect("key");
    pair.provider = Some(making(software.key().clone()));
    let params = ServerParams {
        certificates: vec![pair],
        cipher_suites: SUITES.map(str::to_owned).to_vec(),
        ..ServerParams::default()
    };
    Arc::new(ServerContext::new(&params).expect("context"))
}

fn engine() -> Engine {
    Engine::detect().unwrap_or_else(Engine::portable)
}

/// A server that answers each connection with one line; its key is replaced with each fifth connection, as by SDS.
pub(super) async fn serve(root: Rc<Authority>, making: Making, keys: Keys) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    spawn_local(async move {
        let mut current = context(&root, &making, keys);
        for serial in 0_u32.. {
            let (tcp, _) = listener.accept().await.expect("accepts");
            if serial % 5 == 4 {
                current = context(&root, &making, keys);
            }
            let context = Arc::clone(&current);
            spawn_local(async move {
                let mut facts = info(&tcp);
                // A client that goes away is one of the cases.
                if let Ok(stream) = context.accept(tcp, BytesMut::new(), &mut facts).await {
                    let _ = stream.write_all(b"hello from heddle\n").await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    address
}

/// Runs a client and returns whether it ended well, and what it printed.
async fn client(program: &str, arguments: &[&str]) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|e| panic!("{program} must be installed for this test: {e}"));
    let mut stdin = child.stdin.take().expect("stdin");
    // Fails when the client has ended already, which its status says.
    let _ = stdin.write_all(b"question\n").await;
    let output = child.wait_with_output().await.expect("it ends");
    drop(stdin);
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), printed.concat())
}

pub(super) fn local<F: Future>(f: impl FnOnce(Stats) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let stats = Stats::new();
        heddle_keys::collect_here(&stats);
        f(stats).await
    })
}

pub(super) fn metric(stats: &Stats, name: &str) -> u64 {
    let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or(0)
}

/// Each combination several times at once, so that batches have several operations of several keys.
pub(super) async fn all_at_once(program: &'static str, combinations: &[Vec<String>]) {
    let mut running = Vec::new();
    for arguments in combinations {
        for _ in 0..4 {
            let arguments = arguments.clone();
            running.push(spawn_local(async move {
                let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let (well, printed) = client(program, &given).await;
                assert!(
                    well && printed.contains("hello from heddle"),
                    "{program} {arguments:?}: {printed}"
                );
            }));
        }
    }
    for one in running {
        one.await.expect("a good client");
    }
}

fn words(fixed: &str, own: &[&str]) -> Vec<String> {
    fixed.split(' ').chain(own.iter().copied()).map(str::to_owned).collect()
}

/// OpenSSL's client in all ways that use an RSA key, against the server at an address, all of which must end well. Returns how
/// many private operations that took.
pub(super) async fn openssl_in_all_ways(ca: &str, address: std::net::SocketAddr) -> u64 {
    let fixed =
        format!("s_client -connect {address} -servername shop.example -quiet -verify_return_error -CAfile {ca}");
    let combinations = [
        words(&fixed, &["-tls1_2", "-cipher", SUITES[0], "-sigalgs", "RSA+SHA256"]),
        words(&fixed, &["-tls1_2", "-cipher", SUITES[0], "-sigalgs", "RSA+SHA512"]),
        words(
            &fixed,
            &[
                "-tls1_2",
                "-cipher",
                SUITES[0],
                "-sigalgs",
                "RSA-PSS+SHA384:ECDSA+SHA256",
            ],
        ),
        // Static RSA key exchange: a decryption.
        words(&fixed, &["-tls1_2", "-cipher", SUITES[1]]),
        words(&fixed, &["-tls1_3", "-sigalgs", "RSA-PSS+SHA256:ECDSA+SHA256"]),
        words(&fixed, &["-tls1_3", "-sigalgs", "RSA-PSS+SHA512:ECDSA+SHA256"]),
    ];
    all_at_once("openssl", &combinations).await;
    4 * combinations.len() as u64
}

#[test]
fn openssl_through_the_lanes() {
    local(|stats| async move {
        let root = Rc::new(Authority::root("root"));
        let files = openssl::Files::new("multibuffer");
        let ca = files.write("ca.pem", &root.pem());
        let address = serve(root, lanes(engine()), Keys::Rsa).await;
        let operations = openssl_in_all_ways(&ca, address).await;
        let by = |path| {
            metric(
                &stats,
                &format!("heddle_multibuffer_operations_total{{path=\"{path}\"}}"),
            )
        };
        assert_eq!(by("vector") + by("software"), operations);
        assert_eq!(metric(&stats, "heddle_multibuffer_verify_failures_total"), 0);
    });
}

#[test]
fn ecdsa_through_the_lanes() {
    local(|stats| async move {
        let root = Rc::new(Authority::root("root"));
        let files = openssl::Files::new("multibuffer-ecdsa");
        let ca = files.write("ca.pem", &root.pem());
        let address = serve(root, lanes(engine()), Keys::Ecdsa).await;
        let fixed =
            format!("s_client -connect {address} -servername shop.example -quiet -verify_return_error -CAfile {ca}");
        let combinations = [
            words(&fixed, &["-tls1_2", "-cipher", SUITES[2]]),
            words(&fixed, &["-tls1_3"]),
        ];
        all_at_once("openssl", &combinations).await;
        let by = |path| {
            metric(
                &stats,
                &format!("heddle_multibuffer_operations_total{{path=\"{path}\"}}"),
            )
        };
        assert_eq!(by("vector") + by("software"), 8);
        assert!(metric(&stats, "heddle_multibuffer_ecdsa_queue_sizes_count") > 0);
        // Of TLS 1.3 all, be it in batches or alone.
        assert_eq!(metric(&stats, "heddle_multibuffer_x25519_queue_sizes_sum"), 4);
        assert_eq!(metric(&stats, "heddle_multibuffer_verify_failures_total"), 0);
    });
}

#[test]
fn gnutls_through_the_lanes() {
    local(|stats| async move {
        let root = Rc::new(Authority::root("root"));
        let files = openssl::Files::new("multibuffer-gnutls");
        let ca = files.write("ca.pem", &root.pem());
        let address = serve(root, lanes(engine()), Keys::Rsa).await;
        let fixed = format!(
            "--x509cafile={ca} --sni-hostname=shop.example --verify-hostname=shop.example --port={} 127.0.0.1",
            address.port()
        );
        let combinations = [
            "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+ECDHE-RSA:-SIGN-ALL:+SIGN-RSA-SHA256:+SIGN-ECDSA-SHA256",
            "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+ECDHE-RSA:-SIGN-ALL:+SIGN-RSA-PSS-RSAE-SHA384:+SIGN-ECDSA-SHA256",
            "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+RSA",
            "NORMAL:-VERS-ALL:+VERS-TLS1.3",
        ]
        .map(|priority| words(&fixed, &[&format!("--priority={priority}")]));
        all_at_once("gnutls-cli", &combinations).await;
        let by = |path| {
            metric(
                &stats,
                &format!("heddle_multibuffer_operations_total{{path=\"{path}\"}}"),
            )
        };
        assert_eq!(by("vector") + by("software"), 16);
    });
}

/// Lanes that err never show in a handshake.
#[test]
fn faulty_lanes_never_reach_a_client() {
    local(|stats| async move {
        let root = Rc::new(Authority::root("root"));
        let address = serve(Rc::clone(&root), lanes(Engine::faulty(0)), Keys::Rsa).await;
        let params = ClientParams {
            trust: Some(Trust {
                roots_pem: root.pem(),
                ..Trust::default()
            }),
            ..ClientParams::default()
        };
        let client = Rc::new(ClientContext::new(&params).expect("context"));
        let dialling: Vec<_> = (0..16)
            .map(|_| {
                let client = Rc::clone(&client);
                spawn_local(async move {
                    let tcp = TcpStream::connect(address).await.expect("connects");
                    client.connect(tcp, None, None).await.map(drop)
                })
            })
            .collect();
        for one in dialling {
            one.await.expect("no panic").expect("a good handshake");
        }
        assert!(metric(&stats, "heddle_multibuffer_verify_failures_total") > 0);
    });
}

/// Clients that leave while they wait for their batch, and some that say nothing: the others are served.
#[test]
fn clients_that_leave_harm_nobody() {
    local(|stats| async move {
        let root = Rc::new(Authority::root("root"));
        let address = serve(Rc::clone(&root), lanes(engine()), Keys::Rsa).await;
        let idle = TcpStream::connect(address).await.expect("connects");
        let client = Rc::new(ClientContext::new(&ClientParams::default()).expect("context"));
        for round in 0..30_u32 {
            let dialling: Vec<_> = (0..5)
                .map(|i| {
                    let client = Rc::clone(&client);
                    spawn_local(async move {
                        let tcp = TcpStream::connect(address).await.expect("connects");
                        let mut shaking = Box::pin(client.connect(tcp, None, None));
                        if i > 0 {
                            // Leaves after some steps: before its ClientHello, while it waits, or never.
                            for _ in 0..(round + i) % 12 {
                                if ends_with_one_poll(&mut shaking).await {
                                    return;
                                }
                                tokio::task::yield_now().await;
                            }
                            return;
                        }
                        shaking.await.expect("a good handshake");
                    })
                })
                .collect();
            for one in dialling {
                one.await.expect("no panic");
            }
        }
        drop(idle);
        assert!(metric(&stats, "envoy_cryptomb_rsa_queue_sizes_count") > 0);
    });
}

/// Polls once; whether it has ended.
async fn ends_with_one_poll<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}
