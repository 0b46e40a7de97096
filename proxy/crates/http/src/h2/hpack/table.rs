//! The static and the dynamic table (RFC 7541 section 2.3, appendix A).

use std::collections::VecDeque;
use std::sync::LazyLock;

use crate::head::Known;

/// What an entry costs besides its bytes (section 4.1).
const OVERHEAD: usize = 32;

/// Names and values of the static table; index 1 is the first.
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// A decoded field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name's number.
    pub known: Known,
    /// The name; pseudo-header fields begin with a colon.
    pub name: &'a [u8],
    /// The value as it came.
    pub value: &'a [u8],
    /// Whether name and value consist of what RFC 9113 section 8.2.1 allows.
    pub valid: bool,
}

/// An entry of the dynamic table: the name's bytes, then the value's.
#[derive(Debug)]
struct Entry {
    bytes: Box<[u8]>,
    /// Length of the name.
    name_len: usize,
    known: Known,
    name_valid: bool,
    valid: bool,
}

impl Entry {
    fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// Both tables under one index.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
}

/// The numbers of the static table's names.
static KNOWN: LazyLock<[Known; 61]> = LazyLock::new(|| STATIC.map(|(name, _)| Known::of(name.as_bytes())));

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max,
        }
    }

    /// The field of an index; none when there is no such index.
    pub(super) fn get(&self, index: usize) -> Option<Field<'_>> {
        let at = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Some(Field {
                known: *KNOWN.get(at)?,
                name: name.as_bytes(),
                value: value.as_bytes(),
                valid: true,
            });
        }
        let entry = self.entries.get(at - STATIC.len())?;
        let (name, value) = entry.bytes.split_at_checked(entry.name_len)?;
        Some(Field {
            known: entry.known,
            name,
            value,
            valid: entry.valid,
        })
    }

    /// The name of an index, and whether it is valid whatever the value is.
    pub(super) fn name(&self, index: usize) -> Option<(Known, &[u8], bool)> {
        let field = self.get(index)?;
        let dynamic = index.checked_sub(STATIC.len() + 1);
        let valid = dynamic.is_none_or(|at| self.entries.get(at).is_some_and(|entry| entry.name_valid));
        Some((field.known, field.name, valid))
    }

    /// Changes the bound, and drops what no longer fits.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    fn evict(&mut self, room: usize) {
        while self.size + room > self.max {
            match self.entries.pop_back() {
                Some(entry) => self.size -= entry.size(),
                None => return,
            }
        }
    }

    /// Adds a field in front. One that is larger than the table empties it (section 4.4).
    pub(super) fn insert(&mut self, field: Field<'_>, name_valid: bool) {
        let entry = Entry {
            bytes: [field.name, field.value].concat().into(),
            name_len: field.name.len(),
            known: field.known,
            name_valid,
            valid: field.valid,
        };
        let size = entry.size();
        self.evict(size);
        if size <= self.max {
            self.size += size;
            self.entries.push_front(entry);
        }
    }
}
