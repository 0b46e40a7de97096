//! `envoy.filters.http.buffer`.

use heddle_api::envoy::extensions::filters::http::buffer::v3 as pb;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, bytes, required, unpack};
use crate::path::Path;

/// `envoy.extensions.filters.http.buffer.v3.Buffer`.
#[derive(Debug)]
pub struct Buffer {
    /// `max_request_bytes`: longer requests are answered 413.
    pub max_request_bytes: usize,
}

/// `envoy.extensions.filters.http.buffer.v3.BufferPerRoute`.
#[derive(Debug)]
pub struct BufferPerRoute {
    /// In place of the filter's own settings; none (`disabled`) waits for nothing.
    pub buffer: Option<Buffer>,
}

impl Kind for Buffer {
    const TYPE: &'static str = "envoy.extensions.filters.http.buffer.v3.Buffer";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.buffer.v3.BufferPerRoute";
    const MESSAGES: &'static [Message] = &[
        message(Self::TYPE, &["max_request_bytes"]),
        message(Self::ROUTE_TYPE, &["buffer", "disabled"]),
    ];
    type Route = BufferPerRoute;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        buffer(&unpack(any, path)?, path)
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<BufferPerRoute> {
        use pb::buffer_per_route::Override;
        let config: pb::BufferPerRoute = unpack(any, path)?;
        Ok(BufferPerRoute {
            buffer: match required(config.r#override.as_ref(), path)? {
                Override::Disabled(_) => None,
                Override::Buffer(config) => Some(buffer(config, &path.field("buffer"))?),
            },
        })
    }
}

fn buffer(config: &pb::Buffer, path: &Path<'_>) -> Result<Buffer> {
    let max = required(config.max_request_bytes.as_ref(), &path.field("max_request_bytes"))?;
    Ok(Buffer {
        max_request_bytes: bytes(*max),
    })
}
