//! Connections that go to another worker than the one that accepted them.

use super::*;
use crate::exchange::{Exchange, HAND_OVER_QUEUE, Occupancy, OnTheWay, Placement, Seat};
use crate::state::{Accepted, Admission, Arrival};

const ACTIVE: &str = "envoy_listener_worker_downstream_cx_active";
const HANDED_OVER: &str = "heddle_listener_cx_handed_over";
const OVERFLOW: &str = "heddle_listener_cx_hand_over_overflow";

/// Two workers with one listener, in force in both.
struct Two {
    process: Process,
    workers: Vec<Proxy>,
    address: SocketAddr,
    echo: SocketAddr,
}

impl Two {
    async fn start(change: impl FnOnce(&mut Listener)) -> Self {
        Self::start_with(change, WorkerSettings::default()).await
    }

    async fn start_with(change: impl FnOnce(&mut Listener), settings: WorkerSettings) -> Self {
        let (address, echo) = (free_address(), echo().await);
        let mut listener = proxying("l", address);
        listener.balance = ConnectionBalance::Exact;
        change(&mut listener);
        let config = snapshot(1, vec![Arc::new(listener)], &[("echo", &[echo])]);
        let (mut process, inboxes) = Process::new(2, config, settings);
        let mut workers = Vec::new();
        for (index, inbox) in inboxes.into_iter().enumerate() {
            let mut worker = process.start(index, inbox);
            let report = worker.report().await;
            assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
            workers.push(worker);
        }
        Self {
            process,
            workers,
            address,
            echo,
        }
    }

    fn sum(&self, name: &str) -> f64 {
        self.workers.iter().filter_map(|worker| worker.metric(name)).sum()
    }

    /// Puts these listeners into force on the second worker alone.
    async fn change_second(&mut self, listeners: Vec<Listener>) {
        self.change(1, listeners).await;
    }

    async fn change(&mut self, worker: usize, listeners: Vec<Listener>) {
        let listeners = listeners.into_iter().map(Arc::new).collect();
        let config = snapshot(2, listeners, &[("echo", &[self.echo])]);
        let report = self.workers[worker].apply(config).await;
        assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
    }
}

/// Connections of the listener that all of these tests have.
fn occupancy(process: &Process) -> Arc<Occupancy> {
    let open = process.shared.connections_of(&Arc::from("l"));
    Arc::clone(open.occupancy.get().expect("the listener places its connections"))
}

/// A connection accepted by the first worker, placed on the second, and not yet sent to it.
struct OnItsWay<'a> {
    client: TcpStream,
    door: SocketAddr,
    tcp: std::net::TcpStream,
    seat: Seat,
    on_the_way: OnTheWay,
    place: mpsc::Permit<'a, Arrival>,
}

impl<'a> OnItsWay<'a> {
    async fn new(exchange: &'a Exchange, shares: &Arc<Occupancy>, door: SocketAddr) -> Self {
        let _seats: Vec<_> = (0..2).map(|_| shares.seat(0)).collect();
        let Placement::There(seat, on_the_way, place) = exchange.place(ConnectionBalance::Exact, shares, 0, door)
        else {
            panic!("the second worker has fewer");
        };
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = socket.local_addr().expect("address");
        let client = TcpStream::connect(address).await.expect("connects");
        let (tcp, _) = socket.accept().await.expect("accepts");
        Self {
            client,
            door,
            tcp: tcp.into_std().expect("leaves the event loop"),
            seat,
            on_the_way,
            place,
        }
    }

    /// It comes to the second worker.
    fn send(self) -> TcpStream {
        self.place.send(Arrival::Accepted(Accepted {
            listener: Arc::from("l"),
            door: self.door,
            local: self.tcp.local_addr().expect("address"),
            peer: self.tcp.peer_addr().expect("address"),
            tcp: self.tcp,
            admission: Admission::seated(self.seat),
            on_the_way: self.on_the_way,
        }));
        self.client
    }
}

async fn connect(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "one").await, "ONE");
        clients.push(tcp);
    }
    clients
}

#[test]
fn exact_balance_gives_workers_equal_numbers() {
    local(async {
        let two = Two::start(|_| {}).await;
        let clients = connect(two.address, 20).await;
        for worker in &two.workers {
            worker.until(ACTIVE, 10.0).await;
        }
        drop(clients);
        for worker in &two.workers {
            worker.until(ACTIVE, 0.0).await;
        }
        let _clients = connect(two.address, 10).await;
        for worker in &two.workers {
            worker.until(ACTIVE, 5.0).await;
            worker.until("envoy_listener_worker_downstream_cx_total", 15.0).await;
        }
        assert_eq!(two.sum(OVERFLOW), 0.0);
        assert_eq!(two.sum("heddle_listener_hand_over_failure"), 0.0);
    });
}

