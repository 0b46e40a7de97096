//! Format strings: parsed once per configuration push, then only written.

use serde_json::Value;

use super::context::LogContext;
use super::operator::Operator;

/// Longest format accepted, in bytes.
pub const MAX_FORMAT: usize = 64 * 1024;

/// Deepest nesting of a JSON format.
const MAX_DEPTH: usize = 16;

/// Why a format was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// An operator that is not known, or is used wrongly.
    #[error("operator %{operator}%: {reason}")]
    Operator {
        /// As written between the percent signs.
        operator: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A percent sign without its partner.
    #[error("`%` at byte {offset} begins no operator; write `%%` for a percent sign")]
    Percent {
        /// Where it stands.
        offset: usize,
    },
    /// Longer than [`MAX_FORMAT`].
    #[error("format of {length} bytes is longer than the {MAX_FORMAT} allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A JSON format holds something that cannot be printed.
    #[error("json_format field `{path}`: {reason}")]
    Json {
        /// Path of the field, dotted.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Literal(Box<str>),
    Operator(Operator),
}

#[derive(Clone, Debug, PartialEq)]
enum JsonPiece {
    /// Already JSON: punctuation, keys, constants.
    Raw(Box<str>),
    /// A field that is one operator: keeps its type, null when there is no value.
    Typed(Operator),
    /// A field of several pieces: a string.
    Joined(Vec<Piece>),
}

#[derive(Clone, Debug, PartialEq)]
enum Layout {
    Text(Vec<Piece>),
    Json(Vec<JsonPiece>),
}

/// A checked access log format or header value format.
#[derive(Clone, Debug, PartialEq)]
pub struct Format(Layout);

impl Format {
    /// Parses `text_format_source.inline_string` or a header value. No line end is added.
    pub fn parse_text(format: &str) -> Result<Self, FormatError> {
        Ok(Self(Layout::Text(pieces(format)?)))
    }

    /// Parses `json_format`. Every line ends with a line feed. Keys are printed in the order of the object given.
    pub fn parse_json(format: &Value) -> Result<Self, FormatError> {
        if !format.is_object() {
            return Err(FormatError::Json {
                path: String::new(),
                reason: "an object is needed".to_owned(),
            });
        }
        let mut out = JsonLayout::default();
        out.value(format, "", 0)?;
        out.raw.push('\n');
        out.flush();
        Ok(Self(Layout::Json(out.pieces)))
    }

    /// Appends one line. Missing values print as `-`, in JSON as null.
    pub fn write(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        match &self.0 {
            Layout::Text(pieces) => write_pieces(pieces, context, out, b"-"),
            Layout::Json(pieces) => {
                for piece in pieces {
                    match piece {
                        JsonPiece::Raw(raw) => out.extend_from_slice(raw.as_bytes()),
                        JsonPiece::Typed(operator) => operator.write_json(context, out),
                        JsonPiece::Joined(pieces) => {
                            let mut value = Vec::new();
                            write_pieces(pieces, context, &mut value, b"-");
                            write_string(&value, out);
                        }
                    }
                }
            }
        }
    }

    /// Appends a header's value. Missing values print as nothing; an empty result means that the header is not added.
    pub fn write_header_value(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        match &self.0 {
            Layout::Text(pieces) => write_pieces(pieces, context, out, b""),
            Layout::Json(_) => self.write(context, out),
        }
    }

    /// Whether the format has no operator, so that it always prints the same.
    pub fn is_constant(&self) -> bool {
        match &self.0 {
            Layout::Text(pieces) => pieces.iter().all(|p| matches!(p, Piece::Literal(_))),
            Layout::Json(pieces) => pieces.iter().all(|p| matches!(p, JsonPiece::Raw(_))),
        }
    }
}

/// Most of what stands between values is a blank, and a missing value a dash.
#[inline]
fn append(out: &mut Vec<u8>, text: &[u8]) {
    match text {
        [byte] => out.push(*byte),
        text => out.extend_from_slice(text),
    }
}

fn write_pieces(pieces: &[Piece], context: &LogContext<'_>, out: &mut Vec<u8>, missing: &[u8]) {
    for piece in pieces {
        match piece {
            Piece::Literal(text) => append(out, text.as_bytes()),
            Piece::Operator(operator) => {
                if !operator.write(context, out) {
                    append(out, missing);
                }
            }
        }
    }
}

/// Appends a JSON string. Values are UTF-8 by construction.
pub(super) fn write_string(value: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(value);
    match serde_json::to_string(text.as_ref()) {
        Ok(quoted) => out.extend_from_slice(quoted.as_bytes()),
        Err(_) => out.extend_from_slice(b"null"),
    }
}

fn pieces(format: &str) -> Result<Vec<Piece>, FormatError> {
    if format.len() > MAX_FORMAT {
        return Err(FormatError::TooLong { length: format.len() });
    }
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        literal.push_str(&rest[..at]);
        let offset = format.len() - rest.len() + at;
        let after = &rest[at + 1..];
        if let Some(next) = after.strip_prefix('%') {
            literal.push('%');
            rest = next;
            continue;
        }
        let (operator, length) = operator(after).ok_or(FormatError::Percent { offset })??;
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal).into()));
        }
        pieces.push(Piece::Operator(operator));
        rest = &after[length..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal.into()));
    }
    Ok(pieces)
}

