//! `overload_manager`.

use std::time::Duration;

use crate::decode::{self, enumeration, pb, positive, required};
use crate::error::ConfigError;
use crate::path::Path;
use crate::snapshot::{
    LoadShedPoint, OverloadAction, OverloadActionKind, OverloadLimits, OverloadManager, Resource, ResourceMonitor,
    ScaledTimer, ShedPoint, TimerMinimum, Trigger,
};

const TIMERS: &str = "envoy.config.overload.v3.ScaleTimersOverloadActionConfig";

/// Envoy's default of `refresh_interval`.
const REFRESH: Duration = Duration::from_secs(1);

/// Reads the overload manager. What triggers and actions refer to is there.
pub(super) fn manager(config: &pb::overload::OverloadManager, path: &Path<'_>) -> Result<OverloadManager, ConfigError> {
    let mut out = OverloadManager {
        refresh_interval: positive(
            config.refresh_interval.as_ref(),
            REFRESH,
            &path.field("refresh_interval"),
        )?,
        monitors: Vec::new(),
        actions: Vec::new(),
        shed_points: Vec::new(),
        limits: OverloadLimits::default(),
    };
    for (i, item) in config.resource_monitors.iter().enumerate() {
        let here = path.item("resource_monitors", i);
        let monitor = monitor(item, &here)?;
        if out.monitors.iter().any(|other| other.name == monitor.name) {
            return Err(here
                .field("name")
                .error(format!("{:?} stands there twice", monitor.name)));
        }
        let kind = std::mem::discriminant(&monitor.resource);
        if out.monitors.iter().any(|o| std::mem::discriminant(&o.resource) == kind) {
            return Err(here.field("typed_config").error("this monitor stands there twice"));
        }
        out.monitors.push(monitor);
    }
    for (i, item) in config.actions.iter().enumerate() {
        let here = path.item("actions", i);
        let action = action(item, &out.monitors, &mut out.limits, &here)?;
        if out.actions.iter().any(|other| other.kind == action.kind) {
            return Err(here.field("name").error(format!("{:?} stands there twice", item.name)));
        }
        if action.kind == OverloadActionKind::ResetHighMemoryStream {
            let power = config.buffer_factory_config.as_ref();
            let power = power.map_or(0, |c| c.minimum_account_to_track_power_of_two);
            if power == 0 {
                return Err(here.error(
                    "resets nothing, since no streams are tracked; set \
                     buffer_factory_config.minimum_account_to_track_power_of_two (20: streams that hold 1 MiB)",
                ));
            }
            out.limits.tracked_stream_power = Some(power);
        }
        out.actions.push(action);
    }
    for (i, item) in config.loadshed_points.iter().enumerate() {
        let here = path.item("loadshed_points", i);
        let point = LoadShedPoint::ALL.into_iter().find(|point| point.name() == item.name);
        let name = here.field("name");
        let point = point.ok_or_else(|| name.error(format!("{:?} is not implemented; remove it", item.name)))?;
        if out.shed_points.iter().any(|other| other.point == point) {
            return Err(name.error(format!("{:?} stands there twice", item.name)));
        }
        let triggers = triggers(&item.triggers, &out.monitors, &here)?;
        out.shed_points.push(ShedPoint { point, triggers });
    }
    Ok(out)
}

fn monitor(config: &pb::overload::ResourceMonitor, path: &Path<'_>) -> Result<ResourceMonitor, ConfigError> {
    use pb::overload::resource_monitor::ConfigType;
    let here = path.field("typed_config");
    let Some(ConfigType::TypedConfig(any)) = &config.config_type else {
        return Err(here.error("must be set"));
    };
    let resource = match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig" => {
            let heap: pb::fixed_heap::FixedHeapConfig = decode::unpack(any, &here)?;
            if heap.max_heap_size_bytes == 0 {
                return Err(here.field("max_heap_size_bytes").error("must be above 0"));
            }
            Resource::FixedHeap {
                max_bytes: heap.max_heap_size_bytes,
            }
        }
        "envoy.extensions.resource_monitors.cgroup_memory.v3.CgroupMemoryConfig" => {
            let memory: pb::cgroup_memory::CgroupMemoryConfig = decode::unpack(any, &here)?;
            Resource::CgroupMemory {
                max_bytes: Some(memory.max_memory_bytes).filter(|max| *max > 0),
            }
        }
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig" => {
            let bound: pb::connections_monitor::DownstreamConnectionsConfig = decode::unpack(any, &here)?;
            let max = u64::try_from(bound.max_active_downstream_connections).unwrap_or(0);
            if max == 0 {
                return Err(here.field("max_active_downstream_connections").error("must be above 0"));
            }
            Resource::DownstreamConnections { max }
        }
        other => {
            return Err(here.unsupported(
                other,
                "use fixed_heap, cgroup_memory or global_downstream_max_connections",
            ));
        }
    };
    Ok(ResourceMonitor {
        name: config.name.clone(),
        resource,
    })
}

