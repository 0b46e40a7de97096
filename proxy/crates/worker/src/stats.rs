//! Metrics of listeners and TCP proxies, under Envoy's names.

use std::cell::RefCell;
use std::collections::HashMap;

use heddle_net::TransportProtocol;
use heddle_telemetry::{Counter, Gauge, Stats};
use heddle_tls::{HandshakeError, HandshakeErrorKind};

/// Metrics of one listener, label `listener_address` as Envoy writes it (`0.0.0.0_15006`), or the listener's name when
/// it is not bound.
#[derive(Clone, Debug)]
pub(crate) struct ListenerStats {
    /// Connections accepted or handed over.
    pub(crate) cx_total: Counter,
    /// Connections open.
    pub(crate) cx_active: Gauge,
    /// Connections closed.
    pub(crate) cx_destroy: Counter,
    /// Refused because `connection_limit` is reached.
    pub(crate) cx_overflow: Counter,
    /// Refused because the worker's own limit is reached.
    pub(crate) global_cx_overflow: Counter,
    /// Closed by the overload action `reject_incoming_connections`.
    pub(crate) overload_reject: Counter,
    /// Refused because too many handshakes are under way.
    pub(crate) handshake_overflow: Counter,
    /// Closed because the listener filters took too long.
    pub(crate) pre_cx_timeout: Counter,
    /// Closed because the TLS handshake took too long.
    pub(crate) handshake_timeout: Counter,
    /// No filter chain for it.
    pub(crate) no_filter_chain_match: Counter,
    /// Dialled directly though it must be redirected here: serving it would connect to ourselves.
    pub(crate) original_dst_loop: Counter,
    /// Closed by the peer, or failed, while listener filters were waiting for bytes.
    pub(crate) inspect_closed: Counter,
    /// `tls_inspector.client_hello_too_large`.
    pub(crate) client_hello_too_large: Counter,
    /// `tls_inspector.tls_found`.
    pub(crate) tls_found: Counter,
    /// `tls_inspector.tls_not_found`.
    pub(crate) tls_not_found: Counter,
    /// The chain's TLS context is not in the snapshot.
    pub(crate) tls_context_missing: Counter,
    /// Connection tasks that panicked: a bug in this proxy.
    pub(crate) panics: Counter,
    /// Access log lines dropped because the writer is behind.
    pub(crate) log_dropped: Counter,
    ssl_handshake: Counter,
    ssl_session_reused: Counter,
    ssl_connection_error: Counter,
    ssl_fail_verify_no_cert: Counter,
    ssl_fail_verify_error: Counter,
    ssl_fail_verify_san: Counter,
}

/// Label of listener metrics.
const LISTENER_LABEL: &str = "listener_address";

impl ListenerStats {
    pub(crate) fn new(stats: &Stats, address: &str) -> Self {
        let labels = [(LISTENER_LABEL, address)];
        let c = |name| stats.counter(name, &labels);
        Self {
            cx_total: c("envoy_listener_downstream_cx_total"),
            cx_active: stats.gauge("envoy_listener_downstream_cx_active", &labels),
            cx_destroy: c("envoy_listener_downstream_cx_destroy"),
            cx_overflow: c("envoy_listener_downstream_cx_overflow"),
            global_cx_overflow: c("envoy_listener_downstream_global_cx_overflow"),
            overload_reject: c("envoy_listener_downstream_cx_overload_reject"),
            handshake_overflow: c("envoy_listener_downstream_cx_pending_handshake_overflow"),
            pre_cx_timeout: c("envoy_listener_downstream_pre_cx_timeout"),
            handshake_timeout: c("envoy_listener_downstream_cx_transport_socket_connect_timeout"),
            no_filter_chain_match: c("envoy_listener_no_filter_chain_match"),
            original_dst_loop: c("envoy_listener_original_dst_loop"),
            inspect_closed: c("envoy_listener_downstream_listener_filter_remote_close"),
            client_hello_too_large: c("envoy_tls_inspector_client_hello_too_large"),
            tls_found: c("envoy_tls_inspector_tls_found"),
            tls_not_found: c("envoy_tls_inspector_tls_not_found"),
            tls_context_missing: c("envoy_listener_ssl_context_missing"),
            panics: c("envoy_listener_downstream_cx_panic"),
            log_dropped: c("envoy_listener_access_log_dropped"),
            ssl_handshake: c("envoy_listener_ssl_handshake"),
            ssl_session_reused: c("envoy_listener_ssl_session_reused"),
            ssl_connection_error: c("envoy_listener_ssl_connection_error"),
            ssl_fail_verify_no_cert: c("envoy_listener_ssl_fail_verify_no_cert"),
            ssl_fail_verify_error: c("envoy_listener_ssl_fail_verify_error"),
            ssl_fail_verify_san: c("envoy_listener_ssl_fail_verify_san"),
        }
    }

    /// Counts what the inspector found.
    pub(crate) fn inspected(&self, transport: TransportProtocol) {
        match transport {
            TransportProtocol::Tls => self.tls_found.inc(),
            TransportProtocol::RawBuffer => self.tls_not_found.inc(),
        }
    }

    /// Counts a handshake that succeeded.
    pub(crate) fn handshake(&self, is_resumed: bool) {
        self.ssl_handshake.inc();
        if is_resumed {
            self.ssl_session_reused.inc();
        }
    }

