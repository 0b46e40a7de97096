//! What the servers behind a proxy make of a path: the model that tests and fuzz targets hold the policies against. It shares
//! nothing with them but percent-decoding.

use heddle_matching::percent;

/// The paths that common servers arrive at, each in the order of its own steps.
pub fn readings(path: &str) -> [(&'static str, String); 7] {
    let slashes = |p: &str| p.replace('\\', "/");
    let sent = slashes(path);
    let after_host = match sent.strip_prefix("//") {
        Some(rest) => {
            // However many there are (WHATWG URL, "special authority ignore slashes state").
            let host = rest.trim_start_matches('/');
            host.find('/').and_then(|at| host.get(at..)).unwrap_or("/")
        }
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
        ("Node's URL, decoded by a framework", decoded(&cleaned(after_host))),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The hostile tests' own model (`test/hostile/upstream/models.go`) is held against the same list.
    #[test]
    fn the_models_agree() {
        let list = include_str!("../../../../test/hostile/upstream/readings.txt");
        let lines = list.lines().filter(|line| !line.starts_with('#'));
        // Absolute targets and queries are cut before.
        let paths = lines.filter(|line| line.starts_with('/') && !line.contains('?'));
        let mut read = 0;
        for line in paths {
            let (path, servers) = line.split_once(' ').unwrap_or((line, ""));
            let inside = |seen: &str| seen == "/admin" || seen.starts_with("/admin/");
            let by: Vec<_> = readings(path).into_iter().filter(|(_, seen)| inside(seen)).collect();
            assert_eq!(by.is_empty(), servers.is_empty(), "{path}: {by:?}, there {servers}");
            read += 1;
        }
        assert!(read >= 15, "{read} paths");
    }
}
