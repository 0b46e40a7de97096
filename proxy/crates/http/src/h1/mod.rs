//! HTTP/1.1: a codec of our own, strict by default (RFC 9112).

mod chunked;
mod error;
mod io;
mod parse;
mod serve;
mod start_line;

pub use chunked::{ChunkDecoder, ChunkStep};
pub use error::H1Error;
pub(crate) use io::{H1Conn, H1Reader, H1Writer};
pub use parse::{HeadScan, Limits, MAX_FIELDS, RequestFacts, parse_request, parse_response, parse_trailers};
pub(crate) use serve::{resume, serve};

#[cfg(test)]
mod tests;
