//! What the connection manager does to a response head before it is sent, and answers of our own.

use bytes::Bytes;
use heddle_config::snapshot::ServerHeader;
use heddle_telemetry::Counter;

use super::{Exchange, HcmRuntime};
use crate::failure::Failure;
use crate::head::{Fields, Known, Trailers};
use crate::worker::HttpWorker;

/// The last changes to a response head, whoever made it.
pub(crate) fn finish_head(hcm: &HcmRuntime, worker: &HttpWorker, exchange: &mut Exchange) {
    let start = exchange.start;
    let fields = &mut exchange.response.fields;
    match &hcm.config.server_header {
        ServerHeader::Overwrite(name) => fields.set_known(Known::Server, name.as_bytes()),
        ServerHeader::AppendIfAbsent(name) => {
            if !fields.has_known(Known::Server) {
                fields.push_known(Known::Server, name.as_bytes());
            }
        }
        ServerHeader::PassThrough => {}
    }
    if !fields.has_known(Known::Date) {
        // The request's clock reading serves: a request that takes seconds gets a date that is seconds old at most.
        worker.with_date(start, |date| fields.push_known(Known::Date, date));
    }
    if let Some(via) = &hcm.config.via {
        fields.append_known(Known::Via, b", ", via.as_bytes());
    }
}

/// Makes `exchange.response` the answer to a failure and returns its body.
pub(crate) fn local_head(exchange: &mut Exchange, failure: &Failure) -> Bytes {
    if let Some(reason) = failure.transport_reason() {
        exchange.upstream_failure = Some(reason.to_owned());
    }
    let retried = exchange.attempts > 1;
    failure.reply(retried).put(exchange)
}

/// Leaves the trailers that may travel on. Every trailer section passes here, whichever protocols it comes by and leaves
/// by.
pub(crate) fn clean_trailers(of: Trailers, dropped: Option<&Counter>, trailers: &mut Fields) {
    let n = trailers.keep_trailers(of);
    if n > 0
        && let Some(dropped) = dropped
    {
        dropped.add(n as u64);
    }
}
