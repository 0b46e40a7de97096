//! Fields that say how a message is read, checked alike for both codecs.

use super::{Fields, Known};
use crate::h1::H1Error;

/// Takes `expect` out and says whether it was there, as `100-continue` only (RFC 9110 section 10.1.1).
pub(crate) fn take_expectation(fields: &mut Fields) -> Result<bool, H1Error> {
    let mut found = false;
    for value in fields.all_known(Known::Expect) {
        if !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(H1Error::Expectation);
        }
        found = true;
    }
    if found {
        fields.remove_known(Known::Expect);
    }
    Ok(found)
}

/// Digits only: no sign, no list, no white space, and no leading zeros, which some readers take for another base.
/// Bounded so that sums of lengths cannot overflow.
pub(crate) fn parse_length(value: &[u8]) -> Result<u64, H1Error> {
    if value.contains(&b',') {
        return Err(H1Error::RepeatedLength);
    }
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) || matches!(value, [b'0', _, ..]) {
        return Err(H1Error::Length);
    }
    Ok(value.iter().fold(0, |n, b| n * 10 + u64::from(b - b'0')))
}
