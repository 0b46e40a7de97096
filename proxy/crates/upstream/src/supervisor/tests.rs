use std::cell::RefCell;
use std::io;

use heddle_config::snapshot::{HealthCheck, HealthChecker};
use heddle_telemetry::prometheus::Gathered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::health::{Judge, contains_in_order};
use crate::manager::tests::{addr, cluster, endpoint, locality, snapshot};
use crate::{ClusterManager, PickContext, PickError};

fn check(send: &[u8], receive: &[&[u8]]) -> HealthCheck {
    HealthCheck {
        checker: HealthChecker::Tcp {
            send: send.to_vec(),
            receive: receive.iter().map(|r| r.to_vec()).collect(),
        },
        timeout: Duration::from_secs(1),
        interval: Duration::from_secs(5),
        unhealthy_threshold: 2,
        healthy_threshold: 3,
    }
}

#[test]
fn thresholds() {
    let check = check(b"", &[]);
    let mut judge = Judge::default();
    let mut failed = true;
    // (passed, change)
    for (step, (passed, change)) in [
        (true, Some(true)), // the first result is believed at once
        (false, None),
        (true, None),
        (false, None),
        (false, Some(false)),
        (true, None),
        (true, None),
        (true, Some(true)),
        (true, None),
    ]
    .into_iter()
    .enumerate()
    {
        let result = judge.result(&check, passed, failed);
        assert_eq!(result, change, "step {step}");
        if let Some(healthy) = result {
            failed = !healthy;
        }
    }
    assert_eq!(Judge::default().result(&check, false, false), Some(false));
}

#[test]
fn expected_answers() {
    let wanted = |list: &[&[u8]]| list.iter().map(|w| w.to_vec()).collect::<Vec<_>>();
    assert!(contains_in_order(b"+PONG\r\n", &wanted(&[b"+PO", b"NG"])));
    assert!(contains_in_order(b"a--b", &wanted(&[b"a", b"b"])));
    assert!(!contains_in_order(b"b--a", &wanted(&[b"a", b"b"])));
    assert!(!contains_in_order(b"a", &wanted(&[b"a", b"a"])));
    assert!(contains_in_order(b"", &wanted(&[b""])));
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        // Real sockets under a clock that runs when nothing else does.
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen");
}

