//! `ultima fabric`: shows the fabric, finds and repairs drift, drains elements, and plans changes.

use std::time::Duration;

use crate::common::{output, refused, refused_with};
use serde_json::{Value, json};
use ultima_tests::fabric::Fabric;
use ultima_tests::needs;
use ultima_tests::stage::{Stage, Target};

const TRAIN: &str = "{ name: train, members: [h1, h2, h3, h4] }";

fn fabric(stage: &Stage, arguments: &[&str]) -> (i32, String) {
    let address = stage.controller.address();
    let output = output(&[&["fabric", "--controller", &address], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{arguments:?}: {errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    (output.status.code().expect("it ends"), text)
}

fn document(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Another client deletes the job's group and a rank's admission.
fn drift_is_shown_and_repaired(target: &Target) {
    target.run(Fabric::pair(), &[TRAIN], |stage| {
        let whole = "s1: in sync\ns2: in sync\n";
        assert_eq!(fabric(&stage, &["diff"]), (0, whole.into()));
        let job = stage.jobs[0].clone();
        stage.operate(0, async |operator| {
            operator.delete_group(&job).await;
            operator.delete_admission(&stage.testbed.fabric, &job, 1).await;
        });
        let (code, text) = fabric(&stage, &["diff"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(code, 1);
        let ["s1: 2 differences", source, group, "s2: in sync"] = lines[..] else {
            panic!("{text}")
        };
        let start = "+ UltimaIngress.admission.source[ingress_port 0x02, job 0x01, epoch 0x01, source_rank 0x01, src_addr ";
        assert!(source.starts_with(start), "{text}");
        assert!(source.ends_with(": admit_from_host(source_index 0x02)"), "{text}");
        assert!(group.starts_with("+ multicast group 1: to port 1 as 0, 2 as 1, "), "{text}");

        let (code, text) = fabric(&stage, &["diff", "-o", "json"]);
        assert_eq!(code, 1);
        let all = document(&text);
        assert_eq!(all[0]["switch"], "s1");
        assert_eq!(all[0]["differences"][1]["entity"], "multicast group 1");
        assert_eq!(all[0]["differences"][1]["actual"], Value::Null);
        assert_eq!(all[1], json!({ "switch": "s2", "differences": [] }));

        let (code, mended) = fabric(&stage, &["sync", "--output", "json"]);
        assert_eq!((code, document(&mended)), (0, all));
        assert_eq!(fabric(&stage, &["diff"]), (0, whole.into()));
        assert_eq!(fabric(&stage, &["sync"]), (0, whole.into()));
    });
}

#[test]
fn drift_is_shown_and_repaired_on_embedded() {
    drift_is_shown_and_repaired(&Target::Sockets);
}

#[test]
fn drift_is_shown_and_repaired_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        drift_is_shown_and_repaired(&Target::Bmv2(program));
    }
}

/// Prints one object.
fn shown(stage: &Stage, verb: &str, object: &str) -> String {
    let address = stage.controller.address();
    let output = output(&[verb, object, "--controller", &address]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn show_prints_a_table_json_and_yaml() {
    Target::Sockets.run(Fabric::pair(), &[TRAIN], |stage| {
        let (code, text) = fabric(&stage, &["show"]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(code, 0);
        assert_eq!(
            rows[0],
            [
                "NAME",
                "STATUS",
                "HEALTH",
                "JOBS",
                "TARGET",
                "ADDRESS",
                "DEVICE-ID",
                "PROBLEM"
            ]
        );
        for (row, [name, device]) in rows[1..].iter().zip([["s1", "1"], ["s2", "2"]]) {
            assert_eq!(
                [row[0], row[1], row[2], row[3], row[4], row[6], row[7]],
                [name, "Ready", "up", "train", "v1model", device, "-"]
            );
        }
        let all = document(&fabric(&stage, &["show", "-o", "json"]).1);
        assert_eq!([&all[0]["name"], &all[1]["name"]], ["s1", "s2"]);
        assert_eq!(all[0]["connected"], true);
        let (_, yaml) = fabric(&stage, &["show", "-o", "yaml"]);
        assert!(
            yaml.starts_with("- name: s1\n  target: v1model\n"),
            "{yaml}"
        );
    });
}

/// The only link between two switches is drained: the job keeps its path, and the command names the ranks without another.
#[test]
fn drain_names_the_ranks_without_another_path() {
    Target::Sockets.run(Fabric::pair(), &[TRAIN], |stage| {
        let (code, text) = fabric(&stage, &["drain", "s2/9"]);
        let cut_off = "job train is not rerouted: no other path to rank 2 on h3, rank 3 on h4\n";
        // The link is still in use, which the exit code says.
        assert_eq!((code, text), (1, format!("drained s1/9-s2/9\n{cut_off}")));
        let (_, text) = fabric(&stage, &["show"]);
        assert!(
            text.contains("s1/9-s2/9 drained") && text.ends_with(cut_off),
            "{text}"
        );
        let all = document(&fabric(&stage, &["show", "-o", "json"]).1);
        assert_eq!(all[0]["health"], "s1/9-s2/9 drained");
        let link = shown(&stage, "get", "link/s1/9-s2/9");
        assert!(link.contains(" Drained "), "{link}");
        let job = shown(&stage, "get", "job/train");
        assert!(job.contains(" Degraded "), "{job}");
        let described = shown(&stage, "describe", "job/train");
        for rank in ["h3: degraded for ", " s: rank 2 has no path to all others"] {
            assert!(described.contains(rank), "{described}");
        }
        let whole = "s1: in sync\ns2: in sync\n";
        assert_eq!(fabric(&stage, &["diff"]), (0, whole.into()));
        let (code, text) = fabric(&stage, &["undrain", "s2/9"]);
        assert_eq!((code, text.as_str()), (0, "undrained s1/9-s2/9\n"));
        let all = document(&fabric(&stage, &["show", "-o", "json"]).1);
        assert_eq!(all[0]["health"], "up");
    });
}

/// A switch with members, which is the only one of a job: its members run, and no tree avoids it.
#[test]
fn a_drain_of_a_switch_with_members_names_their_jobs() {
    const NEAR: &str = "{ name: near, members: [h1, h2] }";
    const FAR: &str = "{ name: far, members: [h3, h4] }";
    Target::Sockets.run(Fabric::pair(), &[NEAR, TRAIN, FAR], |stage| {
        let client = stage.controller.client();
        stage.testbed.runtime.block_on(async {
            for (job, hosts) in [
                ("near", &["h1", "h2"][..]),
                ("train", &["h1", "h2", "h3", "h4"]),
            ] {
                for host in hosts {
                    let joined = client.join(job, host, Duration::ZERO).await;
                    joined.expect("a seat");
                }
            }
        });
        let (code, text) = fabric(&stage, &["drain", "s1"]);
        let expected = "drained s1\n\
            job near has members at s1, which keep using it\n\
            job train has members at s1, which keep using it\n";
        assert_eq!((code, text.as_str()), (1, expected));
        let (code, text) = fabric(&stage, &["drain", "s1", "-o", "json"]);
        let drained = document(&text);
        assert_eq!(code, 1, "{text}");
        assert_eq!(drained["attached_jobs"], json!(["near", "train"]));
        assert_eq!(drained["not_rerouted"], json!([]));
        for job in ["near", "train"] {
            let row = shown(&stage, "get", &format!("job/{job}"));
            assert!(row.contains(" Running "), "{row}");
        }
        let whole = "s1: in sync\ns2: in sync\n";
        assert_eq!(fabric(&stage, &["diff"]), (0, whole.into()));
        let (code, text) = fabric(&stage, &["undrain", "s1"]);
        assert_eq!((code, text.as_str()), (0, "undrained s1\n"));
    });
}

/// A plan names a switch that the controller is not connected to.
#[test]
fn plan_names_a_switch_that_is_not_connected() {
    Target::Sockets.run(Fabric::pair(), &[TRAIN], |stage| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, "{ name: more, members: [h1, h3] }").expect("written");
        let file = file.to_str().expect("text");
        stage.operate(1, async |_| {
            let (code, text) = fabric(&stage, &["plan", "-f", file]);
            assert_eq!(code, 0, "{text}");
            let lines: Vec<&str> = text.lines().collect();
            let at = lines
                .iter()
                .position(|it| it.starts_with("s2: not connected: "));
            let at = at.unwrap_or_else(|| panic!("{text}"));
            assert!(lines[at].contains("primary"), "{text}");
            assert!(
                lines[at + 1].starts_with("s2: ") && lines[at + 1].ends_with(" changes"),
                "{text}"
            );
            assert!(!text.contains("s1: not connected"), "{text}");
            let plan = document(&fabric(&stage, &["plan", "-f", file, "-o", "json"]).1);
            assert_eq!(plan["switches"][0].get("problem"), None);
            assert!(plan["switches"][1]["problem"].is_string(), "{plan}");
        });
    });
}

/// Another controller is the primary of a leaf for longer than `--wait`.
#[test]
fn wait_for_a_disconnected_switch_has_a_timeout() {
    Target::Sockets.run(Fabric::spines(), &[TRAIN], |stage| {
        let address = stage.controller.address();
        let shown = [
            "job",
            "show",
            "train",
            "-o",
            "json",
            "--controller",
            &address,
        ];
        let shown = document(&String::from_utf8_lossy(&output(&shown).stdout));
        let crosses = |spine: &str| {
            shown["status"]["tree"]
                .to_string()
                .contains(&format!("{spine}/"))
        };
        let spine = if crosses("s3") { "s3" } else { "s4" };
        assert!(crosses(spine));
        stage.operate(1, async |_| {
            let at = ["fabric", "--controller", &address];
            let drain = [&at[..], &["drain", spine, "--wait", "200ms"]].concat();
            let late = refused_with(6, &drain);
            assert!(
                late.contains("timed out after 200ms: new routes are not confirmed by s2"),
                "{late}"
            );
            let (code, text) = fabric(&stage, &["sync", "--wait", "200ms"]);
            assert!(code == 1 && text.contains("\ns2: "), "{text}");
        });
        let whole: String = (1..=4).map(|at| format!("s{at}: in sync\n")).collect();
        assert_eq!(fabric(&stage, &["sync", "--wait", "10s"]), (0, whole));
        let drained = (0, format!("drained {spine}\n"));
        assert_eq!(fabric(&stage, &["drain", spine, "--wait", "10s"]), drained);
    });
}

/// `check`, `ports` and `chassis` need the file of a testbed, and no switch.
#[test]
fn a_testbed_is_planned_without_a_switch() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/tofino32.yaml");
    let said = |arguments: &[&str]| {
        let output = output(&[&["fabric"], arguments, &["-f", file]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    };
    let checked = said(&["check"]);
    assert!(
        checked.contains(": 1 switch, 32 hosts, 32 links"),
        "{checked}"
    );
    let beside = String::from_utf8(output(&["fabric", "check", "-f", file]).stderr).expect("text");
    let [warning] = beside.lines().collect::<Vec<_>>()[..] else {
        panic!("{beside}")
    };
    assert!(
        warning.starts_with("warning: switch tofino1: port 16/0 is device port 0, "),
        "{warning}"
    );

    let ports = document(&said(&["ports", "-o", "json"]));
    let first = json!({
        "switch": "tofino1", "port": "1/0", "device_port": 132, "pipe": 1, "speed": "100G", "fec": "rs", "link": "h01"
    });
    assert_eq!(
        (&ports[0], ports.as_array().map(Vec::len)),
        (&first, Some(32))
    );
    assert_eq!(ports[15]["device_port"], 0);
    let table = said(&["ports"]);
    let row: Vec<&str> = table
        .lines()
        .nth(9)
        .expect("a row")
        .split_whitespace()
        .collect();
    assert_eq!(row, ["tofino1", "9/0", "56", "0", "100G", "rs", "h09"]);

    let chassis = said(&["chassis", "tofino1"]);
    assert_eq!(chassis.matches("speed_bps").count(), 32);
    assert!(
        chassis.contains("platform: PLT_GENERIC_BAREFOOT_TOFINO\n"),
        "{chassis}"
    );
    let commands = said(&["chassis", "tofino1", "--for", "ucli"]);
    assert!(
        commands.contains("port-add 32/0 100G RS\nport-enb 32/0\n"),
        "{commands}"
    );

    let text = refused_with(4, &["fabric", "chassis", "-f", file, "tofino2"]);
    assert!(
        text.contains("unknown switch \"tofino2\" (the fabric has tofino1)"),
        "{text}"
    );
}

#[test]
fn files_are_checked_without_a_controller() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/leaf-spine.yaml");
    for file_option in [&["-f", file][..], &[file]] {
        let checked = output(&[&["fabric", "check"], file_option].concat());
        let text = String::from_utf8(checked.stdout).expect("text");
        let is_checked = checked.status.success() && text.starts_with(&format!("{file}: "));
        assert!(is_checked, "{file_option:?}: {text}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.yaml");
    std::fs::write(&bad, "switches: []\nhosts: []\nlinks: [{ ends: [s1/1] }]\n").expect("written");
    let text = refused(&["fabric", "check", "-f", bad.to_str().expect("text")]);
    assert!(text.contains("bad.yaml:"), "{text}");
    // The error for a well-formed but inconsistent fabric names the place, too.
    let mixed = "switches:
  - { name: s1 }
  - { name: s2, target: tofino }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [h2, s2/1/0] }
  - { ends: [s1/9, s2/9/0] }
";
    std::fs::write(&bad, mixed).expect("written");
    let text = refused(&["fabric", "check", "-f", bad.to_str().expect("text")]);
    let place = "bad.yaml:3:13: switches[1]: switch s2: target tofino cannot run ";
    assert!(text.contains(place), "{text}");
}

/// `plan` prints the changes per switch, and changes nothing. An exceeded limit is named with its value.
#[test]
fn plan_prints_the_changes_and_changes_nothing() {
    Target::Sockets.run(Fabric::pair(), &[TRAIN], |stage| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.to_str().expect("text").to_owned()
        };
        let jobs = file(
            "jobs.yaml",
            "{ name: more, members: [h1, h3] }\n---\n{ name: near, members: [h1, h2] }\n",
        );
        let (code, text) = fabric(&stage, &["plan", "-f", &jobs]);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.starts_with(
                "more: would be created, id 2 on s1, s2; tree s1/9-s2/9\nnear: would be created, id 3 on s1\ns1: "
            ),
            "{text}"
        );
        assert!(
            text.contains("\n+ multicast group 2: to port 1 as 0, 9 as "),
            "{text}"
        );
        let row = text
            .lines()
            .find(|line| line.starts_with("s1") && line.contains("multicast groups"));
        let row: Vec<&str> = row.expect("a row").split_whitespace().collect();
        assert_eq!(row, ["s1", "multicast", "groups", "1", "3", "4096"]);
        let plan = document(&fabric(&stage, &["plan", "-f", &jobs, "-o", "json"]).1);
        assert_eq!(plan["jobs"][0]["job"]["status"]["tree"], json!(["s1/9-s2/9"]));
        assert_eq!(plan["switches"].as_array().map(Vec::len), Some(2));
        // No switch has changed.
        let whole = "s1: in sync\ns2: in sync\n";
        assert_eq!(fabric(&stage, &["diff"]), (0, whole.into()));

        // The actions of `apply`: leave the job, resize it, change it, or reject it.
        let again = file("again.yaml", TRAIN);
        let unchanged = (0, "train: unchanged\n".to_owned());
        assert_eq!(fabric(&stage, &["plan", "-f", &again]), unchanged);
        let fewer = file("fewer.yaml", "{ name: train, members: [h1, h3] }");
        let (code, text) = fabric(&stage, &["plan", "-f", &fewer]);
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("train: would be resized, id 2 on "), "{text}");
        let plan = document(&fabric(&stage, &["plan", "-f", &fewer, "-o", "json"]).1);
        assert_eq!(plan["jobs"][0]["action"], "would-be-resized");
        assert_eq!(plan["jobs"][0]["job"]["status"]["epoch"], 2);
        let heavy = file("heavy.yaml", &TRAIN.replace(" }", ", weight: 2 }"));
        let (code, text) = fabric(&stage, &["plan", "-f", &heavy]);
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("train: would be changed, id 1 on "), "{text}");
        let unicast = file("unicast.yaml", &TRAIN.replace(" }", ", gather: unicast }"));
        let (code, text) = fabric(&stage, &["plan", "-f", &unicast]);
        let differs = "gather is multicast, but the file has unicast, and cannot change: members agree on it when they join; delete the job first, or correct the file";
        let differs = format!("train: would be rejected: {unicast}:1:51: {differs}\n");
        assert_eq!((code, text), (5, differs));
        let (code, text) = fabric(&stage, &["plan", "-f", &again, "--without", "train"]);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains("\n- UltimaIngress.jobs.job[job 0x01]"),
            "{text}"
        );
        assert!(
            text.contains("\n+ UltimaIngress.jobs.job[job 0x02]"),
            "{text}"
        );
        let plan = ["plan", "-f", &again, "--without", "absent"];
        let at = ["fabric", "--controller", &stage.controller.address()];
        let text = refused_with(4, &[&at[..], &plan].concat());
        assert!(text.contains("no job \"absent\""), "{text}");

        // The file of a changed fabric.
        let yaml = Fabric::pair().yaml(&stage.testbed.grpc());
        let (code, text) = fabric(&stage, &["plan", "-f", &file("same.yaml", &yaml)]);
        assert_eq!(code, 0);
        assert!(
            text.ends_with("s1: no changes\ns2: no changes\n"),
            "{text}"
        );
        let limited = yaml.replacen(
            "line_rate_queues",
            "limits: { group_replicas: 1 }, line_rate_queues",
            1,
        );
        assert_ne!(limited, yaml);
        let limited = file("limited.yaml", &limited);
        let (code, text) = fabric(&stage, &["plan", "-f", &limited]);
        assert_eq!(code, 5, "{text}");
        assert!(text.contains("the limit is 1 (group_replicas)"), "{text}");
        // A job has a member on a host that is not in the file.
        let renamed = file("renamed.yaml", &yaml.replace("h1", "h9"));
        let (code, text) = fabric(&stage, &["plan", "-f", &renamed]);
        assert_eq!(code, 5, "{text}");
        assert!(text.contains("job train: its host h1 is not in the fabric"), "{text}");
    });
}
