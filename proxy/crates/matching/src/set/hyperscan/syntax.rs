//! What an expression means, written in the syntax of Hyperscan.
//!
//! It is written anew from what the portable engine reads, not handed on as it was sent: so classes, case and escapes cannot
//! mean something else in the library, which follows PCRE.

use std::fmt::Write;

use heddle_hyperscan::Expression;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};

use super::size::{self, is_dot};

/// An expression for texts that match from end to end, if they have no line feed, and how many places it stands for. None for
/// one that is too large or looks at what is around a place.
pub(super) fn whole(hir: &Hir) -> Option<(Expression, usize)> {
    let positions = size::positions(hir);
    if positions > size::MAX_POSITIONS {
        return None;
    }
    let mut pattern = r"\A(?:".to_owned();
    // The whole text is matched anyway.
    let parts = match hir.kind() {
        HirKind::Concat(parts) => parts.as_slice(),
        _ => std::slice::from_ref(hir),
    };
    let is_look = |part: &Hir, look| *part.kind() == HirKind::Look(look);
    let parts = match parts {
        [first, rest @ ..] if is_look(first, Look::Start) => rest,
        parts => parts,
    };
    let parts = match parts {
        [rest @ .., last] if is_look(last, Look::End) => rest,
        parts => parts,
    };
    parts.iter().try_for_each(|part| write(part, &mut pattern))?;
    pattern += r")\z";
    let expression = Expression {
        pattern,
        utf8: true,
        once: true,
    };
    Some((expression, positions))
}

fn write(hir: &Hir, out: &mut String) -> Option<()> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Look(_) => return None,
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            text.chars().for_each(|c| character(c, out));
        }
        HirKind::Class(_) if is_dot(hir) => out.push('.'),
        HirKind::Class(class) => set(class, out)?,
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            out.push_str("(?:");
            write(sub, out)?;
            out.push(')');
            match (min, max) {
                (0, None) => out.push('*'),
                (1, None) => out.push('+'),
                (0, Some(1)) => out.push('?'),
                (min, None) => write!(out, "{{{min},}}").ok()?,
                (min, Some(max)) => write!(out, "{{{min},{max}}}").ok()?,
            }
        }
        HirKind::Capture(group) => write(&group.sub, out)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write(part, out))?,
        HirKind::Alternation(parts) => {
            out.push_str("(?:");
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                write(part, out)?;
            }
            out.push(')');
        }
    }
    Some(())
}

fn set(class: &Class, out: &mut String) -> Option<()> {
    let ranges: Vec<(char, char)> = match class {
        Class::Unicode(class) => class.ranges().iter().map(|r| (r.start(), r.end())).collect(),
        Class::Bytes(class) => {
            let ranges = class.ranges().iter().map(|r| (r.start(), r.end()));
            let ascii = ranges.map(|(start, end)| end.is_ascii().then_some((start.into(), end.into())));
            ascii.collect::<Option<_>>()?
        }
    };
    if ranges.is_empty() {
        return None;
    }
    out.push('[');
    for (start, end) in ranges {
        character(start, out);
        if start != end {
            out.push('-');
            character(end, out);
        }
    }
    out.push(']');
    Some(())
}

fn character(c: char, out: &mut String) {
    match c.is_ascii_alphanumeric() {
        true => out.push(c),
        // Writing to a text does not fail.
        false => drop(write!(out, "\\x{{{:x}}}", u32::from(c))),
    }
}
