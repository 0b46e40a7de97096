//! HPACK's decoder: the same fields whatever the pieces, and no field that a valid block cannot hold.
#![no_main]

use heddle_http::parse::{HpackDecoder, HpackError};
use libfuzzer_sys::fuzz_target;

type Fields = Vec<(Vec<u8>, Vec<u8>, bool)>;

/// Decodes blocks of one connection, each fed in pieces.
fn decode(blocks: &[&[u8]], piece: usize) -> Result<Fields, HpackError> {
    let mut decoder = HpackDecoder::new(4096);
    let mut found = Vec::new();
    for block in blocks {
        decoder.begin();
        let mut held = Vec::new();
        for chunk in block.chunks(piece) {
            held.extend_from_slice(chunk);
            let taken = decoder.decode(&held, |field| {
                found.push((field.name.to_vec(), field.value.to_vec(), field.valid));
            })?;
            held.drain(..taken);
        }
        if !held.is_empty() {
            return Err(HpackError::Truncated);
        }
    }
    Ok(found)
}

fuzz_target!(|bytes: &[u8]| {
    // 0xff is a rare first byte (a large index) and divides the blocks.
    let blocks: Vec<&[u8]> = bytes.split(|b| *b == 0xff).collect();
    let expected = decode(&blocks, usize::MAX);
    for piece in [1, 2, 3, 7] {
        assert_eq!(decode(&blocks, piece), expected, "pieces of {piece}");
    }
    for (name, value, valid) in expected.unwrap_or_default() {
        if valid {
            assert!(!name.is_empty() && !name.iter().any(u8::is_ascii_uppercase));
            assert!(!value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n')));
        }
    }
});
