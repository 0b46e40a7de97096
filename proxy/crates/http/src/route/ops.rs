//! `request_headers_to_add`, `response_headers_to_remove` and their relatives.

use heddle_config::snapshot::{HeaderOp, HeaderOps, HeaderValue};
use heddle_net::ConnectionInfo;

use crate::hcm::Exchange;
use crate::head::Fields;

/// Applies changes to the request head. A field that is removed or overwritten goes in every spelling: the client's `x_tier`
/// would be taken for the `x-tier` written here.
pub(crate) fn on_request(ops: &HeaderOps, exchange: &mut Exchange, connection: &ConnectionInfo) {
    if ops.is_empty() {
        return;
    }
    for name in &ops.remove {
        exchange.request.fields.remove_any_spelling(name.as_bytes());
    }
    for (name, value, op) in &ops.add {
        let Some(value) = evaluate(value, exchange, connection) else {
            continue;
        };
        match &**name {
            // The authority is not among the fields.
            "host" | ":authority" => {
                if let Ok(text) = std::str::from_utf8(&value) {
                    exchange.request.set_host(text);
                }
            }
            ":path" => {
                if let Ok(text) = std::str::from_utf8(&value) {
                    exchange.request.set_target(text);
                }
            }
            ":method" => {
                if let Ok(text) = std::str::from_utf8(&value) {
                    exchange.request.set_method(text);
                }
            }
            _ => add_to_request(&mut exchange.request.fields, name.as_bytes(), &value, op),
        }
    }
}

/// Applies changes to the response head.
pub(crate) fn on_response(ops: &HeaderOps, exchange: &mut Exchange, connection: &ConnectionInfo) {
    if ops.is_empty() {
        return;
    }
    for name in &ops.remove {
        exchange.response.fields.remove(name.as_bytes());
    }
    for (name, value, op) in &ops.add {
        let Some(value) = evaluate(value, exchange, connection) else {
            continue;
        };
        add(&mut exchange.response.fields, name.as_bytes(), &value, op);
    }
}

fn evaluate<'v>(
    value: &'v HeaderValue,
    exchange: &Exchange,
    connection: &ConnectionInfo,
) -> Option<std::borrow::Cow<'v, [u8]>> {
    match value {
        HeaderValue::Literal(text) => Some(text.as_bytes().into()),
        HeaderValue::Format(format) => {
            let mut out = Vec::new();
            format.write_header_value(&exchange.log_context(connection, None), &mut out);
            // What a peer sent may stand in here; a header line must stay one line.
            out.retain(|b| !matches!(b, b'\r' | b'\n' | 0));
            (!out.is_empty()).then_some(out.into())
        }
    }
}

fn add_to_request(fields: &mut Fields, name: &[u8], value: &[u8], op: &HeaderOp) {
    match op {
        HeaderOp::Append | HeaderOp::AddIfAbsent => add(fields, name, value, op),
        HeaderOp::Overwrite => {
            fields.remove_any_spelling(name);
            fields.push(name, value);
        }
        HeaderOp::OverwriteIfExists => {
            if fields.remove_any_spelling(name) > 0 {
                fields.push(name, value);
            }
        }
    }
}

fn add(fields: &mut Fields, name: &[u8], value: &[u8], op: &HeaderOp) {
    match op {
        HeaderOp::Append => fields.push(name, value),
        HeaderOp::AddIfAbsent => {
            if fields.get(name).is_none() {
                fields.push(name, value);
            }
        }
        HeaderOp::Overwrite => fields.set(name, value),
        HeaderOp::OverwriteIfExists => {
            if fields.get(name).is_some() {
                fields.set(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_add() {
        let mut fields = Fields::new();
        add(&mut fields, b"a", b"1", &HeaderOp::OverwriteIfExists);
        assert!(fields.is_empty());
        add(&mut fields, b"a", b"1", &HeaderOp::AddIfAbsent);
        add(&mut fields, b"a", b"2", &HeaderOp::AddIfAbsent);
        add(&mut fields, b"a", b"3", &HeaderOp::Append);
        assert_eq!(fields.joined(b"a").as_deref(), Some("1,3"));
        add(&mut fields, b"a", b"4", &HeaderOp::Overwrite);
        assert_eq!(fields.joined(b"a").as_deref(), Some("4"));
    }

    #[test]
    fn what_a_request_says_in_another_spelling_does_not_stay_beside_what_is_written() {
        for (op, sent, tier) in [
            (HeaderOp::Overwrite, "x_tier", Some("free")),
            (HeaderOp::Overwrite, "x.tier", Some("free")),
            (HeaderOp::OverwriteIfExists, "x_tier", Some("free")),
            (HeaderOp::OverwriteIfExists, "x-tiers", None),
        ] {
            let mut fields = Fields::new();
            fields.push(sent.as_bytes(), b"gold");
            add_to_request(&mut fields, b"x-tier", b"free", &op);
            assert_eq!(fields.joined(b"x-tier").as_deref(), tier, "{op:?} {sent}");
            assert_eq!(fields.get(sent.as_bytes()).is_some(), tier.is_none(), "{op:?} {sent}");
        }
    }
}
