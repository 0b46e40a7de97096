//! What the tests with random keys have in common.

use heddle_x25519::BYTES;

/// Operations that a test does: as many as `HEDDLE_X25519_OPERATIONS` says.
pub(crate) fn operations(otherwise: usize) -> usize {
    match std::env::var("HEDDLE_X25519_OPERATIONS") {
        Ok(number) => number.parse().expect("HEDDLE_X25519_OPERATIONS is a number"),
        Err(_) => otherwise,
    }
}

/// Any bytes, or ones with long runs of equal bits, which carries and borrows run through.
pub(crate) fn number(random: &mut fastrand::Rng) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    random.fill(&mut bytes);
    if random.u8(..) < 64 {
        let (from, to) = (random.usize(..BYTES), random.usize(..=BYTES));
        let fill = if random.bool() { 0xff } else { 0 };
        bytes[from.min(to)..to].fill(fill);
    }
    bytes
}
