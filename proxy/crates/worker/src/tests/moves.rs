//! Open connections that go to another worker between two requests.

mod http2;
mod site;

use heddle_config::filters::FilterConfig;
use heddle_config::filters::local_ratelimit::{Limiter, LocalRateLimit, TokenBucket, VirtualHostLimits};
use heddle_config::snapshot::{Fraction, HeaderOps, HttpFilter};
use site::{Client, Site, Transport, connect, http, manager, total};

use super::*;
use crate::exchange::{HAND_OVER_QUEUE, Placement};

const MOVED: &str = "heddle_listener_cx_moved";
const REFUSED: &str = "heddle_listener_cx_move_refused";
const TOTAL: &str = "envoy_listener_downstream_cx_total";
const ACTIVE: &str = "envoy_listener_downstream_cx_active";
const DESTROYED: &str = "envoy_listener_downstream_cx_destroy";
const HTTP_TOTAL: &str = "envoy_http_downstream_cx_http1_total";
const HTTP_ACTIVE: &str = "envoy_http_downstream_cx_http1_active";

const ALL: [Transport; 3] = [Transport::Plain, Transport::Tls12, Transport::Tls13];

/// Each on a thread of its own: timers that a worker keeps for later belong to its thread's event loop.
fn with_each<F: Future<Output = ()>>(test: impl Fn(Transport) -> F + Sync) {
    std::thread::scope(|scope| {
        for transport in ALL {
            let test = &test;
            scope.spawn(move || local(test(transport)));
        }
    });
}

/// The connections of the site's listener by worker.
fn shares(site: &Site) -> Arc<crate::exchange::Occupancy> {
    let open = site.process.shared.connections_of(&Arc::from("l"));
    Arc::clone(open.occupancy.get().expect("the listener places its connections"))
}

fn open(site: &Site) -> u64 {
    let open = site.process.shared.connections_of(&Arc::from("l"));
    open.total.load(Ordering::Relaxed)
}

/// Asks until so many connections have moved, all in all.
async fn ask_until_moved(site: &Site, client: &mut Client, moves: f64) {
    let mut asked = 0;
    while site.sum(MOVED) < moves {
        client.ask(&format!("/until/{asked}")).await;
        asked += 1;
    }
}

#[test]
fn connections_go_to_and_fro_and_count_once() {
    with_each(|transport| async move {
        let site = Site::start(2, transport).await;
        let mut clients = Vec::new();
        for at in 0..6 {
            let mut client = site.connect().await;
            client.ask(&format!("/first/{at}")).await;
            clients.push(client);
        }
        assert_eq!(site.sum(MOVED), 0.0, "loads are equal");
        site.force(2);
        ask_until_moved(&site, &mut clients[0], 4.0).await;
        for round in 0..20 {
            for (at, client) in clients.iter_mut().enumerate() {
                client.ask(&format!("/{round}/{at}")).await;
            }
        }
        assert!(site.sum(MOVED) >= 100.0, "{transport:?}: {} moves", site.sum(MOVED));
        site.until(ACTIVE, 6.0).await;
        site.until(HTTP_ACTIVE, 6.0).await;
        assert_eq!((site.sum(TOTAL), site.sum(HTTP_TOTAL)), (6.0, 6.0));
        assert_eq!((site.sum(DESTROYED), open(&site)), (0.0, 6));
        assert_eq!(site.process.shared.open_connections(), 6);
        assert_eq!(shares(&site).counts().iter().sum::<u64>(), 6);
        drop(clients);
        site.until(DESTROYED, 6.0).await;
        assert_eq!((site.sum(ACTIVE), site.sum(HTTP_ACTIVE), open(&site)), (0.0, 0.0, 0));
        assert_eq!(shares(&site).counts(), [0, 0]);
        assert_eq!((site.sum(TOTAL), site.process.shared.open_connections()), (6.0, 0));
        assert_eq!(site.sum("heddle_listener_hand_over_failure"), 0.0);
    });
}

