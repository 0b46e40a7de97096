//! RE2's syntax in the words of the `regex` crate. What both read alike is left as it is; what RE2 does not take, and the crate
//! would, is not looked for here. What the crate does not take, and RE2 would, has no use, and the controller refuses it
//! (`control/objects/regex_unusual.go`).
//!
//! The reference is RE2's [syntax](https://github.com/google/re2/wiki/Syntax), and its parser where that says nothing.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `pattern`, which is RE2's, for the `regex` crate. One that RE2 refuses may be refused by the crate, or not.
pub(crate) fn translate(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains(['\\', '[', '{']) {
        return Cow::Borrowed(pattern);
    }
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        rest = match c {
            '\\' => escape(rest, &mut out),
            '[' => set(rest, &mut out),
            // RE2 takes a brace that begins no repetition for itself.
            '{' if repetition(rest).is_none() => {
                out.push_str(r"\{");
                tail(rest, 1)
            }
            other => {
                out.push(other);
                tail(rest, other.len_utf8())
            }
        };
    }
    Cow::Owned(out)
}

/// All but the first `n` bytes.
fn tail(text: &str, n: usize) -> &str {
    text.get(n..).unwrap_or_default()
}

/// The length of `{2}`, `{2,}` or `{2,3}`, if one is next. Numbers do not begin with a zero.
fn repetition(rest: &str) -> Option<usize> {
    let (inner, _) = rest.strip_prefix('{')?.split_once('}')?;
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && (text.len() < 2 || !text.starts_with('0'));
    (!least.is_empty() && number(least) && number(most)).then_some(inner.len() + 2)
}

/// An escape outside of a set; `rest` begins with it. Gives what follows.
fn escape<'p>(rest: &'p str, out: &mut String) -> &'p str {
    let after = tail(rest, 1);
    match after.chars().next() {
        Some('b') => out.push_str(r"(?-u:\b)"),
        Some('B') => out.push_str(r"(?-u:\B)"),
        Some('C') => out.push_str("(?s:.)"),
        Some('Q') => {
            let (text, after) = tail(after, 1).split_once(r"\E").unwrap_or((tail(after, 1), ""));
            for c in text.chars() {
                literal(c, out);
            }
            return after;
        }
        _ => {
            return match class(rest, out) {
                Some(after) => after,
                None => character(rest, out),
            };
        }
    }
    tail(after, 1)
}

/// A class by an escape, such as `\d`; `rest` may begin with one. Perl's are ASCII in RE2.
fn class<'p>(rest: &'p str, out: &mut String) -> Option<&'p str> {
    let after = rest.strip_prefix('\\')?;
    let words = match after.chars().next()? {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => r"[\t\n\x0C\r ]",
        'S' => r"[^\t\n\x0C\r ]",
        kind @ ('p' | 'P') => return Some(unicode(kind, tail(after, 1), out)),
        _ => return None,
    };
    out.push_str(words);
    Some(tail(after, 1))
}

/// What follows `\p` or `\P`: a letter, or a name in braces, which RE2 lets begin with `^` to turn it around.
fn unicode<'p>(kind: char, rest: &'p str, out: &mut String) -> &'p str {
    let negated = rest.strip_prefix("{^");
    let kind = match (kind, negated) {
        ('p', Some(_)) => 'P',
        (_, Some(_)) => 'p',
        (kind, None) => kind,
    };
    out.push('\\');
    out.push(kind);
    let Some(name) = negated.or_else(|| rest.strip_prefix('{')) else {
        out.extend(rest.chars().next());
        return tail(rest, rest.chars().next().map_or(0, char::len_utf8));
    };
    out.push('{');
    let (name, after) = name.split_once('}').unwrap_or((name, ""));
    out.push_str(name);
    if rest.contains('}') {
        out.push('}');
    }
    after
}

/// One character, escaped or not; `rest` begins with it. Gives what follows.
fn character<'p>(rest: &'p str, out: &mut String) -> &'p str {
    let Some(after) = rest.strip_prefix('\\') else {
        let Some(c) = rest.chars().next() else { return rest };
        literal(c, out);
        return tail(rest, c.len_utf8());
    };
    let octal = after.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
    match after.chars().next() {
        // Up to three digits, of which the first may be 0. One alone, but for 0, would be a back reference.
        Some(first) if octal > 1 || first == '0' => {
            let value = u32::from_str_radix(after.get(..octal).unwrap_or_default(), 8).unwrap_or_default();
            let _ = write!(out, r"\x{{{value:x}}}");
            tail(after, octal)
        }
        Some('x') => {
            let digits = match tail(after, 1).strip_prefix('{') {
                Some(braced) => braced.find('}').map_or(after.len(), |at| at + 2),
                None => tail(after, 1).chars().take(2).map(char::len_utf8).sum(),
            };
            let (number, after) = after.split_at_checked(1 + digits).unwrap_or((after, ""));
            out.push('\\');
            out.push_str(number);
            after
        }
        Some(c) if c.is_ascii_punctuation() => {
            literal(c, out);
            tail(after, 1)
        }
        Some(c) => {
            out.push('\\');
            out.push(c);
            tail(after, c.len_utf8())
        }
        None => {
            out.push('\\');
            after
        }
    }
}

/// A character that means itself, also inside of a set.
fn literal(c: char, out: &mut String) {
    // `\<` and `\>` are edges of words to the crate, and mean nothing else than themselves without a backslash.
    if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
        out.push('\\');
    }
    out.push(c);
}

/// A set in brackets; `rest` begins with it. RE2 knows neither sets within sets nor the operators `&&`, `~~` and `--`.
fn set<'p>(rest: &'p str, out: &mut String) -> &'p str {
    out.push('[');
    let mut rest = tail(rest, 1);
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut first = true;
    while !rest.is_empty() {
        // A bracket that closes is a member where it comes first.
        if let Some(after) = rest.strip_prefix(']').filter(|_| !first) {
            out.push(']');
            return after;
        }
        first = false;
        if let Some(after) = named(rest, out).or_else(|| class(rest, out)) {
            rest = after;
            continue;
        }
        rest = character(rest, out);
        if let Some(to) = rest
            .strip_prefix('-')
            .filter(|to| !to.is_empty() && !to.starts_with(']'))
        {
            out.push('-');
            rest = character(to, out);
        }
    }
    // Not closed: the crate says so.
    rest
}

/// A class by name, such as `[:alpha:]`.
fn named<'p>(rest: &'p str, out: &mut String) -> Option<&'p str> {
    let (name, after) = rest.strip_prefix("[:")?.split_once(":]")?;
    let _ = write!(out, "[:{name}:]");
    Some(after)
}

#[cfg(test)]
mod tests;
