//! The overload manager: looks at the resources, decides how far each action is on, and tells the workers.
//!
//! As Envoy's `overload_manager`, with its names, triggers and metrics; what the actions do is in `heddle_http::Overload` and
//! where connections are accepted.

mod probe;

use std::time::Duration;

use heddle_config::snapshot::{
    LoadShedPoint, OverloadAction, OverloadActionKind, OverloadManager as Config, Resource, ShedPoint, Trigger,
};
use heddle_http::OverloadStates;
use heddle_telemetry::{Counter, Gauge, Stats};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

pub(crate) use probe::{Probe, probe};

/// See the module. Lives on the main thread.
pub(crate) struct OverloadManager {
    refresh_interval: Duration,
    monitors: Vec<Monitor>,
    actions: Vec<Action>,
    points: Vec<Point>,
    states: watch::Sender<OverloadStates>,
}

/// Where load is shed.
struct Point {
    config: ShedPoint,
    scale_percent: Gauge,
}

/// A resource that is measured.
struct Monitor {
    probe: Probe,
    /// What was measured last.
    pressure: f64,
    /// The same in percent.
    shown: Gauge,
    failed: Counter,
    skipped: Counter,
}

struct Action {
    config: OverloadAction,
    /// 1 while it is on in full.
    active: Gauge,
    scale_percent: Gauge,
}

impl OverloadManager {
    /// `probe` makes what measures a resource. `stats` belongs to this thread.
    pub(crate) fn new(
        config: &Config,
        stats: &Stats,
        states: watch::Sender<OverloadStates>,
        probe: impl Fn(Resource) -> Probe,
    ) -> Self {
        let monitors = config.monitors.iter().map(|monitor| {
            let [pressure, failed, skipped] = monitor_metrics(monitor.resource);
            Monitor {
                probe: probe(monitor.resource),
                pressure: 0.0,
                shown: stats.gauge(pressure, &[]),
                failed: stats.counter(failed, &[]),
                skipped: stats.counter(skipped, &[]),
            }
        });
        let actions = config.actions.iter().map(|action| {
            let [active, scale_percent] = action_metrics(action.kind);
            Action {
                config: action.clone(),
                active: stats.gauge(active, &[]),
                scale_percent: stats.gauge(scale_percent, &[]),
            }
        });
        let points = config.shed_points.iter().map(|point| Point {
            config: point.clone(),
            scale_percent: stats.gauge(point_metric(point.point), &[]),
        });
        Self {
            refresh_interval: config.refresh_interval,
            monitors: monitors.collect(),
            actions: actions.collect(),
            points: points.collect(),
            states,
        }
    }

    /// Looks again and again, for ever.
    pub(crate) async fn run(mut self) {
        let mut last = Instant::now();
        let mut ticks = interval_at(last + self.refresh_interval, self.refresh_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let tick = ticks.tick().await;
            // Looks that were left out because this thread was busy.
            let late = tick.duration_since(last).as_nanos() / self.refresh_interval.as_nanos().max(1);
            let skipped = u64::try_from(late).unwrap_or(u64::MAX).saturating_sub(1);
            last = tick;
            for monitor in &self.monitors {
                monitor.skipped.add(skipped);
            }
            self.refresh();
        }
    }

    /// Measures, decides and tells.
    fn refresh(&mut self) {
        for monitor in &mut self.monitors {
            match (monitor.probe)() {
                Ok(pressure) => {
                    monitor.pressure = pressure;
                    monitor.shown.set((pressure * 100.0) as i64);
                }
                // What was measured before counts, as in Envoy.
                Err(error) => {
                    monitor.failed.inc();
                    tracing::warn!(%error, "a resource's pressure cannot be measured");
                }
            }
        }
        let mut states = OverloadStates::default();
        let monitors = &self.monitors;
        let strongest = |triggers: &[Trigger]| {
            let pressure = |trigger: &Trigger| monitors.get(trigger.monitor).map_or(0.0, |monitor| monitor.pressure);
            let states = triggers.iter().map(|trigger| trigger.state(pressure(trigger)));
            states.fold(0.0, f64::max)
        };
        for point in &self.points {
            let state = strongest(&point.config.triggers);
            states.shed(point.config.point, state);
            point.scale_percent.set((state * 100.0) as i64);
        }
        for action in &self.actions {
            let state = strongest(&action.config.triggers);
            states.set(action.config.kind, state);
            let active = i64::from(state >= 1.0);
            if action.active.get() != active {
                let turned = if active == 1 { "on" } else { "off" };
                tracing::warn!("overload action {} is {turned}", action.config.kind.name());
            }
            action.active.set(active);
            action.scale_percent.set((state * 100.0) as i64);
        }
        // Streams are reset at every look while that action is on, not only when it changes.
        let again = states.get(OverloadActionKind::ResetHighMemoryStream) > 0.0;
        self.states.send_if_modified(|before| {
            let differs = *before != states;
            *before = states;
            differs || again
        });
    }
}

