//! Header changes.

use heddle_telemetry::access_log::Format;

use super::{Result, enumeration, pb, required};
use crate::path::Path;
use crate::snapshot::{HeaderOp, HeaderOps, HeaderValue};

/// Whether routing depends on it; `:path`, `:method` and `host` have fields of their own, as in Envoy.
fn is_of_routing(name: &str) -> bool {
    name.starts_with(':') || name == "host"
}

/// A header that configuration may remove, in lower case: none that routing depends on.
pub(crate) fn removable(name: &str, path: &Path<'_>) -> Result<Box<str>> {
    let name = name.to_ascii_lowercase();
    if is_of_routing(&name) {
        return Err(path.error(format!("{name} cannot be removed")));
    }
    Ok(name.into())
}

/// A header that configuration may add or set, in lower case: none that routing depends on, nor one that says
/// where a message ends. Whoever believes another value than the proxy's own takes a body for the next message.
pub(crate) fn settable(name: &str, path: &Path<'_>) -> Result<Box<str>> {
    let name = name.to_ascii_lowercase();
    if is_of_routing(&name) {
        return Err(path.error(format!("{name} cannot be changed here")));
    }
    if matches!(name.as_str(), "content-length" | "transfer-encoding") {
        return Err(path.error(format!(
            "{name} cannot be set: where a message ends is known by the proxy alone"
        )));
    }
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(path.error(format!("{name:?} is not a header's name")));
    }
    Ok(name.into())
}

/// `*_headers_to_add` and `*_headers_to_remove`. `adding` and `removing` are the names of the two fields.
pub(crate) fn operations(
    add: &[pb::core::HeaderValueOption],
    remove: &[String],
    adding: &str,
    removing: &str,
    path: &Path<'_>,
) -> Result<HeaderOps> {
    let mut out = HeaderOps::default();
    for (i, name) in remove.iter().enumerate() {
        out.remove.push(removable(name, &path.item(removing, i))?);
    }
    for (i, option) in add.iter().enumerate() {
        out.add.extend(addition(option, &path.item(adding, i))?);
    }
    Ok(out)
}

/// One addition by itself.
pub(crate) fn one(option: &pb::core::HeaderValueOption, path: &Path<'_>) -> Result<HeaderOps> {
    Ok(HeaderOps {
        remove: Vec::new(),
        add: addition(option, path)?.into_iter().collect(),
    })
}

/// A `HeaderValue` that means what it says: the name in lower case, and the value.
pub(crate) fn constant(header: &pb::core::HeaderValue, path: &Path<'_>) -> Result<(Box<str>, Box<str>)> {
    let name = settable(&header.key, &path.field("key"))?;
    if !header.raw_value.is_empty() {
        return Err(path.field("raw_value").unsupported("it here", "use value"));
    }
    let value = path.field("value");
    let format = Format::parse_text(&header.value).map_err(|e| value.error(e.to_string()))?;
    if !format.is_constant() {
        return Err(value.unsupported("operators here", "write the value itself"));
    }
    let mut printed = Vec::new();
    format.write_header_value(&Default::default(), &mut printed);
    if printed.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
        return Err(value.error("holds NUL, CR or LF"));
    }
    Ok((name, String::from_utf8_lossy(&printed).as_ref().into()))
}

#[expect(deprecated, reason = "`append` is still accepted, as Envoy does")]
fn addition(
    option: &pb::core::HeaderValueOption,
    path: &Path<'_>,
) -> Result<Option<(Box<str>, HeaderValue, HeaderOp)>> {
    use pb::core::header_value_option::HeaderAppendAction as Action;
    let header = required(option.header.as_ref(), &path.field("header"))?;
    let here = path.field("header");
    let name = settable(&header.key, &here.field("key"))?;
    let op = match enumeration(option.append_action, &path.field("append_action"))? {
        Action::AppendIfExistsOrAdd => match option.append {
            Some(false) => HeaderOp::Overwrite,
            _ => HeaderOp::Append,
        },
        _ if option.append.is_some() => {
            return Err(path.error("append and append_action are both set; use append_action"));
        }
        Action::AddIfAbsent => HeaderOp::AddIfAbsent,
        Action::OverwriteIfExistsOrAdd => HeaderOp::Overwrite,
        Action::OverwriteIfExists => HeaderOp::OverwriteIfExists,
    };
    let text = if header.raw_value.is_empty() {
        header.value.as_str()
    } else {
        std::str::from_utf8(&header.raw_value).map_err(|_| {
            here.field("raw_value")
                .unsupported("a value that is not UTF-8", "use value")
        })?
    };
    if text.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
        return Err(here.field("value").error("holds NUL, CR or LF"));
    }
    if text.is_empty() {
        // Envoy drops an addition without a value unless told to keep it.
        return match option.keep_empty_value {
            true => Ok(Some((name, HeaderValue::Literal("".into()), op))),
            false => Ok(None),
        };
    }
    let format = Format::parse_text(text).map_err(|e| here.field("value").error(e.to_string()))?;
    if !format.is_constant() && option.keep_empty_value {
        return Err(path
            .field("keep_empty_value")
            .unsupported("it for a value with operators", "remove it"));
    }
    let value = if format.is_constant() {
        // Printing the parsed format resolves escapes such as `%%`.
        let mut printed = Vec::with_capacity(text.len());
        format.write_header_value(&Default::default(), &mut printed);
        HeaderValue::Literal(String::from_utf8_lossy(&printed).as_ref().into())
    } else {
        HeaderValue::Format(format)
    };
    Ok(Some((name, value, op)))
}
