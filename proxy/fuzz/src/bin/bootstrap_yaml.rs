//! The bootstrap document, with everything in `static_resources`: accepted and applied as a whole, or refused with a
//! bounded text. What was accepted is accepted again.
#![no_main]

use heddle_config::{Bootstrap, Builder, ConfigErrors, Options};
use libfuzzer_sys::fuzz_target;

fn load(text: &str) -> Result<String, ConfigErrors> {
    let bootstrap = Bootstrap::parse([text], &Options::default())?;
    let mut builder = Builder::new(&bootstrap, Box::new(|_| Ok(())))?;
    let snapshot = builder.snapshot();
    assert!(
        std::sync::Arc::ptr_eq(&snapshot, &builder.snapshot()),
        "nothing changed"
    );
    Ok(format!(
        "{:?} {:?}",
        snapshot.listeners.keys(),
        snapshot.clusters.keys()
    ))
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match load(text) {
        Ok(first) => assert_eq!(load(text).ok().map(|s| s.len()), Some(first.len())),
        Err(errors) => {
            let findings = errors.iter().count();
            assert!((1..=ConfigErrors::LIMIT).contains(&findings));
            assert!(!errors.to_string().is_empty());
        }
    }
});
