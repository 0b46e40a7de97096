//! Content codings (RFC 9110 section 8.4): bodies compressed and decompressed while they stream.

mod brotli;
mod gzip;
mod zstd;

use std::borrow::Cow;

use heddle_config::filters::{compressor, decompressor};
use heddle_telemetry::{Counter, Stats};

use super::body::{STEP, Step, Transform};
use crate::body::StreamError;
use crate::head::{Fields, Known};

/// Most of a body that is compressed at once, and flushed behind.
const PIECE: usize = 64 * 1024;

/// Whether more of a body follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// What was given so far is to be readable (Envoy flushes behind each piece, for streams of events).
    Flush,
    /// It is over.
    Finish,
}

/// Compresses.
trait Encoder {
    /// Takes all of `input` and appends what comes of it. False when it cannot: the rest of the body is lost.
    fn write(&mut self, input: &[u8], ending: Ending, out: &mut Vec<u8>) -> bool;
}

/// Decompresses.
trait Decoder {
    /// Takes from `input` and appends to `out`, which has `room` for so many bytes.
    ///
    /// # Errors
    /// The input is not what it should be: the numbers of the counters that say so.
    fn read(&mut self, input: &[u8], out: &mut Vec<u8>, room: usize) -> Result<Read, &'static [usize]>;
}

/// What a decoder did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    taken: usize,
    /// The coded message is over.
    done: bool,
}

/// A counter whose name has configured parts. Whatever Prometheus does not take stands as an underscore, as in Envoy.
pub(super) fn counter(stats: &Stats, name: &[&str], connection_manager: &str) -> Counter {
    let name: String = name.join("_");
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_");
    stats.counter(
        heddle_telemetry::stats::name(name),
        &[("http_conn_manager_prefix", connection_manager)],
    )
}

