//! The same fabrics in Mininet.

use std::fs;
use std::path::Path;
use std::process::Command;

use ultima_tests::needs;

use crate::stage::topology;

/// Runs the launcher with these commands; they all must succeed.
fn launch(file: &str, switch: &str, commands: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies/mininet/launch.py");
    let mut launch = Command::new(needs::MININET_PYTHON);
    launch
        .arg(script)
        .arg(topology(file))
        .args(["--switch", switch]);
    launch.args(["--ultima", env!("CARGO_BIN_EXE_ultima")]);
    for command in commands {
        launch.args(["-c", command]);
    }
    let output = launch.output().expect("Python runs");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&said)
    );
}

/// What is done on either switch.
fn a_job_over(switch: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job.yaml");
    fs::write(&job, "name: train\nmembers: [h1, h2, h3]\n").expect("written");
    let create = format!("sh ultima job create -f {}", job.display());
    let show = "h2 ultima job show train";
    launch("star4.yaml", switch, &["pingall", &create, show]);
    // Behind cross traffic some are lost; one answer is enough for ping's exit code.
    launch(
        "dumbbell.yaml",
        switch,
        &["h1 ping -c 10 -i 0.2 h3", &create, show],
    );
}

#[test]
fn a_job_over_mininet() {
    if needs::mininet() {
        a_job_over("embedded");
    }
}

#[test]
fn a_job_over_mininet_on_bmv2() {
    if needs::mininet() && needs::bmv2().is_some() {
        a_job_over("bmv2");
    }
}

#[test]
fn what_fails_in_mininet_fails_the_launcher() {
    if !needs::mininet() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies/mininet/launch.py");
    let run = |file: &Path, commands: &[&str]| {
        let mut launch = Command::new(needs::MININET_PYTHON);
        launch
            .arg(&script)
            .arg(file)
            .args(["--ultima", env!("CARGO_BIN_EXE_ultima")]);
        for command in commands {
            launch.args(["-c", command]);
        }
        launch.output().expect("Python runs")
    };
    let star = topology("star4.yaml");
    assert_eq!(
        run(&star, &["h1 sh -c 'exit 7'", "h1 sh -c 'exit 8'"])
            .status
            .code(),
        Some(7)
    );
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, "switches: []\nhosts: []\nlinks: []\n").expect("written");
    let output = run(&wrong, &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("wrong.yaml:1:11: switches: a fabric needs at least one switch"),
        "{said}"
    );
}
