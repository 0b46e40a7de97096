//! Decoding header blocks.

use super::table::{Field, Table};
use super::{HpackError, huffman};
use crate::head::{Known, is_token_byte};

/// Longest string literal, as it stands in the block: more than any configured head.
const MAX_STRING: usize = 256 * 1024;

/// SETTINGS_HEADER_TABLE_SIZE before SETTINGS.
const DEFAULT_TABLE: usize = 4096;

/// The receiving side's state: the dynamic table that both ends keep alike.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// What SETTINGS_HEADER_TABLE_SIZE allows the peer.
    allowed: usize,
    /// A field of the present block was read: no size update may follow.
    begun: bool,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// A reader of a block's bytes. `None` means that the rest has not come yet.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// An integer whose first byte holds `prefix` bits of it (RFC 7541 section 5.1).
    fn integer(&mut self, prefix: u32) -> Result<Option<usize>, HpackError> {
        let Some(first) = self.bytes.get(self.at) else {
            return Ok(None);
        };
        let mask = (1_usize << prefix) - 1;
        let mut value = usize::from(*first) & mask;
        let mut at = self.at + 1;
        if value == mask {
            let mut shift = 0;
            loop {
                let Some(byte) = self.bytes.get(at) else {
                    return Ok(None);
                };
                at += 1;
                value += usize::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
                // No table, string or head comes near this.
                if shift >= 28 {
                    return Err(HpackError::Integer);
                }
            }
        }
        self.at = at;
        Ok(Some(value))
    }

    /// A string literal: whether it is Huffman-coded, and its bytes (section 5.2).
    fn string(&mut self) -> Result<Option<(bool, &'a [u8])>, HpackError> {
        let Some(first) = self.bytes.get(self.at) else {
            return Ok(None);
        };
        let coded = first & 0x80 != 0;
        let Some(length) = self.integer(7)? else {
            return Ok(None);
        };
        if length > MAX_STRING {
            return Err(HpackError::StringTooLong);
        }
        let Some(bytes) = self.bytes.get(self.at..self.at + length) else {
            return Ok(None);
        };
        self.at += length;
        Ok(Some((coded, bytes)))
    }
}

fn unpack(coded: bool, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    out.clear();
    if coded {
        huffman::decode(bytes, out)
    } else {
        out.extend_from_slice(bytes);
        Ok(())
    }
}

/// Whether a name is a lower-case token (RFC 9113 section 8.2.1), after the colon of a pseudo-header field.
fn valid_name(name: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    !token.is_empty() && token.iter().all(|b| is_token_byte(*b) && !b.is_ascii_uppercase())
}

/// Whether a value holds no control character but the tab (RFC 9110 section 5.5).
fn valid_value(value: &[u8]) -> bool {
    value.iter().all(|b| (*b >= b' ' && *b != 0x7f) || *b == b'\t')
}

