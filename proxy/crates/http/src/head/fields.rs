//! Header fields as bytes with an index.
//!
//! The block of bytes starts as a copy of what the peer sent, names lowered in place; every field is a pair of spans
//! into it. Changes append to the block and the index, so nothing is allocated for an unchanged field, and runs of
//! unchanged fields are written out with one copy.

use std::borrow::Cow;

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

    /// The bytes of a span of this block.
    #[inline]
    pub fn slice(&self, span: Span) -> &[u8] {
        self.bytes.get(span.range()).unwrap_or_default()
    }

    /// The text of a span that was checked to be UTF-8 when it was made; empty otherwise.
    #[inline]
    pub fn text(&self, span: Span) -> &str {
        std::str::from_utf8(self.slice(span)).unwrap_or_default()
    }

    /// Adds bytes that belong to no field (a path, an authority) to the block.
    pub fn store(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, bytes.len())
    }

    /// Takes over raw head bytes; [`Fields::index`] then names the fields in them.
    pub(crate) fn load(&mut self, raw: &[u8]) {
        self.clear();
        self.bytes.extend_from_slice(raw);
    }

    /// Names a field inside bytes taken over by [`Fields::load`]. The name is lowered in place. A line that is not
    /// exactly `name: value CR LF` is copied in that form.
    pub(crate) fn index(&mut self, name: Span, value: Span) {
        if let Some(bytes) = self.bytes.get_mut(name.range()) {
            lower(bytes);
        }
        let known = Known::of(self.slice(name));
        let value_end = value.start as usize + value.len();
        let canonical = name.start as usize + name.len() + 2 == value.start as usize
            && self.bytes.get(value.start as usize - 1) == Some(&b' ')
            && self.bytes.get(value_end..value_end + 2) == Some(b"\r\n");
        let (name, value) = if canonical {
            (name, value)
        } else {
            self.append_line_within(name, value)
        };
        self.add(known, name, value);
    }

    fn add(&mut self, known: Known, name: Span, value: Span) {
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
        (
            Span::new(start, name.len()),
            Span::new(start + name.len() + 2, value.len()),
        )
    }

    fn append_line(&mut self, name: &[u8], value: &[u8]) -> (Span, Span) {
        let start = self.bytes.len();
        self.bytes.reserve(name.len() + value.len() + 4);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        (
            Span::new(start, name.len()),
            Span::new(start + name.len() + 2, value.len()),
        )
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
        self.get_known(known).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// All values of a name.
    pub fn all_known(&self, known: Known) -> impl Iterator<Item = &[u8]> {
        self.list
            .iter()
            .filter(move |f| f.known == known && f.live)
            .map(|f| self.slice(f.value))
    }

    /// Whether a name is present.
    #[inline]
    pub fn has_known(&self, known: Known) -> bool {
        self.seen.has(known) && self.list.iter().any(|f| f.known == known && f.live)
    }

    /// All values of a lower-case name.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.list
            .iter()
            .filter(move |f| f.live && self.slice(f.name) == name)
            .map(|f| self.slice(f.value))
    }

    /// Shows all values of a lower-case name, in order.
    pub(crate) fn visit<'s>(&'s self, name: &[u8], see: &mut dyn FnMut(&'s [u8])) {
        for field in self.list.iter().filter(|f| f.live && self.slice(f.name) == name) {
            see(self.slice(field.value));
        }
    }

    /// The first value of a lower-case name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.list
            .iter()
            .find(|f| f.live && self.slice(f.name) == name)
            .map(|f| self.slice(f.value))
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
    }

    /// Removes every field of names of which this is true.
    pub fn remove_where(&mut self, remove: impl Fn(Known) -> bool) {
        for field in &mut self.list {
            if remove(field.known) {
                field.live = false;
            }
        }
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
            out.extend_from_slice(self.bytes.get(run).unwrap_or_default());
            run = start..end;
        }
        out.extend_from_slice(self.bytes.get(run).unwrap_or_default());
    }
}

