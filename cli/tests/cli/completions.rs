//! `ultima completions` and `ultima man`: what shells and man know of the command line.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use ultima_tests::fabric::Fabric;
use ultima_tests::needs;
use ultima_tests::stage::Target;

use crate::common::{output, refused};
use crate::lab::stage::{Lab, topology};

fn script(shell: &str) -> String {
    let output = output(&["completions", shell]);
    assert!(output.status.success(), "{shell}");
    String::from_utf8(output.stdout).expect("text")
}

const CONTEXTS: &str = "contexts: { far: { controller: a:1 }, near: { controller: b:1 } }";

/// The words that bash's script completes at the word with a `|`, or else at the last one.
fn completed(words: &str, controller: &str) -> BTreeSet<String> {
    let all: Vec<&str> = words.split(' ').collect();
    let cursor = all.iter().position(|word| word.ends_with('|'));
    let cursor = cursor.unwrap_or(all.len() - 1);
    let words = words.replace('|', "");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ultima.bash");
    std::fs::write(&file, script("bash")).expect("written");
    let run = format!(
        "source {}; COMP_WORDS=({words}); COMP_CWORD={cursor}; \
         _clap_complete_ultima ultima \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
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
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, CONTEXTS).expect("written");
    bash.args(["-c", &run])
        .env("PATH", path)
        .env("ULTIMA_CONFIG", config)
        .env("ULTIMA_CONTROLLER", controller);
    let output = bash.output().expect("bash runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Checks what bash completes. The program gives up after half a second, so a slow machine needs several attempts.
fn is_completed(words: &str, controller: &str, is_right: impl Fn(&BTreeSet<String>) -> bool) {
    let mut found = BTreeSet::new();
    for _ in 0..20 {
        found = completed(words, controller);
        if is_right(&found) {
            return;
        }
    }
    panic!("{words}: {found:?}");
}

#[test]
fn bash_completes_commands_options_and_names() {
    let jobs =
        ["train", "other", "net.row0"].map(|name| format!("{{ name: {name}, members: [h1, h3] }}"));
    let jobs = jobs.each_ref().map(String::as_str);
    Target::Sockets.run(Fabric::pair(), &jobs, |stage| {
        let address = stage.controller.address();
        for (words, expected) in [
            ("ultima jo", &["job"][..]),
            ("ultima job crea", &["create"]),
            ("ultima fabric show --output j", &["json"]),
            ("ultima get ho", &["hosts"]),
            ("ultima job show t", &["train"]),
            (
                "ultima describe job ''",
                &["net", "net.row0", "other", "train"],
            ),
            ("ultima get switches s", &["s1", "s2"]),
            ("ultima fabric drain s2", &["s2", "s2/1", "s2/2", "s2/9"]),
            ("ultima agent --job o", &["other"]),
            ("ultima agent --host h", &["h1", "h2", "h3", "h4"]),
            ("ultima get job n", &["net", "net.row0"]),
            ("ultima delete job tr", &["train"]),
            ("ultima delete j", &["jobs"]),
            ("ultima job show job/t", &["job/train"]),
            ("ultima get switch/", &["switch/s1", "switch/s2"]),
            ("ultima get job/train o", &[]),
            ("ultima get job/train job/o", &["job/other"]),
            ("ultima get events job/t", &["job/train"]),
            ("ultima events --for job/t", &["job/train"]),
            ("ultima fabric plan job.yaml --without t", &["train"]),
            ("ultima job resize train --remove h", &["h1", "h3"]),
            ("ultima job resize train --remove h1,", &["h1,h1", "h1,h3"]),
            ("ultima job resize train --add h", &["h1", "h2", "h3", "h4"]),
            ("ultima job evict job/train h", &["h1", "h3"]),
            ("ultima job evict --wait 9s train 1", &["1"]),
            ("ultima job evict train --host h", &["h1", "h3"]),
            ("ultima get --context n", &["near"]),
            ("ultima job show train -o ''", &["json", "table", "yaml"]),
            (
                "ultima get jobs -o ''",
                &["json", "jsonpath=", "name", "table", "wide", "yaml"],
            ),
        ] {
            let found = completed(words, &address);
            // An empty word may become an option, too.
            let names = found
                .iter()
                .filter(|it| !it.is_empty() && !it.starts_with('-'));
            assert!(names.eq(expected), "{words}: {found:?}");
        }
        let option = |found: &BTreeSet<String>| found.contains("--output");
        is_completed("ultima fabric show --out", &address, option);
        for verb in ["get", "events", "wait", "delete", "describe"] {
            for words in ["job/", "job/train job/"] {
                let words = format!("ultima {verb} {words}");
                let names = ["job/net", "job/net.row0", "job/other", "job/train"];
                is_completed(&words, &address, |found| found.iter().eq(names));
            }
        }
        // The line names another controller than the environment. Bash splits words at colons.
        let (host, port) = address.rsplit_once(':').expect("a port");
        let words = format!("ultima get --controller {host} : {port} job/t");
        is_completed(&words, "127.0.0.1:1", |found| found.contains("job/train"));
        // The cursor is in the middle, and the controller after it.
        let words = format!("ultima get job/t| host/h --controller {host} : {port}");
        is_completed(&words, "127.0.0.1:1", |found| found.contains("job/train"));
        let none = completed("ultima get --controller a : 1 job/t", &address);
        assert!(none.iter().all(String::is_empty), "{none:?}");
    });
    // Without a controller there are no names, and no error.
    let found = completed("ultima job show t", "127.0.0.1:1");
    assert!(found.iter().all(String::is_empty), "{found:?}");
}

#[test]
fn bash_completes_labs_and_their_hosts() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("star4.yaml"), &[]);
    let found = |words: &str| completed(words, "127.0.0.1:1");
    for words in ["lab down ''", "lab status ''", "lab exec --name ''"] {
        let found = found(&format!("ultima {words}"));
        assert!(found.contains(&lab.name), "{words}: {found:?}");
    }
    let nodes = found(&format!("ultima lab exec --name {} ''", lab.name));
    for node in ["h1", "h4", "s1"] {
        assert!(nodes.contains(node), "{nodes:?}");
    }
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
