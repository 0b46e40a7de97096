//! RBAC.

use super::{Message, message};

/// Sorted by name. Laid out by hand: one field a line would make it three times as long.
#[rustfmt::skip]
pub(super) const TABLE: &[Message] = &[
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
    message("envoy.extensions.rbac.principals.mtls_authenticated.v3.Config", &[
        "any_validated_client_certificate",
        "san_matcher",
    ]),
];
