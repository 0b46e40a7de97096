//! `x-forwarded-client-cert`: who the client is, for the application behind the proxy.

use std::cell::OnceCell;

use heddle_config::snapshot::{XfccDetail, XfccMode};
use heddle_net::ConnectionInfo;

use crate::head::{Fields, Known};

/// The element of one connection's client, made for the first request that needs it.
#[derive(Debug, Default)]
pub(crate) struct ClientElement(OnceCell<Box<[u8]>>);

impl ClientElement {
    fn get(&self, detail: XfccDetail, connection: &ConnectionInfo) -> &[u8] {
        self.0.get_or_init(|| {
            let mut text = Vec::new();
            element(connection, detail, &mut text);
            text.into()
        })
    }
}

/// Applies `forward_client_cert_details` to a request.
pub fn apply(fields: &mut Fields, mode: XfccMode, detail: XfccDetail, connection: &ConnectionInfo) {
    apply_kept(fields, mode, detail, connection, &ClientElement::default());
}

/// [`apply`] with the element that is kept for this connection and `detail`.
pub(super) fn apply_kept(
    fields: &mut Fields,
    mode: XfccMode,
    detail: XfccDetail,
    connection: &ConnectionInfo,
    kept: &ClientElement,
) {
    if mode == XfccMode::AlwaysForwardOnly {
        return;
    }
    let mutual = connection.peer.is_some();
    match mode {
        XfccMode::ForwardOnly if mutual => {}
        XfccMode::AppendForward if mutual => {
            fields.append_known(Known::ForwardedClientCert, b",", kept.get(detail, connection));
        }
        XfccMode::SanitizeSet if mutual => {
            fields.set_known(Known::ForwardedClientCert, kept.get(detail, connection));
        }
        _ => fields.remove_known(Known::ForwardedClientCert),
    }
}

/// One hop's element: `By=...;Hash=...;Subject="...";URI=...;DNS=...`.
fn element(connection: &ConnectionInfo, detail: XfccDetail, out: &mut Vec<u8>) {
    let Some(peer) = &connection.peer else { return };
    let start = out.len();
    let mut pair = |key: &str, value: &str, quoted: bool| {
        if out.len() > start {
            out.push(b';');
        }
        out.extend_from_slice(key.as_bytes());
        out.push(b'=');
        // A value with the element's own punctuation could pass for another pair or element.
        if quoted || value.bytes().any(|b| matches!(b, b',' | b';' | b'=' | b'"')) {
            out.push(b'"');
            for b in value.bytes() {
                // The backslash too: in front of a quote of the value's own it would take that quote's escape away.
                if matches!(b, b'"' | b'\\') {
                    out.push(b'\\');
                }
                out.push(b);
            }
            out.push(b'"');
        } else {
            out.extend_from_slice(value.as_bytes());
        }
    };
    if let Some(by) = &connection.local_identity {
        pair("By", by, false);
    }
    pair("Hash", &peer.sha256, false);
    if detail.subject {
        pair("Subject", &peer.subject, true);
    }
    if detail.uri {
        if peer.uri_sans.is_empty() {
            pair("URI", "", false);
        }
        for uri in &peer.uri_sans {
            pair("URI", uri, false);
        }
    }
    if detail.dns {
        for dns in &peer.dns_sans {
            pair("DNS", dns, false);
        }
    }
    // Certificates are hostile too: nothing that could end a header line.
    for b in out.iter_mut().skip(start) {
        if b.is_ascii_control() {
            *b = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_net::PeerIdentity;
    use std::sync::Arc;

    fn mutual() -> ConnectionInfo {
        let address = "127.0.0.1:1".parse().expect("address");
        let mut connection = ConnectionInfo::plain(address, address);
        connection.local_identity = Some("spiffe://cluster.local/ns/shop/sa/cart".into());
        connection.peer = Some(Arc::new(PeerIdentity {
            uri_sans: vec!["spiffe://cluster.local/ns/shop/sa/frontend".to_owned()],
            dns_sans: vec!["frontend.shop".to_owned()],
            subject: "O=\"a,b\"".to_owned(),
            sha256: "ab12".to_owned(),
            ..PeerIdentity::default()
        }));
        connection
    }

    fn run(mode: XfccMode, detail: XfccDetail, connection: &ConnectionInfo) -> Option<String> {
        let mut fields = Fields::new();
        fields.push_known(Known::ForwardedClientCert, b"Hash=old");
        apply(&mut fields, mode, detail, connection);
        fields.get_known_text(Known::ForwardedClientCert).map(str::to_owned)
    }

    #[test]
    fn modes() {
        let all = XfccDetail {
            subject: true,
            uri: true,
            dns: true,
        };
        let element = "By=spiffe://cluster.local/ns/shop/sa/cart;Hash=ab12;Subject=\"O=\\\"a,b\\\"\";\
                       URI=spiffe://cluster.local/ns/shop/sa/frontend;DNS=frontend.shop";
        assert_eq!(run(XfccMode::SanitizeSet, all, &mutual()).as_deref(), Some(element));
        assert_eq!(
            run(XfccMode::AppendForward, all, &mutual()),
            Some(format!("Hash=old,{element}"))
        );
        assert_eq!(run(XfccMode::Sanitize, all, &mutual()), None);
        assert_eq!(run(XfccMode::ForwardOnly, all, &mutual()).as_deref(), Some("Hash=old"));
        let mut plain = mutual();
        plain.peer = None;
        for mode in [
            XfccMode::Sanitize,
            XfccMode::ForwardOnly,
            XfccMode::AppendForward,
            XfccMode::SanitizeSet,
        ] {
            assert_eq!(run(mode, all, &plain), None, "{mode:?}");
        }
        assert_eq!(
            run(XfccMode::AlwaysForwardOnly, all, &plain).as_deref(),
            Some("Hash=old")
        );
        assert_eq!(
            run(XfccMode::SanitizeSet, XfccDetail::default(), &mutual()).as_deref(),
            Some("By=spiffe://cluster.local/ns/shop/sa/cart;Hash=ab12")
        );
    }

    /// A backslash before a quote must not end the quoted value: the rest would read as pairs of its own.
    #[test]
    fn a_value_cannot_leave_its_quotes() {
        let mut connection = mutual();
        connection.local_identity = None;
        connection.peer = Some(Arc::new(PeerIdentity {
            subject: r#"O=a\";URI=spiffe://cluster.local/ns/admin/sa/admin;X=""#.to_owned(),
            sha256: "ab12".to_owned(),
            ..PeerIdentity::default()
        }));
        let detail = XfccDetail {
            subject: true,
            ..XfccDetail::default()
        };
        assert_eq!(
            run(XfccMode::SanitizeSet, detail, &connection).as_deref(),
            Some(r#"Hash=ab12;Subject="O=a\\\";URI=spiffe://cluster.local/ns/admin/sa/admin;X=\"""#)
        );
    }
}
