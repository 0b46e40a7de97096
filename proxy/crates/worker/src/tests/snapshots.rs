use super::*;

#[test]
fn unchanged_listeners_keep_their_connections_and_changed_ones_drain() {
    local(async {
        let (a, b, echo) = (free_address(), free_address(), echo().await);
        let stays = Arc::new(proxying("stays", a));
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[echo])];
        let settings = WorkerSettings {
            drain_timeout: Duration::from_millis(50),
            ..WorkerSettings::default()
        };
        let first = snapshot(1, vec![Arc::clone(&stays), Arc::new(proxying("changes", b))], clusters);
        let mut proxy = Proxy::start_with(first, settings).await;
        let mut on_a = TcpStream::connect(a).await.expect("connects");
        let mut on_b = TcpStream::connect(b).await.expect("connects");
        assert_eq!(ask(&mut on_a, "one").await, "ONE");
        assert_eq!(ask(&mut on_b, "one").await, "ONE");
        let second = snapshot(2, vec![stays, Arc::new(proxying("changes", b))], clusters);
        assert_eq!(
            proxy.apply(second).await,
            WorkerReport::Applied { worker: 0, version: 2 }
        );
        let mut again = TcpStream::connect(b).await.expect("the socket stayed");
        assert_eq!(ask(&mut again, "two").await, "TWO");
        // The old connection is closed when the drain is over; the others are not.
        assert_eq!(on_b.read(&mut [0; 8]).await.expect("closed"), 0);
        assert_eq!(ask(&mut on_a, "three").await, "THREE");
        assert_eq!(ask(&mut again, "three").await, "THREE");
    });
}

#[test]
fn connections_on_chains_that_stay_outlive_a_change_of_the_listener() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[echo])];
        let settings = WorkerSettings {
            drain_timeout: Duration::from_millis(50),
            ..WorkerSettings::default()
        };
        let proxied = |identity: u8| FilterChain {
            identity: Some([identity; 32]),
            ..chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo")))])
        };
        let other = |identity: u8| {
            let mut other = proxied(identity);
            other.matches.destination_port = Some(1);
            other
        };
        let with = |version, frame: u8, chains| {
            let mut l = listener("l", address, chains);
            l.frame = Some([frame; 32]);
            snapshot(version, vec![Arc::new(l)], clusters)
        };
        let first = with(1, 1, vec![proxied(1), other(2)]);
        let mut proxy = Proxy::start_with(first, settings).await;
        let mut open = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut open, "one").await, "ONE");
        // Another chain changes, and the order: not this connection's business. A second one tells when a drain would
        // have been over.
        proxy.apply(with(2, 1, vec![other(3), proxied(1)])).await;
        let mut second = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut second, "two").await, "TWO");
        tokio::time::sleep(2 * settings.drain_timeout).await;
        assert_eq!(ask(&mut open, "three").await, "THREE");
        // Its own chain changes.
        proxy.apply(with(3, 1, vec![other(3), proxied(4)])).await;
        assert_eq!(open.read(&mut [0; 8]).await.expect("closed"), 0);
        assert_eq!(second.read(&mut [0; 8]).await.expect("closed"), 0);
        // What is around the chains changes.
        let mut third = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut third, "four").await, "FOUR");
        proxy.apply(with(4, 2, vec![other(3), proxied(4)])).await;
        assert_eq!(third.read(&mut [0; 8]).await.expect("closed"), 0);
    });
}

#[test]
fn removed_listeners_close_their_sockets() {
    local(async {
        let (a, b, echo) = (free_address(), free_address(), echo().await);
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[echo])];
        let stays = Arc::new(proxying("stays", a));
        let both = snapshot(1, vec![Arc::clone(&stays), Arc::new(proxying("goes", b))], clusters);
        let mut proxy = Proxy::start(both).await;
        let mut open = TcpStream::connect(b).await.expect("connects");
        assert_eq!(ask(&mut open, "one").await, "ONE");
        proxy.apply(snapshot(2, vec![stays], clusters)).await;
        while TcpStream::connect(b).await.is_ok() {
            tokio::task::yield_now().await;
        }
        // Its connection drains: it goes on for now.
        assert_eq!(ask(&mut open, "two").await, "TWO");
    });
}

#[test]
fn an_address_may_move_to_another_listener() {
    local(async {
        let (a, echo) = (free_address(), echo().await);
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[echo])];
        let mut proxy = Proxy::start(snapshot(1, vec![Arc::new(proxying("old", a))], clusters)).await;
        let report = proxy
            .apply(snapshot(2, vec![Arc::new(proxying("new", a))], clusters))
            .await;
        assert_eq!(report, WorkerReport::Applied { worker: 0, version: 2 });
        assert_eq!(
            ask(&mut TcpStream::connect(a).await.expect("connects"), "one").await,
            "ONE"
        );
    });
}

#[test]
fn a_snapshot_that_cannot_be_bound_changes_nothing() {
    local(async {
        let (a, b, echo) = (free_address(), free_address(), echo().await);
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[echo])];
        let mut proxy = Proxy::start(snapshot(1, vec![Arc::new(proxying("good", a))], clusters)).await;
        let other = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let taken = other.local_addr().expect("address");
        let bad = snapshot(
            2,
            vec![Arc::new(proxying("bad", taken)), Arc::new(proxying("fine", b))],
            clusters,
        );
        let WorkerReport::Refused {
            version: 2, failures, ..
        } = proxy.apply(bad).await
        else {
            panic!("must be refused");
        };
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].address, Some(taken));
        let text = failures[0].to_string();
        assert!(
            text.starts_with(&format!("listener bad on {taken}: cannot bind: ")),
            "{text}"
        );
        assert!(text.contains("another process listens there"), "{text}");
        assert_eq!(
            ask(&mut TcpStream::connect(a).await.expect("connects"), "one").await,
            "ONE"
        );
        TcpStream::connect(b)
            .await
            .expect_err("nothing of the refused snapshot is in force");
    });
}

#[test]
fn clashing_listeners_and_chains_are_refused() {
    local(async {
        let (a, b, echo) = (free_address(), free_address(), echo().await);
        let mut twice = proxying("twice", b);
        twice.filter_chains.extend(proxying("x", b).filter_chains);
        let listeners = vec![
            Arc::new(proxying("one", a)),
            Arc::new(proxying("two", a)),
            Arc::new(twice),
        ];
        let mut proxy = Proxy::launch(snapshot(1, listeners, &[("echo", &[echo])]), WorkerSettings::default());
        let WorkerReport::Refused { failures, .. } = proxy.report().await else {
            panic!("must be refused")
        };
        let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
        assert!(
            texts.iter().any(|t| t.contains("listener one has the same address")),
            "{texts:?}"
        );
        assert!(
            texts.iter().any(|t| t.starts_with("listener twice: filter chains 0")),
            "{texts:?}"
        );
    });
}
