//! The compiled test programs match their sources.

use std::path::Path;
use std::process::Command;

use ultima_testing::skipped;

/// The compiler of the committed files. Another version may print other bytes.
const COMPILER: &str = "p4c-bm2-ss";
const VERSION: &str = "Version 1.2.5.16 (SHA: 34b86e9bac";

#[test]
fn the_compiled_test_programs_are_up_to_date() {
    let version = match Command::new(COMPILER).arg("--version").output() {
        Ok(version) => version,
        Err(error) => {
            skipped(&format!("{COMPILER} is not on the PATH: {error}"));
            return;
        }
    };
    // p4c prints its version to standard error.
    if !String::from_utf8_lossy(&version.stderr).contains(VERSION) {
        skipped(&format!("{COMPILER} is not {VERSION}"));
        return;
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = tempfile::tempdir().expect("temporary folder");
    for (owner, program) in [
        ("switch", "testbed"),
        ("switch", "controller"),
        ("engine", "forward"),
        ("engine", "sums"),
    ] {
        let sources = crates.join(owner).join("tests/programs");
        let (json, p4info) = (format!("{program}.json"), format!("{program}.p4info.txtpb"));
        // p4c runs in the source's folder because its output contains the source's path.
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
        let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).expect("readable");
        let compact = ultima_p4::normal::json(&read(out.path(), &json));
        let mut files = vec![(&json, compact)];
        // The engine's tests have no P4Info.
        if sources.join(&p4info).exists() {
            files.push((&p4info, read(out.path(), &p4info)));
        }
        for (name, compiled) in files {
            assert!(
                compiled == read(&sources, name),
                "{name} differs: compile {owner}/tests/programs/{program}.p4 again, then remove white space from its JSON"
            );
        }
    }
}
