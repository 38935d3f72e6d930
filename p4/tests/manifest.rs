//! The committed compiled files match their sources and manifests.

use std::path::Path;
use std::{fs, io};

use ultima_p4::manifest::{BUILDS, Manifest, ManifestError, TOFINO, V1MODEL};
use ultima_testing::skipped;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns a copy of `p4/` in which a test may change files.
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
    for build in BUILDS {
        let manifest = Manifest::load(build, root()).unwrap();
        let differences = manifest.differences(build, root()).unwrap();
        assert!(
            differences.is_empty(),
            "run `cargo run -p ultima-p4 --bin p4-recompile {}`:\n{}",
            build.target,
            differences.join("\n")
        );
    }
}

#[test]
fn a_changed_source_is_noticed() {
    let dir = copy();
    let source = dir.path().join("p4/include/parser_v1model.p4");
    fs::write(
        &source,
        fs::read_to_string(&source).unwrap() + "// edited\n",
    )
    .unwrap();
    fs::write(dir.path().join("p4/include/added.p4"), "").unwrap();
    let top = dir.path().join("p4/ultima_v1model.p4");
    let text = fs::read_to_string(&top).unwrap();
    fs::write(&top, text.replace("\"arp.p4\"", "\"added.p4\"")).unwrap();
    let differences = Manifest::load(&V1MODEL, dir.path())
        .unwrap()
        .differences(&V1MODEL, dir.path())
        .unwrap();
    assert_eq!(
        differences,
        [
            "p4/include/added.p4: not in the manifest",
            "p4/include/parser_v1model.p4: changed since it was compiled",
            "p4/ultima_v1model.p4: changed since it was compiled",
            "p4/include/arp.p4: in the manifest, but missing",
        ]
    );
}

#[test]
fn manifests_name_the_compilers_commit() {
    for build in BUILDS {
        let Manifest { compiler, .. } = Manifest::load(build, root()).unwrap();
        let words = compiler.split(|it: char| !it.is_ascii_alphanumeric());
        let commits =
            words.filter(|it| it.len() >= 8 && it.chars().all(|it| it.is_ascii_hexdigit()));
        assert_eq!(commits.count(), 1, "{}: {compiler}", build.target);
    }
}

#[test]
fn another_compiler_is_noticed() {
    let dir = copy();
    let context = dir.path().join("p4/compiled/tofino/pipe/context.json");
    let text = fs::read_to_string(&context).unwrap();
    let committed = Manifest::load(&TOFINO, dir.path()).unwrap();
    let (_, version) = committed.compiler.split_once(" Version ").unwrap();
    fs::write(&context, text.replace(version, "9.13.4 (0123456789)")).unwrap();
    assert_eq!(
        committed.differences(&TOFINO, dir.path()).unwrap(),
        [
            format!(
                "compiler: {} is not p4c-barefoot Version 9.13.4 (0123456789)",
                committed.compiler
            ),
            "p4/compiled/tofino/pipe/context.json: changed since it was compiled".into(),
        ]
    );
}

#[test]
fn compilers_on_the_path_reproduce_the_committed_files() {
    for build in BUILDS {
        let committed = Manifest::load(build, root()).unwrap();
        let version = match build.compiler_version() {
            Err(ManifestError::NoCompiler { .. }) => {
                skipped(&format!("{} is not on the PATH", build.compiler()));
                continue;
            }
            version => version.unwrap(),
        };
        let other = |version: &str| {
            skipped(&format!(
                "{version} is not the {} of the manifest",
                committed.compiler
            ));
        };
        if !committed.compiler.starts_with(&version) {
            other(&version);
            continue;
        }
        let dir = copy();
        let printed = build
            .recompile(dir.path())
            .unwrap_or_else(|error| panic!("{}: {error}", build.target));
        // The Tofino compiler names its commit in its output only.
        if printed.compiler != committed.compiler {
            other(&printed.compiler);
            continue;
        }
        let differences = committed.differences(build, dir.path()).unwrap();
        if !differences.is_empty() {
            let kept = dir.keep();
            panic!(
                "{}: the output of {}, kept in {}, differs:\n{}",
                build.target,
                printed.compiler,
                kept.display(),
                differences.join("\n")
            );
        }
    }
}