#[test]
fn load_aware_balance_keeps_numbers_near_while_loads_are_equal() {
    local(async {
        let two = Two::start(|l| l.balance = ConnectionBalance::LoadAware).await;
        let _clients = connect(two.address, 100).await;
        let active: Vec<_> = two.workers.iter().filter_map(|w| w.metric(ACTIVE)).collect();
        assert_eq!(active.iter().sum::<f64>(), 100.0, "{active:?}");
        // Both measure the one thread of this test; a margin of a fifth is left to where the kernel puts them.
        assert!(active.iter().all(|n| (35.0..=65.0).contains(n)), "{active:?}");
        for worker in &two.workers {
            assert!(worker.metric("heddle_worker_busy_permille").is_some());
            assert!(worker.metric("heddle_worker_wait_us").is_some());
        }
        assert!(two.workers[0].metric("heddle_worker_skew_permille").is_some());
    });
}

#[test]
fn without_a_balance_nothing_is_counted_between_workers() {
    local(async {
        let two = Two::start(|l| l.balance = ConnectionBalance::Kernel).await;
        let _clients = connect(two.address, 10).await;
        assert_eq!(two.sum(ACTIVE), 10.0);
        assert!(two.workers.iter().all(|w| w.metric(HANDED_OVER).is_none()));
        let open = two.process.shared.connections_of(&Arc::from("l"));
        assert!(open.occupancy.get().is_none());
    });
}

#[test]
fn a_limit_holds_for_what_is_handed_over() {
    local(async {
        let two = Two::start(|l| l.max_connections = Some(3)).await;
        let mut clients = connect(two.address, 3).await;
        let mut above = TcpStream::connect(two.address).await.expect("connects");
        assert!(is_closed(&mut above).await);
        assert_eq!(two.sum("envoy_listener_downstream_cx_overflow"), 1.0);
        // Nor does the one refused count any longer.
        drop(clients.pop());
        while two.sum(ACTIVE) > 2.0 {
            tokio::task::yield_now().await;
        }
        connect(two.address, 1).await;
    });
}

/// A worker may have stopped accepting while another one still does: it is handed nothing any more, what it has goes on,
/// and both end when their connections have.
#[test]
fn a_worker_that_drains_is_handed_nothing() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let mut clients = connect(two.address, 4).await;
        two.workers[0].phase.send_replace(Phase::closed(Scope::All));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        clients.extend(connect(two.address, 6).await);
        two.workers[0].until(ACTIVE, 2.0).await;
        two.workers[1].until(ACTIVE, 8.0).await;
        for tcp in &mut clients {
            assert_eq!(ask(tcp, "two").await, "TWO");
        }
        two.workers[1].phase.send_replace(Phase::closed(Scope::All));
        drop(clients);
        for worker in &mut two.workers {
            let report = worker.report().await;
            assert!(matches!(report, WorkerReport::Drained { .. }), "{report:?}");
        }
    });
}

/// The same where a configuration without the listener comes to one worker first.
#[test]
fn a_worker_without_the_listener_is_handed_nothing() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let _before = connect(two.address, 2).await;
        let report = two.workers[0].apply(snapshot(2, vec![], &[])).await;
        assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
        let _after = connect(two.address, 6).await;
        two.workers[1].until(ACTIVE, 7.0).await;
    });
}

/// A worker that is stuck is handed as many as its queue holds; the others stay, and all are served.
#[test]
fn a_full_queue_loses_no_connection() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut listener = proxying("l", address);
        listener.balance = ConnectionBalance::Exact;
        let config = snapshot(1, vec![Arc::new(listener)], &[("echo", &[echo])]);
        let (mut process, mut inboxes) = Process::new(2, config, WorkerSettings::default());
        let inbox = inboxes.pop().expect("two");
        let mut first = process.start(0, inboxes.remove(0));
        first.report().await;
        // The second takes part, but not its turn. All but four of its places are taken.
        let shares = occupancy(&process);
        let taking = shares.take_part(1, &Arc::new(proxying("l", address)));
        let exchange = process.shared.exchange.clone();
        let place = || exchange.place(ConnectionBalance::Exact, &shares, 0, address);
        let busy = place();
        assert!(matches!(busy, Placement::Here(_)));
        let taken = || match place() {
            Placement::There(_seat, on_the_way, permit) => (on_the_way, permit),
            _ => panic!("the second worker has fewer"),
        };
        let taken: Vec<_> = (0..HAND_OVER_QUEUE - 4).map(|_| taken()).collect();
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(TcpStream::connect(address).await.expect("connects"));
        }
        // Every other one is handed over, until there is no place.
        first.until(OVERFLOW, 12.0).await;
        first.until(HANDED_OVER, 4.0).await;
        first.until(ACTIVE, 16.0).await;
        let mut second = process.start(1, inbox);
        second.report().await;
        for tcp in &mut clients {
            assert_eq!(ask(tcp, "one").await, "ONE");
        }
        second.until(ACTIVE, 4.0).await;
        // Places are given back.
        drop((taken, taking));
        clients.extend(connect(address, 8).await);
        second.until(ACTIVE, 12.0).await;
        assert_eq!(first.metric(OVERFLOW), Some(12.0));
    });
}

