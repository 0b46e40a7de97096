//! gzip (RFC 1952), by zlib-rs.

use heddle_config::filters::compressor::GzipStrategy;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateError, InflateFlush, Status, Strategy};

use super::super::body::STEP;
use super::{Decoder, Encoder, Ending, Read};

/// What is added to the window's bits for gzip's head and checksum instead of zlib's.
const WRAPPER: u8 = 16;

/// Counters, as zlib's error codes are named.
pub(super) const ERRORS: &[&str] = &[
    "zlib_errno",
    "zlib_stream_error",
    "zlib_data_error",
    "zlib_mem_error",
    "zlib_buf_error",
    "zlib_version_error",
];

/// Too much comes of too little.
pub(super) const OVERFLOW: &[usize] = &[2];

pub(super) struct GzipEncoder(Deflate);

impl GzipEncoder {
    pub(super) fn new(level: i32, strategy: GzipStrategy, mem_level: i32, window_bits: i32) -> Self {
        Self(Deflate::new_with_config(DeflateConfig {
            level,
            window_bits: window_bits + i32::from(WRAPPER),
            mem_level,
            strategy: match strategy {
                GzipStrategy::Default => Strategy::Default,
                GzipStrategy::Filtered => Strategy::Filtered,
                GzipStrategy::HuffmanOnly => Strategy::HuffmanOnly,
                GzipStrategy::Rle => Strategy::Rle,
                GzipStrategy::Fixed => Strategy::Fixed,
            },
            ..DeflateConfig::default()
        }))
    }
}

impl Encoder for GzipEncoder {
    fn write(&mut self, mut input: &[u8], ending: Ending, out: &mut Vec<u8>) -> bool {
        let flush = match ending {
            Ending::Flush => DeflateFlush::SyncFlush,
            Ending::Finish => DeflateFlush::Finish,
        };
        loop {
            let (at, taken, given) = (out.len(), self.0.total_in(), self.0.total_out());
            out.resize(at + STEP, 0);
            let result = self.0.compress(input, out.get_mut(at..).unwrap_or_default(), flush);
            let given = (self.0.total_out() - given) as usize;
            out.truncate(at + given);
            input = input.get((self.0.total_in() - taken) as usize..).unwrap_or_default();
            match result {
                Ok(Status::StreamEnd) => return true,
                // Room is left over: nothing is held back.
                Ok(_) if given < STEP && input.is_empty() && ending == Ending::Flush => return true,
                Ok(_) if given > 0 => {}
                _ => return false,
            }
        }
    }
}

pub(super) struct GzipDecoder(Inflate);

impl GzipDecoder {
    pub(super) fn new(window_bits: u8) -> Self {
        Self(Inflate::new(true, window_bits + WRAPPER))
    }
}

impl Decoder for GzipDecoder {
    fn read(&mut self, input: &[u8], out: &mut Vec<u8>, room: usize) -> Result<Read, &'static [usize]> {
        let (at, taken, given) = (out.len(), self.0.total_in(), self.0.total_out());
        out.resize(at + room, 0);
        let into = out.get_mut(at..).unwrap_or_default();
        let result = self.0.decompress(input, into, InflateFlush::NoFlush);
        out.truncate(at + (self.0.total_out() - given) as usize);
        match result {
            Ok(status) => Ok(Read {
                taken: (self.0.total_in() - taken) as usize,
                done: status == Status::StreamEnd,
            }),
            Err(InflateError::StreamError) => Err(&[1]),
            Err(InflateError::MemError) => Err(&[3]),
            Err(InflateError::DataError | InflateError::NeedDict { .. }) => Err(&[2]),
        }
    }
}
