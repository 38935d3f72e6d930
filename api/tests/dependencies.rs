//! No training process links the controller, or its store: neither a Rust agent nor the Python package depends on them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Crates of the controller.
const SERVER: [&str; 3] = ["ultima-controller", "ultima-planner", "redb"];

/// For each package in a lock file, its dependencies, also those of its tests.
fn graph(lock: &str) -> BTreeMap<&str, Vec<&str>> {
    let quoted = |text: &'static str| move |line: &&str| line.starts_with(text);
    let packages = lock.split("[[package]]\n").skip(1);
    let package = |text| {
        let lines = str::lines(text);
        let name = lines.clone().find(quoted("name = ")).expect("a name");
        let (_, dependencies) = text.split_once("dependencies = [").unwrap_or_default();
        let dependencies = dependencies
            .lines()
            .filter_map(|line| line.split('"').nth(1));
        // A name, or a name and a version.
        let names = dependencies.filter_map(|it| it.split(' ').next());
        (name.split('"').nth(1).expect("a value"), names.collect())
    };
    packages.map(package).collect()
}

/// The packages that a package depends on, itself included.
fn dependencies<'a>(graph: &BTreeMap<&'a str, Vec<&'a str>>, of: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![of]);
    while let Some(package) = left.pop() {
        if found.insert(package) {
            left.extend(graph.get(package).into_iter().flatten());
        }
    }
    found
}

#[test]
fn no_training_process_links_the_controller_or_its_store() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("it is in a workspace");
    let read = |lock: &str| fs::read_to_string(root.join(lock)).expect("a lock file");
    let (locked, python) = (read("Cargo.lock"), read("python/Cargo.lock"));
    let (locked, python) = (graph(&locked), graph(&python));
    for (graph, package) in [
        (&locked, "ultima-api"),
        (&locked, "ultima-agent"),
        (&python, "ultima-python"),
    ] {
        let all = dependencies(graph, package);
        assert!(
            all.contains("ultima-api") && all.contains("tonic"),
            "{all:?}"
        );
        for of_server in SERVER {
            assert!(!all.contains(of_server), "{package} depends on {of_server}");
        }
    }
    // The search finds them where they are.
    let command = dependencies(&locked, "ultima");
    assert!(SERVER.iter().all(|it| command.contains(it)), "{command:?}");
}
