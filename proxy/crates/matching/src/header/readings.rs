//! The readings of a request's headers, for all conditions on them.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use heddle_simd::{CHUNK, Chunk, from_utf8};

use crate::RequestView;

/// A value longer than this, in bytes, is made text once and not for each condition.
const LONG: usize = 256;

/// The readings of one header, in order.
type Texts<'r> = Rc<[Cow<'r, str>]>;

/// A request's headers for many conditions. What is dear to read is read once: a header that comes more than once, is
/// long or is no text. What is read of a head takes at most a few times its size.
///
/// A header that comes more than once has several readings: each of its values, and all of them joined by `,` or `, `
/// (`; ` for `cookie`). Bytes outside UTF-8 are read as ISO 8859-1 and as replacement characters.
pub struct HeaderReadings<'r> {
    request: &'r dyn RequestView,
    /// Few requests need any.
    kept: OnceCell<RefCell<BTreeMap<Box<str>, Texts<'r>>>>,
    /// Of fields in other spelling, by the name that was asked for.
    others: OnceCell<RefCell<BTreeMap<Box<str>, Texts<'r>>>>,
    /// Whether a name of the request has a separator other than `-`.
    respelled: OnceCell<bool>,
}

impl<'r> HeaderReadings<'r> {
    /// The headers of a request. Nothing is read yet.
    pub fn of(request: &'r dyn RequestView) -> Self {
        Self {
            request,
            kept: OnceCell::new(),
            others: OnceCell::new(),
            respelled: OnceCell::new(),
        }
    }

    /// The request.
    pub fn request(&self) -> &'r dyn RequestView {
        self.request
    }

    /// Whether a header of this name, in lower case, is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut found = false;
        self.request.visit_header(name, &mut |_| found = true);
        found
    }

    /// Whether a field's name has a separator other than `-`. In nearly all requests none has.
    pub(crate) fn are_respelled(&self) -> bool {
        *self.respelled.get_or_init(|| self.request.has_respelled())
    }

    /// Shows what the next reader may take for this header as well, and routing does not: fields whose names differ in
    /// separators only (`x_role`), and a host without its port and the dot of the root. All fields are walked: to be asked
    /// of a host, or where a name [is respelled](HeaderReadings::are_respelled). `beginning` is as for [`HeaderReadings::visit`].
    pub(crate) fn visit_others(&self, name: &str, beginning: Option<&str>, see: &mut dyn FnMut(&str)) {
        if is_host(name) {
            bare_host(self.request.authority()).into_iter().for_each(see);
            return;
        }
        let known = self.others.get().and_then(|others| others.borrow().get(name).cloned());
        let readings = known.unwrap_or_else(|| {
            let mut values = Vec::new();
            self.request.visit_fields(&mut |field, value| {
                if is_other_spelling(field, name.as_bytes()) {
                    values.push(value);
                }
            });
            let readings = read(name, &values);
            let others = self.others.get_or_init(RefCell::default);
            others.borrow_mut().insert(name.into(), Rc::clone(&readings));
            readings
        });
        show(&readings, beginning, see);
    }

    /// Shows each reading of a header, its name in lower case. False when there is none. For a test that has a
    /// [beginning](crate::StringMatcher::beginning) those that decide it are enough: many values cost each of many such tests a few
    /// looks.
    pub(crate) fn visit(&self, name: &str, beginning: Option<&str>, see: &mut dyn FnMut(&str)) -> bool {
        let kept = self.kept.get().and_then(|kept| kept.borrow().get(name).cloned());
        if let Some(kept) = kept {
            show(&kept, beginning, see);
            return true;
        }
        let (mut first, mut more) = (None, Vec::new());
        self.request.visit_header(name, &mut |value| match first {
            None => first = Some(value),
            Some(_) => more.push(value),
        });
        let Some(first) = first else { return false };
        if more.is_empty()
            && first.len() <= LONG
            && let Ok(text) = from_utf8(first)
        {
            see(text);
            return true;
        }
        let mut values = vec![first];
        values.append(&mut more);
        let readings = read(name, &values);
        show(&readings, beginning, see);
        let kept = self.kept.get_or_init(RefCell::default);
        kept.borrow_mut().insert(name.into(), readings);
        true
    }
}

