//! The command `p4-recompile`: compiles Ultima's P4 programs with the p4c on the PATH and writes their manifests.
//!
//! `cargo run -p ultima-p4 --bin p4-recompile [TARGET]...`, from any folder of the repository.

use std::path::Path;
use std::process::ExitCode;

use ultima_p4::manifest::{BUILDS, Build};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|it| it == "--help" || it == "-h") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("p4/ is in the repository");
    let result = builds(&arguments).and_then(|builds| {
        for build in builds {
            let manifest = build.recompile(root).map_err(|error| error.to_string())?;
            for path in manifest.outputs.keys() {
                println!("{}", path.display());
            }
        }
        Ok(())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the text of `--help`.
fn help() -> String {
    format!(
        "\
Compiles Ultima's P4 programs with p4c-bm2-ss, p4c-barefoot and bfas from the PATH and writes their manifests

Usage: p4-recompile [TARGET]...

  TARGET  One of {}. Default: all. The outputs are in p4/compiled/TARGET/
",
        targets_known()
    )
}

/// Returns the names of all targets.
fn targets_known() -> String {
    let targets: Vec<&str> = BUILDS.iter().map(|build| build.target).collect();
    targets.join(", ")
}

/// Returns the builds for these targets, or all builds if none is given.
fn builds(targets: &[String]) -> Result<Vec<&'static Build>, String> {
    if targets.is_empty() {
        return Ok(BUILDS.iter().collect());
    }
    let find = |target: &String| {
        BUILDS
            .iter()
            .find(|build| build.target == target)
            .ok_or_else(|| {
                let known = targets_known();
                format!("unknown target {target:?}: expected one of {known}, or none for all")
            })
    };
    targets.iter().map(find).collect()
}
