//! Zstandard (RFC 8878), by the reference library.

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, Strategy};

use super::super::body::STEP;
use super::{Decoder, Encoder, Ending, Read};

/// Largest window that a peer may have, as a power of two: 8 MiB. Recipients of the `zstd` coding need take no larger one
/// (RFC 9659 section 3).
const MAX_WINDOW_LOG: u32 = 23;

/// Counters, by Envoy's names.
pub(super) const ERRORS: &[&str] = &[
    "zstd_generic_error",
    "zstd_dictionary_error",
    "zstd_checksum_wrong_error",
    "zstd_memory_error",
];

/// Too much comes of too little.
pub(super) const OVERFLOW: &[usize] = &[0];

/// None when there was no memory for it.
pub(super) struct ZstdEncoder(Option<CCtx<'static>>);

impl ZstdEncoder {
    pub(super) fn new(level: i32, checksum: bool, strategy: u8) -> Self {
        let Some(mut context) = CCtx::try_create() else {
            return Self(None);
        };
        let strategy = match strategy {
            1 => Some(Strategy::ZSTD_fast),
            2 => Some(Strategy::ZSTD_dfast),
            3 => Some(Strategy::ZSTD_greedy),
            4 => Some(Strategy::ZSTD_lazy),
            5 => Some(Strategy::ZSTD_lazy2),
            6 => Some(Strategy::ZSTD_btlazy2),
            7 => Some(Strategy::ZSTD_btopt),
            8 => Some(Strategy::ZSTD_btultra),
            9 => Some(Strategy::ZSTD_btultra2),
            _ => None,
        };
        let level = context.set_parameter(CParameter::CompressionLevel(level));
        let flag = context.set_parameter(CParameter::ChecksumFlag(checksum));
        let strategy = match strategy {
            Some(strategy) => context.set_parameter(CParameter::Strategy(strategy)),
            None => Ok(0),
        };
        Self((level.is_ok() && flag.is_ok() && strategy.is_ok()).then_some(context))
    }
}

impl Encoder for ZstdEncoder {
    fn write(&mut self, input: &[u8], ending: Ending, out: &mut Vec<u8>) -> bool {
        let Some(context) = &mut self.0 else { return false };
        let mut input = InBuffer::around(input);
        loop {
            let operation = match ending {
                Ending::Flush => ZSTD_EndDirective::ZSTD_e_flush,
                Ending::Finish => ZSTD_EndDirective::ZSTD_e_end,
            };
            let at = out.len();
            out.resize(at + STEP, 0);
            let (result, given) = {
                let mut into = OutBuffer::around(out.get_mut(at..).unwrap_or_default());
                let result = context.compress_stream2(&mut into, &mut input, operation);
                (result, into.pos())
            };
            out.truncate(at + given);
            match result {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// None when there was no memory for it.
pub(super) struct ZstdDecoder(Option<DCtx<'static>>);

impl ZstdDecoder {
    pub(super) fn new() -> Self {
        let mut context = DCtx::try_create();
        let bounded = context
            .as_mut()
            .is_some_and(|c| c.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG)).is_ok());
        Self(context.filter(|_| bounded))
    }
}

impl Decoder for ZstdDecoder {
    fn read(&mut self, input: &[u8], out: &mut Vec<u8>, room: usize) -> Result<Read, &'static [usize]> {
        let Some(context) = &mut self.0 else { return Err(&[3]) };
        let at = out.len();
        out.resize(at + room, 0);
        let mut from = InBuffer::around(input);
        let (result, given) = {
            let mut into = OutBuffer::around(out.get_mut(at..).unwrap_or_default());
            let result = context.decompress_stream(&mut into, &mut from);
            (result, into.pos())
        };
        out.truncate(at + given);
        match result {
            // Frames may follow one another (RFC 8878 section 3).
            Ok(_) => Ok(Read {
                taken: from.pos(),
                done: false,
            }),
            // zstd_errors.h; what is returned is the number's negative.
            Err(code) => Err(match 0_usize.wrapping_sub(code) {
                22 => &[2],
                30 | 32 => &[1],
                16 | 64 => &[3],
                _ => &[0],
            }),
        }
    }
}