/// The whole way, from the loads that are measured on.
#[test]
fn a_busy_worker_gives_connections_away() {
    local(async {
        let site = Site::start(2, Transport::Plain).await;
        let exchange = &site.process.shared.exchange;
        exchange.pretend(0, 500);
        exchange.pretend(1, 500);
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(site.connect().await);
        }
        for round in 0..20 {
            for client in &mut clients {
                client.ask(&format!("/{round}")).await;
            }
        }
        assert_eq!(site.sum(MOVED), 0.0);
        exchange.pretend(0, 900);
        exchange.pretend(1, 0);
        let before = shares(&site).counts()[0];
        while shares(&site).counts()[0] > before.saturating_sub(2).max(1) {
            for client in &mut clients {
                client.ask("/more").await;
            }
        }
        assert!(site.workers[0].total(MOVED) >= 1.0);
        assert_eq!(site.workers[1].total(MOVED), 0.0);
        assert_eq!(site.sum(ACTIVE), 20.0);
    });
}

/// A filter with so many tokens for each connection.
fn bucket_of_its_own(tokens: u32) -> HttpFilter {
    let limit = LocalRateLimit {
        stat_prefix: Arc::from("own"),
        status: 429,
        limiter: Limiter {
            default: Some(TokenBucket::new(tokens, 1.0 / 3600.0)),
            descriptors: Vec::new(),
            always_default: true,
        },
        enabled: Fraction::ALL,
        enforced: Fraction::ALL,
        request_headers: HeaderOps::default(),
        response_headers: HeaderOps::default(),
        rate_limits: Vec::new(),
        stage: 0,
        virtual_host: VirtualHostLimits::Override,
        per_connection: true,
        x_ratelimit_headers: false,
        resource_exhausted: false,
    };
    HttpFilter {
        name: Arc::from("own"),
        disabled: false,
        config: FilterConfig::LocalRateLimit(Arc::new(limit)),
    }
}

/// On another worker its bucket would be full again.
#[test]
fn a_connection_with_a_token_bucket_of_its_own_stays() {
    local(async {
        const TOKENS: u32 = 5;
        let filter = bucket_of_its_own(TOKENS);
        let site = Site::start_with(2, Transport::Plain, |manager| manager.filters.push(filter), |_| {}).await;
        site.force(2);
        let mut client = site.connect().await;
        for at in 0..TOKENS {
            client.ask(&format!("/{at}")).await;
        }
        client
            .stream
            .write_all(&Client::request("/more"))
            .await
            .expect("writes");
        let mut answer = bytes::BytesMut::new();
        client.stream.read(&mut answer).await.expect("reads");
        assert!(answer.starts_with(b"HTTP/1.1 429 "), "{answer:?}");
        assert_eq!(site.sum(MOVED), 0.0);
    });
}

/// Requests come in pieces, several at once, and at whatever moment.
#[test]
fn requests_that_come_meanwhile_are_answered_in_order() {
    with_each(|transport| async move {
        let site = Site::start(2, transport).await;
        site.force(2);
        let mut client = site.connect().await;
        ask_until_moved(&site, &mut client, 2.0).await;
        let mut sizes = fastrand::Rng::with_seed(7);
        for round in 0..40 {
            let paths: Vec<_> = (0..10).map(|at| format!("/{round}/{at}")).collect();
            let all: Vec<u8> = paths.iter().flat_map(|path| Client::request(path)).collect();
            let mut rest = all.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(sizes.usize(1..=120).min(rest.len()));
                client.stream.write_all(piece).await.expect("writes");
                tokio::task::yield_now().await;
                rest = after;
            }
            for path in &paths {
                assert_eq!(client.answer().await.as_deref(), Some(path.as_str()));
            }
        }
        assert!(site.sum(MOVED) >= 40.0, "{transport:?}: {} moves", site.sum(MOVED));
    });
}

