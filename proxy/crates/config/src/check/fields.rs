//! Which fields of the Envoy API Heddle implements.
//!
//! A message that is not in the table is not implemented, nor is a field that is neither in `implemented` nor in
//! `ignored`. Implemented means: decoded, with the semantics that Envoy documents; the decoder may still refuse single
//! values, and says so. Ignored means: the field cannot make a difference here, for the reason given. What HTTP filters
//! are configured by stands in the files of [`crate::filters`].

use crate::filters;

/// What Heddle does with a field that is set.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The decoder reads it.
    Implemented,
    /// It cannot make a difference.
    Ignored,
    /// It is refused, with this remedy.
    Refused(&'static str),
}

/// One message of the API.
pub(crate) struct Message {
    pub(crate) name: &'static str,
    pub(crate) implemented: &'static [&'static str],
    /// Field and why it makes no difference.
    pub(crate) ignored: &'static [(&'static str, &'static str)],
    /// Field and what to write instead, where there is something better than removing it.
    pub(crate) instead: &'static [(&'static str, &'static str)],
}

impl Message {
    pub(super) fn status(&self, field: &str) -> Status {
        if self.implemented.contains(&field) {
            return Status::Implemented;
        }
        if self.ignored.iter().any(|(name, _)| *name == field) {
            return Status::Ignored;
        }
        Status::Refused(
            self.instead
                .iter()
                .find(|(name, _)| *name == field)
                .map_or("remove it", |(_, text)| text),
        )
    }
}

/// The entry of a message.
pub(super) fn of(name: &str) -> Option<&'static Message> {
    match TABLE.binary_search_by(|m| m.name.cmp(name)) {
        Ok(i) => Some(&TABLE[i]),
        Err(_) => filters::messages().find(|m| m.name == name),
    }
}

/// Every entry: of the table and of the HTTP filters.
pub(super) fn all() -> impl Iterator<Item = &'static Message> {
    TABLE.iter().chain(filters::messages())
}

