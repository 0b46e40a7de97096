//! Encoding header blocks: names by the static table, values as they are. Nothing enters the peer's dynamic table, so an
//! encoder has no state, no field of one stream can be guessed from another's size, and no table has to be searched.

use std::sync::LazyLock;

use super::table::STATIC;
use crate::head::Known;

/// By a known name's number, its index in the static table; zero for none.
static NAMES: LazyLock<[u8; 256]> = LazyLock::new(|| {
    let mut names = [0; 256];
    for (at, (name, _)) in STATIC.iter().enumerate().rev() {
        let known = Known::of(name.as_bytes());
        if known != Known::Other {
            names[known as usize] = at as u8 + 1;
        }
    }
    names
});

/// Writes one block.
pub(crate) struct Encoder<'o> {
    out: &'o mut Vec<u8>,
}

/// An integer with `prefix` bits of room in its first byte, whose other bits are `first` (RFC 7541 section 5.1).
fn integer(out: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let mask = (1_usize << prefix) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    integer(out, 0, 7, bytes.len());
    out.extend_from_slice(bytes);
}

/// Whether a value must not enter any table on its further way either (section 7.1.3).
fn secret(known: Known, name: &[u8]) -> bool {
    match known {
        Known::Cookie => true,
        Known::Other => matches!(name, b"authorization" | b"proxy-authorization" | b"set-cookie"),
        _ => false,
    }
}

impl<'o> Encoder<'o> {
    /// Appends a block to `out`. `reset_table` says that the peer's SETTINGS made its table smaller, which must be
    /// acknowledged in front of the next block (section 4.2).
    pub(crate) fn new(out: &'o mut Vec<u8>, reset_table: bool) -> Self {
        if reset_table {
            out.push(0x20);
        }
        Self { out }
    }

    pub(crate) fn method(&mut self, token: &[u8]) {
        match token {
            b"GET" => self.out.push(0x82),
            b"POST" => self.out.push(0x83),
            other => self.indexed_name(2, other),
        }
    }

    pub(crate) fn scheme(&mut self, https: bool) {
        self.out.push(if https { 0x87 } else { 0x86 });
    }

    pub(crate) fn path(&mut self, target: &[u8]) {
        match target {
            b"/" => self.out.push(0x84),
            other => self.indexed_name(4, other),
        }
    }

    pub(crate) fn authority(&mut self, host: &[u8]) {
        self.indexed_name(1, host);
    }

    /// `:protocol` of an extended CONNECT (RFC 8441 section 4), which the static table does not have.
    pub(crate) fn protocol(&mut self, name: &[u8]) {
        self.out.push(0);
        string(self.out, b":protocol");
        string(self.out, name);
    }

    pub(crate) fn status(&mut self, status: u16) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            other => {
                let digits = [other / 100 % 10, other / 10 % 10, other % 10].map(|d| b'0' + d as u8);
                return self.indexed_name(8, &digits);
            }
        };
        self.out.push(0x80 | index);
    }

    fn indexed_name(&mut self, index: usize, value: &[u8]) {
        integer(self.out, 0, 4, index);
        string(self.out, value);
    }

    /// A regular field; `name` is lower case.
    pub(crate) fn field(&mut self, known: Known, name: &[u8], value: &[u8]) {
        let first = if secret(known, name) { 0x10 } else { 0 };
        match NAMES.get(known as usize) {
            Some(index @ 1..) if known != Known::Other => integer(self.out, first, 4, usize::from(*index)),
            _ => {
                self.out.push(first);
                string(self.out, name);
            }
        }
        string(self.out, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    #[test]
    fn what_is_encoded_decodes() {
        let long = vec![b'v'; 70_000];
        let fields: &[(&str, &[u8])] = &[
            ("content-type", b"text/plain"),
            ("x-custom", b""),
            ("set-cookie", b"a=b"),
            ("cookie", b"c=d"),
            ("server", &long),
            ("x-envoy-upstream-service-time", b"12"),
        ];
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, true);
        for status in [200, 404, 418] {
            encoder.status(status);
        }
        encoder.method(b"GET");
        encoder.method(b"PATCH");
        encoder.scheme(true);
        encoder.path(b"/");
        encoder.path(b"/a?b");
        encoder.authority(b"shop");
        for (name, value) in fields {
            encoder.field(Known::of(name.as_bytes()), name.as_bytes(), value);
        }
        let mut found = Vec::new();
        let mut decoder = Decoder::new(4096);
        decoder.begin();
        let taken = decoder
            .decode(&out, |f| found.push((f.name.to_vec(), f.value.to_vec())))
            .expect("valid");
        assert_eq!(taken, out.len());
        let text = |at: usize| {
            let (name, value) = &found[at];
            format!("{} {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        let heads: Vec<String> = (0..9).map(text).collect();
        assert_eq!(
            heads,
            [
                ":status 200",
                ":status 404",
                ":status 418",
                ":method GET",
                ":method PATCH",
                ":scheme https",
                ":path /",
                ":path /a?b",
                ":authority shop"
            ]
        );
        for (at, (name, value)) in fields.iter().enumerate() {
            assert_eq!(found[9 + at], (name.as_bytes().to_vec(), value.to_vec()));
        }
    }
}
