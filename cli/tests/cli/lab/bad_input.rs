//! Input that `ultima lab` rejects: one line, an exit code for the reason, no change.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use super::stage::{Lab, topology};
use crate::common;

fn line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("text");
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        output.stdout.is_empty() && text.lines().count() == 1,
        "{text}"
    );
    text.trim_end().to_owned()
}

#[test]
fn the_error_for_a_bad_fabric_names_line_and_column() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("wrong.yaml");
    let star = fs::read_to_string(topology("star4.yaml")).expect("it ships");
    let up = |text: &str| {
        fs::write(&file, text).expect("written");
        line(&common::output(&["lab", "up", &file.to_string_lossy()]))
    };
    let said = up(&star.replace("[h1, s1/1]", "[h1, s1/1], rate: fast"));
    let expected = format!(
        "error: {}:11:31: links[0].rate: expected bits per second",
        file.display()
    );
    assert!(said.starts_with(&expected), "{said}");
    let said = up(&star.replace("127.0.0.1:9559", "10.1.1.1:9559"));
    assert!(
        said.starts_with("error: switch s1 is at 10.1.1.1:9559, which a lab does not have"),
        "{said}"
    );
}

#[test]
fn bad_options_are_rejected() {
    let star = topology("star4.yaml");
    let star = star.to_string_lossy();
    let (unknown, not_root) = ((4, "there is no lab no-such-lab"), (2, "run this as root"));
    // All commands but `status` need root, and say so first. `status` needs root while root has a lab.
    let unknown_to_root = match nix::unistd::geteuid().is_root() {
        true => unknown,
        false => not_root,
    };
    let unknown_to_status = match fs::read_dir("/run/ultima/labs") {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => not_root,
        _ => unknown,
    };
    for (arguments, (code, said)) in [
        (
            &["lab", "up", &star, "--switch", "ovs"][..],
            (2, "expected embedded or bmv2"),
        ),
        (
            &["lab", "up", &star, "--name", "a/b"],
            (2, "is not a lab name"),
        ),
        (&["lab", "down", "no-such-lab"], unknown_to_root),
        (&["lab", "status", "no-such-lab"], unknown_to_status),
        (
            &["lab", "exec", "--name", "no-such-lab", "h1", "--", "true"],
            unknown_to_root,
        ),
    ] {
        let output = common::output(arguments);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(code) && line.contains(said),
            "{arguments:?}: {line}"
        );
    }
}

#[test]
fn a_plan_has_the_namespaces_of_lab_up() {
    let star = topology("star4.yaml");
    let star = star.to_string_lossy();
    for (options, namespace) in [
        (&[][..], "ultima:star4:h1\n"),
        (&["--name", "other"], "ultima:other:h1\n"),
    ] {
        let plan = common::output(&[&["lab", "plan", &star], options].concat());
        let plan = String::from_utf8(plan.stdout).expect("text");
        assert!(plan.contains(namespace), "{plan}");
    }
}

/// Another user can neither make nor use labs.
pub fn labs_need_root(lab: &Lab) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let (ultima, star) = (
        folder.path().join("ultima"),
        folder.path().join("star4.yaml"),
    );
    fs::copy(env!("CARGO_BIN_EXE_ultima"), &ultima).expect("copied");
    fs::copy(topology("star4.yaml"), &star).expect("copied");
    fs::set_permissions(&star, fs::Permissions::from_mode(0o644)).expect("ours");
    let star = star.to_string_lossy();
    let refused = |arguments: &[&str]| {
        // The kernel's overflow id, which no user has.
        let output = Command::new(&ultima)
            .args(arguments)
            .uid(65_534)
            .gid(65_534)
            .output();
        line(&output.expect("it runs"))
    };
    for arguments in [&["lab", "up", "-f", &star][..], &["lab", "down", "star4"]] {
        let said = refused(arguments);
        assert!(
            said.ends_with("only root may create and enter; run this as root"),
            "{said}"
        );
    }
    let controller = lab.controller();
    let said = refused(&["job", "list", "--controller", &controller]);
    assert!(
        said.ends_with("run this command as the controller's user: for a lab, as root"),
        "{said}"
    );
}
