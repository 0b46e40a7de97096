//! Wrong documents and what is said about them: `errors/<name>.yaml` → `errors/<name>.txt`. Run with
//! `HEDDLE_GOLDEN=write` to write the texts anew, and read the difference.

use std::path::{Path, PathBuf};

use heddle_config::{Bootstrap, Builder, ConfigErrors, Options};

fn load(text: &str) -> Result<Builder, ConfigErrors> {
    let bootstrap = Bootstrap::parse([text], &Options::default())?;
    Builder::new(&bootstrap, Box::new(|_| Ok(())))
}

#[test]
fn every_wrong_document_is_refused_with_place_reason_and_remedy() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let write = std::env::var_os("HEDDLE_GOLDEN").is_some_and(|v| v == "write");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(files.len() > 60, "only {} documents", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let said = match load(&text) {
            Ok(_) => "accepted\n".to_owned(),
            Err(errors) => format!("{errors}\n"),
        };
        let golden = file.with_extension("txt");
        if write {
            std::fs::write(&golden, &said).expect("writable");
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        if said != expected || said == "accepted\n" {
            wrong.push(format!("{}:\n  said     {said}  expected {expected}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
