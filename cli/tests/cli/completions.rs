//! `ultima completions`: scripts with which shells complete commands.

use std::process::Command;

use crate::common::{output, refused};

fn script(shell: &str) -> String {
    let output = output(&["completions", shell]);
    assert!(output.status.success(), "{shell}");
    String::from_utf8(output.stdout).expect("text")
}

/// bash runs the script.
#[test]
fn bash_completes_commands_and_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ultima.bash");
    std::fs::write(&file, script("bash")).expect("written");
    let completed = |words: &str| {
        let run = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _ultima ultima \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let output = Command::new("bash").args(["-c", &run]).output();
        let output = output.expect("bash runs");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().to_owned()
    };
    assert_eq!(completed("ultima jo"), "job");
    assert_eq!(completed("ultima job crea"), "create");
    assert_eq!(completed("ultima fabric show --out"), "--output");
    assert_eq!(completed("ultima fabric show --output j"), "json");
}

#[test]
fn zsh_and_fish_have_scripts_and_unknown_shells_are_rejected() {
    assert!(script("zsh").starts_with("#compdef ultima"));
    assert!(script("fish").contains("complete -c ultima"));
    assert!(refused(&["completions", "cmd.exe"]).contains("zsh"));
}
