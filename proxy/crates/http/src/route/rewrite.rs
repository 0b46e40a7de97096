//! Redirects, path and host rewrites.

use std::borrow::Cow;

use heddle_config::snapshot::{PathMatch, PathRewrite, Redirect, RouteMatch};
use heddle_matching::RequestView;

use super::select::without_port;
use crate::head::{Known, RequestHead};

/// The new target of a request, when the route rewrites it.
pub(crate) fn path(rewrite: &PathRewrite, when: &RouteMatch, request: &RequestHead) -> Option<String> {
    let target = request.target();
    let path = request.path();
    let rest = target.get(path.len()..).unwrap_or_default();
    let new = match rewrite {
        PathRewrite::Prefix(prefix) => {
            let matched = matched_len(&when.path, path);
            let mut new = String::with_capacity(target.len() + prefix.len());
            new.push_str(prefix);
            new.push_str(path.get(matched..).unwrap_or_default());
            new
        }
        PathRewrite::Regex(regex, substitution) => match regex.replace_all(path, substitution) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(new) => new,
        },
    };
    // A rewrite must not smuggle anything into the start line.
    let mut whole: String = new.chars().filter(|c| c.is_ascii_graphic()).collect();
    if !whole.starts_with('/') {
        whole.insert(0, '/');
    }
    whole.push_str(rest);
    Some(whole)
}

fn matched_len(matched: &PathMatch, path: &str) -> usize {
    match matched {
        PathMatch::Prefix(p) | PathMatch::Segments(p) => p.len(),
        PathMatch::Exact(_) | PathMatch::Regex(_) => path.len(),
    }
}

/// Changes the target and leaves the old one in `x-envoy-original-path`.
pub(crate) fn apply_path(request: &mut RequestHead, new: &str) {
    if new == request.target() {
        return;
    }
    if !request.fields.has_known(Known::OriginalPath) {
        let old = request.target().to_owned();
        request.fields.push_known(Known::OriginalPath, old.as_bytes());
    }
    request.set_target(new);
}

/// The `location` of a redirect.
pub(crate) fn location(redirect: &Redirect, when: &RouteMatch, request: &RequestHead, tls: bool) -> String {
    let current = if tls { "https" } else { request.scheme.as_str() };
    let scheme = redirect.scheme.as_deref().unwrap_or(current);
    let host = request.host();
    let mut authority = match &redirect.host {
        Some(new) => (**new).to_owned(),
        None => host.to_owned(),
    };
    match redirect.port {
        Some(port) => {
            authority.truncate(without_port(&authority).len());
            let default = matches!((scheme, port), ("http", 80) | ("https", 443));
            if !default {
                authority.push_str(&format!(":{port}"));
            }
        }
        None if redirect.scheme.is_some() => {
            // The port of the old scheme makes no sense with the new one.
            let bare = without_port(&authority);
            let default = authority.get(bare.len()..);
            if matches!(default, Some(":80" | ":443")) {
                let len = bare.len();
                authority.truncate(len);
            }
        }
        None => {}
    }
    let path = request.path();
    let query = request.target().get(path.len()..).unwrap_or_default();
    let mut target = match (&redirect.path, &redirect.prefix_rewrite) {
        (Some(new), _) => (**new).to_owned(),
        (None, Some(prefix)) => {
            format!(
                "{prefix}{}",
                path.get(matched_len(&when.path, path)..).unwrap_or_default()
            )
        }
        (None, None) => path.to_owned(),
    };
    if !redirect.strip_query && !target.contains('?') {
        target.push_str(query);
    }
    format!("{scheme}://{authority}{target}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_matching::Regex;

    fn when(path: PathMatch) -> RouteMatch {
        RouteMatch {
            path,
            case_sensitive: true,
            headers: vec![],
            query: vec![],
            metadata: Vec::new(),
            grpc: false,
            fraction: 1_000_000,
        }
    }

    fn request(target: &str, host: &str) -> RequestHead {
        let mut head = RequestHead::default();
        head.set_method("GET");
        head.set_target(target);
        head.set_host(host);
        head
    }

    #[test]
    fn rewrites() {
        let prefix = |p: &str| PathRewrite::Prefix(p.into());
        let head = request("/api/v1/x?q=1", "h");
        let on = when(PathMatch::Prefix("/api".into()));
        assert_eq!(path(&prefix("/new"), &on, &head).as_deref(), Some("/new/v1/x?q=1"));
        assert_eq!(path(&prefix(""), &on, &head).as_deref(), Some("/v1/x?q=1"));
        let exact = when(PathMatch::Exact("/api/v1/x".into()));
        assert_eq!(path(&prefix("/y"), &exact, &head).as_deref(), Some("/y?q=1"));
        let regex = Regex::for_rewrite("/v([0-9])", "/w\\1").expect("regex");
        assert_eq!(
            path(&PathRewrite::Regex(regex, "/w\\1".into()), &on, &head).as_deref(),
            Some("/api/w1/x?q=1")
        );
    }

    #[test]
    fn original_path_is_kept_once() {
        let mut head = request("/a", "h");
        apply_path(&mut head, "/b");
        apply_path(&mut head, "/c");
        assert_eq!(head.target(), "/c");
        assert_eq!(head.fields.get_known(Known::OriginalPath), Some(&b"/a"[..]));
    }

    #[test]
    fn redirects() {
        let head = request("/a/b?q", "shop.example:80");
        let on = when(PathMatch::Prefix("/a".into()));
        let to = |r: Redirect| location(&r, &on, &head, false);
        assert_eq!(
            to(Redirect {
                scheme: Some("https".into()),
                ..Redirect::default()
            }),
            "https://shop.example/a/b?q"
        );
        assert_eq!(
            to(Redirect {
                host: Some("x".into()),
                ..Redirect::default()
            }),
            "http://x/a/b?q"
        );
        assert_eq!(
            to(Redirect {
                port: Some(8080),
                ..Redirect::default()
            }),
            "http://shop.example:8080/a/b?q"
        );
        assert_eq!(
            to(Redirect {
                path: Some("/z".into()),
                strip_query: true,
                ..Redirect::default()
            }),
            "http://shop.example:80/z"
        );
        assert_eq!(
            to(Redirect {
                prefix_rewrite: Some("/n".into()),
                ..Redirect::default()
            }),
            "http://shop.example:80/n/b?q"
        );
    }
}
