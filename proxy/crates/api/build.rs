//! Writes the descriptor set of the Envoy API with the Go generator beside this file and compiles it to Rust types.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn Error>> {
    let crate_dir = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let root = crate_dir.join("../../..");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=descriptors/main.go");
    println!("cargo::rerun-if-changed={}", root.join("go.mod").display());
    println!("cargo::rerun-if-env-changed=HEDDLE_DESCRIPTORS");

    let set_path = out.join("envoy.bin");
    match std::env::var_os("HEDDLE_DESCRIPTORS") {
        // A set written beforehand, for builds where Go is not at hand.
        Some(ready) => {
            println!("cargo::rerun-if-changed={}", PathBuf::from(&ready).display());
            std::fs::copy(&ready, &set_path)?;
        }
        None => generate(&root, &set_path)?,
    }
    compile(&set_path)
}

fn generate(root: &PathBuf, set_path: &PathBuf) -> Result<(), Box<dyn Error>> {
    let status = Command::new("go")
        .args(["run", "./proxy/crates/api/descriptors", "-out"])
        .arg(set_path)
        .current_dir(root)
        .status()
        .map_err(|e| {
            format!(
                "cannot run `go`, which writes the Envoy API's descriptors: {e}; install Go 1.26 or newer, or point \
                 HEDDLE_DESCRIPTORS at a set made by `go run ./proxy/crates/api/descriptors -out FILE`"
            )
        })?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the descriptor generator ended with {status}").into())
    }
}

fn compile(set_path: &PathBuf) -> Result<(), Box<dyn Error>> {
    let mut set = FileDescriptorSet::decode(std::fs::read(set_path)?.as_slice())?;
    // Validation rules are read through reflection only; their package is not needed as Rust types.
    set.file.retain(|file| !file.package().starts_with("validate"));
    for file in &mut set.file {
        file.dependency.retain(|path| !path.starts_with("validate/"));
        file.public_dependency.clear();
        file.weak_dependency.clear();
    }
    tonic_prost_build::configure()
        .include_file("envoy_api.rs")
        .compile_well_known_types(false)
        // No derives beyond prost's own: these types are read once and turned into snapshots.
        .compile_fds(set)?;
    Ok(())
}