#[tokio::test]
async fn checks_decide_who_is_picked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let good = listener.local_addr().expect("address");
    let bad = {
        let gone = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        gone.local_addr().expect("address")
    };
    let upstreams = Upstreams::new();
    let mut config = cluster("a");
    config.panic_threshold = 0.0;
    config.health_checks = vec![check(b"PING\r\n", &[b"+PONG"])];
    let snapshot = snapshot(vec![(Arc::new(config), locality(vec![endpoint(good), endpoint(bad)]))]);
    let (_sender, receiver) = watch::channel(Arc::clone(&snapshot));
    let stats = Stats::new();
    let supervisor = Supervisor::new(upstreams.clone(), stats.clone(), receiver);
    let worker: ClusterManager<()> = ClusterManager::new(upstreams.clone(), Stats::new(), |_| {}, 1);
    worker.update(&snapshot);
    let handle = worker.get("a").expect("cluster");
    assert_eq!(
        handle.pick(&PickContext::default()).err(),
        Some(PickError::NoHealthyHost),
        "not checked yet"
    );
    let answer = async {
        let (mut stream, _) = listener.accept().await.expect("accept");
        let mut asked = [0; 6];
        stream.read_exact(&mut asked).await.expect("ping");
        assert_eq!(&asked, b"PING\r\n");
        stream.write_all(b"+PO").await.expect("pong");
        stream.write_all(b"NG\r\n").await.expect("pong");
        until("health", || handle.pick(&PickContext::default()).is_ok()).await;
        for _ in 0..20 {
            assert_eq!(handle.pick(&PickContext::default()).expect("host").address(), good);
        }
        let healthy = "envoy_cluster_membership_healthy{cluster_name=\"a\"} 1\n";
        until("gauge", || {
            Gathered::read(&[stats.reader()], |_| true)
                .prometheus(false)
                .contains(healthy)
        })
        .await;
    };
    tokio::select! {
        biased;
        () = answer => {}
        () = supervisor.run() => panic!("the supervisor ended"),
    }
    let flags: Vec<_> = upstreams.status()[0]
        .hosts
        .iter()
        .map(|h| (h.address, h.health_flags()))
        .collect();
    assert!(
        flags.contains(&(good, "healthy".into())) && flags.contains(&(bad, "/failed_active_hc".into())),
        "{flags:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn names_become_hosts_and_the_last_good_answer_stays() {
    let answers: Rc<RefCell<io::Result<Vec<u8>>>> = Rc::new(RefCell::new(Ok(vec![2, 1, 1])));
    let given = Rc::clone(&answers);
    let resolve: Resolve = Rc::new(move |name, _| {
        assert_eq!(&*name, "db.example");
        let answer = match &*given.borrow() {
            Ok(list) => Ok(dns::Answer {
                addresses: list.iter().map(|n| addr(*n).ip()).collect(),
                ttl: Duration::ZERO,
            }),
            Err(error) => Err(io::Error::from(error.kind())),
        };
        Box::pin(async move {
            sleep(Duration::from_millis(20)).await;
            answer
        })
    });
    let upstreams = Upstreams::new();
    let mut config = cluster("dns");
    config.discovery = Discovery::StrictDns;
    let mut name = endpoint("0.0.0.0:5432".parse().expect("address"));
    name.hostname = Some("db.example".into());
    // An endpoint that is an address calls itself something, which is nobody's business here.
    let mut address = endpoint(addr(9));
    address.hostname = Some("not-asked-for.example".into());
    let snapshot = snapshot(vec![(Arc::new(config), locality(vec![name, address]))]);
    let (_sender, receiver) = watch::channel(Arc::clone(&snapshot));
    let supervisor = Supervisor::with_resolver(upstreams.clone(), Stats::new(), receiver, resolve);
    let worker: ClusterManager<()> = ClusterManager::new(upstreams, Stats::new(), |_| {}, 1);
    worker.update(&snapshot);
    let handle = worker.get("dns").expect("cluster");
    let hosts = || {
        let _ = handle.pick(&PickContext::default());
        let mut all: Vec<_> = handle.hosts().iter().map(|h| h.address().to_string()).collect();
        all.sort();
        all
    };
    let test = async {
        assert_eq!(hosts(), ["10.0.0.9:80"]);
        // What needs the cluster before its names are known waits for them.
        assert!(handle.awaits_names());
        let begun = tokio::time::Instant::now();
        handle.named().await;
        assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
        assert!(!handle.awaits_names());
        assert_eq!(hosts(), ["10.0.0.1:5432", "10.0.0.2:5432", "10.0.0.9:80"]);
        *answers.borrow_mut() = Err(io::ErrorKind::TimedOut.into());
        sleep(Duration::from_secs(30)).await;
        assert_eq!(hosts().len(), 3, "the last good answer stays");
        *answers.borrow_mut() = Ok(vec![3]);
        sleep(Duration::from_secs(6)).await;
        assert_eq!(hosts(), ["10.0.0.3:5432", "10.0.0.9:80"]);
    };
    tokio::select! {
        biased;
        () = test => {}
        () = supervisor.run() => panic!("the supervisor ended"),
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_cannot_be_resolved_are_not_waited_for_longer_than_a_connection() {
    let resolve: Resolve = Rc::new(|_, _| Box::pin(std::future::pending()));
    let upstreams = Upstreams::new();
    let mut config = cluster("dns");
    config.discovery = Discovery::StrictDns;
    let mut name = endpoint("0.0.0.0:5432".parse().expect("address"));
    name.hostname = Some("db.example".into());
    let snapshot = snapshot(vec![(Arc::new(config), locality(vec![name]))]);
    let (_sender, receiver) = watch::channel(Arc::clone(&snapshot));
    let supervisor = Supervisor::with_resolver(upstreams.clone(), Stats::new(), receiver, resolve);
    let worker: ClusterManager<()> = ClusterManager::new(upstreams, Stats::new(), |_| {}, 1);
    worker.update(&snapshot);
    let handle = worker.get("dns").expect("cluster");
    let test = async {
        let begun = tokio::time::Instant::now();
        handle.named().await;
        assert_eq!(begun.elapsed().as_secs(), 1, "connect_timeout");
        assert!(!handle.awaits_names());
    };
    tokio::select! {
        biased;
        () = test => {}
        () = supervisor.run() => panic!("the supervisor ended"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_sweep_runs_and_ends_with_its_cluster() {
    let upstreams = Upstreams::new();
    let mut config = cluster("a");
    config.outlier_detection = Some(heddle_config::snapshot::OutlierDetection {
        consecutive_5xx: 1,
        consecutive_gateway_failure: 0,
        consecutive_local_origin_failure: 0,
        interval: Duration::from_secs(10),
        base_ejection_time: Duration::from_secs(15),
        max_ejection_time: Duration::from_secs(300),
        max_ejection_percent: 100,
        always_eject_one: false,
    });
    let first = snapshot(vec![(
        Arc::new(config),
        locality(vec![endpoint(addr(1)), endpoint(addr(2))]),
    )]);
    let (sender, receiver) = watch::channel(Arc::clone(&first));
    let stats = Stats::new();
    let supervisor = Supervisor::new(upstreams.clone(), stats.clone(), receiver);
    let worker: ClusterManager<()> = ClusterManager::new(upstreams.clone(), Stats::new(), |_| {}, 1);
    worker.update(&first);
    let host = worker
        .get("a")
        .expect("cluster")
        .pick(&PickContext::default())
        .expect("host");
    let text = || Gathered::read(&[stats.reader()], |_| true).prometheus(false);
    let ejected = || {
        upstreams
            .status()
            .iter()
            .flat_map(|c| &c.hosts)
            .filter(|h| h.ejected)
            .count()
    };
    let test = async {
        sleep(Duration::from_millis(1)).await;
        host.report(crate::Outcome::Status(503));
        assert_eq!(ejected(), 1);
        sleep(Duration::from_secs(2)).await;
        assert!(
            text().contains("envoy_cluster_outlier_detection_ejections_active{cluster_name=\"a\"} 1\n"),
            "{}",
            text()
        );
        sleep(Duration::from_secs(10)).await;
        assert_eq!(ejected(), 1, "too early");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(ejected(), 0);
        sender.send_replace(snapshot(vec![]));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(text(), "");
        assert!(!upstreams.status().is_empty(), "the worker still has it");
        worker.update(&snapshot(vec![]));
        drop(host);
        sleep(Duration::from_secs(2)).await;
        assert!(upstreams.status().is_empty());
        drop(sender);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = test => {}
        () = supervisor.run() => {}
    }
}
