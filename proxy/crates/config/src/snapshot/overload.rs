//! `overload_manager` of the bootstrap: what is measured, and what is done about it.

use std::time::Duration;

/// The overload manager. It stays as it was at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct OverloadManager {
    /// `refresh_interval`: time between two looks at the resources; default 1 s.
    pub refresh_interval: Duration,
    /// `resource_monitors`, each kind once.
    pub monitors: Vec<ResourceMonitor>,
    /// `actions`, each kind once.
    pub actions: Vec<OverloadAction>,
    /// `loadshed_points`, each once.
    pub shed_points: Vec<ShedPoint>,
    /// What the actions need to know besides their triggers.
    pub limits: OverloadLimits,
}

/// A resource whose pressure, the part of it that is used, is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceMonitor {
    /// The name by which triggers refer to it.
    pub name: String,
    /// What it measures.
    pub resource: Resource,
}

/// What a monitor measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `envoy.resource_monitors.fixed_heap`: the heap, against `max_heap_size_bytes`.
    FixedHeap {
        /// `max_heap_size_bytes`.
        max_bytes: u64,
    },
    /// `envoy.resource_monitors.cgroup_memory`: the memory of the process's control group, against its limit.
    CgroupMemory {
        /// `max_memory_bytes`: a lower limit than the group's own.
        max_bytes: Option<u64>,
    },
    /// `envoy.resource_monitors.global_downstream_max_connections`: client connections of all listeners but those with
    /// `ignore_global_conn_limit`. Above the bound they are closed, whatever actions there are.
    DownstreamConnections {
        /// `max_active_downstream_connections`.
        max: u64,
    },
}

impl Resource {
    /// The name that Envoy's documentation gives to a monitor of it, and that its metrics have.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedHeap { .. } => "envoy.resource_monitors.fixed_heap",
            Self::CgroupMemory { .. } => "envoy.resource_monitors.cgroup_memory",
            Self::DownstreamConnections { .. } => "envoy.resource_monitors.global_downstream_max_connections",
        }
    }
}

/// What is done while a resource is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverloadActionKind {
    /// `envoy.overload_actions.stop_accepting_requests`: HTTP requests are answered with 503.
    StopAcceptingRequests,
    /// `envoy.overload_actions.disable_http_keepalive`: HTTP/1 connections end with the next answer.
    DisableHttpKeepalive,
    /// `envoy.overload_actions.stop_accepting_connections`: new connections wait in their sockets.
    StopAcceptingConnections,
    /// `envoy.overload_actions.reject_incoming_connections`: new connections are closed.
    RejectIncomingConnections,
    /// `envoy.overload_actions.reduce_timeouts`: timers run out sooner.
    ReduceTimeouts,
    /// `envoy.overload_actions.reset_high_memory_stream`: the HTTP/2 streams that hold most are reset.
    ResetHighMemoryStream,
}

impl OverloadActionKind {
    /// Every action.
    pub const ALL: [Self; 6] = [
        Self::StopAcceptingRequests,
        Self::DisableHttpKeepalive,
        Self::StopAcceptingConnections,
        Self::RejectIncomingConnections,
        Self::ReduceTimeouts,
        Self::ResetHighMemoryStream,
    ];

    /// Envoy's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::StopAcceptingRequests => "envoy.overload_actions.stop_accepting_requests",
            Self::DisableHttpKeepalive => "envoy.overload_actions.disable_http_keepalive",
            Self::StopAcceptingConnections => "envoy.overload_actions.stop_accepting_connections",
            Self::RejectIncomingConnections => "envoy.overload_actions.reject_incoming_connections",
            Self::ReduceTimeouts => "envoy.overload_actions.reduce_timeouts",
            Self::ResetHighMemoryStream => "envoy.overload_actions.reset_high_memory_stream",
        }
    }
}

/// An action with what starts it. The strongest of its triggers counts.
#[derive(Clone, Debug, PartialEq)]
pub struct OverloadAction {
    /// What is done.
    pub kind: OverloadActionKind,
    /// `triggers`, each of another monitor.
    pub triggers: Vec<Trigger>,
}

/// A point with what has load shed there. The strongest of its triggers counts.
#[derive(Clone, Debug, PartialEq)]
pub struct ShedPoint {
    /// Where.
    pub point: LoadShedPoint,
    /// `triggers`, each of another monitor.
    pub triggers: Vec<Trigger>,
}

/// Where load is shed: what comes there is refused, each by itself and by chance where a trigger is scaled.
///
/// Of Envoy's points these are refused in a configuration, and why:
/// - `http2_server_go_away_and_close_on_dispatch` ends whatever else runs on the connection. Behind a gateway or another
///   proxy those are requests of others; [`Self::Http2GoAway`] sheds as much and lets them finish.
/// - `http_downstream_filter_check` is met before the filters of a request are made. Here they are made with the
///   configuration, so it would stand where [`Self::DecodeHeaders`] stands.
/// - `connection_pool_new_connection` would make requests fail that have been let in and worked on already, and have
///   retries ask again. [`Self::DecodeHeaders`] refuses them before that; a cluster's circuit breakers bound connections.
/// - The points of HTTP/3 (`http3_server_go_away_on_dispatch`, and with `and_close`), which is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadShedPoint {
    /// `envoy.load_shed_points.tcp_listener_accept`: new connections are closed.
    TcpListenerAccept,
    /// `envoy.load_shed_points.hcm_ondata_creating_codec`: new connections are closed when their first bytes come.
    CreatingCodec,
    /// `envoy.load_shed_points.http_connection_manager_decode_headers`: requests are answered with 503.
    DecodeHeaders,
    /// `envoy.load_shed_points.http1_server_abort_dispatch`: HTTP/1 requests are answered with 500 and their connections
    /// closed.
    Http1AbortDispatch,
    /// `envoy.load_shed_points.http2_server_go_away_on_dispatch`: HTTP/2 clients are told to open another connection; what
    /// they have asked is answered.
    Http2GoAway,
}

