//! The admin interface: Envoy's paths over HTTP/1, on loopback or a unix socket.
//!
//! [`AdminServer::bind`] opens the address, [`AdminServer::run`] serves it on the main thread. It reads shared
//! structures only, so a scrape never makes a worker wait. What changes something needs POST, and is refused to web
//! pages: the interface has no login, so a browser on the same machine must not be talked into using it.

mod certs;
mod clusters;
mod control;
mod info;
mod listeners;
mod metrics;
mod reply;
mod route;
mod server;
mod state;

pub(crate) use server::AdminServer;
pub(crate) use state::{AdminCommand, AdminState, ServerState, SetLogLevel};
