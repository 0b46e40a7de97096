//! The process and what it writes: bootstrap, overload manager, access logs.

use super::{Message, message};

/// Sorted by name. Laid out by hand: one field a line would make it three times as long.
#[rustfmt::skip]
pub(super) const TABLE: &[Message] = &[
    message("envoy.config.accesslog.v3.AccessLog", &["name", "typed_config"]),
    Message {
        name: "envoy.config.bootstrap.v3.Admin",
        implemented: &["access_log", "access_log_path", "address"],
        ignored: &[
            ("profile_path", "there is no profiler to write there"),
            ("ignore_global_conn_limit", "the admin interface has a bound of its own"),
        ],
        instead: &[],
    },
    Message {
        name: "envoy.config.bootstrap.v3.Bootstrap",
        implemented: &[
            "admin",
            "default_regex_engine",
            "dynamic_resources",
            "layered_runtime",
            "node",
            "overload_manager",
            "static_resources",
        ],
        ignored: &[("stats_flush_interval", "there are no statistics sinks to flush to")],
        instead: &[
            ("stats_config", "remove it: metrics have fixed names and labels"),
            ("stats_sinks", "remove it and scrape /stats/prometheus"),
            ("tracing", "remove it"),
        ],
    },
    message(
        "envoy.config.bootstrap.v3.Bootstrap.DynamicResources",
        &["ads_config", "cds_config", "lds_config"],
    ),
    message("envoy.config.bootstrap.v3.Bootstrap.StaticResources", &["clusters", "listeners", "secrets"]),
    message("envoy.config.bootstrap.v3.LayeredRuntime", &["layers"]),
    Message {
        name: "envoy.config.bootstrap.v3.RuntimeLayer",
        implemented: &["name", "static_layer"],
        ignored: &[],
        instead: &[
            ("disk_layer", "use static_layer"),
            ("admin_layer", "remove it: there is nothing to change at run time"),
            ("rtds_layer", "use static_layer"),
        ],
    },
    message("envoy.config.overload.v3.BufferFactoryConfig", &["minimum_account_to_track_power_of_two"]),
    message("envoy.config.overload.v3.LoadShedPoint", &["name", "triggers"]),
    message("envoy.config.overload.v3.OverloadAction", &["name", "triggers", "typed_config"]),
    message(
        "envoy.config.overload.v3.OverloadManager",
        &["actions", "buffer_factory_config", "loadshed_points", "refresh_interval", "resource_monitors"],
    ),
    message("envoy.config.overload.v3.ResourceMonitor", &["name", "typed_config"]),
    message("envoy.config.overload.v3.ScaleTimersOverloadActionConfig", &["timer_scale_factors"]),
    message(
        "envoy.config.overload.v3.ScaleTimersOverloadActionConfig.ScaleTimer",
        &["min_scale", "min_timeout", "timer"],
    ),
    message("envoy.config.overload.v3.ScaledTrigger", &["saturation_threshold", "scaling_threshold"]),
    message("envoy.config.overload.v3.ThresholdTrigger", &["value"]),
    message("envoy.config.overload.v3.Trigger", &["name", "scaled", "threshold"]),
    Message {
        name: "envoy.extensions.access_loggers.file.v3.FileAccessLog",
        implemented: &["log_format", "path"],
        ignored: &[],
        instead: &[
            ("format", "use log_format.text_format_source"),
            ("json_format", "use log_format.json_format"),
            ("typed_json_format", "use log_format.json_format"),
        ],
    },
    message("envoy.extensions.access_loggers.stream.v3.StderrAccessLog", &["log_format"]),
    message("envoy.extensions.access_loggers.stream.v3.StdoutAccessLog", &["log_format"]),
    message("envoy.extensions.regex_engines.hyperscan.v3alpha.Hyperscan", &[]),
    message("envoy.extensions.resource_monitors.cgroup_memory.v3.CgroupMemoryConfig", &["max_memory_bytes"]),
    message(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        &["max_active_downstream_connections"],
    ),
    message("envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig", &["max_heap_size_bytes"]),
];
