//! Compiles Ultima's P4 programs with the p4c on the PATH and writes their manifest.
//!
//! Run it as `cargo run -p ultima-p4 --bin p4-recompile`, from anywhere in the repository.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("p4/ is in the repository");
    match ultima_p4::manifest::recompile(root) {
        Ok(manifest) => {
            for path in manifest.outputs.keys() {
                println!("{}", path.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