impl LoadShedPoint {
    /// Every point.
    pub const ALL: [Self; 5] = [
        Self::TcpListenerAccept,
        Self::CreatingCodec,
        Self::DecodeHeaders,
        Self::Http1AbortDispatch,
        Self::Http2GoAway,
    ];

    /// Envoy's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TcpListenerAccept => "envoy.load_shed_points.tcp_listener_accept",
            Self::CreatingCodec => "envoy.load_shed_points.hcm_ondata_creating_codec",
            Self::DecodeHeaders => "envoy.load_shed_points.http_connection_manager_decode_headers",
            Self::Http1AbortDispatch => "envoy.load_shed_points.http1_server_abort_dispatch",
            Self::Http2GoAway => "envoy.load_shed_points.http2_server_go_away_on_dispatch",
        }
    }
}

/// What pressure means for an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trigger {
    /// Its place in [`OverloadManager::monitors`].
    pub monitor: usize,
    /// From which pressure on the action is on by and by; the same as `saturation` for a `threshold`.
    pub scaling: f64,
    /// From which pressure on it is on in full.
    pub saturation: f64,
}

impl Trigger {
    /// How far the action is on, from 0 to 1, at this pressure.
    pub fn state(self, pressure: f64) -> f64 {
        if pressure >= self.saturation {
            1.0
        } else if pressure <= self.scaling {
            0.0
        } else {
            (pressure - self.scaling) / (self.saturation - self.scaling)
        }
    }
}

/// What workers need to know to carry the actions out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OverloadLimits {
    /// `timer_scale_factors` of `reduce_timeouts`, by [`ScaledTimer`].
    pub timers: [Option<TimerMinimum>; ScaledTimer::COUNT],
    /// `buffer_factory_config.minimum_account_to_track_power_of_two`: HTTP/2 streams that hold less than two to the power
    /// of it are never reset. Set when `reset_high_memory_stream` is.
    pub tracked_stream_power: Option<u32>,
}

/// Timers that `reduce_timeouts` makes run out sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaledTimer {
    /// `HTTP_DOWNSTREAM_CONNECTION_IDLE`: `idle_timeout` of the connection manager.
    HttpDownstreamConnectionIdle,
    /// `HTTP_DOWNSTREAM_STREAM_IDLE`: `stream_idle_timeout`, and `idle_timeout` of a route.
    HttpDownstreamStreamIdle,
    /// `TRANSPORT_SOCKET_CONNECT`: `transport_socket_connect_timeout`.
    TransportSocketConnect,
}

impl ScaledTimer {
    /// How many there are.
    pub const COUNT: usize = 3;
}

/// What a timer shrinks to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TimerMinimum {
    /// `min_timeout`: this, or the timeout itself where that is shorter.
    Timeout(Duration),
    /// `min_scale`, as a part of the timeout from 0 to 1.
    Scale(f64),
}

impl TimerMinimum {
    /// The timeout while the action is on so far, from 0 to 1.
    pub fn apply(self, timeout: Duration, state: f64) -> Duration {
        let least = match self {
            Self::Timeout(least) => least.min(timeout),
            Self::Scale(scale) => timeout.mul_f64(scale.clamp(0.0, 1.0)),
        };
        least + (timeout - least).mul_f64((1.0 - state).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_all_or_nothing_and_a_scaled_trigger_is_not() {
        let threshold = Trigger {
            monitor: 0,
            scaling: 0.9,
            saturation: 0.9,
        };
        assert_eq!([0.0, 0.89, 0.9, 2.0].map(|p| threshold.state(p)), [0.0, 0.0, 1.0, 1.0]);
        let scaled = Trigger {
            monitor: 0,
            scaling: 0.5,
            saturation: 0.75,
        };
        assert_eq!([0.5, 0.5625, 0.75, 0.8].map(|p| scaled.state(p)), [0.0, 0.25, 1.0, 1.0]);
        let always = Trigger {
            monitor: 0,
            scaling: 0.0,
            saturation: 0.0,
        };
        assert_eq!(always.state(0.0), 1.0, "as in Envoy");
    }

    #[test]
    fn timers_shrink_to_their_minimum() {
        let seconds = Duration::from_secs;
        let to_two = TimerMinimum::Timeout(seconds(2));
        assert_eq!(
            [0.0, 0.5, 1.0].map(|s| to_two.apply(seconds(10), s)),
            [10, 6, 2].map(seconds)
        );
        assert_eq!(to_two.apply(seconds(1), 1.0), seconds(1), "never longer than it was");
        let to_a_tenth = TimerMinimum::Scale(0.1);
        assert_eq!(to_a_tenth.apply(seconds(10), 1.0), seconds(1));
        assert_eq!(TimerMinimum::Scale(0.0).apply(seconds(10), 1.0), Duration::ZERO);
    }
}
