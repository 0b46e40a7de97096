//! What an authorization server has decided, and how it is done.

use bytes::Bytes;

use crate::head::is_authority;
use crate::head::{Fields, Known, Method, RequestHead, check_method, check_target, is_token_byte};

/// The answer of an authorization server.
#[derive(Debug)]
pub(super) enum Decision {
    Allowed(Box<Allowed>),
    Denied(Box<Denied>),
    /// It says that it could not decide.
    Failed,
    /// It asks for what cannot be.
    Invalid,
}

/// What is to become of a request that may pass.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    /// For the upstream, in order.
    pub(super) request: Vec<Change>,
    /// Fields that the upstream does not get, in lower case.
    pub(super) remove: Vec<Vec<u8>>,
    /// For the client.
    pub(super) response: Vec<Change>,
    pub(super) query_set: Vec<(String, String)>,
    pub(super) query_remove: Vec<String>,
}

/// The answer to a request that may not.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) status: u16,
    pub(super) headers: Fields,
    pub(super) body: Bytes,
}

/// How a field is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// One field more.
    Add,
    /// Behind what is there, which must be.
    Join,
    Set,
    AddIfAbsent,
    SetIfPresent,
}

/// A change of one field.
#[derive(Debug)]
pub(crate) struct Change {
    name: Vec<u8>,
    value: Vec<u8>,
    how: How,
}

impl Change {
    /// None for a name or value that no field can have.
    pub(super) fn new(name: &[u8], value: &[u8], how: How) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let token = name.strip_prefix(b":").unwrap_or(&name);
        let valid = !token.is_empty()
            && token.iter().all(|b| is_token_byte(*b))
            && value.iter().all(|b| *b == b'\t' || !b.is_ascii_control());
        valid.then(|| Self {
            name,
            value: value.to_vec(),
            how,
        })
    }

    pub(super) fn apply(&self, fields: &mut Fields) {
        let (name, value) = (&self.name[..], &self.value[..]);
        if !self.is_of_field() {
            return;
        }
        let present = fields.get(name).is_some();
        match self.how {
            How::Add => fields.push(name, value),
            How::Join if present => {
                let before: Vec<&[u8]> = fields.all(name).collect();
                let whole = [&before.join(&b","[..]), &b","[..], value].concat();
                fields.set(name, &whole);
            }
            How::Set => fields.set(name, value),
            How::AddIfAbsent if !present => fields.push(name, value),
            How::SetIfPresent if present => fields.set(name, value),
            How::Join | How::AddIfAbsent | How::SetIfPresent => {}
        }
    }

    /// Whether it is about a field that a server may change.
    fn is_of_field(&self) -> bool {
        !self.name.starts_with(b":") && !is_framing(Known::of(&self.name))
    }

    /// The same for a request, where method, path and host are no fields, and where what the client said in another
    /// spelling (`x_user`) must not stay beside what the server sets.
    fn apply_to_request(&self, head: &mut RequestHead) {
        match (&self.name[..], std::str::from_utf8(&self.value)) {
            (b":authority" | b"host", Ok(text)) if is_authority(&self.value) => head.set_host(text),
            (b":path", Ok(text)) if check_target(head.method, &self.value).is_ok() => head.set_target(text),
            // HEAD and CONNECT change what the answer is, which the client knows by what it asked for.
            (b":method", Ok(text))
                if check_method(&self.value).is_ok_and(|method| ![head.method, method].iter().any(has_own_answer)) =>
            {
                head.set_method(text);
            }
            (b"host", Ok(_)) => {}
            (name, _) if self.is_of_field() && matches!(self.how, How::Set | How::SetIfPresent) => {
                let present = head.fields.remove_any_spelling(name) > 0;
                if present || self.how == How::Set {
                    head.fields.push(name, &self.value);
                }
            }
            _ => self.apply(&mut head.fields),
        }
    }
}

impl Allowed {
    /// Whether the route may be another one with these changes.
    pub(super) fn changes_request(&self) -> bool {
        !(self.request.is_empty()
            && self.remove.is_empty()
            && self.query_set.is_empty()
            && self.query_remove.is_empty())
    }

    /// Changes a request.
    pub(super) fn apply(&self, head: &mut RequestHead) {
        self.request.iter().for_each(|change| change.apply_to_request(head));
        for name in &self.remove {
            if !is_framing(Known::of(name)) {
                head.fields.remove_any_spelling(name);
            }
        }
        if self.query_set.is_empty() && self.query_remove.is_empty() {
            return;
        }
        let target = self.with_query(head.target());
        // What a server says may not end the start line.
        if check_target(head.method, target.as_bytes()).is_ok() {
            head.set_target(&target);
        }
    }