#[test]
fn clients_that_leave_while_they_move_leave_nothing_behind() {
    with_each(|transport| async move {
        let site = Site::start(2, transport).await;
        site.force(2);
        ask_until_moved(&site, &mut site.connect().await, 2.0).await;
        for round in 0..50 {
            let mut client = site.connect().await;
            client.ask("/last").await;
            for _ in 0..round % 8 {
                tokio::task::yield_now().await;
            }
        }
        site.until(DESTROYED, 51.0).await;
        assert_eq!((site.sum(ACTIVE), site.sum(HTTP_ACTIVE), open(&site)), (0.0, 0.0, 0));
        assert_eq!(shares(&site).counts(), [0, 0]);
    });
}

/// All of them at once, each answer checked.
async fn ask_all(clients: &mut Vec<Client>, rounds: usize) {
    for round in 0..rounds {
        for (at, client) in clients.iter_mut().enumerate() {
            client.ask(&format!("/{round}/{at}")).await;
        }
        clients.retain(|client| !client.ends);
    }
}

#[test]
fn a_worker_that_drains_is_sent_none_and_ends() {
    local(async {
        let mut site = Site::start(2, Transport::Tls13).await;
        site.force(2);
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(site.connect().await);
        }
        ask_until_moved(&site, &mut clients[0], 2.0).await;
        ask_all(&mut clients, 3).await;
        site.workers[0].phase.send_replace(Phase::closed(Scope::All));
        // Those that are there hear of it with their next answer, those of the other worker stay.
        ask_all(&mut clients, 20).await;
        assert!(clients.len() < 8);
        let report = site.workers[0].report().await;
        assert!(matches!(report, WorkerReport::Drained { .. }), "{report:?}");
        assert_eq!(shares(&site).counts(), [0, clients.len() as u64]);
        let before = site.sum(REFUSED);
        let mut last = site.connect().await;
        last.ask("/last").await;
        site.until(REFUSED, before + 1.0).await;
        clients.push(last);
        assert_eq!(site.workers[1].total(ACTIVE), clients.len() as f64);
    });
}

#[test]
fn a_connection_limit_holds_while_they_move() {
    local(async {
        let site = Site::start_with(2, Transport::Plain, |_| {}, |l| l.max_connections = Some(4)).await;
        site.force(2);
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(site.connect().await);
        }
        ask_until_moved(&site, &mut clients[0], 2.0).await;
        for round in 0..20 {
            for client in &mut clients {
                client.ask("/inside").await;
            }
            let mut above = TcpStream::connect(site.address).await.expect("connects");
            assert!(is_closed(&mut above).await, "one more in round {round}");
        }
        clients.pop();
        site.until(ACTIVE, 3.0).await;
        site.connect().await.ask("/again").await;
    });
}

/// The second worker has another version of the listener: what it has of the old one ends, and it gets no more of it.
#[test]
fn none_goes_to_a_worker_with_another_version() {
    local(async {
        let mut site = Site::start(2, Transport::Tls12).await;
        site.force(2);
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(site.connect().await);
        }
        ask_until_moved(&site, &mut clients[0], 2.0).await;
        ask_all(&mut clients, 3).await;
        let next = Arc::new(http(site.address, Transport::Tls12, manager(|_| {})));
        site.apply(1, &next).await;
        let moved = site.workers[0].total(MOVED);
        ask_all(&mut clients, 10).await;
        assert_eq!(site.workers[0].total(MOVED), moved, "none went to the new version");
        assert!(site.workers[0].total(REFUSED) > 0.0);
        // Both have it again.
        site.apply(0, &next).await;
        ask_all(&mut clients, 1).await;
        let mut after = site.connect().await;
        let moved = site.sum(MOVED);
        ask_until_moved(&site, &mut after, moved + 2.0).await;
    });
}

