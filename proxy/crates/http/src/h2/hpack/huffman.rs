//! The Huffman code of HPACK (RFC 7541 section 5.2, appendix B).

use std::sync::LazyLock;

use super::HpackError;

/// Bits of each symbol's code; the last is EOS. The code is canonical: codes of one length follow each other in the
/// order of their symbols, so the lengths say everything.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
const EOS: usize = 256;

/// What four more bits lead to from one inner node of the code's tree. No code is shorter than five bits, so at most
/// one symbol ends within them.
#[derive(Clone, Copy, Default)]
struct Step {
    node: u8,
    symbol: Option<u8>,
    /// EOS, or nothing of the code.
    bad: bool,
}

struct Machine {
    /// By node and four bits.
    steps: Vec<[Step; 16]>,
    /// Whether the string may end here: fewer than eight bits since the last symbol, all of them ones.
    may_end: Vec<bool>,
}

#[derive(Clone, Copy)]
enum Child {
    None,
    Node(u8),
    Symbol(usize),
}

static MACHINE: LazyLock<Machine> = LazyLock::new(build);

/// Symbols with their codes, in the order of the codes.
fn codes() -> Vec<(usize, u32, u8)> {
    let mut order: Vec<usize> = (0..LENGTHS.len()).collect();
    order.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
    let (mut code, mut before) = (0_u32, LENGTHS[order[0]]);
    order
        .into_iter()
        .map(|symbol| {
            let length = LENGTHS[symbol];
            code <<= length - before;
            before = length;
            code += 1;
            (symbol, code - 1, length)
        })
        .collect()
}

fn build() -> Machine {
    let mut tree = vec![[Child::None; 2]];
    for (symbol, code, length) in codes() {
        let mut node = 0;
        for bit in (0..length).rev() {
            let side = (code >> bit & 1) as usize;
            if bit == 0 {
                tree[node][side] = Child::Symbol(symbol);
            } else if let Child::Node(next) = tree[node][side] {
                node = usize::from(next);
            } else {
                // 257 leaves have 256 inner nodes above them.
                let next = tree.len();
                tree.push([Child::None; 2]);
                tree[node][side] = Child::Node(next as u8);
                node = next;
            }
        }
    }
    let step = |start: usize, four: usize| {
        let mut node = start;
        let mut symbol = None;
        for bit in (0..4).rev() {
            match tree[node][four >> bit & 1] {
                Child::Node(next) => node = usize::from(next),
                Child::Symbol(found) if found != EOS => {
                    symbol = Some(found as u8);
                    node = 0;
                }
                Child::Symbol(_) | Child::None => {
                    return Step {
                        bad: true,
                        ..Step::default()
                    };
                }
            }
        }
        Step {
            node: node as u8,
            symbol,
            bad: false,
        }
    };
    let mut may_end = vec![false; tree.len()];
    let mut node = 0;
    for _ in 0..8 {
        may_end[node] = true;
        match tree[node][1] {
            Child::Node(next) => node = usize::from(next),
            Child::Symbol(_) | Child::None => break,
        }
    }
    Machine {
        steps: (0..tree.len())
            .map(|node| std::array::from_fn(|four| step(node, four)))
            .collect(),
        may_end,
    }
}

/// Decodes a string literal and appends it.
///
/// # Errors
/// [`HpackError::Huffman`]: the EOS symbol, or padding that is too long or not of ones.
pub(super) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let machine = &*MACHINE;
    out.reserve(bytes.len() * 8 / 5);
    let mut node = 0_u8;
    for byte in bytes {
        for four in [byte >> 4, byte & 15] {
            let step = machine
                .steps
                .get(usize::from(node))
                .and_then(|steps| steps.get(usize::from(four)))
                .ok_or(HpackError::Huffman)?;
            if step.bad {
                return Err(HpackError::Huffman);
            }
            if let Some(symbol) = step.symbol {
                out.push(symbol);
            }
            node = step.node;
        }
    }
    match machine.may_end.get(usize::from(node)) {
        Some(true) => Ok(()),
        _ => Err(HpackError::Huffman),
    }
}

#[cfg(test)]
pub(super) fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut by_symbol = [(0_u32, 0_u8); 257];
    for (symbol, code, length) in codes() {
        by_symbol[symbol] = (code, length);
    }
    let (mut out, mut held, mut bits) = (Vec::new(), 0_u64, 0_u32);
    for byte in bytes {
        let (code, length) = by_symbol[usize::from(*byte)];
        held = held << length | u64::from(code);
        bits += u32::from(length);
        while bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
        }
    }
    if bits > 0 {
        out.push((held << (8 - bits)) as u8 | (0xff >> bits) as u8);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541 appendix C.4.1.
    #[test]
    fn the_rfcs_example() {
        let bytes = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let mut out = Vec::new();
        decode(&bytes, &mut out).expect("valid");
        assert_eq!(out, b"www.example.com");
        assert_eq!(encode(b"www.example.com"), bytes);
    }

    #[test]
    fn every_symbol_survives_in_every_position() {
        let all: Vec<u8> = (0..=255).collect();
        for start in 0..8 {
            let text = &all[start..];
            let mut out = Vec::new();
            decode(&encode(text), &mut out).expect("valid");
            assert_eq!(out, text);
        }
    }

    #[test]
    fn bad_endings_are_refused() {
        for (bytes, why) in [
            (&[0xff, 0xff, 0xff, 0xff][..], "EOS"),
            (&[0x1f, 0xff], "more than seven bits of padding"),
            (&[0x18], "padding of zeros"),
            (&[0xff], "eight bits of padding"),
        ] {
            assert_eq!(decode(bytes, &mut Vec::new()), Err(HpackError::Huffman), "{why}");
        }
        assert_eq!(decode(&[0x1f], &mut Vec::new()), Ok(()));
        assert_eq!(decode(&[], &mut Vec::new()), Ok(()));
    }
}
