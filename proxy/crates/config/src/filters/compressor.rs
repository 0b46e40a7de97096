//! `envoy.filters.http.compressor`.
#![expect(deprecated, reason = "fields that came before the directions' own still count in Envoy")]

use heddle_api::envoy::config::core::v3::TypedExtensionConfig;
use heddle_api::envoy::extensions::compression::brotli::compressor::v3 as brotli;
use heddle_api::envoy::extensions::compression::gzip::compressor::v3 as gzip;
use heddle_api::envoy::extensions::compression::zstd::compressor::v3 as zstd;
use heddle_api::envoy::extensions::filters::http::compressor::v3 as pb;
use heddle_matching::StringMatcher;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, enumeration, fraction, matcher, required, unpack};
use crate::path::Path;

/// Bodies whose head says that they are shorter stay as they are, where nothing else is configured.
const MIN_CONTENT_LENGTH: u32 = 30;

/// What is compressed where no types are configured (Envoy's list).
const CONTENT_TYPES: &[&str] = &[
    "text/html",
    "text/plain",
    "text/css",
    "application/javascript",
    "application/x-javascript",
    "text/javascript",
    "text/x-javascript",
    "text/ecmascript",
    "text/js",
    "text/jscript",
    "text/x-js",
    "application/ecmascript",
    "application/x-json",
    "application/xml",
    "application/json",
    "image/svg+xml",
    "text/xml",
    "application/xhtml+xml",
    "application/grpc-web",
    "application/grpc-web+proto",
];

pub(super) const CHUNKS: &str = "output is taken in pieces of a fixed size, which the bytes do not show";

/// `envoy.extensions.filters.http.compressor.v3.Compressor`.
#[derive(Debug)]
pub struct Compressor {
    /// Its name, for metrics.
    pub library_name: Box<str>,
    /// `compressor_library`.
    pub library: Library,
    /// `request_direction_config`; none leaves requests alone.
    pub request: Option<Direction>,
    /// `response_direction_config`, or the fields of the filter that stand for it.
    pub response: Direction,
    /// Whether `response_direction_config` is there, which moves what is counted of responses.
    pub response_stats_apart: bool,
    /// `disable_on_etag_header`: a response with an `etag` stays as it is.
    pub disable_on_etag: bool,
    /// `weaken_etag_on_compress`: a strong `etag` is made weak, not removed.
    pub weaken_etag: bool,
    /// `remove_accept_encoding_header`: the upstream is not to compress.
    pub remove_accept_encoding: bool,
    /// `uncompressible_response_codes`.
    pub uncompressible: Vec<u16>,
    /// `choose_first`: preferred to others that a client likes as much.
    pub choose_first: bool,
}

/// `envoy.extensions.filters.http.compressor.v3.Compressor.CommonDirectionConfig`.
#[derive(Debug)]
pub struct Direction {
    /// `enabled`, which is the default.
    pub enabled: bool,
    /// `min_content_length`, 30 by default.
    pub min_content_length: u64,
    /// `content_type_matcher`, or `content_type`: media types without parameters.
    pub content_types: Vec<StringMatcher>,
}

/// How to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `envoy.extensions.compression.gzip.compressor.v3.Gzip` (RFC 1952).
    Gzip {
        /// `compression_level`, 1 to 9, 6 by default.
        level: i32,
        /// `compression_strategy`.
        strategy: GzipStrategy,
        /// `memory_level`, 1 to 9, 5 by default.
        memory_level: i32,
        /// `window_bits`, 9 to 15, 12 by default.
        window_bits: i32,
    },
    /// `envoy.extensions.compression.brotli.compressor.v3.Brotli` (RFC 7932).
    Brotli {
        /// `quality`, 0 to 11, 3 by default.
        quality: i32,
        /// `encoder_mode`.
        mode: BrotliMode,
        /// `window_bits`, 10 to 24, 18 by default.
        window_bits: i32,
        /// `input_block_bits`, 16 to 24, 24 by default; only qualities above 3 heed it.
        block_bits: i32,
        /// Unless `disable_literal_context_modeling`.
        literal_context_modeling: bool,
    },
    /// `envoy.extensions.compression.zstd.compressor.v3.Zstd` (RFC 8878).
    Zstd {
        /// `compression_level`; 0 stands for 3.
        level: i32,
        /// `enable_checksum`.
        checksum: bool,
        /// `strategy`, by zstd's numbers; 0 is the level's own.
        strategy: u8,
    },
}

impl Library {
    /// The content coding (RFC 9110 section 8.4.1).
    pub fn coding(self) -> &'static str {
        match self {
            Self::Gzip { .. } => "gzip",
            Self::Brotli { .. } => "br",
            Self::Zstd { .. } => "zstd",
        }
    }

    /// Its name in metrics.
    pub fn stat_name(self) -> &'static str {
        match self {
            Self::Gzip { .. } => "gzip",
            Self::Brotli { .. } => "brotli",
            Self::Zstd { .. } => "zstd",
        }
    }
}