    /// A target with the query parameters changed, sorted by name.
    fn with_query(&self, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|p| !p.is_empty());
        let mut pairs: Vec<(&str, &str)> = pairs.map(|p| p.split_once('=').unwrap_or((p, ""))).collect();
        for (name, value) in &self.query_set {
            pairs.retain(|(n, _)| n != name);
            pairs.push((name, value));
        }
        pairs.retain(|(n, _)| !self.query_remove.iter().any(|r| r == n));
        pairs.sort_by_key(|(name, _)| *name);
        let mut out = path.to_owned();
        for (i, (name, value)) in pairs.iter().enumerate() {
            out.push(if i == 0 { '?' } else { '&' });
            out.push_str(name);
            out.push('=');
            out.push_str(value);
        }
        out
    }
}

/// Whether what answers it ends otherwise than other answers.
fn has_own_answer(method: &Method) -> bool {
    matches!(method, Method::Head | Method::Connect)
}

/// Fields that say where a message ends, or belong to one connection: no server may change them.
pub(super) fn is_framing(known: Known) -> bool {
    matches!(
        known,
        Known::Connection
            | Known::ContentLength
            | Known::Http2Settings
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::Te
            | Known::Trailer
            | Known::TransferEncoding
            | Known::Upgrade
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, value: &str, how: How) -> Change {
        Change::new(name.as_bytes(), value.as_bytes(), how).expect("a change")
    }

    #[test]
    fn ways_to_change() {
        let mut fields = Fields::new();
        let mut change = |name: &str, value: &str, how| {
            self::change(name, value, how).apply(&mut fields);
            fields.joined(name.as_bytes()).map(|v| v.into_owned())
        };
        assert_eq!(change("a", "1", How::Join), None);
        assert_eq!(change("a", "1", How::SetIfPresent), None);
        assert_eq!(change("a", "1", How::AddIfAbsent).as_deref(), Some("1"));
        assert_eq!(change("a", "2", How::AddIfAbsent).as_deref(), Some("1"));
        assert_eq!(change("a", "2", How::Join).as_deref(), Some("1,2"));
        assert_eq!(change("a", "3", How::Add).as_deref(), Some("1,2,3"));
        assert_eq!(change("a", "4", How::SetIfPresent).as_deref(), Some("4"));
        assert_eq!(change("a", "5", How::Set).as_deref(), Some("5"));
        for framing in ["content-length", "Transfer-Encoding", "connection", ":status"] {
            assert_eq!(change(framing, "5", How::Set), None, "{framing}");
        }
    }

    /// An application that takes `x_user` for `x-user` must not see the client's.
    #[test]
    fn what_is_set_or_removed_goes_in_every_spelling() {
        for (how, sent, user) in [
            (How::Set, "x_user", Some("nobody")),
            (How::Set, "x.user", Some("nobody")),
            (How::SetIfPresent, "x_user", Some("nobody")),
            (How::SetIfPresent, "x_users", None),
        ] {
            let mut head = RequestHead::default();
            head.fields.push(sent.as_bytes(), b"admin");
            head.fields.push(b"x_debug-user", b"root");
            let allowed = Allowed {
                request: vec![change("x-user", "nobody", how)],
                remove: vec![b"x-debug-user".to_vec()],
                ..Allowed::default()
            };
            allowed.apply(&mut head);
            let is_left = head.fields.get(sent.as_bytes()).is_some();
            assert_eq!(head.fields.joined(b"x-user").as_deref(), user, "{how:?} {sent}");
            assert_eq!(is_left, user.is_none(), "{how:?} {sent}");
            assert_eq!(head.fields.get(b"x_debug-user"), None);
        }
    }

    #[test]
    fn what_no_field_can_be() {
        for (name, value) in [
            ("a b", ""),
            ("", "1"),
            (":", "1"),
            ("a\r\n", "1"),
            ("a", "1\r\nb: 2"),
            ("a", "\0"),
        ] {
            assert!(
                Change::new(name.as_bytes(), value.as_bytes(), How::Set).is_none(),
                "{name:?} {value:?}"
            );
        }
    }

    #[test]
    fn method_path_and_host() {
        let mut head = RequestHead::default();
        head.set_method("GET");
        head.set_target("/a");
        head.set_host("h");
        let mut allowed = Allowed::default();
        for (name, value) in [
            (":path", "/b?x=1&c=2&x=3"),
            (":method", "PUT"),
            (":method", "HEAD"),
            (":method", "CONNECT"),
            ("host", "other"),
            (":path", "b c"),
            ("host", "a b"),
            (":scheme", "ftp"),
        ] {
            allowed.request.push(change(name, value, How::Set));
        }
        allowed.query_set.push(("b".to_owned(), "new".to_owned()));
        allowed.query_remove.push("c".to_owned());
        assert!(allowed.changes_request());
        allowed.apply(&mut head);
        assert_eq!(head.method_text(), "PUT");
        assert_eq!(head.target(), "/b?b=new&x=1&x=3");
        assert_eq!(head.host(), "other");
        let bad = Allowed {
            query_set: vec![("a".to_owned(), "1 HTTP/1.1\r\n".to_owned())],
            ..Allowed::default()
        };
        bad.apply(&mut head);
        assert_eq!(head.target(), "/b?b=new&x=1&x=3");
    }
}