fn action(
    config: &pb::overload::OverloadAction,
    monitors: &[ResourceMonitor],
    limits: &mut OverloadLimits,
    path: &Path<'_>,
) -> Result<OverloadAction, ConfigError> {
    let kind = OverloadActionKind::ALL
        .into_iter()
        .find(|kind| kind.name() == config.name);
    let kind = kind.ok_or_else(|| {
        let remedy = match config.name.as_str() {
            "envoy.overload_actions.shrink_heap" => "remove it: the allocator gives back what is free by itself",
            _ => "remove it",
        };
        path.field("name")
            .error(format!("{:?} is not implemented; {remedy}", config.name))
    })?;
    let here = path.field("typed_config");
    match (&config.typed_config, kind) {
        (Some(any), OverloadActionKind::ReduceTimeouts) => {
            let name = heddle_api::message_name(&any.type_url);
            if name != TIMERS {
                return Err(here.unsupported(name, "use ScaleTimersOverloadActionConfig"));
            }
            let timers: pb::overload::ScaleTimersOverloadActionConfig = decode::unpack(any, &here)?;
            for (i, timer) in timers.timer_scale_factors.iter().enumerate() {
                scale_timer(timer, limits, &here.item("timer_scale_factors", i))?;
            }
        }
        (None, OverloadActionKind::ReduceTimeouts) => return Err(here.error("must be set")),
        (Some(_), _) => return Err(here.error("this action has none; remove it")),
        (None, _) => {}
    }
    let triggers = triggers(&config.triggers, monitors, path)?;
    Ok(OverloadAction { kind, triggers })
}

fn triggers(
    config: &[pb::overload::Trigger],
    monitors: &[ResourceMonitor],
    path: &Path<'_>,
) -> Result<Vec<Trigger>, ConfigError> {
    let mut triggers: Vec<Trigger> = Vec::new();
    for (i, item) in config.iter().enumerate() {
        let here = path.item("triggers", i);
        let trigger = trigger(item, monitors, &here)?;
        if triggers.iter().any(|other| other.monitor == trigger.monitor) {
            return Err(here.field("name").error(format!("{:?} stands there twice", item.name)));
        }
        triggers.push(trigger);
    }
    Ok(triggers)
}

fn trigger(
    config: &pb::overload::Trigger,
    monitors: &[ResourceMonitor],
    path: &Path<'_>,
) -> Result<Trigger, ConfigError> {
    use pb::overload::trigger::TriggerOneof;
    let monitor = monitors.iter().position(|monitor| monitor.name == config.name);
    let monitor = monitor.ok_or_else(|| {
        path.field("name")
            .error(format!("{:?} is none of resource_monitors; add it there", config.name))
    })?;
    let (scaling, saturation) = match required(config.trigger_oneof.as_ref(), path)? {
        TriggerOneof::Threshold(at) => (at.value, at.value),
        TriggerOneof::Scaled(between) => {
            if between.scaling_threshold >= between.saturation_threshold {
                let here = path.field("scaled");
                return Err(here
                    .field("scaling_threshold")
                    .error("must be below saturation_threshold"));
            }
            (between.scaling_threshold, between.saturation_threshold)
        }
    };
    Ok(Trigger {
        monitor,
        scaling,
        saturation,
    })
}

fn scale_timer(
    config: &pb::overload::scale_timers_overload_action_config::ScaleTimer,
    limits: &mut OverloadLimits,
    path: &Path<'_>,
) -> Result<(), ConfigError> {
    use pb::overload::scale_timers_overload_action_config::TimerType;
    use pb::overload::scale_timers_overload_action_config::scale_timer::OverloadAdjust;
    let here = path.field("timer");
    let timer = match enumeration::<TimerType>(config.timer, &here)? {
        TimerType::HttpDownstreamConnectionIdle => ScaledTimer::HttpDownstreamConnectionIdle,
        TimerType::HttpDownstreamStreamIdle => ScaledTimer::HttpDownstreamStreamIdle,
        TimerType::TransportSocketConnect => ScaledTimer::TransportSocketConnect,
        other => return Err(here.error(format!("{} is not implemented; remove it", other.as_str_name()))),
    };
    let minimum = match required(config.overload_adjust.as_ref(), path)? {
        OverloadAdjust::MinTimeout(least) => {
            let here = path.field("min_timeout");
            TimerMinimum::Timeout(decode::duration_or(Some(least), Duration::ZERO, &here)?)
        }
        OverloadAdjust::MinScale(percent) => TimerMinimum::Scale(percent.value / 100.0),
    };
    let slot = limits.timers.get_mut(timer as usize);
    if slot.and_then(|slot| slot.replace(minimum)).is_some() {
        return Err(here.error("stands there twice"));
    }
    Ok(())
}
