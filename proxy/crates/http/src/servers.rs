//! What the servers behind a proxy make of a path: the model that tests and fuzz targets hold the policies against. It shares
//! nothing with them but percent-decoding.

use heddle_matching::percent;

/// The paths that common servers arrive at, each in the order of its own steps.
pub fn readings(path: &str) -> [(&'static str, String); 6] {
    let slashes = |p: &str| p.replace('\\', "/");
    let sent = slashes(path);
    let after_host = match sent.strip_prefix("//") {
        Some(rest) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        None => &sent,
    };
    [
        ("as it is", path.to_owned()),
        ("nginx, Go's file server, Node's static files", cleaned(&decoded(path))),
        ("on Windows", cleaned(&slashes(&decoded(path)))),
        (
            "servlet container",
            cleaned(&slashes(&decoded(&without_parameters(path)))),
        ),
        (
            "servlet container that decodes first",
            cleaned(&without_parameters(&slashes(&decoded(path)))),
        ),
        ("Node's URL against a base", cleaned(after_host)),
    ]
}

fn decoded(path: &str) -> String {
    String::from_utf8_lossy(&percent::decode(path)).into_owned()
}

/// Segments joined by single slashes, dot segments resolved; a slash at the end stays.
fn cleaned(path: &str) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/').filter(|s| !s.is_empty() && *s != ".") {
        match segment {
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let end = if kept.is_empty() || !path.ends_with('/') {
        ""
    } else {
        "/"
    };
    format!("/{}{end}", kept.join("/"))
}

fn without_parameters(path: &str) -> String {
    let names: Vec<_> = path
        .split('/')
        .map(|s| s.split(';').next().unwrap_or_default())
        .collect();
    names.join("/")
}