/// Lowers ASCII letters, eight bytes at a time: a name is too short for what the library does to a long text.
fn lower(name: &mut [u8]) {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let (words, rest) = name.as_chunks_mut::<8>();
    for bytes in words {
        let word = u64::from_le_bytes(*bytes);
        let low = word & (ONES * 0x7f);
        // The high bit of each byte: at least `A`, above `Z`, no ASCII.
        let from_a = low + ONES * (0x80 - b'A' as u64);
        let above_z = low + ONES * (0x7f - b'Z' as u64);
        let capital = from_a & !above_z & !word & (ONES << 7);
        *bytes = (word | capital >> 2).to_le_bytes();
    }
    rest.make_ascii_lowercase();
}

/// As `String::from_utf8_lossy`, which looks at every byte by itself; nearly all values are ASCII.
pub(super) fn lossy(value: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::super::known::ALL;
    use super::*;

    fn written(fields: &Fields) -> String {
        let mut out = Vec::new();
        fields.write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn unchanged_runs_and_changes_keep_order() {
        let raw = b"Host: a\r\nX-One:1\r\nAccept: *\r\n\r\n";
        let mut fields = Fields::new();
        fields.load(raw);
        fields.index(Span::new(0, 4), Span::new(6, 1));
        fields.index(Span::new(9, 5), Span::new(15, 1));
        fields.index(Span::new(18, 6), Span::new(26, 1));
        assert_eq!(written(&fields), "host: a\r\nx-one: 1\r\naccept: *\r\n");
        fields.remove(b"x-one");
        fields.push(b"x-two", b"2");
        assert_eq!(written(&fields), "host: a\r\naccept: *\r\nx-two: 2\r\n");
        fields.set_known(Known::Host, b"b");
        assert_eq!(written(&fields), "accept: *\r\nx-two: 2\r\nhost: b\r\n");
        assert_eq!(fields.len(), 3);
    }

    #[test]
    fn names_are_lowered_as_the_library_does() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        for from in 0..8 {
            for length in [0, 1, 7, 8, 9, 16, 31, 200] {
                let mut name = all[from..from + length].to_vec();
                lower(&mut name);
                assert_eq!(name, all[from..from + length].to_ascii_lowercase());
            }
        }
        let mut name = all.clone();
        lower(&mut name);
        assert_eq!(name, all.to_ascii_lowercase());
    }

    #[test]
    fn a_removed_name_can_come_again() {
        let mut fields = Fields::new();
        fields.push(b"te", b"trailers");
        fields.remove_set(KnownSet::of(&[Known::Te, Known::Host]));
        assert!(!fields.has_known(Known::Te));
        assert_eq!(fields.joined(b"te"), None);
        fields.push_known(Known::Te, b"again");
        assert_eq!(fields.get_known(Known::Te), Some(&b"again"[..]));
        fields.remove_known(Known::Te);
        assert_eq!(fields.get_known(Known::Te), None);
        assert!(fields.is_empty());
    }

    /// What a list without an index would answer.
    #[derive(Clone, Default)]
    struct Plain(Vec<(Vec<u8>, Vec<u8>)>);

    impl Plain {
        fn values<'p>(&'p self, name: &'p [u8]) -> impl Iterator<Item = &'p [u8]> {
            self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| &v[..])
        }

        fn push(&mut self, name: &[u8], value: &[u8]) {
            self.0.push((name.to_vec(), value.to_vec()));
        }

        fn remove(&mut self, name: &[u8]) {
            self.0.retain(|(n, _)| n != name);
        }

        fn check(&self, fields: &Fields, names: &[&[u8]]) {
            for name in names {
                let values: Vec<_> = self.values(name).collect();
                let joined =
                    (!values.is_empty()).then(|| String::from_utf8_lossy(&values.join(&b","[..])).into_owned());
                assert_eq!(fields.joined(name).as_deref(), joined.as_deref());
                assert_eq!(fields.get(name), values.first().copied());
                assert_eq!(fields.all(name).collect::<Vec<_>>(), values);
                let mut seen = Vec::new();
                fields.visit(name, &mut |value| seen.push(value));
                assert_eq!(seen, values);
                let known = Known::of(name);
                if known != Known::Other {
                    assert_eq!(fields.has_known(known), !values.is_empty(), "{known:?}");
                    assert_eq!(fields.get_known(known), values.first().copied(), "{known:?}");
                    assert_eq!(fields.all_known(known).collect::<Vec<_>>(), values, "{known:?}");
                }
            }
            let all: Vec<_> = fields.iter().map(|(_, n, v)| (n.to_vec(), v.to_vec())).collect();
            assert_eq!(all, self.0);
            assert!(fields.iter().all(|(known, name, _)| known == Known::of(name)));
            assert_eq!((fields.len(), fields.is_empty()), (all.len(), all.is_empty()));
        }
    }

    /// Whoever is told that a field is absent forwards what it should have refused.
    #[test]
    fn what_is_known_to_be_absent_is_absent() {
        let mut names: Vec<&[u8]> = ALL.iter().map(|known| known.name().as_bytes()).collect();
        names.extend([&b"x-a"[..], b"x-b", b"hos", b"hosts"]);
        let mut random = fastrand::Rng::with_seed(1);
        let mut fields = Fields::new();
        let mut plain = Plain::default();
        for _ in 0..20_000 {
            let name = *random.choice(&names).expect("a name");
            let known = Known::of(name);
            let other = *random.choice(ALL).expect("a name");
            let text = format!("v{}", random.u8(..));
            let value = text.as_bytes();
            match random.u8(..16) {
                0 | 1 => {
                    fields.push(name, value);
                    plain.push(name, value);
                }
                2 => {
                    fields.push_parsed(known, name, value);
                    plain.push(name, value);
                }
                3 => {
                    fields.push_number(other, 7);
                    plain.push(other.name().as_bytes(), b"7");
                }
                4 => {
                    fields.set(name, value);
                    plain.remove(name);
                    plain.push(name, value);
                }
                5 => {
                    fields.set_known(other, value);
                    plain.remove(other.name().as_bytes());
                    plain.push(other.name().as_bytes(), value);
                }
                6 => {
                    fields.append_known(other, b",", value);
                    let name = other.name().as_bytes();
                    let mut values: Vec<_> = plain.values(name).collect();
                    values.push(value);
                    let whole = values.join(&b","[..]);
                    plain.remove(name);
                    plain.push(name, &whole);
                }
                7 => {
                    fields.remove(name);
                    plain.remove(name);
                }
                8 => {
                    fields.remove_known(other);
                    plain.remove(other.name().as_bytes());
                }
                9 => {
                    fields.remove_where(|k| k == known);
                    plain.0.retain(|(n, _)| Known::of(n) != known);
                }
                10 => {
                    fields.remove_set(KnownSet::of(&[known, other]));
                    plain.0.retain(|(n, _)| ![known, other].contains(&Known::of(n)));
                }
                11 => {
                    let there = plain.values(name).count();
                    assert_eq!(fields.remove_named(|n| n == name), there);
                    plain.remove(name);
                }
                12 if random.u8(..8) == 0 => {
                    fields.clear();
                    plain.0.clear();
                }
                13 if random.u8(..8) == 0 => {
                    // As a parser does, in the memory of the head before.
                    let raw = [&name.to_ascii_uppercase()[..], b":", value, b"\r\n"].concat();
                    fields.load(&raw);
                    fields.index(Span::new(0, name.len()), Span::new(name.len() + 1, value.len()));
                    plain.0.clear();
                    plain.push(name, value);
                }
                14 => fields = fields.clone(),
                15 if random.u8(..8) == 0 => {
                    let mut into = Fields::new();
                    into.push(b"te", b"trailers");
                    into.clone_from(&fields);
                    fields = into;
                }
                _ => {}
            }
            plain.check(&fields, &names);
        }
    }

    #[test]
    fn repeated_fields_are_joined() {
        let mut fields = Fields::new();
        assert!(fields.is_empty());
        fields.push(b"accept", b"a");
        fields.push(b"accept", b"b");
        assert_eq!(fields.joined(b"accept").as_deref(), Some("a,b"));
        assert_eq!(fields.joined(b"x"), None);
        fields.clear();
        assert!(fields.is_empty());
    }

    #[test]
    fn a_foreign_span_reads_as_empty() {
        let fields = Fields::new();
        assert_eq!(fields.slice(Span::new(5, 10)), b"");
    }
}
