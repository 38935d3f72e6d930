//! `ultima completions` and `ultima man`: what shells and man know of the command line.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use ultima_tests::fabric::Fabric;
use ultima_tests::stage::Target;

use crate::common::{output, refused};

fn script(shell: &str) -> String {
    let output = output(&["completions", shell]);
    assert!(output.status.success(), "{shell}");
    String::from_utf8(output.stdout).expect("text")
}

/// What bash completes, by the script.
fn completed(words: &str, controller: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ultima.bash");
    std::fs::write(&file, script("bash")).expect("written");
    let run = format!(
        "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _clap_complete_ultima ultima \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
         printf '%s\n' \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let programs = Path::new(env!("CARGO_BIN_EXE_ultima"))
        .parent()
        .expect("a folder");
    let path = format!(
        "{}:{}",
        programs.display(),
        std::env::var("PATH").expect("PATH")
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &run])
        .env("PATH", path)
        .env("ULTIMA_CONTROLLER", controller);
    let output = bash.output().expect("bash runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn bash_completes_commands_options_and_names() {
    let jobs = ["train", "other"].map(|name| format!("{{ name: {name}, members: [h1, h3] }}"));
    let jobs = jobs.each_ref().map(String::as_str);
    Target::Sockets.run(Fabric::pair(), &jobs, |stage| {
        let address = stage.controller.address();
        for (words, expected) in [
            ("ultima jo", &["job"][..]),
            ("ultima job crea", &["create"]),
            ("ultima fabric show --out", &["--output"]),
            ("ultima fabric show --output j", &["json"]),
            ("ultima get ho", &["hosts"]),
            ("ultima job show t", &["train"]),
            ("ultima describe job ''", &["other", "train"]),
            ("ultima get switches s", &["s1", "s2"]),
            ("ultima fabric drain s2", &["s2"]),
            ("ultima agent --job o", &["other"]),
        ] {
            let found = completed(words, &address);
            for name in expected {
                assert!(found.contains(*name), "{words}: {found:?}");
            }
        }
    });
    // Without a controller there are no names, and no error.
    let found = completed("ultima job show t", "127.0.0.1:1");
    assert!(found.iter().all(String::is_empty), "{found:?}");
}

#[test]
fn other_shells_have_scripts_and_unknown_ones_are_rejected() {
    assert!(script("zsh").starts_with("#compdef ultima"));
    assert!(script("fish").contains("complete --keep-order --exclusive --command ultima"));
    assert!(refused(&["completions", "cmd.exe"]).contains("zsh"));
}

#[test]
fn each_command_has_a_man_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    assert!(output(&["man", path]).status.success());
    for (page, part) in [
        ("ultima.1", "AllReduce for distributed training"),
        ("ultima-job-create.1", "YAML file; "),
        ("ultima-get.1", "no\\-headers"),
    ] {
        let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
        assert!(text.contains(".TH ") && text.contains(part), "{page}");
    }
    assert!(!folder.path().join("ultima-demo-worker.1").exists());
    refused(&["man", "/nowhere/at/all"]);
}
