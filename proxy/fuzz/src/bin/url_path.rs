//! Path normalisation: what authorization sees must be what the application will make of the path.
#![no_main]

use heddle_http::parse::normalize_path;
use libfuzzer_sys::fuzz_target;

/// Decodes escapes once, as an application would.
fn decoded(path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        match hex
            .filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|h| u8::from_str_radix(h, 16).ok())
        {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(target) = std::str::from_utf8(bytes) else { return };
    for (normalize, merge) in [(false, false), (true, false), (false, true), (true, true)] {
        let Ok(changed) = normalize_path(target, normalize, merge) else {
            assert!(normalize, "merging slashes refuses nothing");
            continue;
        };
        assert!(normalize || merge || changed.is_none(), "nothing was asked for");
        assert!(changed.as_deref() != Some(target), "no change is told as none");
        let result = changed.as_deref().unwrap_or(target);
        assert_eq!(
            normalize_path(result, normalize, merge),
            Ok(None),
            "{target:?} gives {result:?}, which is not normal"
        );
        // A nested escape (`%%32e`) takes two more bytes; everything else shrinks or stays.
        assert!(result.len() <= 2 * target.len());
        let split = |t: &str| t.find('?').map_or(t.len(), |at| at);
        assert_eq!(
            result[split(result)..],
            target[split(target)..],
            "the query is not touched"
        );
        let path = &result[..split(result)];
        if !target.starts_with('/') {
            continue;
        }
        assert!(path.starts_with('/'));
        assert!(!merge || !path.contains("//"), "{path:?}");
        if normalize {
            assert!(!path.contains('\\') && !path.contains("%00"), "{path:?}");
            // Encoded slashes stay encoded, so only whole segments are decoded here.
            for segment in path.split('/') {
                let segment = decoded(segment);
                assert!(!matches!(&segment[..], b"." | b".."), "{target:?} gives {path:?}");
            }
        }
    }
});
