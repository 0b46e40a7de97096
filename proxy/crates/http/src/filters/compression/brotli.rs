//! Brotli (RFC 7932).

use brotli::enc::StandardAlloc;
use brotli::enc::backward_references::BrotliEncoderMode;
use brotli::enc::encode::{BrotliEncoderOperation, BrotliEncoderStateStruct};
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState};
use heddle_config::filters::compressor::BrotliMode;

use super::{Decoder, Encoder, Ending, Read};

/// Counters, by Envoy's names.
pub(super) const ERRORS: &[&str] = &["brotli_error", "brotli_output_overflow", "brotli_redundant_input"];

/// Too much comes of too little.
pub(super) const OVERFLOW: &[usize] = &[0, 1];

/// Bytes behind the end.
const REDUNDANT: &[usize] = &[0, 2];

pub(super) struct BrotliEncoder(BrotliEncoderStateStruct<StandardAlloc>);

impl BrotliEncoder {
    pub(super) fn new(quality: i32, mode: BrotliMode, window_bits: i32, block_bits: i32, modeling: bool) -> Self {
        let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
        state.params.quality = quality;
        state.params.lgwin = window_bits;
        state.params.lgblock = block_bits;
        state.params.disable_literal_context_modeling = i32::from(!modeling);
        state.params.mode = match mode {
            BrotliMode::Generic => BrotliEncoderMode::BROTLI_MODE_GENERIC,
            BrotliMode::Text => BrotliEncoderMode::BROTLI_MODE_TEXT,
            BrotliMode::Font => BrotliEncoderMode::BROTLI_MODE_FONT,
        };
        Self(state)
    }
}

impl Encoder for BrotliEncoder {
    fn write(&mut self, input: &[u8], ending: Ending, out: &mut Vec<u8>) -> bool {
        let (mut left, mut at) = (input.len(), 0);
        loop {
            let operation = match ending {
                Ending::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
                Ending::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
            };
            // Without a place to write to, it keeps its output for `take_output`.
            let worked = self.0.compress_stream(
                operation,
                &mut left,
                input,
                &mut at,
                &mut 0,
                &mut [],
                &mut 0,
                &mut None,
                &mut |_, _, _, _| {},
            );
            if !worked {
                return false;
            }
            let mut gave = false;
            while self.0.has_more_output() {
                gave = true;
                // Asked for any number, it says how many it gives; what is behind them is none of its output.
                let mut n = 0;
                let piece = self.0.take_output(&mut n);
                out.extend_from_slice(piece.get(..n).unwrap_or_default());
            }
            if left == 0 && !gave {
                return true;
            }
        }
    }
}

/// Without the windows beyond 16 MiB that RFC 7932 does not know.
pub(super) struct BrotliDecoder(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>);

impl Default for BrotliDecoder {
    fn default() -> Self {
        Self(Box::new(BrotliState::new_strict(
            StandardAlloc::default(),
            StandardAlloc::default(),
            StandardAlloc::default(),
        )))
    }
}

impl Decoder for BrotliDecoder {
    fn read(&mut self, input: &[u8], out: &mut Vec<u8>, room: usize) -> Result<Read, &'static [usize]> {
        let at = out.len();
        out.resize(at + room, 0);
        let (mut left, mut taken) = (input.len(), 0);
        let (mut room, mut given) = (room, 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut taken,
            input,
            &mut room,
            &mut given,
            out.get_mut(at..).unwrap_or_default(),
            &mut 0,
            &mut self.0,
        );
        out.truncate(at + given);
        match result {
            BrotliResult::ResultSuccess if left > 0 => Err(REDUNDANT),
            BrotliResult::ResultFailure => Err(&[0]),
            _ => Ok(Read {
                taken,
                done: matches!(result, BrotliResult::ResultSuccess),
            }),
        }
    }
}
