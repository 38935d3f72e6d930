//! `p4/ptf/vectors.py`, which an owner of a chip runs with PyPI's PTF, on the embedded switch and on its emulation of a Tofino
//! behind Stratum.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ultima_tests::fabric::{Fabric, device_id};
use ultima_tests::needs;
use ultima_tests::netns;
use ultima_tests::testbed::Testbed;

/// The first device ports of four connectors (`wedge100bf-32x`), in two pipes.
const DEVICE_PORTS: [u16; 4] = [132, 140, 56, 48];

#[test]
fn every_vector_holds_on_the_embedded_switch() {
    let Some(ptf) = ptf() else { return };
    netns::within(|| {
        let testbed = Testbed::of_embedded_on_interfaces(Fabric::star());
        run(&ptf, &testbed, "v1model", &p4().join("compiled/v1model"));
    });
}

#[test]
fn every_vector_holds_on_the_emulation_of_a_tofino() {
    let Some(ptf) = ptf() else { return };
    let compiled = emulated();
    netns::within(|| {
        let mut fabric = Fabric::star();
        for (host, port) in fabric.hosts.iter_mut().zip(DEVICE_PORTS) {
            host.port = port;
        }
        let testbed = Testbed::of_emulated_tofinos(fabric);
        run(&ptf, &testbed, "tofino", compiled.path());
    });
}

/// The path of PTF, in a full run.
fn ptf() -> Option<PathBuf> {
    needs::full_run().then(needs::ptf).flatten()
}

fn p4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4")
}

/// The folder of compiled files that docs/testbed.md describes for the emulation.
fn emulated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("pipe")).expect("created");
    for (from, name) in [
        ("tofino", "bfrt.json"),
        ("tofino", "pipe/context.json"),
        ("tofino", "pipe/tofino.bin"),
        ("v1model", "ultima.p4info.txtpb"),
    ] {
        let from = p4().join("compiled").join(from).join(name);
        fs::copy(from, folder.path().join(name)).expect("the file is in the repository");
    }
    folder
}

/// Runs PTF in the testbed's namespace, at the hosts' ends of the links.
fn run(ptf: &Path, testbed: &Testbed, target: &str, compiled: &Path) {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let hosts = &testbed.fabric.hosts;
    let ports: Vec<String> = hosts.iter().map(|host| host.port.to_string()).collect();
    let params = format!(
        "grpc='{}';device_id={};target='{target}';compiled='{}';ports='{}'",
        testbed.grpc()[0],
        device_id(0),
        compiled.display(),
        ports.join(",")
    );
    let mut command = Command::new(ptf);
    // Python must not write files next to the sources.
    command
        .current_dir(scratch.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("--test-dir")
        .arg(p4().join("ptf"))
        .args(["--test-params", &params]);
    for (number, host) in (1..).zip(hosts) {
        command.args(["--interface", &format!("{number}@{}", host.name)]);
    }
    let output = command.output().expect("PTF can be run");
    assert!(
        output.status.success(),
        "{target}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
