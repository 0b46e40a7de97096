//! `envoy.filters.http.decompressor`.

use std::convert::Infallible;

use heddle_api::envoy::config::core::v3::TypedExtensionConfig;
use heddle_api::envoy::extensions::compression::gzip::decompressor::v3 as gzip;
use heddle_api::envoy::extensions::filters::http::decompressor::v3 as pb;
use prost_types::Any;

use super::Kind;
use super::compressor::CHUNKS;
use crate::check::fields::{Message, message};
use crate::decode::{Result, fraction, required, unpack};
use crate::path::Path;

/// How many times its input a body may grow to, where nothing else is configured.
const MAX_INFLATE_RATIO: u32 = 100;

/// `envoy.extensions.filters.http.decompressor.v3.Decompressor`.
#[derive(Debug)]
pub struct Decompressor {
    /// Its name, for metrics and trailers.
    pub library_name: Box<str>,
    /// `decompressor_library`.
    pub library: Library,
    /// `request_direction_config`.
    pub request: Direction,
    /// `advertise_accept_encoding`, on by default: upstreams are told what responses may be compressed with.
    pub advertise: bool,
    /// `response_direction_config`.
    pub response: Direction,
}

/// `envoy.extensions.filters.http.decompressor.v3.Decompressor.CommonDirectionConfig`.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// `enabled`, which is the default.
    pub enabled: bool,
    /// `ignore_no_transform_header`: also what `cache-control: no-transform` wants left alone.
    pub ignore_no_transform: bool,
}

/// What to decompress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `envoy.extensions.compression.gzip.decompressor.v3.Gzip` (RFC 1952).
    Gzip {
        /// `window_bits`, 9 to 15, 15 by default.
        window_bits: u8,
        /// `max_inflate_ratio`, 100 by default: a body that is more times as long as what it came as is cut there.
        max_ratio: u32,
    },
    /// `envoy.extensions.compression.brotli.decompressor.v3.Brotli` (RFC 7932).
    Brotli,
    /// `envoy.extensions.compression.zstd.decompressor.v3.Zstd` (RFC 8878).
    Zstd,
}

impl Library {
    /// The content coding (RFC 9110 section 8.4.1).
    pub fn coding(self) -> &'static str {
        match self {
            Self::Gzip { .. } => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Its name in metrics.
    pub fn stat_name(self) -> &'static str {
        match self {
            Self::Gzip { .. } => "gzip",
            Self::Brotli => "brotli",
            Self::Zstd => "zstd",
        }
    }

    /// How many times as long as its input a body may become.
    pub fn max_ratio(self) -> u32 {
        match self {
            Self::Gzip { max_ratio, .. } => max_ratio,
            Self::Brotli | Self::Zstd => MAX_INFLATE_RATIO,
        }
    }
}

const GZIP: &str = "envoy.extensions.compression.gzip.decompressor.v3.Gzip";
const BROTLI: &str = "envoy.extensions.compression.brotli.decompressor.v3.Brotli";
const ZSTD: &str = "envoy.extensions.compression.zstd.decompressor.v3.Zstd";

impl Kind for Decompressor {
    const TYPE: &'static str = "envoy.extensions.filters.http.decompressor.v3.Decompressor";
    const MESSAGES: &'static [Message] = &[
        Message {
            name: GZIP,
            implemented: &["max_inflate_ratio", "window_bits"],
            ignored: &[("chunk_size", CHUNKS)],
            instead: &[],
        },
        Message {
            name: BROTLI,
            implemented: &[],
            ignored: &[
                ("chunk_size", CHUNKS),
                (
                    "disable_ring_buffer_reallocation",
                    "memory grows as it is needed, which the bytes do not show",
                ),
            ],
            instead: &[],
        },
        Message {
            name: ZSTD,
            implemented: &[],
            ignored: &[("chunk_size", CHUNKS)],
            instead: &[],
        },
        message(
            Self::TYPE,
            &[
                "decompressor_library",
                "request_direction_config",
                "response_direction_config",
            ],
        ),
        message(
            "envoy.extensions.filters.http.decompressor.v3.Decompressor.CommonDirectionConfig",
            &["enabled", "ignore_no_transform_header"],
        ),
        message(
            "envoy.extensions.filters.http.decompressor.v3.Decompressor.RequestDirectionConfig",
            &["advertise_accept_encoding", "common_config"],
        ),
        message(
            "envoy.extensions.filters.http.decompressor.v3.Decompressor.ResponseDirectionConfig",
            &["common_config"],
        ),
    ];
    type Route = Infallible;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::Decompressor = unpack(any, path)?;
        let here = path.field("decompressor_library");
        let named = required(config.decompressor_library.as_ref(), &here)?;
        let request = config.request_direction_config.unwrap_or_default();
        let response = config.response_direction_config.unwrap_or_default();
        Ok(Self {
            library_name: named.name.as_str().into(),
            library: library(named, &here)?,
            request: direction(request.common_config.as_ref()),
            advertise: request.advertise_accept_encoding.unwrap_or(true),
            response: direction(response.common_config.as_ref()),
        })
    }
}

fn direction(config: Option<&pb::decompressor::CommonDirectionConfig>) -> Direction {
    Direction {
        enabled: fraction::feature(config.and_then(|c| c.enabled.as_ref())),
        ignore_no_transform: config.is_some_and(|c| c.ignore_no_transform_header),
    }
}

fn library(config: &TypedExtensionConfig, path: &Path<'_>) -> Result<Library> {
    let here = path.field("typed_config");
    let any = required(config.typed_config.as_ref(), &here)?;
    match heddle_api::message_name(&any.type_url) {
        GZIP => {
            let config: gzip::Gzip = unpack(any, &here)?;
            Ok(Library::Gzip {
                window_bits: config.window_bits.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(15),
                max_ratio: config.max_inflate_ratio.unwrap_or(MAX_INFLATE_RATIO),
            })
        }
        BROTLI => Ok(Library::Brotli),
        ZSTD => Ok(Library::Zstd),
        other => Err(here.unsupported(other, "use the Gzip, Brotli or Zstd decompressor")),
    }
}
