//! Runs the packet tests of the switch's test programs.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::case::{self, FolderError, Verdict};
use crate::report::{self, Tally};
use crate::target::Target;

/// The folder of the switch's test programs.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../switch/tests/programs")
}

/// Returns a folder with a test for each script of this crate, on the program `testbed`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    for script in fs::read_dir(scripts).expect("scripts") {
        let script = script.expect("a script").path();
        let name = script.file_stem().expect("a name").to_str().expect("UTF-8");
        fs::copy(&script, folder.path().join(format!("{name}.stf"))).expect("copied");
        for ending in ["json", "p4info.txtpb"] {
            let from = programs().join(format!("testbed.{ending}"));
            let to = folder.path().join(format!("{name}.{ending}"));
            fs::copy(from, to).expect("copied");
        }
    }
    folder
}

async fn run(folder: &Path) -> (Tally, Vec<(String, Verdict)>) {
    let (mut tally, mut verdicts) = (Tally::default(), Vec::new());
    for case in case::cases(folder).expect("tests") {
        let verdict = case.run(&mut Target::Embedded).await;
        tally.add(&verdict);
        verdicts.push((case.name, verdict));
    }
    (tally, verdicts)
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_of_the_switchs_programs_pass() {
    let (tally, verdicts) = run(&programs()).await;
    for (name, verdict) in &verdicts {
        assert_eq!(*verdict, Verdict::Passed, "{name}");
    }
    assert!(tally.passed >= 2, "{tally}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_expectation_fails_and_an_unknown_command_is_skipped() {
    let folder = folder();
    let (tally, verdicts) = run(folder.path()).await;
    assert_eq!(tally.to_string(), "0 passed, 5 failed, 1 skipped");
    let lines: Vec<String> = verdicts
        .iter()
        .map(|(name, verdict)| report::line(name, verdict))
        .collect();
    let frame = "02000000000102000000000288B50100000001";
    assert_eq!(
        lines,
        [
            "failed  count: line 3: counter received is 1 packets, 19 bytes".to_owned(),
            "failed  missing: line 5: port 2: 1 frames, expected 2".to_owned(),
            "failed  name: line 2: there is no table forwards".to_owned(),
            format!(
                "failed  unexpected: line 4: port 2: 1 frames, expected 0; \
                 the first unexpected one: {frame}"
            ),
            "skipped unknown: line 3: unknown command: meter_explode policer 1".to_owned(),
            format!(
                "failed  wrong: line 4: port 2: they differ at digit 30: \
                 expected 02000000000102000000000288B502, got {frame}"
            ),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_invalid_program_fails() {
    let folder = folder();
    fs::remove_file(folder.path().join("count.json")).expect("there");
    fs::write(folder.path().join("wrong.json"), "{}").expect("written");
    let (_, verdicts) = run(folder.path()).await;
    for (name, wanted) in [
        ("count", "count.json: "),
        ("wrong", "the program does not load: "),
    ] {
        let (_, verdict) = verdicts
            .iter()
            .find(|(other, _)| other == name)
            .expect("run");
        let Verdict::Failed(why) = verdict else {
            panic!("{name}: {verdict:?}");
        };
        assert!(why.starts_with(wanted), "{why}");
    }
}

#[test]
fn a_folder_without_tests_is_rejected() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let refused = case::cases(folder.path()).expect_err("empty");
    assert!(matches!(refused, FolderError::Empty(_)));
    let refused = case::cases(&folder.path().join("none")).expect_err("missing");
    assert!(matches!(refused, FolderError::Unreadable { .. }));
}
