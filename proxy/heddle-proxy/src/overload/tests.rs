use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use heddle_config::snapshot::{OverloadLimits, ResourceMonitor, Trigger};
use tokio::task::{LocalSet, spawn_local};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HEAP: Resource = Resource::FixedHeap { max_bytes: 1 };
const CONNECTIONS: Resource = Resource::DownstreamConnections { max: 1 };

/// What the monitors say next; none: that they cannot.
type Readings = Rc<RefCell<[Option<f64>; 2]>>;

struct Rig {
    readings: Readings,
    states: watch::Receiver<OverloadStates>,
    stats: Stats,
}

fn trigger(monitor: usize, scaling: f64, saturation: f64) -> Trigger {
    Trigger {
        monitor,
        scaling,
        saturation,
    }
}

/// Requests are refused from 0.9 of the heap on, or by and by from 0.5 to 0.75 of the connections; streams are reset from
/// 0.8 to 1 of the heap.
fn start() -> Rig {
    let monitor = |resource: Resource| ResourceMonitor {
        name: resource.name().to_owned(),
        resource,
    };
    let config = Config {
        refresh_interval: SECOND,
        monitors: vec![monitor(HEAP), monitor(CONNECTIONS)],
        actions: vec![
            OverloadAction {
                kind: OverloadActionKind::StopAcceptingRequests,
                triggers: vec![trigger(0, 0.9, 0.9), trigger(1, 0.5, 0.75)],
            },
            OverloadAction {
                kind: OverloadActionKind::ResetHighMemoryStream,
                triggers: vec![trigger(0, 0.8, 1.0)],
            },
        ],
        shed_points: Vec::new(),
        limits: OverloadLimits::default(),
    };
    let readings: Readings = Rc::new(RefCell::new([Some(0.0); 2]));
    let (sender, states) = watch::channel(OverloadStates::default());
    let stats = Stats::new();
    let source = Rc::clone(&readings);
    let manager = OverloadManager::new(&config, &stats, sender, move |resource| {
        let readings = Rc::clone(&source);
        let which = usize::from(resource == CONNECTIONS);
        Box::new(move || readings.borrow()[which].ok_or_else(|| io::Error::other("on purpose")))
    });
    spawn_local(manager.run());
    Rig {
        readings,
        states,
        stats,
    }
}

impl Rig {
    /// Sets what is read and waits for the next look.
    async fn read(&mut self, heap: Option<f64>, connections: Option<f64>) -> f64 {
        *self.readings.borrow_mut() = [heap, connections];
        tokio::time::sleep(SECOND).await;
        self.states
            .borrow_and_update()
            .get(OverloadActionKind::StopAcceptingRequests)
    }

    fn gauge(&self, name: &'static str) -> i64 {
        self.stats.gauge(name, &[]).get()
    }

    fn counter(&self, name: &'static str) -> u64 {
        self.stats.counter(name, &[]).get()
    }
}

#[tokio::test(start_paused = true)]
async fn the_strongest_trigger_counts_and_what_was_on_goes_off() {
    let test = async {
        let mut rig = start();
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(rig.read(Some(0.5), Some(0.5)).await, 0.0);
        assert_eq!(rig.read(Some(0.5), Some(0.5625)).await, 0.25);
        assert_eq!(
            rig.gauge("envoy_overload_envoy_overload_actions_stop_accepting_requests_scale_percent"),
            25
        );
        assert_eq!(
            rig.gauge("envoy_overload_envoy_overload_actions_stop_accepting_requests_active"),
            0
        );
        assert_eq!(rig.read(Some(0.9), Some(0.5625)).await, 1.0);
        assert_eq!(
            rig.gauge("envoy_overload_envoy_overload_actions_stop_accepting_requests_active"),
            1
        );
        assert_eq!(
            rig.gauge("envoy_overload_envoy_resource_monitors_fixed_heap_pressure"),
            90
        );
        assert_eq!(rig.read(Some(0.1), Some(0.1)).await, 0.0);
        assert_eq!(
            rig.gauge("envoy_overload_envoy_overload_actions_stop_accepting_requests_active"),
            0
        );
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_measured_stays_as_it_was() {
    let test = async {
        let mut rig = start();
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(rig.read(Some(0.95), Some(0.0)).await, 1.0);
        assert_eq!(rig.read(None, Some(0.0)).await, 1.0);
        assert_eq!(
            rig.counter("envoy_overload_envoy_resource_monitors_fixed_heap_failed_updates"),
            1
        );
        assert_eq!(
            rig.counter("envoy_overload_envoy_resource_monitors_global_downstream_max_connections_failed_updates"),
            0
        );
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn workers_hear_of_changes_and_as_long_as_streams_are_to_be_reset() {
    let test = async {
        let mut rig = start();
        tokio::time::sleep(SECOND / 2).await;
        rig.read(Some(0.1), Some(0.1)).await;
        assert!(!rig.states.has_changed().expect("open"), "nothing to say");
        rig.read(Some(0.85), Some(0.1)).await;
        for _ in 0..2 {
            tokio::time::sleep(SECOND).await;
            assert!(rig.states.has_changed().expect("open"));
            rig.states.borrow_and_update();
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn looks_that_were_left_out_are_counted() {
    let test = async {
        let rig = start();
        tokio::task::yield_now().await;
        // This thread is busy for some time.
        tokio::time::advance(SECOND * 7 / 2).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(
            rig.counter("envoy_overload_envoy_resource_monitors_fixed_heap_skipped_updates"),
            2
        );
    };
    LocalSet::new().run_until(test).await;
}