#[test]
fn a_chain_that_stays_goes_on_moving() {
    local(async {
        let kept = |listener: &mut Listener| {
            listener.frame = Some([1; 32]);
            listener.filter_chains[0].identity = Some([2; 32]);
        };
        let mut site = Site::start_with(2, Transport::Plain, |_| {}, kept).await;
        site.force(2);
        let mut client = site.connect().await;
        ask_until_moved(&site, &mut client, 2.0).await;
        let mut next = http(site.address, Transport::Plain, manager(|_| {}));
        kept(&mut next);
        let mut other = chain(Vec::new());
        other.matches.destination_port = Some(1);
        // In another place.
        next.filter_chains.insert(0, other);
        let next = Arc::new(next);
        site.apply(1, &next).await;
        let moved = site.sum(MOVED);
        ask_until_moved(&site, &mut client, moved + 4.0).await;
        site.apply(0, &next).await;
        ask_until_moved(&site, &mut client, moved + 8.0).await;
        assert!(!client.ends);
        assert_eq!(site.sum(TOTAL), 1.0);
    });
}

/// A site whose second worker takes part but does not run, with a client's connection in its queue.
async fn waiting_for_the_second() -> (Site, Inbox, Client) {
    let (mut site, mut inboxes) = Site::prepare(2, Transport::Tls13, |_| {}, |_| {}).await;
    let second = inboxes.pop().expect("two");
    site.launch(0, inboxes.remove(0)).await;
    let config = Arc::clone(&site.process.snapshot.listeners["l"]);
    let mut client = site.connect().await;
    client.ask("/first").await;
    let taking = shares(&site).take_part(1, &config);
    site.process.shared.exchange.force(0, Some(1));
    ask_until_moved(&site, &mut client, 1.0).await;
    drop(taking);
    (site, second, client)
}

#[test]
fn a_request_that_comes_on_the_way_is_answered_on_the_other_worker() {
    local(async {
        let (mut site, second, mut client) = waiting_for_the_second().await;
        client
            .stream
            .write_all(&Client::request("/early"))
            .await
            .expect("writes");
        assert_eq!(shares(&site).counts(), [0, 1]);
        assert_eq!((open(&site), site.sum(ACTIVE)), (1, 0.0));
        site.launch(1, second).await;
        assert_eq!(client.answer().await.as_deref(), Some("/early"));
        assert_eq!(site.workers[1].total("envoy_http_downstream_rq_total"), 1.0);
        assert_eq!((site.workers[1].total(ACTIVE), site.sum(TOTAL)), (1.0, 1.0));
    });
}

/// Where its version has drained meanwhile it ends, as it would have where it was.
#[test]
fn one_that_comes_after_its_version_has_gone_is_closed_and_counted() {
    local(async {
        let (mut site, second, mut client) = waiting_for_the_second().await;
        let other = Arc::new(http(site.address, Transport::Tls13, manager(|_| {})));
        site.process.snapshot = Arc::new(site.snapshot(&other));
        site.launch(1, second).await;
        assert_eq!(client.answer().await, None);
        site.until("heddle_listener_hand_over_failure", 1.0).await;
        assert_eq!((open(&site), site.sum(DESTROYED), site.sum(ACTIVE)), (0, 1.0, 0.0));
        assert_eq!(shares(&site).counts(), [0, 0]);
    });
}

/// Has all places in the queue of the second worker taken, but for that of who waits there already, as long as the value lives.
fn fill_the_second_queue(site: &Site) -> impl Sized + '_ {
    let shares = shares(site);
    let config = Arc::clone(&site.process.snapshot.listeners["l"]);
    let taking = shares.take_part(1, &config);
    let exchange = &site.process.shared.exchange;
    let here: Vec<_> = (0..HAND_OVER_QUEUE + 2).map(|_| shares.seat(0)).collect();
    let taken: Vec<_> = (0..HAND_OVER_QUEUE - 1)
        .map(
            |_| match exchange.place(ConnectionBalance::Exact, &shares, 0, site.address) {
                Placement::There(seat, on_the_way, permit) => (seat, on_the_way, permit),
                _ => panic!("the second worker has fewer"),
            },
        )
        .collect();
    (taking, here, taken)
}

