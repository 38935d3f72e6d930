//! A switch that serves TLS, and its clients: commands and the controller.

#[path = "../../../switch/tests/served/authority.rs"]
mod authority;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::common::{Switch, refused_with, ultima};
use authority::Authority;

/// Writes a certificate and a key that `authority` signs.
fn identity(folder: &Path, name: &str, authority: &Authority) -> [String; 2] {
    let (cert, key) = authority.sign();
    [
        write(folder, &format!("{name}.cert.pem"), &cert),
        write(folder, &format!("{name}.key.pem"), &key),
    ]
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

/// The arguments of `ultima controller serve` for this fabric.
fn serve(fabric: &str) -> [&str; 8] {
    [
        "controller",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--state",
        "memory",
        "--fabric",
        fabric,
    ]
}

#[test]
fn commands_verify_the_switch() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let authority = Authority::new();
    let ca = write(dir, "ca.pem", &authority.pem);
    let other = write(dir, "other.pem", &Authority::new().pem);
    let [cert, key] = identity(dir, "switch", &authority);
    let socket = format!("1@unix:{}/p1", dir.display());
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../switch/tests/programs");
    let program = format!("{programs}/testbed.json");
    let p4info = format!("{programs}/testbed.p4info.txtpb");
    let program = ["--program", &program, "--p4info", &p4info];
    let tls = ["-i", &socket, "--tls-cert", &cert, "--tls-key", &key];
    let switch = Switch::start(&[&tls[..], &program[..]].concat());
    let commands: [&[&str]; 3] = [
        &["port", "list"],
        &["tm", "show"],
        &["trace", "--port", "1", "--frame", "00"],
    ];
    for command in commands {
        let with = |ca| [command, &["--ca", ca]].concat();
        let shown = switch.done(&with(&ca));
        assert!(!shown.is_empty(), "{command:?}");
        let plain = switch.refused_with(3, command);
        assert!(plain.contains(&switch.address), "{plain}");
        assert!(
            plain.contains("if the switch uses TLS, pass --ca FILE"),
            "{plain}"
        );
        let stranger = switch.refused_with(3, &with(&other));
        let said = "over TLS: invalid peer certificate: ";
        assert!(stranger.contains(said), "{stranger}");
    }
    let missing = switch.refused(&["tm", "show", "--ca", "missing.pem"]);
    assert!(missing.contains("missing.pem: No such file"), "{missing}");
    let half = switch.refused(&["tm", "show", "--ca", &ca, "--cert", &cert]);
    assert!(half.contains("--key"), "{half}");
}

#[test]
fn commands_and_the_controller_present_certificates() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let (servers, clients) = (Authority::new(), Authority::new());
    let ca = write(dir, "servers.pem", &servers.pem);
    let known = write(dir, "clients.pem", &clients.pem);
    let [cert, key] = identity(dir, "switch", &servers);
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &known];
    let switch = Switch::start(&tls);
    let [cert, key] = identity(dir, "client", &clients);
    let list = ["port", "list", "--ca", &ca];
    switch.done(&[&list[..], &["--cert", &cert, "--key", &key]].concat());
    let stranger = switch.refused_with(3, &list);
    let said = "if the switch requires a client certificate, pass --cert and --key";
    assert!(stranger.contains(said), "{stranger}");

    // Paths in a fabric are relative to its folder.
    let fabric = |tls: &str| {
        let text = include_str!("../../../topologies/star4.yaml");
        let text = text.replace("127.0.0.1:9559", &switch.address);
        let device = "device_id: 1";
        assert!(text.contains(device));
        write(
            dir,
            "fabric.yaml",
            &text.replace(device, &format!("{device}{tls}")),
        )
    };
    let all = fabric(", tls: { ca: servers.pem, cert: client.cert.pem, key: client.key.pem }");
    let mut controller = ultima(&serve(&all))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the controller starts");
    let mut line = String::new();
    let stdout = controller.stdout.take().expect("piped");
    let read = BufReader::new(stdout).read_line(&mut line);
    controller.kill().expect("it runs");
    controller.wait().expect("it ends");
    read.expect("a line");
    assert!(line.starts_with("listening on "), "{line}");

    for (code, tls, said) in [
        (3, "", "broke the connection: "),
        (
            3,
            ", tls: { ca: servers.pem }",
            "set `cert` and `key` in its `tls`",
        ),
        (
            3,
            ", tls: { ca: clients.pem }",
            "invalid peer certificate: ",
        ),
        (2, ", tls: { ca: no.pem }", "fabric.yaml:4:"),
        (
            2,
            ", tls: { ca: servers.pem, key: client.key.pem }",
            "both `cert` and `key`",
        ),
    ] {
        let fabric = fabric(tls);
        let serve = [&serve(&fabric)[..], &["--startup-timeout", "2s"]].concat();
        let error = refused_with(code, &serve);
        assert!(error.contains(said), "{tls}: {error}");
    }
}
