use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA};
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::*;

/// A name server on loopback that knows a few names. Returns its port.
async fn name_server() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
    let port = socket.local_addr().expect("address").port();
    tokio::task::spawn_local(async move {
        let mut buffer = [0; 1500];
        while let Ok((n, peer)) = socket.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..n]).expect("a DNS message");
            let asked = question.queries[0].clone();
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            answer.add_query(asked.clone());
            let v4 = |n| RData::A(A::new(10, 0, 0, n));
            let found = match (asked.name().to_string().as_str(), asked.query_type()) {
                ("both.test.", RecordType::A) => vec![v4(1), v4(2)],
                ("both.test.", RecordType::AAAA) => vec![RData::AAAA(AAAA::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))],
                ("four.test.", RecordType::A) => vec![v4(3)],
                ("broken.test.", _) => {
                    answer.metadata.response_code = ResponseCode::ServFail;
                    vec![]
                }
                ("four.test.", _) => vec![],
                _ => {
                    answer.metadata.response_code = ResponseCode::NXDomain;
                    vec![]
                }
            };
            for data in found {
                answer.add_answer(Record::from_rdata(asked.name().clone(), 7, data));
            }
            let bytes = answer.to_vec().expect("encodes");
            socket.send_to(&bytes, peer).await.expect("sends");
        }
    });
    port
}

fn resolver(port: u16, family: DnsFamily) -> TokioResolver {
    let mut connection = ConnectionConfig::udp();
    connection.port = port;
    let mut server = NameServerConfig::udp([127, 0, 0, 1].into());
    server.connections = vec![connection];
    let config = ResolverConfig::from_parts(None, vec![], vec![server]);
    make(
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()),
        family,
    )
    .expect("resolver")
}

#[tokio::test]
async fn families_times_to_live_and_names_that_do_not_exist() {
    let test = async {
        let port = name_server().await;
        for (family, name, expected) in [
            (DnsFamily::V4Only, "both.test.", &["10.0.0.1", "10.0.0.2"][..]),
            (DnsFamily::V6Only, "both.test.", &["fd00::1"]),
            (DnsFamily::V6Preferred, "both.test.", &["fd00::1"]),
            (DnsFamily::V4Preferred, "both.test.", &["10.0.0.1", "10.0.0.2"]),
            (DnsFamily::All, "both.test.", &["10.0.0.1", "10.0.0.2", "fd00::1"]),
            (DnsFamily::V6Preferred, "four.test.", &["10.0.0.3"]),
            (DnsFamily::V6Only, "four.test.", &[]),
            (DnsFamily::All, "gone.test.", &[]),
        ] {
            let answer = ask(&resolver(port, family), name).await.expect("an answer");
            let mut addresses: Vec<_> = answer.addresses.iter().map(ToString::to_string).collect();
            addresses.sort();
            assert_eq!(addresses, expected, "{name} {family:?}");
            let seconds = answer.ttl.as_secs_f64();
            assert!(
                expected.is_empty() || (6.0..=7.0).contains(&seconds),
                "{name} {family:?}: {seconds} s"
            );
        }
        let failed = ask(&resolver(port, DnsFamily::V4Only), "broken.test.").await;
        assert!(failed.is_err(), "a server that cannot say is no answer: {failed:?}");
    };
    LocalSet::new().run_until(test).await;
}

/// What the fake resolver says, and when it was asked.
type Script = Rc<RefCell<(Vec<io::Result<Answer>>, Vec<Instant>)>>;

fn scripted(script: &Script) -> Resolver {
    let script = Rc::clone(script);
    let resolve: Resolve = Rc::new(move |_, _| {
        let mut script = script.borrow_mut();
        script.1.push(Instant::now());
        let answer = if script.0.is_empty() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            script.0.remove(0)
        };
        Box::pin(std::future::ready(answer))
    });
    Resolver {
        resolve,
        permits: Rc::new(Semaphore::new(1)),
    }
}

fn answer(addresses: &[&str], ttl: u64) -> io::Result<Answer> {
    Ok(Answer {
        addresses: addresses.iter().map(|a| a.parse().expect("address")).collect(),
        ttl: Duration::from_secs(ttl),
    })
}

#[tokio::test(start_paused = true)]
async fn pauses_follow_answers_and_failures() {
    let test = async {
        let script: Script = Rc::default();
        script.borrow_mut().0 = vec![
            answer(&["10.0.0.1"], 2),
            answer(&["10.0.0.2"], 9_999),
            answer(&[], 1),
            Err(io::ErrorKind::TimedOut.into()),
            Err(io::ErrorKind::TimedOut.into()),
            Err(io::ErrorKind::TimedOut.into()),
            answer(&["10.0.0.3"], 0),
        ];
        let settings = Dns {
            respect_ttl: true,
            failure: (Duration::from_secs(1), Duration::from_secs(3)),
            ..Dns::default()
        };
        let cluster = crate::Upstreams::new().cluster(&"c".into());
        let stats = Stats::new();
        let mut names = Names::default();
        let wanted = HashSet::from([Arc::<str>::from("a.test")]);
        names.follow(&cluster, settings, wanted.clone(), &scripted(&script), (&stats, "c"));
        let start = Instant::now();
        let mut seen = Vec::new();
        while seen.len() < 8 {
            sleep(Duration::from_millis(100)).await;
            let resolved = cluster.resolved();
            seen = script.borrow().1.clone();
            let known = resolved.get("a.test").cloned().unwrap_or_default();
            match seen.len() {
                1 => assert_eq!(known, ["10.0.0.1".parse::<IpAddr>().expect("address")]),
                2 => assert_eq!(known, ["10.0.0.2".parse::<IpAddr>().expect("address")]),
                // "No such name" is an answer; failures after it leave that as it is.
                3..7 => assert!(known.is_empty()),
                _ => assert_eq!(known, ["10.0.0.3".parse::<IpAddr>().expect("address")]),
            }
        }
        let at: Vec<_> = seen.iter().map(|t| t.duration_since(start).as_secs()).collect();
        // TTL 2; TTL cut to 300; nothing found: the refresh rate of 5; failures: 1, 2, 3; no TTL: 5.
        assert_eq!(at, [0, 2, 302, 307, 308, 310, 313, 318]);
        // The same names again: nothing is asked anew. Without names, nothing is asked at all.
        names.follow(&cluster, settings, wanted, &scripted(&script), (&stats, "c"));
        names.follow(&cluster, settings, HashSet::new(), &scripted(&script), (&stats, "c"));
        sleep(Duration::from_secs(60)).await;
        assert_eq!(script.borrow().1.len(), 8);
        assert!(cluster.resolved().is_empty());
    };
    LocalSet::new().run_until(test).await;
}

#[test]
fn pauses_are_bounded() {
    let ms = Duration::from_millis;
    assert_eq!(back_off((ms(10), ms(100)), 1), ms(10));
    assert_eq!(back_off((ms(10), ms(100)), 4), ms(80));
    assert_eq!(back_off((ms(10), ms(100)), 99), ms(100));
    assert_eq!(back_off((ms(0), ms(0)), 1), ms(1));
    assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    assert!((0..100).all(|_| jitter(ms(3)) < ms(3)));
}