/// Names of `pressure`, `failed_updates` and `skipped_updates`.
fn monitor_metrics(resource: Resource) -> [&'static str; 3] {
    match resource {
        Resource::FixedHeap { .. } => [
            "envoy_overload_envoy_resource_monitors_fixed_heap_pressure",
            "envoy_overload_envoy_resource_monitors_fixed_heap_failed_updates",
            "envoy_overload_envoy_resource_monitors_fixed_heap_skipped_updates",
        ],
        Resource::CgroupMemory { .. } => [
            "envoy_overload_envoy_resource_monitors_cgroup_memory_pressure",
            "envoy_overload_envoy_resource_monitors_cgroup_memory_failed_updates",
            "envoy_overload_envoy_resource_monitors_cgroup_memory_skipped_updates",
        ],
        Resource::DownstreamConnections { .. } => [
            "envoy_overload_envoy_resource_monitors_global_downstream_max_connections_pressure",
            "envoy_overload_envoy_resource_monitors_global_downstream_max_connections_failed_updates",
            "envoy_overload_envoy_resource_monitors_global_downstream_max_connections_skipped_updates",
        ],
    }
}

/// Name of `scale_percent`.
fn point_metric(point: LoadShedPoint) -> &'static str {
    match point {
        LoadShedPoint::TcpListenerAccept => "envoy_overload_envoy_load_shed_points_tcp_listener_accept_scale_percent",
        LoadShedPoint::CreatingCodec => "envoy_overload_envoy_load_shed_points_hcm_ondata_creating_codec_scale_percent",
        LoadShedPoint::DecodeHeaders => {
            "envoy_overload_envoy_load_shed_points_http_connection_manager_decode_headers_scale_percent"
        }
        LoadShedPoint::Http1AbortDispatch => {
            "envoy_overload_envoy_load_shed_points_http1_server_abort_dispatch_scale_percent"
        }
        LoadShedPoint::Http2GoAway => {
            "envoy_overload_envoy_load_shed_points_http2_server_go_away_on_dispatch_scale_percent"
        }
    }
}

/// Names of `active` and `scale_percent`.
fn action_metrics(kind: OverloadActionKind) -> [&'static str; 2] {
    match kind {
        OverloadActionKind::StopAcceptingRequests => [
            "envoy_overload_envoy_overload_actions_stop_accepting_requests_active",
            "envoy_overload_envoy_overload_actions_stop_accepting_requests_scale_percent",
        ],
        OverloadActionKind::DisableHttpKeepalive => [
            "envoy_overload_envoy_overload_actions_disable_http_keepalive_active",
            "envoy_overload_envoy_overload_actions_disable_http_keepalive_scale_percent",
        ],
        OverloadActionKind::StopAcceptingConnections => [
            "envoy_overload_envoy_overload_actions_stop_accepting_connections_active",
            "envoy_overload_envoy_overload_actions_stop_accepting_connections_scale_percent",
        ],
        OverloadActionKind::RejectIncomingConnections => [
            "envoy_overload_envoy_overload_actions_reject_incoming_connections_active",
            "envoy_overload_envoy_overload_actions_reject_incoming_connections_scale_percent",
        ],
        OverloadActionKind::ReduceTimeouts => [
            "envoy_overload_envoy_overload_actions_reduce_timeouts_active",
            "envoy_overload_envoy_overload_actions_reduce_timeouts_scale_percent",
        ],
        OverloadActionKind::ResetHighMemoryStream => [
            "envoy_overload_envoy_overload_actions_reset_high_memory_stream_active",
            "envoy_overload_envoy_overload_actions_reset_high_memory_stream_scale_percent",
        ],
    }
}

#[cfg(test)]
mod tests;
