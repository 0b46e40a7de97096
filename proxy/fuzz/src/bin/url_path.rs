//! Path normalisation: what authorization sees must be what the application will make of the path.
#![no_main]

use heddle_config::snapshot::EscapedSlashes;
use heddle_http::parse::{Normalized, PathError, PathRules, normalize_path};
use heddle_matching::percent;
use libfuzzer_sys::fuzz_target;

const ACTIONS: [EscapedSlashes; 4] = [
    EscapedSlashes::Keep,
    EscapedSlashes::Reject,
    EscapedSlashes::Redirect,
    EscapedSlashes::Forward,
];

/// Every combination of what can be asked for.
fn all_rules() -> impl Iterator<Item = PathRules> {
    ACTIONS.into_iter().flat_map(|escaped_slashes| {
        [(false, false), (true, false), (false, true), (true, true)].map(|(normalize, merge_slashes)| PathRules {
            normalize,
            merge_slashes,
            escaped_slashes,
        })
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(target) = std::str::from_utf8(bytes) else { return };
    let end = |t: &str| t.find('?').unwrap_or(t.len());
    let holds_slash = |path: &str| {
        let path = path.to_ascii_lowercase();
        path.contains("%2f") || path.contains("%5c")
    };
    for rules in all_rules() {
        let changed = match normalize_path(target, rules) {
            Err(PathError::EscapedSlash) => {
                assert!(rules.escaped_slashes == EscapedSlashes::Reject && holds_slash(&target[..end(target)]));
                continue;
            }
            Err(PathError::Nul | PathError::HiddenDots) => {
                assert!(rules.normalize, "nothing else refuses these");
                continue;
            }
            Ok(Normalized::Unchanged) => None,
            Ok(Normalized::Changed(new)) => Some(new),
            Ok(Normalized::Redirect(new)) => {
                assert_eq!(rules.escaped_slashes, EscapedSlashes::Redirect);
                Some(new)
            }
        };
        let (normalize, merge) = (rules.normalize, rules.merge_slashes);
        assert!(
            rules != PathRules::default() || changed.is_none(),
            "nothing was asked for"
        );
        assert!(changed.as_deref() != Some(target), "no change is told as none");
        let result = changed.as_deref().unwrap_or(target);
        assert_eq!(
            normalize_path(result, rules),
            Ok(Normalized::Unchanged),
            "{target:?} gives {result:?}, which is not normal"
        );
        // A nested escape (`%%32e`) takes two more bytes; everything else shrinks or stays.
        assert!(result.len() <= 2 * target.len());
        assert_eq!(result[end(result)..], target[end(target)..], "the query is not touched");
        let path = &result[..end(result)];
        if !target.starts_with('/') {
            continue;
        }
        assert!(path.starts_with('/'));
        assert!(!merge || !path.contains("//"), "{path:?}");
        assert!(
            rules.escaped_slashes == EscapedSlashes::Keep || !holds_slash(path),
            "{path:?}"
        );
        if normalize {
            assert!(!path.contains('\\') && !path.contains("%00"), "{path:?}");
            // Whatever a server takes for a slash or for the start of parameters.
            let path = String::from_utf8_lossy(&percent::decode(path)).replace('\\', "/");
            for segment in path.split('/') {
                let name = segment.split(';').next().unwrap_or_default();
                assert!(!matches!(name, "." | ".."), "{target:?} gives {path:?}");
            }
        }
    }
});