/// Shows readings, or of many those that decide a test with this beginning.
fn show(readings: &[Cow<'_, str>], beginning: Option<&str>, see: &mut dyn FnMut(&str)) {
    let (Some(beginning), [first, _, _, .., last]) = (beginning, readings) else {
        return readings.iter().for_each(|reading| see(reading));
    };
    let next = readings.partition_point(|reading| **reading < *beginning);
    [Some(first), readings.get(next), Some(last)]
        .into_iter()
        .flatten()
        .for_each(|reading| see(reading));
}

/// The readings of the values of a header, each once and in order.
fn read<'r>(name: &str, values: &[&'r [u8]]) -> Texts<'r> {
    let separators: &[&[u8]] = match (values.len(), name) {
        (0 | 1, _) => &[],
        (_, "cookie") => &[b"; "],
        _ => &[b",", b", "],
    };
    let mut readings = Vec::with_capacity(values.len() + separators.len());
    values.iter().for_each(|value| texts(value, &mut readings));
    for separator in separators {
        let joined = values.join(*separator);
        let mut of_joined = Vec::new();
        texts(&joined, &mut of_joined);
        readings.extend(of_joined.into_iter().map(|text| Cow::Owned(text.into_owned())));
    }
    readings.sort_unstable();
    readings.dedup();
    readings.into()
}

/// Whether a header's name, in lower case, is that of the host.
pub(super) fn is_host(name: &str) -> bool {
    matches!(name, ":authority" | "host")
}

/// Whether a byte of a name only parts its words. RFC 3875 section 4.1.18 has CGI write `_` for `-`; servers write it for
/// everything that is neither letter nor digit (lighttpd).
pub fn is_separator(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && byte != b':'
}

/// Whether a name has separators other than `-`.
pub fn is_respelled(name: &[u8]) -> bool {
    (0..name.len()).step_by(CHUNK).any(|at| {
        let chunk = Chunk::at(name, at);
        let plain = chunk.within(b'a', b'z')
            | chunk.equal(b'-')
            | chunk.within(b'0', b'9')
            | chunk.within(b'A', b'Z')
            | chunk.equal(b':');
        let there = u16::MAX >> (CHUNK - CHUNK.min(name.len() - at));
        !plain & there != 0
    })
}

/// Whether two names differ in their separators (`x_role`, `x.role`, `x-role`), and in nothing else: CGI and what came of
/// it (WSGI, Rack, PHP) take them for the same.
pub fn is_other_spelling(name: &[u8], other: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| a == b || is_separator(*a) && is_separator(*b);
    name.len() == other.len() && name != other && name.iter().zip(other).all(same)
}

/// The host of an authority that says more: a port, or the dot of the root behind the name.
fn bare_host(authority: &str) -> Option<&str> {
    let port = authority
        .rfind(':')
        .filter(|at| authority.find(']').is_none_or(|end| end < *at));
    let host = authority.get(..port.unwrap_or(authority.len())).unwrap_or_default();
    let host = host.strip_suffix('.').unwrap_or(host);
    (host.len() < authority.len()).then_some(host)
}

/// Bytes as text; what is no UTF-8 may be read in two ways.
fn texts<'v>(value: &'v [u8], out: &mut Vec<Cow<'v, str>>) {
    // Several times as fast as looking for what to replace.
    if let Ok(text) = std::str::from_utf8(value) {
        return out.push(Cow::Borrowed(text));
    }
    out.push(Cow::Owned(value.iter().map(|b| char::from(*b)).collect()));
    out.push(String::from_utf8_lossy(value));
}
