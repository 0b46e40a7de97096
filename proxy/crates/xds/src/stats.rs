//! Counts of what discovery streams do.

use heddle_config::ResourceKind;
use heddle_telemetry::{Counter, Gauge, Stats};

/// Metrics of one stream. Names with `envoy_` are Envoy's.
#[derive(Clone, Debug)]
pub struct StreamStats {
    stats: Stats,
    /// `envoy_control_plane_connected_state`: 1 while the aggregated stream is up. For other streams this is
    /// `heddle_xds_connected_state` with the target.
    pub(crate) connected: Gauge,
    /// `heddle_xds_connect_failures`: streams that could not be opened or broke.
    pub(crate) failures: Counter,
}

impl StreamStats {
    /// Metrics of the stream to `target`, written by the calling thread only.
    pub fn new(stats: &Stats, target: &str, aggregated: bool) -> Self {
        let connected = if aggregated {
            stats.gauge("envoy_control_plane_connected_state", &[])
        } else {
            stats.gauge("heddle_xds_connected_state", &[("target", target)])
        };
        let failures = stats.counter("heddle_xds_connect_failures", &[("target", target)]);
        Self {
            stats: stats.clone(),
            connected,
            failures,
        }
    }

    pub(crate) fn update(&self, kind: ResourceKind, accepted: bool) {
        let (name, envoy) = match accepted {
            true => (
                "heddle_xds_update_success",
                [
                    "envoy_cluster_manager_cds_update_success",
                    "envoy_listener_manager_lds_update_success",
                ],
            ),
            false => (
                "heddle_xds_update_rejected",
                [
                    "envoy_cluster_manager_cds_update_rejected",
                    "envoy_listener_manager_lds_update_rejected",
                ],
            ),
        };
        self.stats.counter(name, &[("service", kind.service())]).inc();
        match kind {
            ResourceKind::Cluster => self.stats.counter(envoy[0], &[]).inc(),
            ResourceKind::Listener => self.stats.counter(envoy[1], &[]).inc(),
            _ => {}
        }
    }
}
