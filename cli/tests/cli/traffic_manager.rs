//! Settings of queues and links: by option, from YAML, and while the switch runs.

use std::fs;
use std::path::Path;

use crate::common::{Switch, refused, refused_with};
use serde_json::{Value, json};

/// Starts a switch with ports 1 to 3 on sockets in `dir`.
fn start(dir: &Path, options: &[&str]) -> Switch {
    let ports = (1..=3).map(|n| format!("{n}@unix:{}", dir.join(format!("p{n}")).display()));
    let ports: Vec<String> = ports.flat_map(|port| ["-i".to_owned(), port]).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    Switch::start(&[&ports, options].concat())
}

#[test]
fn specific_settings_override_general_ones_and_change_while_the_switch_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("tm.yaml");
    let text = "default: { delay: 1ms }\nports:\n  2: { rate: 1G, queue_packets: 64 }\n  3: { rate: 2G }\n";
    fs::write(&file, text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let options = [
        "--rate",
        "10G",
        "--delay",
        "5ms",
        "--loss",
        "0.01",
        "--tm",
        file,
        "--wire",
        "3:rate=none,loss=none,jitter=normal:10us,ecn=packets:20",
    ];
    let switch = start(dir.path(), &options);
    let ports = switch.json(&["tm", "show"]);
    let of = |ports: &Value, names: &[&str]| -> Vec<Vec<Value>> {
        let ports = ports.as_array().expect("an array").iter();
        ports
            .map(|port| names.iter().map(|name| port[*name].clone()).collect())
            .collect()
    };
    let names = [
        "port",
        "rate_bps",
        "delay_ns",
        "loss",
        "queue_packets",
        "jitter",
        "ecn",
    ];
    assert_eq!(
        json!(of(&ports, &names)),
        json!([
            [1, 10_000_000_000_u64, 1_000_000, ["0.01"], null, null, null],
            [2, 1_000_000_000, 1_000_000, ["0.01"], 64, null, null],
            [3, null, 1_000_000, [], null, "normal:10us", "packets:20"],
        ])
    );

    let set = [
        "tm",
        "set",
        "--port",
        "1",
        "--port",
        "3",
        "--delay",
        "2ms",
        "--reorder",
        "--loss",
        "ge:0.1:0.5",
    ];
    let changed = switch.json(&set);
    assert_eq!(
        json!(of(
            &changed,
            &["port", "delay_ns", "reorder", "loss", "jitter"]
        )),
        json!([
            [1, 2_000_000, true, ["ge:0.1:0.5:1:0"], null],
            [3, 2_000_000, true, ["ge:0.1:0.5:1:0"], "normal:10us"],
        ])
    );
    // All ports: the options override the file.
    let changed = switch.json(&["tm", "set", "--tm", file, "--loss", "none"]);
    assert_eq!(
        json!(of(&changed, &["port", "rate_bps", "delay_ns", "loss"])),
        json!([
            [1, 10_000_000_000_u64, 1_000_000, []],
            [2, 1_000_000_000, 1_000_000, []],
            [3, 2_000_000_000, 1_000_000, []],
        ])
    );
    let shown = switch.done(&["tm", "show", "--port", "3"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("PORT  AT"), "{shown}");
    assert!(
        lines[1].contains("2G    1ms    normal:10us (reorders)  none  1M     packets:20"),
        "{shown}"
    );
    assert_eq!(lines.len(), 2);

    let error = switch.refused_with(4, &["tm", "set", "--port", "9", "--rate", "1G"]);
    assert!(
        error.contains("unknown port 9; the switch has 1, 2, 3"),
        "{error}"
    );
    let error = switch.refused_with(4, &["tm", "show", "--port", "9"]);
    assert!(
        error.contains("unknown port 9; the switch has 1, 2, 3"),
        "{error}"
    );
    let help = switch.done(&["tm", "set", "--help"]);
    assert!(
        help.contains("One-way delay, such as 500us [default: unchanged]"),
        "{help}"
    );
    let error = switch.refused(&["tm", "set", "--rate", "100G", "--delay", "30s"]);
    assert!(
        error.contains("port 1: rate 100G over a delay of 30s"),
        "{error}"
    );
    assert!(
        switch
            .refused(&["tm", "set"])
            .contains("no settings to change")
    );
}

#[test]
fn bad_settings_are_rejected_in_one_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("tm.yaml");
    fs::write(&file, "ports:\n  1: { rate: fast }\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    let port = format!("1@unix:{}", dir.path().join("p1").display());
    for (options, said) in [
        (
            &["--rate", "fast"][..],
            "invalid value 'fast' for '--rate': expected bits per second",
        ),
        (
            &["--jitter", "normal"],
            "for '--jitter': jitter `normal`: expected normal:TIME",
        ),
        (&["--loss", "2"], "for '--loss': loss probability 2"),
        (&["--reorder=x"], "for '--reorder': expected true or false"),
        (
            &["--wire", "1:speed=1"],
            "unknown setting `speed`: expected one of rate,",
        ),
        (&["--wire", "x:rate=1G"], "`x` is not a port number"),
        (
            &["--wire", "2:rate=1G"],
            "no port 2; add it with -i 2@WHERE",
        ),
        (
            &["--rate", "100G", "--delay", "60s"],
            "port 1: rate 100G over a delay of 60s",
        ),
        (
            &["--tm", file],
            "tm.yaml:2:14: ports.1.rate: expected bits per second",
        ),
        (&["--tm", "missing.yaml"], "missing.yaml: No such file"),
    ] {
        let arguments = [&["switch", "--grpc", "127.0.0.1:0", "-i", &port], options].concat();
        let error = refused(&arguments);
        assert!(error.contains(said), "{error}");
    }
    let error = refused(&["switch", "--grpc", "127.0.0.1:0", "--tm", file]);
    assert!(error.contains("the switch has no ports"), "{error}");
    let error = refused_with(3, &["switch", "tm", "show", "--grpc", "127.0.0.1:1"]);
    assert!(
        error.contains("no switch answers at 127.0.0.1:1"),
        "{error}"
    );
}