#[test]
fn a_full_queue_keeps_them_where_they_are() {
    local(async {
        let (site, _second, _first) = waiting_for_the_second().await;
        let _full = fill_the_second_queue(&site);
        let mut client = site.connect().await;
        for at in 0..5 {
            client.ask(&format!("/{at}")).await;
        }
        let full = |worker: &Proxy| worker.metric(&format!("{REFUSED}{{")).is_some() && worker.total(REFUSED) >= 4.0;
        assert!(full(&site.workers[0]), "{}", site.workers[0].total(REFUSED));
        assert_eq!(site.sum(MOVED), 1.0);
    });
}

#[test]
fn the_end_of_a_connection_does_not_move() {
    local(async {
        let most = Duration::from_millis(300);
        let site = Site::start_with(2, Transport::Plain, |m| m.max_connection_duration = Some(most), |_| {}).await;
        site.force(2);
        let begun = std::time::Instant::now();
        let mut client = site.connect().await;
        while !client.ends {
            client
                .stream
                .write_all(&Client::request("/again"))
                .await
                .expect("writes");
            // It may also end between two requests.
            if client.answer().await.is_none() {
                break;
            }
        }
        assert!(begun.elapsed() >= most && site.sum(MOVED) > 1.0);
    });
}

#[test]
fn one_that_has_moved_may_be_idle_for_as_long_as_others() {
    local(async {
        let idle = Duration::from_millis(100);
        let site = Site::start_with(2, Transport::Tls13, |m| m.idle_timeout = idle, |_| {}).await;
        site.force(2);
        let mut client = site.connect().await;
        ask_until_moved(&site, &mut client, 3.0).await;
        assert_eq!(client.answer().await, None);
        drop(client);
        site.until(DESTROYED, 1.0).await;
        assert_eq!(site.sum("envoy_http_downstream_cx_idle_timeout"), 1.0);
        assert_eq!((site.sum(TOTAL), open(&site)), (1.0, 0));
    });
}

/// Workers on threads of their own, and every connection moving after every answer.
#[test]
fn no_answer_is_lost_or_anothers_where_all_move_all_the_time() {
    const WORKERS: usize = 3;
    with_each(|transport| async move {
        let (mut site, inboxes) = Site::prepare(WORKERS, transport, |_| {}, |_| {}).await;
        let mut threads = Vec::new();
        for (index, inbox) in inboxes.into_iter().enumerate() {
            let (params, ends) = site.process.params(index, inbox);
            let thread = std::thread::spawn(move || Worker::run(params));
            threads.push((thread, ends));
        }
        for (_, ends) in &mut threads {
            let report = ends.reports.recv().await.expect("the worker lives");
            assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
        }
        site.force(WORKERS);
        let clients = (0..24).map(|number| {
            let address = site.address;
            spawn_local(async move {
                let mut client = connect(address, transport).await;
                for round in 0..150 {
                    client.ask(&format!("/{number}/{round}")).await;
                }
                client
            })
        });
        let mut kept = Vec::new();
        for client in clients.collect::<Vec<_>>() {
            kept.push(client.await.expect("every answer was its own"));
        }
        let sum = |name: &str| threads.iter().map(|(_, ends)| total(&ends.metrics, name)).sum::<f64>();
        assert!(sum(MOVED) >= 1000.0, "{transport:?}: {} moves", sum(MOVED));
        assert_eq!((sum(TOTAL), sum(HTTP_TOTAL)), (24.0, 24.0));
        assert_eq!(sum("envoy_http_downstream_rq_total"), 24.0 * 150.0);
        assert_eq!(sum("heddle_listener_hand_over_failure"), 0.0);
        drop(kept);
        while open(&site) > 0 {
            tokio::task::yield_now().await;
        }
        for (thread, ends) in threads {
            ends.phase.send_replace(Phase::STOPPING);
            thread.join().expect("no panic").expect("the worker ran");
        }
        assert_eq!(shares(&site).counts(), [0; WORKERS]);
    });
}