/// zlib's strategies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum GzipStrategy {
    #[default]
    Default,
    Filtered,
    HuffmanOnly,
    Rle,
    Fixed,
}

/// What brotli may expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BrotliMode {
    #[default]
    Generic,
    Text,
    Font,
}

/// `envoy.extensions.filters.http.compressor.v3.CompressorPerRoute`.
#[derive(Debug, Default)]
pub struct CompressorPerRoute {
    /// `disabled`, or on where `overrides` speaks of responses; none leaves it to the filter.
    pub enabled: Option<bool>,
    /// `remove_accept_encoding_header` in place of the filter's.
    pub remove_accept_encoding: Option<bool>,
}

const GZIP: &str = "envoy.extensions.compression.gzip.compressor.v3.Gzip";
const BROTLI: &str = "envoy.extensions.compression.brotli.compressor.v3.Brotli";
const ZSTD: &str = "envoy.extensions.compression.zstd.compressor.v3.Zstd";

impl Kind for Compressor {
    const TYPE: &'static str = "envoy.extensions.filters.http.compressor.v3.Compressor";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.compressor.v3.CompressorPerRoute";
    const MESSAGES: &'static [Message] = &[
        Message {
            name: GZIP,
            implemented: &["compression_level", "compression_strategy", "memory_level", "window_bits"],
            ignored: &[("chunk_size", CHUNKS)],
            instead: &[],
        },
        Message {
            name: BROTLI,
            implemented: &[
                "disable_literal_context_modeling",
                "encoder_mode",
                "input_block_bits",
                "quality",
                "window_bits",
            ],
            ignored: &[("chunk_size", CHUNKS)],
            instead: &[],
        },
        Message {
            name: ZSTD,
            implemented: &["compression_level", "enable_checksum", "strategy"],
            ignored: &[("chunk_size", CHUNKS)],
            instead: &[],
        },
        message(
            Self::TYPE,
            &[
                "choose_first",
                "compressor_library",
                "content_length",
                "content_type",
                "disable_on_etag_header",
                "remove_accept_encoding_header",
                "request_direction_config",
                "response_direction_config",
                "runtime_enabled",
            ],
        ),
        message(
            "envoy.extensions.filters.http.compressor.v3.Compressor.CommonDirectionConfig",
            &["content_type", "content_type_matcher", "enabled", "min_content_length"],
        ),
        message(
            "envoy.extensions.filters.http.compressor.v3.Compressor.RequestDirectionConfig",
            &["common_config"],
        ),
        message(
            "envoy.extensions.filters.http.compressor.v3.Compressor.ResponseDirectionConfig",
            &[
                "common_config",
                "disable_on_etag_header",
                "remove_accept_encoding_header",
                "uncompressible_response_codes",
                "weaken_etag_on_compress",
            ],
        ),
        message(
            "envoy.extensions.filters.http.compressor.v3.CompressorOverrides",
            &["response_direction_config"],
        ),
        message(Self::ROUTE_TYPE, &["disabled", "overrides"]),
        message(
            "envoy.extensions.filters.http.compressor.v3.ResponseDirectionOverrides",
            &["remove_accept_encoding_header"],
        ),
    ];
    type Route = CompressorPerRoute;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::Compressor = unpack(any, path)?;
        let here = path.field("compressor_library");
        let named = required(config.compressor_library.as_ref(), &here)?;
        let library = library(named, &here)?;
        let request = match &config.request_direction_config {
            Some(request) => {
                let here = path.field("request_direction_config");
                Some(direction(request.common_config.as_ref(), &here.field("common_config"))?)
            }
            None => None,
        };
        let mut compressor = Self {
            library_name: named.name.as_str().into(),
            library,
            request,
            response: Direction {
                enabled: fraction::feature(config.runtime_enabled.as_ref()),
                min_content_length: min_content_length(config.content_length),
                content_types: content_types(&config.content_type),
            },
            response_stats_apart: false,
            disable_on_etag: config.disable_on_etag_header,
            weaken_etag: false,
            remove_accept_encoding: config.remove_accept_encoding_header,
            uncompressible: Vec::new(),
            choose_first: config.choose_first,
        };
        if let Some(response) = &config.response_direction_config {
            let here = path.field("response_direction_config");
            compressor.response = direction(response.common_config.as_ref(), &here.field("common_config"))?;
            compressor.response_stats_apart = true;
            compressor.disable_on_etag = response.disable_on_etag_header;
            compressor.weaken_etag = response.weaken_etag_on_compress;
            compressor.remove_accept_encoding = response.remove_accept_encoding_header;
            let codes = response.uncompressible_response_codes.iter();
            compressor.uncompressible = codes.filter_map(|code| u16::try_from(*code).ok()).collect();
        }
        Ok(compressor)
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<CompressorPerRoute> {
        use pb::compressor_per_route::Override;
        let config: pb::CompressorPerRoute = unpack(any, path)?;
        Ok(match required(config.r#override.as_ref(), path)? {
            Override::Disabled(_) => CompressorPerRoute {
                enabled: Some(false),
                remove_accept_encoding: None,
            },
            Override::Overrides(overrides) => CompressorPerRoute {
                enabled: overrides.response_direction_config.is_some().then_some(true),
                remove_accept_encoding: overrides
                    .response_direction_config
                    .as_ref()
                    .and_then(|response| response.remove_accept_encoding_header),
            },
        })
    }
}

