//! `x-forwarded-client-cert`: a client's own header and a certificate's names, side by side in one value. The input is
//! lines: the header received, the subject, then names, alternately URI and DNS.
#![no_main]

use std::sync::Arc;

use heddle_config::snapshot::{XfccDetail, XfccMode};
use heddle_fuzz::is_one_line;
use heddle_http::parse::{Fields, Known, forward_client_cert};
use heddle_net::{ConnectionInfo, PeerIdentity};
use libfuzzer_sys::fuzz_target;

/// One element as its reader understands it: pairs, values without their quotes. None when it is not well formed.
fn pairs(mut text: &str) -> Option<Vec<(&str, String)>> {
    let mut pairs = Vec::new();
    loop {
        let (key, rest) = text.split_once('=')?;
        let mut value = String::new();
        let mut chars = rest.chars();
        if rest.starts_with('"') {
            chars.next();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => value.push(chars.next()?),
                    c => value.push(c),
                }
            }
        } else {
            let end = rest.find([';', ',', '"']).unwrap_or(rest.len());
            value.push_str(&rest[..end]);
            chars = rest[end..].chars();
        }
        pairs.push((key, value));
        match chars.as_str().strip_prefix(';') {
            Some(next) => text = next,
            None => return chars.as_str().is_empty().then_some(pairs),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.split('\n');
    let received = lines.next().unwrap_or_default();
    if !is_one_line(received.as_bytes()) {
        return; // The head's parser lets no such value in.
    }
    let mut peer = PeerIdentity {
        subject: lines.next().unwrap_or_default().to_owned(),
        sha256: "ab12".to_owned(),
        ..PeerIdentity::default()
    };
    for (i, name) in lines.enumerate() {
        if i % 2 == 0 {
            &mut peer.uri_sans
        } else {
            &mut peer.dns_sans
        }
        .push(name.to_owned());
    }
    let detail = XfccDetail {
        subject: true,
        uri: true,
        dns: true,
    };
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let mut connection = ConnectionInfo::plain(address, address);
    let run = |mode, connection: &ConnectionInfo| {
        let mut fields = Fields::new();
        fields.push_known(Known::ForwardedClientCert, received.as_bytes());
        forward_client_cert(&mut fields, mode, detail, connection);
        assert!(fields.len() <= 1);
        fields.get_known_text(Known::ForwardedClientCert).map(str::to_owned)
    };

    // Who has not proved an identity cannot claim one.
    for mode in [
        XfccMode::Sanitize,
        XfccMode::ForwardOnly,
        XfccMode::AppendForward,
        XfccMode::SanitizeSet,
    ] {
        assert_eq!(run(mode, &connection), None, "{mode:?} without mutual TLS");
    }
    connection.peer = Some(Arc::new(peer.clone()));
    assert_eq!(run(XfccMode::Sanitize, &connection), None);
    assert_eq!(run(XfccMode::ForwardOnly, &connection).as_deref(), Some(received));

    let element = run(XfccMode::SanitizeSet, &connection).expect("an element");
    assert!(
        is_one_line(element.as_bytes()) && !element.contains('\t'),
        "{element:?}"
    );
    assert_eq!(
        run(XfccMode::AppendForward, &connection),
        Some(format!("{received},{element}"))
    );
    let clean = |s: &str| s.replace(|c: char| c.is_ascii_control(), " ");
    let mut expected = vec![("Hash", "ab12".to_owned()), ("Subject", clean(&peer.subject))];
    if peer.uri_sans.is_empty() {
        expected.push(("URI", String::new()));
    }
    expected.extend(peer.uri_sans.iter().map(|name| ("URI", clean(name))));
    expected.extend(peer.dns_sans.iter().map(|name| ("DNS", clean(name))));
    assert_eq!(pairs(&element), Some(expected), "{element}");
});