pub(crate) const fn message(name: &'static str, implemented: &'static [&'static str]) -> Message {
    Message {
        name,
        implemented,
        ignored: &[],
        instead: &[],
    }
}

pub(crate) const NO_RUNTIME: &str = "there are no runtime layers, so the default value always holds";
pub(crate) const NOBODY_READS: &str = "free-form; no filter reads it";

/// Sorted by name. Laid out by hand: one field a line would make a table of a thousand lines.
#[rustfmt::skip]
const TABLE: &[Message] = &[
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
        implemented: &["admin", "dynamic_resources", "layered_runtime", "node", "overload_manager", "static_resources"],
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
    message("envoy.config.cluster.v3.CircuitBreakers", &["thresholds"]),
    Message {
        name: "envoy.config.cluster.v3.CircuitBreakers.Thresholds",
        implemented: &["max_connections", "max_pending_requests", "max_requests", "max_retries", "priority"],
        ignored: &[("track_remaining", "adds gauges only")],
        instead: &[("retry_budget", "use max_retries")],
    },
    Message {
        name: "envoy.config.cluster.v3.Cluster",
        implemented: &[
            "alt_stat_name",
            "circuit_breakers",
            "common_lb_config",
            "connect_timeout",
            "dns_failure_refresh_rate",
            "dns_jitter",
            "dns_lookup_family",
            "dns_refresh_rate",
            "eds_cluster_config",
            "health_checks",
            "http2_protocol_options",
            "lb_policy",
            "least_request_lb_config",
            "load_assignment",
            "metadata",
            "name",
            "outlier_detection",
            "per_connection_buffer_limit_bytes",
            "respect_dns_ttl",
            "round_robin_lb_config",
            "transport_socket",
            "transport_socket_matches",
            "type",
            "typed_extension_protocol_options",
            "upstream_bind_config",
            "upstream_connection_options",
            "wait_for_warm_on_init",
        ],
        ignored: &[
            ("cleanup_interval", "original destinations are kept per connection, there is nothing to clean up"),
        ],
        instead: &[
            ("max_requests_per_connection", "set it in typed_extension_protocol_options, common_http_protocol_options"),
            ("common_http_protocol_options", "set it in typed_extension_protocol_options"),
            ("http_protocol_options", "set it in typed_extension_protocol_options"),
            ("load_balancing_policy", "use lb_policy"),
        ],
    },
    Message {
        name: "envoy.config.cluster.v3.Cluster.CommonLbConfig",
        implemented: &["healthy_panic_threshold", "locality_weighted_lb_config"],
        ignored: &[("update_merge_window", "endpoint updates are cheap and applied as they come")],
        instead: &[],
    },
    message("envoy.config.cluster.v3.Cluster.CommonLbConfig.LocalityWeightedLbConfig", &[]),
    message("envoy.config.cluster.v3.Cluster.EdsClusterConfig", &["eds_config", "service_name"]),
    message("envoy.config.cluster.v3.Cluster.LeastRequestLbConfig", &["choice_count"]),
    message("envoy.config.cluster.v3.Cluster.RefreshRate", &["base_interval", "max_interval"]),
    message("envoy.config.cluster.v3.Cluster.RoundRobinLbConfig", &[]),
    message("envoy.config.cluster.v3.Cluster.TransportSocketMatch", &["match", "name", "transport_socket"]),
    message(
        "envoy.config.cluster.v3.OutlierDetection",
        &[
            "always_eject_one_host",
            "base_ejection_time",
            "consecutive_5xx",
            "consecutive_gateway_failure",
            "consecutive_local_origin_failure",
            "enforcing_consecutive_5xx",
            "enforcing_consecutive_gateway_failure",
            "enforcing_consecutive_local_origin_failure",
            "enforcing_failure_percentage",
            "enforcing_failure_percentage_local_origin",
            "enforcing_local_origin_success_rate",
            "enforcing_success_rate",
            "interval",
            "max_ejection_percent",
            "max_ejection_time",
            "split_external_local_origin_errors",
        ],
    ),
    message("envoy.config.cluster.v3.UpstreamConnectionOptions", &["tcp_keepalive"]),
    message("envoy.config.core.v3.Address", &["pipe", "socket_address"]),
    message("envoy.config.core.v3.AggregatedConfigSource", &[]),
    Message {
        name: "envoy.config.core.v3.ApiConfigSource",
        implemented: &["api_type", "grpc_services", "transport_api_version"],
        ignored: &[("set_node_on_first_message_only", "the node is sent on the first message only, which every server accepts")],
        instead: &[("cluster_names", "use grpc_services.envoy_grpc.cluster_name")],
    },
    message("envoy.config.core.v3.BackoffStrategy", &["base_interval", "max_interval"]),
    message("envoy.config.core.v3.BindConfig", &["source_address"]),
    message("envoy.config.core.v3.CidrRange", &["address_prefix", "prefix_len"]),
    Message {
        name: "envoy.config.core.v3.ConfigSource",
        implemented: &["ads", "api_config_source", "resource_api_version"],
        ignored: &[(
            "initial_fetch_timeout",
            "what waits for a resource stays warming, and the version before it stays in force",
        )],
        instead: &[("path", "use ads"), ("path_config_source", "use ads")],
    },
    Message {
        name: "envoy.config.core.v3.DataSource",
        implemented: &["filename", "inline_bytes", "inline_string"],
        ignored: &[],
        instead: &[
            ("environment_variable", "the environment is not read; use filename or inline_string"),
            ("watched_directory", "use SDS to rotate"),
        ],
    },
    message("envoy.config.core.v3.GrpcService", &["envoy_grpc", "initial_metadata", "retry_policy", "timeout"]),
    message("envoy.config.core.v3.GrpcService.EnvoyGrpc", &["authority", "cluster_name"]),
    message("envoy.config.core.v3.HeaderValue", &["key", "raw_value", "value"]),
    message("envoy.config.core.v3.HeaderValueOption", &["append", "append_action", "header", "keep_empty_value"]),
    message(
        "envoy.config.core.v3.HealthCheck",
        &["healthy_threshold", "interval", "tcp_health_check", "timeout", "unhealthy_threshold"],
    ),
    message("envoy.config.core.v3.HealthCheck.Payload", &["binary", "text"]),
    message("envoy.config.core.v3.HealthCheck.TcpHealthCheck", &["receive", "send"]),
    Message {
        name: "envoy.config.core.v3.Http1ProtocolOptions",
        implemented: &["accept_http_10", "allow_absolute_url"],
        ignored: &[("enable_trailers", "trailers always travel on")],
        instead: &[],
    },
    Message {
        name: "envoy.config.core.v3.Http2ProtocolOptions",
        implemented: &[
            "connection_keepalive",
            "hpack_table_size",
            "initial_connection_window_size",
            "initial_stream_window_size",
            "max_concurrent_streams",
            "max_consecutive_inbound_frames_with_empty_payload",
            "max_inbound_priority_frames_per_stream",
            "max_inbound_window_update_frames_per_data_frame_sent",
            "max_outbound_control_frames",
            "max_outbound_frames",
            "override_stream_error_on_invalid_http_message",
        ],
        ignored: &[],
        instead: &[(
            "stream_error_on_invalid_http_messaging",
            "use override_stream_error_on_invalid_http_message",
        )],
    },
    message(
        "envoy.config.core.v3.HttpProtocolOptions",
        &[
            "headers_with_underscores_action",
            "idle_timeout",
            "max_connection_duration",
            "max_headers_count",
            "max_requests_per_connection",
        ],
    ),
    message("envoy.config.core.v3.HttpUri", &["cluster", "timeout", "uri"]),
    Message {
        name: "envoy.config.core.v3.JsonFormatOptions",
        implemented: &[],
        ignored: &[("sort_properties", "the order of members has no meaning in JSON")],
        instead: &[],
    },
    Message {
        name: "envoy.config.core.v3.KeepaliveSettings",
        implemented: &["interval", "interval_jitter", "timeout"],
        ignored: &[],
        instead: &[("connection_idle_interval", "use interval")],
    },
    message("envoy.config.core.v3.Locality", &["region", "sub_zone", "zone"]),
    Message {
        name: "envoy.config.core.v3.Metadata",
        implemented: &["filter_metadata"],
        ignored: &[("typed_filter_metadata", NOBODY_READS)],
        instead: &[],
    },
    Message {
        name: "envoy.config.core.v3.Node",
        implemented: &["cluster", "id", "locality", "metadata"],
        ignored: &[
            ("client_features", "only told to the server"),
            ("dynamic_parameters", "only told to the server"),
            ("extensions", "only told to the server"),
            ("user_agent_build_version", "Heddle says its own"),
            ("user_agent_name", "Heddle says its own"),
            ("user_agent_version", "Heddle says its own"),
        ],
        instead: &[],
    },
    message("envoy.config.core.v3.Pipe", &["path"]),
    message("envoy.config.core.v3.RetryPolicy", &["num_retries", "retry_back_off", "retry_on"]),
    Message {
        name: "envoy.config.core.v3.RuntimeFeatureFlag",
        implemented: &["default_value"],
        ignored: &[("runtime_key", NO_RUNTIME)],
        instead: &[],
    },
    Message {
        name: "envoy.config.core.v3.RuntimeFractionalPercent",
        implemented: &["default_value"],
        ignored: &[("runtime_key", NO_RUNTIME)],
        instead: &[],
    },
    message("envoy.config.core.v3.SocketAddress", &["address", "ipv4_compat", "port_value", "protocol"]),
    message(
        "envoy.config.core.v3.SubstitutionFormatString",
        &["json_format", "json_format_options", "text_format", "text_format_source"],
    ),
    message("envoy.config.core.v3.TcpKeepalive", &["keepalive_interval", "keepalive_probes", "keepalive_time"]),
    message("envoy.config.core.v3.TransportSocket", &["name", "typed_config"]),
    message("envoy.config.core.v3.TypedExtensionConfig", &["name", "typed_config"]),
    message("envoy.config.endpoint.v3.ClusterLoadAssignment", &["cluster_name", "endpoints"]),
    message("envoy.config.endpoint.v3.Endpoint", &["address", "hostname"]),
    message("envoy.config.endpoint.v3.LbEndpoint", &["endpoint", "health_status", "load_balancing_weight", "metadata"]),
    Message {
        name: "envoy.config.endpoint.v3.LocalityLbEndpoints",
        implemented: &["lb_endpoints", "load_balancing_weight", "locality", "priority"],
        ignored: &[("metadata", NOBODY_READS)],
        instead: &[],
    },
    message("envoy.config.listener.v3.AdditionalAddress", &["address"]),
    message("envoy.config.listener.v3.Filter", &["name", "typed_config"]),
    Message {
        name: "envoy.config.listener.v3.FilterChain",
        implemented: &["filter_chain_match", "filters", "name", "transport_socket", "transport_socket_connect_timeout"],
        ignored: &[("metadata", NOBODY_READS)],
        instead: &[],
    },
    message(
        "envoy.config.listener.v3.FilterChainMatch",
        &[
            "application_protocols",
            "destination_port",
            "prefix_ranges",
            "server_names",
            "source_prefix_ranges",
            "transport_protocol",
        ],
    ),
    Message {
        name: "envoy.config.listener.v3.Listener",
        implemented: &[
            "access_log",
            "additional_addresses",
            "address",
            "bind_to_port",
            "bypass_overload_manager",
            "continue_on_listener_filters_timeout",
            "default_filter_chain",
            "enable_reuse_port",
            "filter_chains",
            "ignore_global_conn_limit",
            "listener_filters",
            "listener_filters_timeout",
            "name",
            "per_connection_buffer_limit_bytes",
            "tcp_backlog_size",
            "tcp_keepalive",
            "traffic_direction",
            "use_original_dst",
        ],
        ignored: &[
            ("metadata", NOBODY_READS),
            ("stat_prefix", "metrics are labelled with the listener's name"),
        ],
        instead: &[
            ("deprecated_v1", "use bind_to_port"),
            ("reuse_port", "use enable_reuse_port"),
            ("max_connections_to_accept_per_socket_event", "remove it: a worker accepts until the queue is empty or its time slice is over"),
        ],
    },
    message("envoy.config.listener.v3.ListenerFilter", &["name", "typed_config"]),
    message("envoy.config.overload.v3.BufferFactoryConfig", &["minimum_account_to_track_power_of_two"]),
    message("envoy.config.overload.v3.OverloadAction", &["name", "triggers", "typed_config"]),
    message(
        "envoy.config.overload.v3.OverloadManager",
        &["actions", "buffer_factory_config", "refresh_interval", "resource_monitors"],
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
    message("envoy.config.rbac.v3.Permission", &[
        "and_rules",
        "any",
        "destination_ip",
        "destination_port",
        "destination_port_range",
        "header",
        "metadata",
        "not_rule",
        "or_rules",
        "requested_server_name",
        "sourced_metadata",
        "url_path",
    ]),
    message("envoy.config.rbac.v3.Permission.Set", &["rules"]),
    message("envoy.config.rbac.v3.Policy", &["permissions", "principals"]),
    message("envoy.config.rbac.v3.Principal", &[
        "and_ids",
        "any",
        "authenticated",
        "custom",
        "direct_remote_ip",
        "header",
        "metadata",
        "not_id",
        "or_ids",
        "remote_ip",
        "source_ip",
        "sourced_metadata",
        "url_path",
    ]),
    message("envoy.config.rbac.v3.Principal.Authenticated", &["principal_name"]),
    message("envoy.config.rbac.v3.Principal.Set", &["ids"]),
    message("envoy.config.rbac.v3.RBAC", &["action", "policies"]),
    message("envoy.config.rbac.v3.SourcedMetadata", &["metadata_matcher", "metadata_source"]),
    Message {
        name: "envoy.config.route.v3.Decorator",
        implemented: &[],
        ignored: &[
            ("operation", "names trace spans, and tracing is refused"),
            ("propagate", "concerns trace spans, and tracing is refused"),
        ],
        instead: &[],
    },
    message("envoy.config.route.v3.DirectResponseAction", &["body", "status"]),
    message("envoy.config.route.v3.FilterConfig", &["config", "disabled"]),
    message("envoy.config.route.v3.HeaderMatcher", &[
        "contains_match",
        "exact_match",
        "invert_match",
        "name",
        "prefix_match",
        "present_match",
        "range_match",
        "safe_regex_match",
        "string_match",
        "suffix_match",
        "treat_missing_header_as_empty",
    ]),
    message("envoy.config.route.v3.QueryParameterMatcher", &["name", "present_match", "string_match"]),
    message("envoy.config.route.v3.RateLimit", &["actions", "stage"]),
    message("envoy.config.route.v3.RateLimit.Action", &[
        "destination_cluster",
        "generic_key",
        "header_value_match",
        "remote_address",
        "request_headers",
        "source_cluster",
    ]),
    message("envoy.config.route.v3.RateLimit.Action.DestinationCluster", &[]),
    message("envoy.config.route.v3.RateLimit.Action.GenericKey", &["descriptor_key", "descriptor_value"]),
    message(
        "envoy.config.route.v3.RateLimit.Action.HeaderValueMatch",
        &["descriptor_key", "descriptor_value", "expect_match", "headers"],
    ),
    message("envoy.config.route.v3.RateLimit.Action.RemoteAddress", &[]),
    message("envoy.config.route.v3.RateLimit.Action.RequestHeaders", &["descriptor_key", "header_name", "skip_if_absent"]),
    message("envoy.config.route.v3.RateLimit.Action.SourceCluster", &[]),
    message("envoy.config.route.v3.RedirectAction", &[
        "host_redirect",
        "https_redirect",
        "path_redirect",
        "port_redirect",
        "prefix_rewrite",
        "response_code",
        "scheme_redirect",
        "strip_query",
    ]),
    message("envoy.config.route.v3.RetryPolicy", &[
        "host_selection_retry_max_attempts",
        "num_retries",
        "per_try_timeout",
        "retriable_status_codes",
        "retry_back_off",
        "retry_host_predicate",
        "retry_on",
    ]),
    message("envoy.config.route.v3.RetryPolicy.RetryBackOff", &["base_interval", "max_interval"]),
    message("envoy.config.route.v3.RetryPolicy.RetryHostPredicate", &["name", "typed_config"]),
    Message {
        name: "envoy.config.route.v3.Route",
        implemented: &[
            "decorator",
            "direct_response",
            "match",
            "name",
            "redirect",
            "request_headers_to_add",
            "request_headers_to_remove",
            "response_headers_to_add",
            "response_headers_to_remove",
            "route",
            "typed_per_filter_config",
        ],
        ignored: &[("metadata", NOBODY_READS)],
        instead: &[],
    },
    message("envoy.config.route.v3.RouteAction", &[
        "auto_host_rewrite",
        "cluster",
        "cluster_not_found_response_code",
        "host_rewrite_literal",
        "idle_timeout",
        "include_vh_rate_limits",
        "max_stream_duration",
        "prefix_rewrite",
        "priority",
        "rate_limits",
        "regex_rewrite",
        "request_mirror_policies",
        "retry_policy",
        "timeout",
        "weighted_clusters",
    ]),
    message("envoy.config.route.v3.RouteAction.MaxStreamDuration", &["grpc_timeout_header_max", "max_stream_duration"]),
    Message {
        name: "envoy.config.route.v3.RouteAction.RequestMirrorPolicy",
        implemented: &[
            "cluster",
            "cluster_header",
            "disable_shadow_host_suffix_append",
            "host_rewrite_literal",
            "runtime_fraction",
        ],
        ignored: &[("trace_sampled", "concerns trace spans, and tracing is refused")],
        instead: &[("request_headers_mutations", "change the headers where the copies arrive")],
    },
    Message {
        name: "envoy.config.route.v3.RouteConfiguration",
        implemented: &[
            "ignore_port_in_host_matching",
            "internal_only_headers",
            "max_direct_response_body_size_bytes",
            "name",
            "request_headers_to_add",
            "request_headers_to_remove",
            "request_mirror_policies",
            "response_headers_to_add",
            "response_headers_to_remove",
            "typed_per_filter_config",
            "validate_clusters",
            "virtual_hosts",
        ],
        ignored: &[("metadata", NOBODY_READS)],
        instead: &[("vhds", "list the virtual hosts in virtual_hosts")],
    },
    message("envoy.config.route.v3.RouteMatch", &[
        "case_sensitive",
        "dynamic_metadata",
        "grpc",
        "headers",
        "path",
        "path_separated_prefix",
        "prefix",
        "query_parameters",
        "runtime_fraction",
        "safe_regex",
    ]),
    message("envoy.config.route.v3.RouteMatch.GrpcRouteMatchOptions", &[]),
    Message {
        name: "envoy.config.route.v3.VirtualHost",
        implemented: &[
            "domains",
            "include_request_attempt_count",
            "name",
            "rate_limits",
            "request_headers_to_add",
            "request_headers_to_remove",
            "request_mirror_policies",
            "require_tls",
            "response_headers_to_add",
            "response_headers_to_remove",
            "retry_policy",
            "routes",
            "typed_per_filter_config",
        ],
        ignored: &[("metadata", NOBODY_READS)],
        instead: &[],
    },
    Message {
        name: "envoy.config.route.v3.WeightedCluster",
        implemented: &["clusters", "total_weight"],
        ignored: &[("runtime_key_prefix", NO_RUNTIME)],
        instead: &[],
    },
    message("envoy.config.route.v3.WeightedCluster.ClusterWeight", &["name", "typed_per_filter_config", "weight"]),
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
    message("envoy.extensions.filters.http.router.v3.Router", &[]),
    message("envoy.extensions.filters.listener.original_dst.v3.OriginalDst", &[]),
    message("envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector", &[]),
    Message {
        name: "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        implemented: &[
            "access_log",
            "codec_type",
            "common_http_protocol_options",
            "drain_timeout",
            "forward_client_cert_details",
            "generate_request_id",
            "http2_protocol_options",
            "http_filters",
            "http_protocol_options",
            "max_request_headers_kb",
            "merge_slashes",
            "normalize_path",
            "path_with_escaped_slashes_action",
            "preserve_external_request_id",
            "rds",
            "request_headers_timeout",
            "request_timeout",
            "route_config",
            "server_header_transformation",
            "server_name",
            "set_current_client_cert_details",
            "skip_xff_append",
            "stat_prefix",
            "stream_idle_timeout",
            "upgrade_configs",
            "use_remote_address",
            "via",
            "xff_num_trusted_hops",
        ],
        ignored: &[("delayed_close_timeout", "a closing connection is read until its peer closes, for at most a fixed time")],
        instead: &[("tracing", "remove it"), ("scoped_routes", "use rds or route_config")],
    },
    message("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.SetCurrentClientCertDetails", &[
        "dns", "subject", "uri",
    ]),
    message("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.UpgradeConfig", &[
        "enabled",
        "upgrade_type",
    ]),
    message("envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter", &["disabled", "name", "typed_config"]),
    message("envoy.extensions.filters.network.http_connection_manager.v3.Rds", &["config_source", "route_config_name"]),
    message("envoy.extensions.filters.network.rbac.v3.RBAC", &[
        "enforcement_type",
        "rules",
        "shadow_rules",
        "shadow_rules_stat_prefix",
        "stat_prefix",
    ]),
    message("envoy.extensions.filters.network.sni_cluster.v3.SniCluster", &[]),
    message("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", &[
        "access_log",
        "cluster",
        "idle_timeout",
        "max_connect_attempts",
        "stat_prefix",
        "weighted_clusters",
    ]),
    message("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster", &["clusters"]),
    message("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight", &["name", "weight"]),
    message("envoy.extensions.rbac.principals.mtls_authenticated.v3.Config", &[
        "any_validated_client_certificate",
        "san_matcher",
    ]),
    message("envoy.extensions.resource_monitors.cgroup_memory.v3.CgroupMemoryConfig", &["max_memory_bytes"]),
    message(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        &["max_active_downstream_connections"],
    ),
    message("envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig", &["max_heap_size_bytes"]),
    message("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate", &[]),
    message("envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer", &[]),
    message("envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext", &[
        "custom_validator_config",
        "match_typed_subject_alt_names",
        "trusted_ca",
        "trust_chain_verification",
    ]),
    message("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext", &[
        "alpn_protocols",
        "combined_validation_context",
        "tls_certificate_sds_secret_configs",
        "tls_certificates",
        "tls_params",
        "validation_context",
        "validation_context_sds_secret_config",
    ]),
    message("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext.CombinedCertificateValidationContext", &[
        "default_validation_context",
        "validation_context_sds_secret_config",
    ]),
    Message {
        name: "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        implemented: &[
            "common_tls_context",
            "disable_stateless_session_resumption",
            "ocsp_staple_policy",
            "require_client_certificate",
        ],
        ignored: &[("disable_stateful_session_resumption", "sessions are never kept on this side")],
        instead: &[],
    },
    message("envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig", &["trust_domains"]),
    message("envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig.TrustDomain", &["name", "trust_bundle"]),
    message("envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig", &["name", "sds_config"]),
    message("envoy.extensions.transport_sockets.tls.v3.Secret", &["name", "tls_certificate", "validation_context"]),
    Message {
        name: "envoy.extensions.transport_sockets.tls.v3.SubjectAltNameMatcher",
        implemented: &["matcher", "san_type"],
        ignored: &[],
        instead: &[("oid", "use san_type URI, DNS, IP_ADDRESS or EMAIL, which have none")],
    },
    Message {
        name: "envoy.extensions.transport_sockets.tls.v3.TlsCertificate",
        implemented: &["certificate_chain", "private_key"],
        ignored: &[],
        instead: &[
            ("private_key_provider", "give the key in private_key"),
            ("password", "give the key unencrypted in private_key"),
            ("pkcs12", "use certificate_chain and private_key"),
            ("watched_directory", "use SDS to rotate"),
        ],
    },
    message("envoy.extensions.transport_sockets.tls.v3.TlsParameters", &[
        "cipher_suites",
        "ecdh_curves",
        "tls_maximum_protocol_version",
        "tls_minimum_protocol_version",
    ]),
    message("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", &["common_tls_context", "sni"]),
    message("envoy.extensions.upstreams.http.v3.HttpProtocolOptions", &[
        "common_http_protocol_options",
        "explicit_http_config",
        "use_downstream_protocol_config",
    ]),
    message("envoy.extensions.upstreams.http.v3.HttpProtocolOptions.ExplicitHttpConfig", &[
        "http2_protocol_options",
        "http_protocol_options",
    ]),
    message("envoy.extensions.upstreams.http.v3.HttpProtocolOptions.UseDownstreamHttpConfig", &[
        "http2_protocol_options",
        "http_protocol_options",
    ]),
    message("envoy.type.matcher.v3.DoubleMatcher", &["exact", "range"]),
    message("envoy.type.matcher.v3.ListMatcher", &["one_of"]),
    message("envoy.type.matcher.v3.ListStringMatcher", &["patterns"]),
    message("envoy.type.matcher.v3.MetadataMatcher", &["filter", "invert", "path", "value"]),
    message("envoy.type.matcher.v3.MetadataMatcher.PathSegment", &["key"]),
    message("envoy.type.matcher.v3.OrMatcher", &["value_matchers"]),
    message("envoy.type.matcher.v3.PathMatcher", &["path"]),
    message("envoy.type.matcher.v3.RegexMatchAndSubstitute", &["pattern", "substitution"]),
    Message {
        name: "envoy.type.matcher.v3.RegexMatcher",
        implemented: &["google_re2", "regex"],
        ignored: &[],
        instead: &[],
    },
    Message {
        name: "envoy.type.matcher.v3.RegexMatcher.GoogleRE2",
        implemented: &[],
        ignored: &[("max_program_size", "expressions are bounded by their compiled size")],
        instead: &[],
    },
    message("envoy.type.matcher.v3.StringMatcher", &[
        "contains",
        "exact",
        "ignore_case",
        "prefix",
        "safe_regex",
        "suffix",
    ]),
    message("envoy.type.matcher.v3.ValueMatcher", &[
        "bool_match",
        "double_match",
        "list_match",
        "null_match",
        "or_match",
        "present_match",
        "string_match",
    ]),
    message("envoy.type.matcher.v3.ValueMatcher.NullMatch", &[]),
    message("envoy.type.v3.DoubleRange", &["end", "start"]),
    message("envoy.type.v3.FractionalPercent", &["denominator", "numerator"]),
    message("envoy.type.v3.HttpStatus", &["code"]),
    message("envoy.type.v3.Int32Range", &["end", "start"]),
    message("envoy.type.v3.Int64Range", &["end", "start"]),
    message("envoy.type.v3.Percent", &["value"]),
    message("udpa.type.v1.TypedStruct", &["type_url", "value"]),
    message("xds.type.v3.TypedStruct", &["type_url", "value"]),
];

