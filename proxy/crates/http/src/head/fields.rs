//! Header fields as bytes with an index.
//!
//! The block of bytes starts as a copy of what the peer sent, names lowered in place; every field is a pair of spans
//! into it. Changes append to the block and the index, so nothing is allocated for an unchanged field, and runs of
//! unchanged fields are written out with one copy.

mod lines;

use std::borrow::Cow;

use heddle_matching::is_other_spelling;
use heddle_memory::append;
use heddle_simd::from_utf8;

pub(crate) use lines::LineError;

use super::known::{Known, KnownSet};

/// A range of bytes of a [`Fields`] block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        // Heads are bounded far below 4 GiB by `max_headers_bytes`.
        Self {
            start: start as u32,
            len: len as u32,
        }
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether the span holds nothing.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
    known: Known,
    live: bool,
}

/// Of name and value of a line that begins at `start`.
#[inline]
fn spans(start: usize, name: usize, value: usize) -> (Span, Span) {
    (Span::new(start, name), Span::new(start + name + 2, value))
}

impl heddle_telemetry::access_log::HeaderView for Fields {
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.joined(name.as_bytes())
    }
}

/// Header fields in the order in which they are sent. Every line in the block has the form `name: value CR LF`.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    list: Vec<Field>,
    /// Names in `list`, and some that were removed: those that are not here need not be looked for.
    seen: KnownSet,
    /// Names of which there was more than one field.
    repeated: KnownSet,
}

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything and keeps the memory, unless one large head grew it.
    pub fn clear(&mut self) {
        const KEEP: usize = 16 * 1024;
        self.bytes.clear();
        self.list.clear();
        self.seen = KnownSet::default();
        self.repeated = KnownSet::default();
        if self.bytes.capacity() > KEEP {
            self.bytes.shrink_to(KEEP);
        }
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.list.iter().filter(|f| f.live).count()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        !self.list.iter().any(|f| f.live)
    }

    /// Names and values, and four bytes of punctuation each, as HTTP/1.1 would send them.
    pub fn byte_size(&self) -> usize {
        self.list
            .iter()
            .filter(|f| f.live)
            .map(|f| f.name.len() + f.value.len() + 4)
            .sum()
    }

    /// Bytes of memory in use: every line that was ever written, and the index of them.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.bytes.len() + self.list.len() * size_of::<Field>()
    }

    /// The bytes of a span of this block.
    #[inline]
    pub fn slice(&self, span: Span) -> &[u8] {
        self.bytes.get(span.range()).unwrap_or_default()
    }

    /// The text of a span that was checked to be UTF-8 when it was made; empty otherwise.
    #[inline]
    pub fn text(&self, span: Span) -> &str {
        from_utf8(self.slice(span)).unwrap_or_default()
    }

    /// Adds bytes that belong to no field (a path, an authority) to the block.
    pub fn store(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, bytes.len())
    }

    /// Takes over raw head bytes; [`Fields::index_lines`] then finds the fields in them.
    pub(crate) fn load(&mut self, raw: &[u8]) {
        self.clear();
        self.bytes.extend_from_slice(raw);
    }

    fn add(&mut self, known: Known, name: Span, value: Span) {
        if self.seen.has(known) {
            self.repeated.add(known);
        }
        self.seen.add(known);
        self.list.push(Field {
            name,
            value,
            known,
            live: true,
        });
    }

    fn append_line_within(&mut self, name: Span, value: Span) -> (Span, Span) {
        let start = self.bytes.len();
        self.bytes.reserve(name.len() + value.len() + 4);
        self.bytes.extend_from_within(name.range());
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_within(value.range());
        self.bytes.extend_from_slice(b"\r\n");
        spans(start, name.len(), value.len())
    }

    fn append_line(&mut self, name: &[u8], value: &[u8]) -> (Span, Span) {
        let start = self.bytes.len();
        append(&mut self.bytes, [name, b": ", value, b"\r\n"]);
        spans(start, name.len(), value.len())
    }

    /// Adds a field at the end. `name` is lower case.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_parsed(Known::of(name), name, value);
    }

    /// Adds a field whose lower-case name's number is known already.
    pub(crate) fn push_parsed(&mut self, known: Known, name: &[u8], value: &[u8]) {
        let (name, value) = self.append_line(name, value);
        self.add(known, name, value);
    }

    /// Adds a field at the end.
    pub fn push_known(&mut self, known: Known, value: &[u8]) {
        let (name, value) = self.append_line(known.name().as_bytes(), value);
        self.add(known, name, value);
    }

    /// Adds a field whose value is a number.
    pub fn push_number(&mut self, known: Known, value: u64) {
        let mut buffer = itoa::Buffer::new();
        self.push_known(known, buffer.format(value).as_bytes());
    }

    /// Makes this the only field of its name.
    pub fn set_known(&mut self, known: Known, value: &[u8]) {
        self.remove_known(known);
        self.push_known(known, value);
    }

    /// Makes this the only field of its name. `name` is lower case.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// The first value of a name.
    #[inline]
    pub fn get_known(&self, known: Known) -> Option<&[u8]> {
        if !self.seen.has(known) {
            return None;
        }
        self.list
            .iter()
            .find(|f| f.known == known && f.live)
            .map(|f| self.slice(f.value))
    }

    /// The first value of a name as text; none when it is not UTF-8.
    pub fn get_known_text(&self, known: Known) -> Option<&str> {
        self.get_known(known).and_then(|v| from_utf8(v).ok())
    }

    /// All values of a name.
    pub fn all_known(&self, known: Known) -> impl Iterator<Item = &[u8]> {
        let list = if self.seen.has(known) { &self.list[..] } else { &[] };
        list.iter()
            .filter(move |f| f.known == known && f.live)
            .map(|f| self.slice(f.value))
    }

    /// Whether a name is present.
    #[inline]
    pub fn has_known(&self, known: Known) -> bool {
        self.seen.has(known) && self.list.iter().any(|f| f.known == known && f.live)
    }

    /// The fields of a lower-case name. A name that is known is compared by its number.
    fn named<'s>(&'s self, name: &[u8]) -> impl Iterator<Item = &'s Field> {
        let known = Known::of(name);
        let list = match self.seen.has(known) {
            true => self.list.as_slice(),
            false => &[],
        };
        let is_it = move |field: &&Field| {
            field.live && field.known == known && (known != Known::Other || self.slice(field.name) == name)
        };
        list.iter().filter(is_it)
    }

    /// The names of which none is known.
    pub(crate) fn unknown_names(&self) -> impl Iterator<Item = &[u8]> {
        let list = match self.seen.has(Known::Other) {
            true => self.list.as_slice(),
            false => &[],
        };
        let unknown = list.iter().filter(|f| f.live && f.known == Known::Other);
        unknown.map(|f| self.slice(f.name))
    }

    /// All values of a lower-case name.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.named(name).map(|f| self.slice(f.value))
    }

    /// Shows all values of a lower-case name, in order.
    pub(crate) fn visit<'s>(&'s self, name: &[u8], see: &mut dyn FnMut(&'s [u8])) {
        for field in self.named(name) {
            see(self.slice(field.value));
        }
    }

    /// The first value of a lower-case name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.named(name).next().map(|f| self.slice(f.value))
    }

    /// All values of a lower-case name joined by commas (RFC 9110 section 5.3); bytes outside UTF-8 are replaced.
    pub fn joined(&self, name: &[u8]) -> Option<Cow<'_, str>> {
        let known = Known::of(name);
        if !self.seen.has(known) {
            return None;
        }
        let mut values = self
            .list
            .iter()
            .filter(|f| f.known == known && f.live && (known != Known::Other || self.slice(f.name) == name))
            .map(|f| self.slice(f.value));
        let first = lossy(values.next()?);
        if !self.repeated.has(known) {
            return Some(first);
        }
        let Some(second) = values.next() else {
            return Some(first);
        };
        let mut all = first.into_owned();
        for value in std::iter::once(second).chain(values) {
            all.push(',');
            all.push_str(&lossy(value));
        }
        Some(Cow::Owned(all))
    }

    /// Removes every field of a name.
    #[inline]
    pub fn remove_known(&mut self, known: Known) {
        if !self.seen.has(known) {
            return;
        }
        for field in &mut self.list {
            if field.known == known {
                field.live = false;
            }
        }
        self.seen.remove(KnownSet::of(&[known]));
    }

    /// Removes every field of these names in one pass.
    #[inline]
    pub(crate) fn remove_set(&mut self, names: KnownSet) {
        if self.seen.is_disjoint(names) {
            return;
        }
        for field in &mut self.list {
            if names.has(field.known) {
                field.live = false;
            }
        }
        self.seen.remove(names);
    }

    /// Removes every field whose lower-case name is one of these and says how many there were.
    pub(crate) fn remove_named(&mut self, remove: impl Fn(&[u8]) -> bool) -> usize {
        let bytes = &self.bytes;
        let mut removed = 0;
        for field in self.list.iter_mut().filter(|f| f.live) {
            if remove(bytes.get(field.name.range()).unwrap_or_default()) {
                field.live = false;
                removed += 1;
            }
        }
        removed
    }

    /// Removes every field of a lower-case name, and those whose names differ in separators only (`x_tier` for `x-tier`):
    /// to some servers they are the same. Says how many there were.
    pub(crate) fn remove_any_spelling(&mut self, name: &[u8]) -> usize {
        self.remove_named(|field| field == name || is_other_spelling(field, name))
    }

    /// Removes every field of a lower-case name.
    pub fn remove(&mut self, name: &[u8]) {
        let bytes = &self.bytes;
        for field in &mut self.list {
            if field.live && bytes.get(field.name.range()) == Some(name) {
                field.live = false;
            }
        }
    }

    /// Changes nothing but the given values: appends `, value` style additions to the first field of a name, or adds
    /// the field when there is none.
    pub fn append_known(&mut self, known: Known, separator: &[u8], value: &[u8]) {
        match self.get_known(known) {
            None => self.push_known(known, value),
            Some(first) => {
                let mut whole = Vec::with_capacity(first.len() + separator.len() + value.len());
                for (i, before) in self.all_known(known).enumerate() {
                    if i > 0 {
                        whole.extend_from_slice(separator);
                    }
                    whole.extend_from_slice(before);
                }
                whole.extend_from_slice(separator);
                whole.extend_from_slice(value);
                self.set_known(known, &whole);
            }
        }
    }

    /// Every field: number, name, value.
    pub fn iter(&self) -> impl Iterator<Item = (Known, &[u8], &[u8])> {
        self.list
            .iter()
            .filter(|f| f.live)
            .map(|f| (f.known, self.slice(f.name), self.slice(f.value)))
    }

    /// Writes all fields as HTTP/1.1 lines.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut run = 0..0;
        for field in self.list.iter().filter(|f| f.live) {
            let start = field.name.start as usize;
            let end = field.value.range().end + 2;
            if start == run.end {
                run.end = end;
                continue;
            }
            if !run.is_empty() {
                out.extend_from_slice(self.bytes.get(run).unwrap_or_default());
            }
            run = start..end;
        }
        out.extend_from_slice(self.bytes.get(run).unwrap_or_default());
    }
}

/// As `String::from_utf8_lossy`, which looks at every byte by itself; nearly all values are ASCII.
pub(super) fn lossy(value: &[u8]) -> Cow<'_, str> {
    from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed)
}

#[cfg(test)]
mod tests;
