//! Tests in a network namespace of their own. They need root, unshare, ip and nft.

use std::process::Command;

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "HEDDLE_TEST_INSIDE_NAMESPACE";

/// Whether namespaces and these rules can be made here; the reason when not.
fn probe(rules: &str) -> Result<(), String> {
    let run = |script: &str| Command::new("unshare").args(["-n", "sh", "-ec", script]).output();
    match run(rules) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Err(format!("unshare: {e}")),
    }
}

/// True inside the namespace. Outside, runs `test`, the path of the calling test below `tests`, again inside a new
/// namespace that the shell commands `rules` have prepared, and returns false when it has passed.
pub(super) fn inside(test: &str, rules: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if let Err(reason) = probe(rules) {
        // /proc/self belongs to our effective user.
        let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        assert!(
            !root || reason.contains("not permitted") || reason.contains("not found"),
            "root, and yet: {reason}"
        );
        eprintln!("skipped: no network namespaces with these rules here: {reason}");
        return false;
    }
    let me = std::env::current_exe().expect("path of the test");
    let script = format!("{rules}\nexec \"$0\" --exact tests::{test} --nocapture");
    let output = Command::new("unshare")
        .args(["-n", "sh", "-ec", &script])
        .arg(me)
        .env(INSIDE, "1")
        .output()
        .expect("runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}
