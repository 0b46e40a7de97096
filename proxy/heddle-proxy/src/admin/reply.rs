//! Answers of the admin interface.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

/// A status, a type, a body.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn text(body: impl Into<String>) -> Self {
        Self {
            status: StatusCode::OK,
            kind: "text/plain; charset=UTF-8",
            body: body.into(),
        }
    }

    pub(super) fn json(value: &serde_json::Value) -> Self {
        // Pretty, as Envoy prints it; a Value has no map with other keys than strings, so this cannot fail.
        let mut body = serde_json::to_string_pretty(value).unwrap_or_default();
        body.push('\n');
        Self {
            status: StatusCode::OK,
            kind: "application/json",
            body,
        }
    }

    pub(super) fn prometheus(body: String) -> Self {
        Self {
            status: StatusCode::OK,
            kind: "text/plain; version=0.0.4; charset=UTF-8",
            body,
        }
    }

    pub(super) fn error(status: StatusCode, body: impl Into<String>) -> Self {
        Self {
            status,
            ..Self::text(body)
        }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("POST, GET, HEAD"));
        }
        response
    }
}