    /// Counts one that failed. As Envoy: `connection_error` counts every failure but the verification's.
    pub(crate) fn handshake_failed(&self, error: &HandshakeError) {
        match &error.kind {
            HandshakeErrorKind::Verify(failure) => match failure.counter() {
                "fail_verify_no_cert" => self.ssl_fail_verify_no_cert.inc(),
                "fail_verify_san" => self.ssl_fail_verify_san.inc(),
                _ => self.ssl_fail_verify_error.inc(),
            },
            _ => self.ssl_connection_error.inc(),
        }
    }
}

/// Metrics of a bound listener on one worker, Envoy's `listener.<address>.worker_<id>.`.
#[derive(Clone, Debug)]
pub(crate) struct ListenerWorkerStats {
    /// Connections that this worker serves or has served.
    pub(crate) cx_total: Counter,
    /// Connections open.
    pub(crate) cx_active: Gauge,
}

impl ListenerWorkerStats {
    pub(crate) fn new(stats: &Stats, worker: usize, address: &str) -> Self {
        let worker = worker.to_string();
        let labels = [(LISTENER_LABEL, address), ("worker_id", worker.as_str())];
        Self {
            cx_total: stats.counter("envoy_listener_worker_downstream_cx_total", &labels),
            cx_active: stats.gauge("envoy_listener_worker_downstream_cx_active", &labels),
        }
    }
}

/// Metrics of a listener with a `connection_balance_config`, beside those that all have.
#[derive(Debug)]
pub(crate) struct HandOverStats {
    /// Accepted here and handed to another worker.
    pub(crate) handed_over: Counter,
    /// Not handed over, because too many were on their way to the worker that should have had it.
    pub(crate) overflow: Counter,
    /// Stayed between two requests although they were to move, because too many were on their way there.
    pub(crate) move_overflow: Counter,
    /// Likewise, because the other worker has another configuration, or is draining.
    pub(crate) move_configuration: Counter,
    stats: Stats,
    address: String,
    from: String,
    /// Open connections that went to another worker, by its number; there from the first one on.
    moved: RefCell<HashMap<usize, Counter>>,
}

impl HandOverStats {
    pub(crate) fn new(stats: &Stats, worker: usize, address: &str) -> Self {
        let labels = [(LISTENER_LABEL, address)];
        let c = |name| stats.counter(name, &labels);
        let refused = |reason| {
            stats.counter(
                "heddle_listener_cx_move_refused",
                &[(LISTENER_LABEL, address), ("reason", reason)],
            )
        };
        Self {
            move_overflow: refused("overflow"),
            move_configuration: refused("configuration"),
            stats: stats.clone(),
            address: address.to_owned(),
            from: worker.to_string(),
            moved: RefCell::default(),
            handed_over: c("heddle_listener_cx_handed_over"),
            overflow: c("heddle_listener_cx_hand_over_overflow"),
        }
    }

    /// An open connection has gone to this worker.
    pub(crate) fn moved_to(&self, worker: usize) {
        let mut moved = self.moved.borrow_mut();
        let counter = moved.entry(worker).or_insert_with(|| {
            let to = worker.to_string();
            let labels = [
                (LISTENER_LABEL, self.address.as_str()),
                ("from_worker_id", &self.from),
                ("to_worker_id", &to),
            ];
            self.stats.counter("heddle_listener_cx_moved", &labels)
        });
        counter.inc();
    }
}

/// Connections closed between two workers, over all listeners: one that has drained has no metrics any more.
#[derive(Clone, Debug)]
pub(crate) struct HandOverFailures {
    /// The kernel would not have them move from one event loop to another.
    pub(crate) registration: Counter,
    /// Their listener's drain time was over before they arrived.
    pub(crate) drained: Counter,
}

impl HandOverFailures {
    pub(crate) fn new(stats: &Stats) -> Self {
        let kind = |kind| stats.counter("heddle_listener_hand_over_failure", &[("kind", kind)]);
        Self {
            registration: kind("registration"),
            drained: kind("drained"),
        }
    }
}

/// Metrics of one TCP proxy, label `tcp_prefix`.
#[derive(Clone, Debug)]
pub(crate) struct TcpStats {
    /// Connections that reached the proxy.
    pub(crate) cx_total: Counter,
    /// Connections being proxied.
    pub(crate) cx_active: Gauge,
    /// The cluster does not exist.
    pub(crate) cx_no_route: Counter,
    /// Bytes from downstream.
    pub(crate) rx_bytes: Counter,
    /// Bytes to downstream.
    pub(crate) tx_bytes: Counter,
    /// Closed by `idle_timeout`.
    pub(crate) idle_timeout: Counter,
}

impl TcpStats {
    pub(crate) fn new(stats: &Stats, prefix: &str) -> Self {
        let labels = [("tcp_prefix", prefix)];
        let c = |name| stats.counter(name, &labels);
        Self {
            cx_total: c("envoy_tcp_downstream_cx_total"),
            cx_active: stats.gauge("envoy_tcp_downstream_cx_active", &labels),
            cx_no_route: c("envoy_tcp_downstream_cx_no_route"),
            rx_bytes: c("envoy_tcp_downstream_cx_rx_bytes_total"),
            tx_bytes: c("envoy_tcp_downstream_cx_tx_bytes_total"),
            idle_timeout: c("envoy_tcp_idle_timeout"),
        }
    }
}

/// Adds one to a gauge for as long as it lives.
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.add(1);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
