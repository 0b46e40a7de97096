//! The readings of a request's headers, for all conditions on them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::RequestView;

/// A value longer than this, in bytes, is made text once and not for each condition.
const LONG: usize = 256;

/// The readings of one header.
type Texts<'r> = Rc<[Cow<'r, str>]>;

/// A request's headers for many conditions. What is dear to read is read once: a header that comes more than once, is
/// long or is no text. What is read of a head takes at most a few times its size.
///
/// A header that comes more than once has several readings: each of its values, and all of them joined by `,` or `, `
/// (`; ` for `cookie`). Bytes outside UTF-8 are read as ISO 8859-1 and as replacement characters.
pub struct HeaderReadings<'r> {
    request: &'r dyn RequestView,
    kept: RefCell<BTreeMap<Box<str>, Texts<'r>>>,
}

impl<'r> HeaderReadings<'r> {
    /// The headers of a request. Nothing is read yet.
    pub fn of(request: &'r dyn RequestView) -> Self {
        Self {
            request,
            kept: RefCell::default(),
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

    /// Shows each reading of a header, its name in lower case. False when there is none.
    pub(crate) fn visit(&self, name: &str, see: &mut dyn FnMut(&str)) -> bool {
        let kept = self.kept.borrow().get(name).cloned();
        if let Some(kept) = kept {
            kept.iter().for_each(|reading| see(reading));
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
            && let Ok(text) = std::str::from_utf8(first)
        {
            see(text);
            return true;
        }
        let mut values = vec![first];
        values.append(&mut more);
        let readings = read(name, &values);
        readings.iter().for_each(|reading| see(reading));
        self.kept.borrow_mut().insert(name.into(), readings);
        true
    }
}

/// The readings of the values of a header, each once.
fn read<'r>(name: &str, values: &[&'r [u8]]) -> Texts<'r> {
    let separators: &[&[u8]] = match (values.len(), name) {
        (1, _) => &[],
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

/// Bytes as text; what is no UTF-8 may be read in two ways.
fn texts<'v>(value: &'v [u8], out: &mut Vec<Cow<'v, str>>) {
    let text = String::from_utf8_lossy(value);
    if let Cow::Owned(_) = text {
        out.push(Cow::Owned(value.iter().map(|b| char::from(*b)).collect()));
    }
    out.push(text);
}
