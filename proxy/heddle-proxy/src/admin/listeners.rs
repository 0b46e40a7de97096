//! `/listeners`: what is bound.

use std::fmt::Write as _;

use hyper::StatusCode;
use serde_json::json;

use super::reply::Reply;
use super::route::Query;
use super::state::AdminState;

pub(super) fn listeners(state: &AdminState, query: &Query<'_>) -> Reply {
    let snapshot = state.snapshot.borrow();
    let mut all: Vec<_> = snapshot.listeners.values().collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    match query.get("format").as_deref() {
        None | Some("text") => {
            let mut out = String::new();
            for listener in all {
                for address in &listener.addresses {
                    // Writing to a String cannot fail.
                    let _ = writeln!(out, "{}::{address}", listener.name);
                }
            }
            Reply::text(out)
        }
        Some("json") => {
            let statuses: Vec<_> = all
                .iter()
                .map(|listener| {
                    let mut addresses = listener.addresses.iter().map(|address| {
                        json!({"socket_address": {
                            "address": address.ip().to_string(),
                            "port_value": address.port(),
                        }})
                    });
                    let first = addresses.next();
                    let mut status = json!({"name": &*listener.name, "local_address": first});
                    let more: Vec<_> = addresses.collect();
                    if let (Some(fields), false) = (status.as_object_mut(), more.is_empty()) {
                        fields.insert("additional_local_addresses".into(), more.into());
                    }
                    status
                })
                .collect();
            Reply::json(&json!({"listener_statuses": statuses}))
        }
        Some(other) => Reply::error(
            StatusCode::BAD_REQUEST,
            format!("format `{other}` is not known; use text or json\n"),
        ),
    }
}
