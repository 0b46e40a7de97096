//! What changes something: drain, health check, log levels, exit.

use hyper::StatusCode;

use super::reply::Reply;
use super::route::Query;
use super::state::{AdminCommand, AdminState};

fn send(state: &AdminState, command: AdminCommand) -> Reply {
    match state.commands.try_send(command) {
        Ok(()) => Reply::text("OK\n"),
        Err(_) => Reply::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the main thread takes no more commands: it is busy or stopping; try again\n",
        ),
    }
}

fn known(query: &Query<'_>, allowed: &[&str]) -> Result<(), Reply> {
    match query.pairs().find(|(name, _)| !allowed.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => Err(Reply::error(
            StatusCode::BAD_REQUEST,
            format!("query parameter `{name}` is not known; use {}\n", allowed.join(", ")),
        )),
    }
}

pub(super) fn drain_listeners(state: &AdminState, query: &Query<'_>) -> Reply {
    if let Err(reply) = known(query, &["graceful", "inboundonly", "skip_exit"]) {
        return reply;
    }
    let graceful = query.has("graceful");
    let skip_exit = query.has("skip_exit");
    if skip_exit && !graceful {
        return Reply::error(StatusCode::BAD_REQUEST, "skip_exit requires graceful\n");
    }
    send(
        state,
        AdminCommand::DrainListeners {
            graceful,
            inbound_only: query.has("inboundonly"),
            skip_exit,
        },
    )
}

pub(super) fn fail_health_check(state: &AdminState, _: &Query<'_>) -> Reply {
    set_health_check(state, true)
}

pub(super) fn pass_health_check(state: &AdminState, _: &Query<'_>) -> Reply {
    set_health_check(state, false)
}

fn set_health_check(state: &AdminState, failed: bool) -> Reply {
    let reply = send(state, AdminCommand::FailHealthCheck(failed));
    if reply.status == StatusCode::OK {
        state.health_check_failed.set(failed);
    }
    reply
}

pub(super) fn quit(state: &AdminState, _: &Query<'_>) -> Reply {
    send(state, AdminCommand::Quit)
}

pub(super) fn reopen_logs(state: &AdminState, _: &Query<'_>) -> Reply {
    state.logs.reopen();
    Reply::text("OK\n")
}

pub(super) fn logging(state: &AdminState, query: &Query<'_>) -> Reply {
    const LEVELS: [&str; 7] = ["trace", "debug", "info", "warning", "error", "critical", "off"];
    let mut pairs = query.pairs();
    let (Some((name, level)), None) = (pairs.next(), pairs.next()) else {
        return Reply::error(
            StatusCode::BAD_REQUEST,
            format!(
                "usage: /logging?level=<level> or /logging?<module>=<level>; levels: {}\n",
                LEVELS.join(" ")
            ),
        );
    };
    if !LEVELS.contains(&level.as_str()) {
        return Reply::error(
            StatusCode::BAD_REQUEST,
            format!("level `{level}` is not known; use one of: {}\n", LEVELS.join(" ")),
        );
    }
    // Our log knows five levels; Envoy's other names map to the nearest.
    let level = match level.as_str() {
        "warning" => "warn",
        "critical" => "error",
        other => other,
    };
    let wanted = if name == "level" {
        level.to_owned()
    } else {
        format!("{name}:{level}")
    };
    match (state.set_log_level)(&wanted) {
        Ok(now) => Reply::text(format!("active loggers: {now}\n")),
        Err(reason) => Reply::error(StatusCode::BAD_REQUEST, format!("{reason}\n")),
    }
}
