//! Pieces put one behind the other.

/// Appends these pieces to `out`. As `extend_from_slice` of each, which would look for room each time: what is written of a
/// message are many pieces of a few bytes.
#[inline]
pub fn append<const N: usize>(out: &mut Vec<u8>, pieces: [&[u8]; N]) {
    let length = pieces
        .iter()
        .fold(0_usize, |all, piece| all.saturating_add(piece.len()));
    out.reserve(length);
    let mut end = out.len();
    for piece in pieces {
        // SAFETY: there is room for all pieces behind the end of what is there, and `out`, which is borrowed exclusively, holds
        // none of them.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), out.as_mut_ptr().add(end), piece.len()) };
        end += piece.len();
    }
    // SAFETY: so far everything was written, within the room that was made.
    unsafe { out.set_len(end) };
}

#[cfg(test)]
mod tests {
    use super::append;

    #[test]
    fn appends_as_one_by_one() {
        let mut out = Vec::new();
        for room in [0, 1, 100] {
            out.reserve(room);
            append(&mut out, [b"name", b": ", b"", b"value", b"\r\n"]);
            append(&mut out, []);
        }
        assert_eq!(out, b"name: value\r\nname: value\r\nname: value\r\n");
    }
}
