//! A request with this cookie, if it is not empty, and nothing else.

use heddle_matching::RequestView;

pub(crate) struct Request(pub(crate) String);

impl RequestView for Request {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        "/"
    }
    fn authority(&self) -> &str {
        "shop"
    }
    fn scheme(&self) -> &str {
        "https"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        if name == "cookie" && !self.0.is_empty() {
            see(self.0.as_bytes());
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        see(b"cookie", self.0.as_bytes());
    }
}
