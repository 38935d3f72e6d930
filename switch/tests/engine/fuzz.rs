//! The seeds of the fuzz targets, and what they found, through the functions that the targets call.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/lib.rs"]
mod entry;

/// Runs every file of a target's folder.
fn run(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let files = fs::read_dir(folder.join(target)).expect("the target has seeds");
    let mut count = 0;
    for file in files {
        let path = file.expect("a file").path();
        // A panic names the file that it is about.
        println!("{}", path.display());
        run(&fs::read(&path).expect("it can be read"));
        count += 1;
    }
    assert!(count >= 3, "{target} has {count} seeds");
}

#[test]
fn bmv2_json() {
    run("bmv2_json", entry::bmv2_json);
}

#[test]
fn p4info() {
    run("p4info", entry::p4info);
}

#[test]
fn packets() {
    run("packets", entry::packets);
}

#[test]
fn p4runtime() {
    run("p4runtime", entry::p4runtime);
}