impl Decoder {
    /// A decoder whose table may take `allowed` bytes: the SETTINGS_HEADER_TABLE_SIZE announced.
    pub fn new(allowed: usize) -> Self {
        Self {
            // What a peer may use until it has seen our SETTINGS (RFC 9113 section 6.5.2).
            table: Table::new(DEFAULT_TABLE),
            allowed: allowed.max(DEFAULT_TABLE),
            begun: false,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// A new block begins.
    pub fn begin(&mut self) {
        self.begun = false;
    }

    /// Decodes the fields that are whole in `block` and returns how many bytes they took. What is left is the beginning
    /// of a field of which more must come; at the end of a block nothing may be left.
    ///
    /// # Errors
    /// [`HpackError`]; the connection cannot go on.
    pub fn decode(&mut self, block: &[u8], mut each: impl FnMut(Field<'_>)) -> Result<usize, HpackError> {
        let mut reader = Reader { bytes: block, at: 0 };
        loop {
            let start = reader.at;
            let Some(first) = block.get(start) else {
                return Ok(start);
            };
            if first & 0x80 != 0 {
                // Indexed (section 6.1).
                let Some(index) = reader.integer(7)? else {
                    return Ok(start);
                };
                self.begun = true;
                each(self.table.get(index).ok_or(HpackError::Index)?);
                continue;
            }
            if first & 0xe0 == 0x20 {
                // A size update (section 6.3).
                let Some(size) = reader.integer(5)? else {
                    return Ok(start);
                };
                if self.begun || size > self.allowed {
                    return Err(HpackError::SizeUpdate);
                }
                self.table.set_max(size);
                continue;
            }
            // Literals (section 6.2): with indexing, without, never indexed.
            let keep = first & 0x40 != 0;
            let Some(index) = reader.integer(if keep { 6 } else { 4 })? else {
                return Ok(start);
            };
            let literal_name = if index == 0 {
                let Some(found) = reader.string()? else {
                    return Ok(start);
                };
                Some(found)
            } else {
                None
            };
            let Some((coded, bytes)) = reader.string()? else {
                return Ok(start);
            };
            self.begun = true;
            unpack(coded, bytes, &mut self.value)?;
            let (known, name_valid) = match literal_name {
                Some((coded, bytes)) => {
                    unpack(coded, bytes, &mut self.name)?;
                    (Known::of(&self.name), valid_name(&self.name))
                }
                None => {
                    // An entry's own value may be the invalid part of it; its name was judged when it came.
                    let (known, name, valid) = self.table.name(index).ok_or(HpackError::Index)?;
                    self.name.clear();
                    self.name.extend_from_slice(name);
                    (known, valid)
                }
            };
            let field = Field {
                known,
                name: &self.name,
                value: &self.value,
                valid: name_valid && valid_value(&self.value),
            };
            each(field);
            if keep {
                self.table.insert(field, name_valid);
            }
            // One long string must not stay allocated for the connection's life.
            const KEEP: usize = 4096;
            if self.value.capacity() > KEEP {
                self.value = Vec::new();
            }
            if self.name.capacity() > KEEP {
                self.name = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = Vec<(String, String)>;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Pairs, HpackError> {
        let mut found = Vec::new();
        decoder.begin();
        let taken = decoder.decode(block, |f| {
            found.push((
                String::from_utf8_lossy(f.name).into_owned(),
                String::from_utf8_lossy(f.value).into_owned(),
            ));
        })?;
        if taken == block.len() {
            Ok(found)
        } else {
            Err(HpackError::Truncated)
        }
    }

    fn pairs(list: &[(&str, &str)]) -> Pairs {
        list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("ascii"), 16).expect("hex"))
            .collect()
    }

    /// RFC 7541 appendix C.4: three requests on one connection, Huffman-coded.
    #[test]
    fn the_rfcs_requests() {
        let mut decoder = Decoder::new(4096);
        for (block, fields) in [
            (
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                &[
                    (":method", "GET"),
                    (":scheme", "http"),
                    (":path", "/"),
                    (":authority", "www.example.com"),
                ][..],
            ),
            (
                "8286 84be 5886 a8eb 1064 9cbf",
                &[
                    (":method", "GET"),
                    (":scheme", "http"),
                    (":path", "/"),
                    (":authority", "www.example.com"),
                    ("cache-control", "no-cache"),
                ],
            ),
            (
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                &[
                    (":method", "GET"),
                    (":scheme", "https"),
                    (":path", "/index.html"),
                    (":authority", "www.example.com"),
                    ("custom-key", "custom-value"),
                ],
            ),
        ] {
            assert_eq!(decode(&mut decoder, &hex(block)), Ok(pairs(fields)));
        }
    }

    /// RFC 7541 appendix C.5 with its table of 256 bytes, which evicts.
    #[test]
    fn eviction() {
        let mut decoder = Decoder::new(4096);
        let mut first = vec![0x3f, 0xe1, 0x01];
        first.extend(hex(
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 \
             474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        ));
        assert_eq!(decode(&mut decoder, &first).expect("valid").len(), 4);
        assert_eq!(
            decode(&mut decoder, &hex("4803 3330 37c1 c0bf")),
            Ok(pairs(&[
                (":status", "307"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ]))
        );
        assert_eq!(decode(&mut decoder, &[0xc2]), Err(HpackError::Index), "evicted");
    }

    #[test]
    fn a_block_may_come_in_pieces() {
        let block = hex("8287 85 4109 6c6f 6361 6c68 6f73 74 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
        for cut in 0..block.len() {
            let mut decoder = Decoder::new(4096);
            decoder.begin();
            let mut names = Vec::new();
            let taken = decoder
                .decode(&block[..cut], |f| names.push(f.name.to_vec()))
                .expect("whole fields");
            let rest = decoder.decode(&block[taken..], |f| names.push(f.name.to_vec()));
            assert_eq!(taken + rest.expect("the rest"), block.len());
            assert_eq!(names.len(), 5, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for (block, error) in [
            (&[0x80][..], HpackError::Index),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x0f], HpackError::Integer),
            (&[0xbe], HpackError::Index),
            (&[0x3f, 0xe2, 0x1f], HpackError::SizeUpdate),
            (&[0x82, 0x20], HpackError::SizeUpdate),
            (&[0x00, 0x7f, 0xff, 0xff, 0x7f], HpackError::StringTooLong),
            (&[0x41, 0x84, 0xff, 0xff, 0xff, 0xff], HpackError::Huffman),
            (&[0x41, 0x05, b'a'], HpackError::Truncated),
        ] {
            assert_eq!(decode(&mut Decoder::new(4096), block), Err(error), "{block:x?}");
        }
    }

    #[test]
    fn bytes_are_judged_once() {
        let mut decoder = Decoder::new(4096);
        for (name, value, valid) in [
            ("x-a", "1", true),
            ("X-a", "1", false),
            ("x a", "1", false),
            ("", "1", false),
            (":", "1", false),
            ("x-a", "a\nb", false),
            ("x-a", "a\0", false),
            ("x-a", "\u{e9}\t ", true),
        ] {
            let mut block = vec![0x40, name.len() as u8];
            block.extend_from_slice(name.as_bytes());
            block.push(value.len() as u8);
            block.extend_from_slice(value.as_bytes());
            // Once as a literal, once out of the table.
            block.push(0xbe);
            let mut judged = Vec::new();
            decoder.begin();
            decoder.decode(&block, |f| judged.push(f.valid)).expect("decodes");
            assert_eq!(judged, [valid, valid], "{name:?}: {value:?}");
        }
    }
}
