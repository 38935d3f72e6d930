//! The compiled files are those of the sources beside them.

use std::io::Write as _;
use std::path::Path;
use std::{fs, io};

use ultima_p4::manifest::{self, Manifest, ManifestError};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A copy of `p4/` in which a test may change files.
fn copy() -> tempfile::TempDir {
    fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let target = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                copy_dir(&entry.path(), &target)?;
            } else {
                fs::copy(entry.path(), target)?;
            }
        }
        Ok(())
    }
    let dir = tempfile::tempdir().unwrap();
    copy_dir(&root().join("p4"), &dir.path().join("p4")).unwrap();
    dir
}

#[test]
fn compiled_files_match_their_sources() {
    let differences = Manifest::load(root()).unwrap().differences(root()).unwrap();
    assert!(
        differences.is_empty(),
        "run `cargo run -p ultima-p4 --bin p4-recompile`:\n{}",
        differences.join("\n")
    );
}

#[test]
fn a_changed_source_is_noticed() {
    let dir = copy();
    let source = dir.path().join("p4/include/parser.p4");
    fs::write(
        &source,
        fs::read_to_string(&source).unwrap() + "// edited\n",
    )
    .unwrap();
    fs::write(dir.path().join("p4/include/added.p4"), "").unwrap();
    fs::remove_file(dir.path().join("p4/include/arp.p4")).unwrap();
    let differences = Manifest::load(dir.path())
        .unwrap()
        .differences(dir.path())
        .unwrap();
    assert_eq!(
        differences,
        [
            "p4/include/added.p4: not in the manifest",
            "p4/include/parser.p4: changed since it was compiled",
            "p4/include/arp.p4: in the manifest, but gone",
        ]
    );
}

/// Written past `eprintln!`, whose output the test harness hides when a test passes.
fn skipped(reason: &str) {
    // There is nobody to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}

#[test]
fn the_compiler_prints_what_is_committed() {
    let committed = Manifest::load(root()).unwrap();
    match manifest::compiler_version() {
        Err(ManifestError::NoCompiler(_)) => {
            skipped(&format!("{} is not on the PATH", manifest::COMPILER));
            return;
        }
        version => {
            let version = version.unwrap();
            if version != committed.compiler {
                skipped(&format!(
                    "{version} is not the {} of the manifest",
                    committed.compiler
                ));
                return;
            }
        }
    }
    let dir = copy();
    assert_eq!(manifest::recompile(dir.path()).unwrap(), committed);
}
