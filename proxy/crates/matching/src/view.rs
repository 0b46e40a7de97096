//! What matchers may see of a request, independent of the codec that read it.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::{Metadata, is_respelled};

/// A read-only view of a request head. Names of headers are given in lower case.
pub trait RequestView {
    /// The method, such as `GET`.
    fn method(&self) -> &str;
    /// Path and query as they came (`:path`), for example `/cart?x=1`.
    fn path_and_query(&self) -> &str;
    /// Host and optional port (`:authority` or `Host`).
    fn authority(&self) -> &str;
    /// `http` or `https`.
    fn scheme(&self) -> &str;
    /// Shows the value of every field of this name, in order, as the bytes that are forwarded.
    /// The pseudo-headers `:method`, `:path`, `:authority` and `:scheme` are answered too.
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8]));

    /// Shows name and value of every field, in order. Pseudo-headers are none.
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8]));

    /// Whether the name of a field has separators other than `-`; see [`is_respelled`].
    fn has_respelled(&self) -> bool {
        let mut any = false;
        self.visit_fields(&mut |name, _| any |= is_respelled(name));
        any
    }

    /// The value of a header for printing: several fields of one name are joined with `,` as RFC 9110 section 5.3 says,
    /// bytes outside UTF-8 are replaced.
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut joined: Option<Cow<'_, str>> = None;
        self.visit_header(name, &mut |value| {
            let value = String::from_utf8_lossy(value);
            match &mut joined {
                None => joined = Some(value),
                Some(before) => {
                    let before = before.to_mut();
                    before.push(',');
                    before.push_str(&value);
                }
            }
        });
        joined
    }

    /// The client's address as the connection manager worked it out of `X-Forwarded-For`
    /// (`use_remote_address`, `xff_num_trusted_hops`); none means the connection's own remote address.
    fn remote_ip(&self) -> Option<IpAddr> {
        None
    }

    /// What filters learned about it; none when no filter wrote anything.
    fn metadata(&self) -> Option<&Metadata> {
        None
    }

    /// The path without query and fragment.
    fn path(&self) -> &str {
        let whole = self.path_and_query();
        let end = whole.bytes().position(|b| matches!(b, b'?' | b'#'));
        end.map_or(whole, |end| &whole[..end])
    }
}