#[test]
fn a_connection_on_its_way_meets_the_new_version_of_its_listener() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let (exchange, shares) = (two.process.shared.exchange.clone(), occupancy(&two.process));
        let way = OnItsWay::new(&exchange, &shares, two.address).await;
        let mut changed = proxying("l", two.address);
        changed.balance = ConnectionBalance::LoadAware;
        two.change_second(vec![changed]).await;
        let mut first = way.send();
        assert_eq!(ask(&mut first, "one").await, "ONE");
        // The same where the new version places none itself: the old one, which drains, takes what was on its way.
        let way = OnItsWay::new(&exchange, &shares, two.address).await;
        two.change_second(vec![proxying("l", two.address)]).await;
        let mut second = way.send();
        assert_eq!(ask(&mut second, "two").await, "TWO");
        two.workers[1].until(ACTIVE, 2.0).await;
    });
}

/// A listener of the same name elsewhere: its chains, here none, are not meant for what the old address accepts.
fn moved(to: SocketAddr) -> Listener {
    let mut moved = listener("l", to, Vec::new());
    moved.balance = ConnectionBalance::Exact;
    moved
}

#[test]
fn an_address_is_served_under_a_configuration_that_has_it() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let new = free_address();
        let (exchange, shares) = (two.process.shared.exchange.clone(), occupancy(&two.process));
        let way = OnItsWay::new(&exchange, &shares, two.address).await;
        two.change(1, vec![moved(new)]).await;
        // What the second had been given before goes to its old configuration, which drains.
        let mut on_its_way = way.send();
        assert_eq!(ask(&mut on_its_way, "one").await, "ONE");
        // The first still has the old one, and is alone with it.
        let _old = connect(two.address, 6).await;
        for _ in 0..6 {
            let mut tcp = TcpStream::connect(new).await.expect("connects");
            assert!(
                is_closed(&mut tcp).await,
                "the first serves what the second accepted at the new address"
            );
        }
    });
}

#[test]
fn what_waits_in_a_socket_that_closes_is_served_under_its_configuration() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let new = free_address();
        two.change(1, vec![moved(new)]).await;
        // Nobody accepts in between.
        let waiting: Vec<_> = (0..6)
            .map(|_| std::net::TcpStream::connect(two.address).expect("connects"))
            .collect();
        two.change(0, vec![moved(new)]).await;
        for tcp in waiting {
            tcp.set_nonblocking(true).expect("nonblocking");
            let mut tcp = TcpStream::from_std(tcp).expect("an event loop");
            assert_eq!(ask(&mut tcp, "one").await, "ONE");
        }
    });
}

#[test]
fn a_connection_on_its_way_to_a_listener_that_goes_is_served_while_that_drains() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let (exchange, shares) = (two.process.shared.exchange.clone(), occupancy(&two.process));
        let way = OnItsWay::new(&exchange, &shares, two.address).await;
        two.change_second(vec![]).await;
        let mut client = way.send();
        assert_eq!(ask(&mut client, "one").await, "ONE");
        two.workers[1].until(ACTIVE, 1.0).await;
        drop(client);
        two.workers[1].until(ACTIVE, 0.0).await;
        assert_eq!(shares.counts(), [0, 0]);
    });
}

/// Where no time is left to drain, it is closed and counted, and its place is free again.
#[test]
fn a_connection_that_comes_after_its_listener_has_drained_is_closed() {
    local(async {
        let settings = WorkerSettings {
            drain_timeout: Duration::ZERO,
            ..WorkerSettings::default()
        };
        let mut two = Two::start_with(|_| {}, settings).await;
        let (exchange, shares) = (two.process.shared.exchange.clone(), occupancy(&two.process));
        let way = OnItsWay::new(&exchange, &shares, two.address).await;
        two.change_second(vec![]).await;
        while two.workers[1].metric(HANDED_OVER).is_some() {
            tokio::task::yield_now().await;
        }
        let mut client = way.send();
        assert!(is_closed(&mut client).await);
        let failures = "heddle_listener_hand_over_failure{kind=\"drained\"}";
        two.workers[1].until(failures, 1.0).await;
        assert_eq!(shares.counts(), [0, 0]);
    });
}

/// Nothing is open on the worker, but something is still to come.
#[test]
fn a_worker_has_not_drained_before_all_have_come() {
    local(async {
        let mut two = Two::start(|_| {}).await;
        let (exchange, shares) = (two.process.shared.exchange.clone(), occupancy(&two.process));
        let way = OnItsWay::new(&exchange, &shares, two.address).await;
        two.workers[1].phase.send_replace(Phase::closed(Scope::All));
        // The socket of the first is left, and that one alone takes connections.
        while shares.takes(1) {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(two.workers[1].reports.try_recv().is_err());
        let mut client = way.send();
        assert_eq!(ask(&mut client, "one").await, "ONE");
        assert!(two.workers[1].reports.try_recv().is_err());
        drop(client);
        assert_eq!(two.workers[1].report().await, WorkerReport::Drained { worker: 1 });
    });
}