/// Whether a message wants its body left as it is (RFC 9111 section 5.2).
pub(super) fn no_transform(fields: &Fields) -> bool {
    fields
        .all(b"cache-control")
        .flat_map(|value| value.split(|b| *b == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
}

/// The media type of a message without its parameters; empty where there is none.
pub(super) fn media_type(fields: &Fields) -> Cow<'_, str> {
    let value = fields.get_known(Known::ContentType).unwrap_or_default();
    let media = value.split(|b| *b == b';').next().unwrap_or_default();
    String::from_utf8_lossy(media.trim_ascii())
}

/// Bytes of bodies, counted in one direction.
#[derive(Clone)]
pub(super) struct Bytes {
    pub(super) compressed: Counter,
    pub(super) uncompressed: Counter,
}

impl Bytes {
    /// `prefix` are the parts of the counters' names.
    pub(super) fn new(stats: &Stats, prefix: &[&str], connection_manager: &str) -> Self {
        let counter = |last| counter(stats, &[prefix, &[last]].concat(), connection_manager);
        Self {
            compressed: counter("total_compressed_bytes"),
            uncompressed: counter("total_uncompressed_bytes"),
        }
    }
}

/// A body that is being compressed.
pub(super) struct Compress {
    encoder: Box<dyn Encoder>,
    bytes: Bytes,
}

impl Compress {
    pub(super) fn new(library: compressor::Library, bytes: Bytes) -> Self {
        use compressor::Library;
        let encoder: Box<dyn Encoder> = match library {
            Library::Gzip {
                level,
                strategy,
                memory_level,
                window_bits,
            } => Box::new(gzip::GzipEncoder::new(level, strategy, memory_level, window_bits)),
            Library::Brotli {
                quality,
                mode,
                window_bits,
                block_bits,
                literal_context_modeling,
            } => Box::new(brotli::BrotliEncoder::new(
                quality,
                mode,
                window_bits,
                block_bits,
                literal_context_modeling,
            )),
            Library::Zstd {
                level,
                checksum,
                strategy,
            } => Box::new(zstd::ZstdEncoder::new(level, checksum, strategy)),
        };
        Self { encoder, bytes }
    }

    fn write(&mut self, input: &[u8], ending: Ending, out: &mut Vec<u8>) -> Result<(), StreamError> {
        let before = out.len();
        let written = self.encoder.write(input, ending, out);
        self.bytes.uncompressed.add(input.len() as u64);
        self.bytes.compressed.add((out.len() - before) as u64);
        // A compressor fails for want of memory alone; half a body must not look like a whole one.
        if written { Ok(()) } else { Err(StreamError::Overload) }
    }
}

impl Transform for Compress {
    fn data(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, StreamError> {
        let taken = input.len().min(PIECE);
        self.write(input.get(..taken).unwrap_or_default(), Ending::Flush, out)?;
        Ok(Step { taken, more: false })
    }

    fn end(&mut self, _: &mut Option<Fields>, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        self.write(&[], Ending::Finish, out)?;
        Ok(true)
    }
}

/// What decompressors count of bodies that are not what they should be.
#[derive(Clone)]
pub(super) struct Errors(Vec<Counter>);

impl Errors {
    pub(super) fn new(
        library: decompressor::Library,
        stats: &Stats,
        prefix: &[&str],
        connection_manager: &str,
    ) -> Self {
        let names = match library {
            decompressor::Library::Gzip { .. } => gzip::ERRORS,
            decompressor::Library::Brotli => brotli::ERRORS,
            decompressor::Library::Zstd => zstd::ERRORS,
        };
        let names = names.iter();
        Self(
            names
                .map(|name| {
                    counter(
                        stats,
                        &[prefix, &["decompressor_library", name]].concat(),
                        connection_manager,
                    )
                })
                .collect(),
        )
    }

    fn count(&self, numbers: &[usize]) {
        for counter in numbers.iter().filter_map(|n| self.0.get(*n)) {
            counter.inc();
        }
    }
}

/// A body that is being decompressed. One that is not what it should be ends where that shows, as in Envoy; the rest is
/// read and goes nowhere.
pub(super) struct Decompress {
    decoder: Box<dyn Decoder>,
    max_ratio: u64,
    overflow: &'static [usize],
    taken: u64,
    given: u64,
    over: bool,
    bytes: Bytes,
    errors: Errors,
    /// The trailers that tell both lengths.
    trailers: [Box<[u8]>; 2],
}

impl Decompress {
    pub(super) fn new(library: decompressor::Library, name: &str, bytes: Bytes, errors: Errors) -> Self {
        use decompressor::Library;
        let (decoder, overflow): (Box<dyn Decoder>, _) = match library {
            Library::Gzip { window_bits, .. } => (Box::new(gzip::GzipDecoder::new(window_bits)), gzip::OVERFLOW),
            Library::Brotli => (Box::<brotli::BrotliDecoder>::default(), brotli::OVERFLOW),
            Library::Zstd => (Box::new(zstd::ZstdDecoder::new()), zstd::OVERFLOW),
        };
        let trailer = |what: &str| format!("x-envoy-decompressor-{name}-{what}-bytes").into_bytes().into();
        Self {
            decoder,
            max_ratio: u64::from(library.max_ratio()),
            overflow,
            taken: 0,
            given: 0,
            over: false,
            bytes,
            errors,
            trailers: [trailer("compressed"), trailer("uncompressed")],
        }
    }

    fn fail(&mut self, numbers: &[usize]) {
        self.over = true;
        self.errors.count(numbers);
    }
}

impl Transform for Decompress {
    fn data(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, StreamError> {
        let before = out.len();
        let mut step = Step {
            taken: input.len(),
            more: false,
        };
        if !self.over {
            match self.decoder.read(input, out, STEP) {
                Ok(read) => {
                    let given = out.len() - before;
                    self.over = read.done;
                    if !read.done {
                        step.taken = read.taken;
                        step.more = given >= STEP;
                    }
                    if read.taken == 0 && given == 0 && !input.is_empty() && !read.done {
                        // It takes nothing, and will not another time.
                        self.fail(self.overflow);
                        step.taken = input.len();
                    }
                }
                Err(numbers) => self.fail(numbers),
            }
        }
        let given = (out.len() - before) as u64;
        self.taken += step.taken as u64;
        self.given += given;
        self.bytes.compressed.add(step.taken as u64);
        self.bytes.uncompressed.add(given);
        if !self.over && self.given > self.max_ratio.saturating_mul(self.taken) {
            // A few bytes that stand for very many are an attack.
            self.fail(self.overflow);
            step.more = false;
        }
        Ok(step)
    }

    fn end(&mut self, trailers: &mut Option<Fields>, _: &mut Vec<u8>) -> Result<bool, StreamError> {
        let trailers = trailers.get_or_insert_with(Fields::new);
        let mut number = itoa::Buffer::new();
        let [compressed, uncompressed] = &self.trailers;
        trailers.push(compressed, number.format(self.taken).as_bytes());
        trailers.push(uncompressed, number.format(self.given).as_bytes());
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
