//! The compiled test program is what p4c makes of its source.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

/// The compiler that made the files; another version may print something else.
const COMPILER: &str = "p4c-bm2-ss";
const VERSION: &str = "Version 1.2.5.16 (SHA: 34b86e9bac";

/// Written past `println!`, whose output the test harness hides when a test passes.
fn skipped(reason: &str) {
    // There is nobody to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}

#[test]
fn the_compiled_test_programs_are_up_to_date() {
    let version = match Command::new(COMPILER).arg("--version").output() {
        Ok(version) => version,
        Err(error) => {
            skipped(&format!("{COMPILER} is not on the PATH: {error}"));
            return;
        }
    };
    // It prints its version to standard error.
    if !String::from_utf8_lossy(&version.stderr).contains(VERSION) {
        skipped(&format!("{COMPILER} is not {VERSION}"));
        return;
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let out = tempfile::tempdir().expect("temporary folder");
    for program in ["testbed", "controller"] {
        let (json, p4info) = (format!("{program}.json"), format!("{program}.p4info.txtpb"));
        // In its folder: p4c writes the path of the source into what it prints.
        let output = Command::new(COMPILER)
            .current_dir(&sources)
            .args(["--arch", "v1model", "--p4runtime-files"])
            .arg(out.path().join(&p4info))
            .arg("-o")
            .arg(out.path().join(&json))
            .arg(format!("{program}.p4"))
            .output()
            .expect("p4c runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for name in [json, p4info] {
            let compiled = std::fs::read_to_string(out.path().join(&name)).expect("compiled");
            let committed = std::fs::read_to_string(sources.join(&name)).expect("committed");
            assert!(
                compiled == committed,
                "{name} differs: compile tests/programs/{program}.p4 again"
            );
        }
    }
}
