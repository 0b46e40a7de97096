//! `/ready`, `/server_info`, `/config_dump`.

use hyper::StatusCode;
use serde_json::json;

use super::reply::Reply;
use super::route::Query;
use super::state::{AdminState, ServerState};

pub(super) fn ready(state: &AdminState, _: &Query<'_>) -> Reply {
    let now = state.server_state();
    let status = if now == ServerState::Live {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    Reply {
        status,
        ..Reply::text(format!("{}\n", now.as_str()))
    }
}

pub(super) fn server_info(state: &AdminState, _: &Query<'_>) -> Reply {
    let uptime = format!("{}s", state.started.elapsed().as_secs());
    let snapshot = state.snapshot.borrow();
    let node = &snapshot.node;
    Reply::json(&json!({
        "version": state.version,
        "state": state.server_state().as_str(),
        "uptime_current_epoch": uptime,
        "uptime_all_epochs": uptime,
        "hot_restart_version": "disabled",
        "command_line_options": state.command_line,
        "node": {
            "id": node.id,
            "cluster": node.cluster,
            "metadata": node.metadata,
            "locality": {
                "region": node.locality.region,
                "zone": node.locality.zone,
                "sub_zone": node.locality.sub_zone,
            },
        },
        "snapshot_version": snapshot.version.to_string(),
    }))
}

pub(super) fn config_dump(state: &AdminState, query: &Query<'_>) -> Reply {
    for (name, _) in query.pairs() {
        if name != "include_eds" {
            return Reply::error(
                StatusCode::BAD_REQUEST,
                format!("query parameter `{name}` is not implemented; use include_eds or none\n"),
            );
        }
    }
    Reply::json(&(state.config_dump)(query.has("include_eds")))
}
