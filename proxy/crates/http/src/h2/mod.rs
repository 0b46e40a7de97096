//! HTTP/2 (RFC 9113) through the `h2` crate, on both sides of the proxy.

mod body;
mod convert;
mod keepalive;
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the `h2` crate has a bound of its own on early resets; for the codec"
    )
)]
mod premature;
mod scan;
mod serve;
mod transport;

pub(crate) use body::{H2Reader, H2Writer, stream_error};
pub(crate) use convert::{length_of, request_to, response_from};
pub(crate) use keepalive::KeepAlive;
pub use scan::FrameScan;
pub(crate) use serve::{PREFACE, serve};
pub(crate) use transport::{Io, Transport};