#[cfg(test)]
mod tests {
    use super::super::message_of;
    use super::*;

    #[test]
    fn table_is_sorted_and_names_exist() {
        for pair in TABLE.windows(2) {
            assert!(
                pair[0].name < pair[1].name,
                "{} stands before {}",
                pair[0].name,
                pair[1].name
            );
        }
        for entry in all() {
            let descriptor = heddle_api::pool()
                .get_message_by_name(entry.name)
                .unwrap_or_else(|| panic!("{}", entry.name));
            let ignored = entry.ignored.iter().map(|(name, _)| name);
            for field in entry.implemented.iter().chain(ignored) {
                assert!(
                    descriptor.get_field_by_name(field).is_some(),
                    "{}.{field} does not exist",
                    entry.name
                );
            }
        }
    }

    /// An implemented field that holds a message is useless unless that message is in the table too.
    #[test]
    fn messages_of_implemented_fields_are_in_the_table() {
        for entry in all() {
            let descriptor = heddle_api::pool()
                .get_message_by_name(entry.name)
                .expect("checked above");
            for field in entry.implemented {
                let field = descriptor.get_field_by_name(field).expect("checked above");
                if let Some(inner) = message_of(&field) {
                    let name = inner.full_name().to_owned();
                    assert!(
                        name.starts_with("google.protobuf.") || of(&name).is_some(),
                        "{}.{} holds {name}, which is not in the table",
                        entry.name,
                        field.name()
                    );
                }
            }
        }
    }

    #[test]
    fn a_message_has_one_entry() {
        let mut names = std::collections::HashSet::new();
        for entry in all() {
            assert!(names.insert(entry.name), "{} has two entries", entry.name);
        }
    }

    #[test]
    fn a_field_is_in_one_list_only() {
        for entry in all() {
            for (field, _) in entry.ignored {
                assert!(!entry.implemented.contains(field), "{}.{field}", entry.name);
            }
        }
    }
}