/// The operator at the beginning of `text` (behind its first percent sign) and its length with the closing percent
/// sign. None when the shape is not `NAME(argument):length%`.
fn operator(text: &str) -> Option<Result<(Operator, usize), FormatError>> {
    let name_end = text.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))?;
    let name = &text[..name_end];
    if name.is_empty() {
        return None;
    }
    let mut at = name_end;
    let mut argument = None;
    if text[at..].starts_with('(') {
        // The argument of START_TIME holds percent signs and may hold parentheses: it ends at the first `)` that the
        // rest of an operator follows.
        let mut close = at;
        loop {
            close += 1 + text[close + 1..].find(')')?;
            if tail(&text[close + 1..]).is_some() {
                break;
            }
        }
        argument = Some(&text[at + 1..close]);
        at = close + 1;
    }
    let (max, tail_length) = tail(&text[at..])?;
    let length = at + tail_length;
    Some(
        Operator::new(name, argument, max)
            .map(|operator| (operator, length))
            .map_err(|reason| FormatError::Operator {
                operator: text[..length - 1].to_owned(),
                reason,
            }),
    )
}

/// `%` or `:digits%`: the digits, and the length of all of it.
fn tail(text: &str) -> Option<(Option<usize>, usize)> {
    if text.starts_with('%') {
        return Some((None, 1));
    }
    let digits = text.strip_prefix(':')?;
    let end = digits.find('%')?;
    Some((Some(digits[..end].parse().ok()?), end + 2))
}

#[derive(Default)]
struct JsonLayout {
    pieces: Vec<JsonPiece>,
    raw: String,
}

impl JsonLayout {
    fn flush(&mut self) {
        if !self.raw.is_empty() {
            self.pieces.push(JsonPiece::Raw(std::mem::take(&mut self.raw).into()));
        }
    }

    fn value(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), FormatError> {
        if depth > MAX_DEPTH {
            return Err(FormatError::Json {
                path: path.to_owned(),
                reason: format!("nested deeper than {MAX_DEPTH} levels"),
            });
        }
        match value {
            Value::Object(fields) => {
                self.raw.push('{');
                for (i, (key, field)) in fields.iter().enumerate() {
                    if i > 0 {
                        self.raw.push(',');
                    }
                    self.raw.push_str(&Value::from(key.as_str()).to_string());
                    self.raw.push(':');
                    let inner = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    self.value(field, &inner, depth + 1)?;
                }
                self.raw.push('}');
            }
            Value::Array(items) => {
                self.raw.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        self.raw.push(',');
                    }
                    self.value(item, &format!("{path}[{i}]"), depth + 1)?;
                }
                self.raw.push(']');
            }
            Value::String(format) => {
                let parsed = pieces(format).map_err(|error| FormatError::Json {
                    path: path.to_owned(),
                    reason: error.to_string(),
                })?;
                match parsed.as_slice() {
                    [Piece::Operator(operator)] => {
                        self.flush();
                        self.pieces.push(JsonPiece::Typed(operator.clone()));
                    }
                    [] => self.raw.push_str("\"\""),
                    [Piece::Literal(text)] => self.raw.push_str(&Value::from(&**text).to_string()),
                    _ => {
                        self.flush();
                        self.pieces.push(JsonPiece::Joined(parsed));
                    }
                }
            }
            Value::Number(_) | Value::Bool(_) => self.raw.push_str(&value.to_string()),
            Value::Null => {
                return Err(FormatError::Json {
                    path: path.to_owned(),
                    reason: "null cannot be printed; use a string, number, boolean, list or object".to_owned(),
                });
            }
        }
        Ok(())
    }
}
