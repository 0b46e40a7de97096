//! What an expression means, written in the syntax of Hyperscan.
//!
//! It is written anew from what the portable engine reads, not handed on as it was sent: so classes, case and escapes cannot
//! mean something else in the library, which follows PCRE.

use std::fmt::Write;

use heddle_hyperscan::Expression;
use regex_syntax::hir::{Class, Dot, Hir, HirKind, Look, Repetition};
use regex_syntax::utf8::Utf8Sequences;

/// Most places that one expression may stand for when its repetitions are written out: characters, and of a class the bytes of
/// its sequences in UTF-8, of which all letters have some thousand. Compiling takes time that grows faster than them, and
/// cannot be stopped.
pub(super) const MAX_POSITIONS: usize = 512;

/// What a place within a repetition without end counts, unless that is of one place: `(.{250}a)*` takes 139 ms to compile, `.{250}a` one.
const ENDLESS: usize = 4;

/// An expression for texts that match from end to end, if they have no line feed, and how many places it stands for. None for
/// one that is too large or looks at what is around a place.
pub(super) fn whole(hir: &Hir) -> Option<(Expression, usize)> {
    let positions = positions(hir).filter(|positions| *positions <= MAX_POSITIONS)?;
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

/// None where that is above any bound.
fn positions(hir: &Hir) -> Option<usize> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(0),
        HirKind::Literal(literal) => Some(literal.0.len()),
        // Any character is one that Hyperscan knows.
        HirKind::Class(_) if is_dot(hir) || hir.properties().maximum_len() == Some(1) => Some(1),
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.ranges().iter();
            let sequences = ranges.flat_map(|range| Utf8Sequences::new(range.start(), range.end()));
            Some(sequences.map(|sequence| sequence.len()).sum())
        }
        HirKind::Class(Class::Bytes(_)) => Some(1),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let times = max.unwrap_or(*min).max(1);
            let inside = positions(sub)?;
            let weight = if max.is_none() && inside > 1 { ENDLESS } else { 1 };
            inside.checked_mul(usize::try_from(times).ok()?)?.checked_mul(weight)
        }
        HirKind::Capture(group) => positions(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts
            .iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(positions(part)?)),
    }
}

/// Any character, or any but a line feed: the same, as texts have none.
fn is_dot(hir: &Hir) -> bool {
    [Dot::AnyChar, Dot::AnyCharExceptLF]
        .into_iter()
        .any(|dot| *hir == Hir::dot(dot))
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
