//! HTTP codecs, filters and the router.
//!
//! ```text
//! serve ─▶ h1 | h2 ─▶ hcm::handle ─▶ filters ─▶ router ─▶ pool ─▶ h1 | h2 ─▶ upstream
//! ```
//!
//! A request head is bytes with an index (`head`), the same for both codecs. A body moves from a `Source` to a `Sink`
//! (`body`) with backpressure. What goes wrong becomes an answer in one place (`failure`), of the one kind that filters give
//! too (`local_reply`).
#![forbid(unsafe_code)]
#![expect(
    clippy::redundant_allocation,
    reason = "an Rc around a shared Arc keeps the count that other cores write out of the request path"
)]
#![expect(
    clippy::vec_box,
    reason = "pooled connections and exchanges are large and move between owners"
)]
#![expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps each argument twice, as it was given and as it is used, and what a request touches is memory"
)]

mod access_log;
mod body;
mod buffer;
mod callout;
mod drain;
mod failure;
mod filters;
mod h1;
mod h2;
mod hcm;
mod head;
mod jwks;
mod kept;
mod local_reply;
mod moving;
mod overload;
mod pool;
mod route;
mod router;
mod serve;
mod timer;
mod worker;

pub use access_log::AccessLogs;
pub use drain::{Drain, DrainStage, DrainTrigger};
pub use filters::NetworkExtAuthz;
pub use hcm::HcmRuntime;
pub use moving::{Moves, Resting, Travelling};
pub use overload::{Overload, OverloadCounters, OverloadStates};
pub use pool::{HostPool, drain_host, sweep_pools};
pub use serve::{resume, serve};
pub use worker::{Clusters, HttpWorker, trim_spares};

// The harness of the tests names the crate as they do.
#[cfg(test)]
extern crate self as heddle_http;
#[cfg(test)]
#[path = "../tests/harness/mod.rs"]
mod harness;

#[doc(hidden)]
pub mod servers;

/// Entry points of the parsers, for fuzzing and comparison.
pub mod parse {
    pub use crate::h1::{
        ChunkDecoder, ChunkStep, H1Error, HeadScan, Limits, MAX_FIELDS, RequestFacts, parse_request, parse_response,
        parse_trailers,
    };
    pub use crate::h2::{HpackDecoder, HpackError, HpackField, Receiver};
    pub use crate::hcm::{Normalized, PathError, PathRules, forward_client_cert, normalize_path};
    pub use crate::head::{
        Fields, Framing, Known, Method, Protocol, RequestHead, ResponseHead, Scheme, Span, TargetError, Trailers,
        check_method, check_target,
    };
}