fn direction(config: Option<&pb::compressor::CommonDirectionConfig>, path: &Path<'_>) -> Result<Direction> {
    let config = config.cloned().unwrap_or_default();
    let matchers = config.content_type_matcher.iter().enumerate();
    let matchers: Vec<_> = matchers
        .map(|(i, m)| matcher::string(m, &path.item("content_type_matcher", i)))
        .collect::<Result<_>>()?;
    Ok(Direction {
        enabled: fraction::feature(config.enabled.as_ref()),
        min_content_length: min_content_length(config.min_content_length),
        content_types: match matchers.is_empty() {
            true => content_types(&config.content_type),
            false => matchers,
        },
    })
}

fn min_content_length(configured: Option<u32>) -> u64 {
    match configured.unwrap_or_default() {
        0 => u64::from(MIN_CONTENT_LENGTH),
        length => u64::from(length),
    }
}

fn content_types(configured: &[String]) -> Vec<StringMatcher> {
    use heddle_matching::StringTest;
    let exact = |text: &str| StringMatcher::new(StringTest::Exact(text.into()), true);
    match configured.is_empty() {
        true => CONTENT_TYPES.iter().map(|t| exact(t)).collect(),
        false => configured.iter().map(|t| exact(t)).collect(),
    }
}

fn library(config: &TypedExtensionConfig, path: &Path<'_>) -> Result<Library> {
    let here = path.field("typed_config");
    let any = required(config.typed_config.as_ref(), &here)?;
    match heddle_api::message_name(&any.type_url) {
        GZIP => gzip(&unpack(any, &here)?, &here),
        BROTLI => brotli(&unpack(any, &here)?, &here),
        ZSTD => zstd(&unpack(any, &here)?, &here),
        other => Err(here.unsupported(other, "use the Gzip, Brotli or Zstd compressor")),
    }
}

fn number(configured: Option<u32>, default: i32) -> i32 {
    configured.map_or(default, |n| i32::try_from(n).unwrap_or(i32::MAX))
}

fn gzip(config: &gzip::Gzip, path: &Path<'_>) -> Result<Library> {
    use gzip::gzip::{CompressionLevel, CompressionStrategy};
    let level: CompressionLevel = enumeration(config.compression_level, &path.field("compression_level"))?;
    let strategy = enumeration(config.compression_strategy, &path.field("compression_strategy"))?;
    Ok(Library::Gzip {
        level: match level as i32 {
            0 => 6,
            level => level,
        },
        strategy: match strategy {
            CompressionStrategy::DefaultStrategy => GzipStrategy::Default,
            CompressionStrategy::Filtered => GzipStrategy::Filtered,
            CompressionStrategy::HuffmanOnly => GzipStrategy::HuffmanOnly,
            CompressionStrategy::Rle => GzipStrategy::Rle,
            CompressionStrategy::Fixed => GzipStrategy::Fixed,
        },
        memory_level: number(config.memory_level, 5),
        window_bits: number(config.window_bits, 12),
    })
}

fn brotli(config: &brotli::Brotli, path: &Path<'_>) -> Result<Library> {
    use brotli::brotli::EncoderMode;
    Ok(Library::Brotli {
        quality: number(config.quality, 3),
        mode: match enumeration(config.encoder_mode, &path.field("encoder_mode"))? {
            EncoderMode::Default | EncoderMode::Generic => BrotliMode::Generic,
            EncoderMode::Text => BrotliMode::Text,
            EncoderMode::Font => BrotliMode::Font,
        },
        window_bits: number(config.window_bits, 18),
        block_bits: number(config.input_block_bits, 24),
        literal_context_modeling: !config.disable_literal_context_modeling,
    })
}

fn zstd(config: &zstd::Zstd, path: &Path<'_>) -> Result<Library> {
    let strategy: zstd::zstd::Strategy = enumeration(config.strategy, &path.field("strategy"))?;
    Ok(Library::Zstd {
        level: number(config.compression_level, 3),
        checksum: config.enable_checksum,
        strategy: u8::try_from(strategy as i32).unwrap_or_default(),
    })
}
