//! `ultima job`: creates, shows, resizes and deletes jobs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::common::{self, output};
use serde_json::{Value, json};
use ultima_tests::fabric::Fabric;
use ultima_tests::stage::{Stage, Target};

const HEAVY: &str =
    "{ name: heavy, members: [h1, h3], weight: 7, seed: 5, loss_threshold: 3, gather: unicast }";

fn printed(arguments: &[&str]) -> String {
    let output = output(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn show(stage: &Stage, options: &[&str]) -> String {
    let address = stage.controller.address();
    printed(&[&["job", "--controller", &address, "show", "heavy"], options].concat())
}

#[test]
fn show_prints_every_field_of_a_job() {
    Target::Sockets.run(Fabric::pair(), &[HEAVY], |stage| {
        let text = show(&stage, &[]);
        let mut lines = text.lines();
        let header = lines.next().expect("a header");
        let row = lines.next().expect("the job");
        let column = header.find("WEIGHT").expect("a column");
        assert!(row[column..].starts_with("7 "), "{text}");

        let shown: Value = serde_json::from_str(&show(&stage, &["--output=json"])).expect("JSON");
        for (key, value) in [
            ("name", json!("heavy")),
            ("weight", json!(7)),
            ("seed", json!(5)),
            ("loss_threshold", json!(3)),
            ("gather", json!("unicast")),
            ("members", json!(["h1", "h3"])),
        ] {
            assert_eq!(shown[key], value, "{key}");
        }
        let status = &shown["status"];
        assert_eq!(status["switches"], json!(["s1", "s2"]));
        let hosts = [0, 1].map(|rank| &status["members"][rank]["host"]);
        assert_eq!(hosts, ["h1", "h3"]);
        assert_eq!(status["members"][0]["state"], "free");
    });
}

#[test]
fn jobs_of_several_files_are_created_together_or_not_at_all() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("written");
            path.to_str().expect("a plain path").to_owned()
        };
        let one = file("one.yaml", "{ name: one, members: [h1, h2] }");
        let two = file("two.yaml", "{ name: two, members: [h1, h3] }");
        let wrong = file("wrong.yaml", "{ name: four, members: [h1, h9] }");
        let create = |files: &[&str]| {
            let files: Vec<&str> = files.iter().flat_map(|file| ["-f", file]).collect();
            let create = ["job", "create", "-o", "json", "--controller", &address];
            output(&[&create[..], &files].concat())
        };
        let refused = create(&[&one, &wrong]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(4), "{said}");
        assert!(said.contains("wrong.yaml:1:29: "), "{said}");
        let created = create(&[&one, &two]);
        let jobs: Value = serde_json::from_slice(&created.stdout).expect("JSON");
        let names: Vec<&Value> = (0..2).map(|at| &jobs[at]["name"]).collect();
        assert_eq!(names, ["one", "two"]);
        // A name that two files have is found before the controller is asked.
        let twice = create(&[&one, &one]);
        assert_eq!(twice.status.code(), Some(2));
    });
}

#[test]
fn the_jobs_of_a_grid_are_created_and_deleted_together() {
    const TAKEN: &str = "{ name: net.column1, members: [h1, h3] }";
    Target::Sockets.run(Fabric::pair(), &[TAKEN], |stage| {
        let address = stage.controller.address();
        let job =
            |arguments: &[&str]| output(&[&["job", "--controller", &address], arguments].concat());
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("grid.yaml");
        let create = |name: &str| {
            let members = "[h1, h2, h3, h4]";
            fs::write(
                &file,
                format!("{{ name: {name}, members: {members}, groups: 2 }}"),
            )
            .expect("a file");
            job(&["create", "-f", file.to_str().expect("a plain path")])
        };
        let names = || -> Vec<String> {
            let list = job(&["list"]);
            let text = String::from_utf8(list.stdout).expect("text");
            let rows = text.lines().skip(1);
            rows.map(|row| row.split(' ').next().unwrap_or_default().to_owned())
                .collect()
        };
        // One of the names exists: the controller creates none of the jobs.
        let refused = create("net");
        assert_eq!(refused.status.code(), Some(5), "{refused:?}");
        assert_eq!(names(), ["net.column1"]);

        let created = create("train");
        assert!(created.status.success(), "{created:?}");
        let lines = ["train.row0", "train.row1", "train.column0", "train.column1"];
        assert_eq!(names().len(), 5);
        let shown = job(&["show", "train", "--output=json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        for (at, (line, members)) in lines
            .iter()
            .zip([["h1", "h2"], ["h3", "h4"], ["h1", "h3"], ["h2", "h4"]])
            .enumerate()
        {
            assert_eq!(shown[at]["name"], *line);
            assert_eq!(shown[at]["members"], json!(members));
            assert_eq!(shown[at]["seed"], shown[0]["seed"], "one seed for all");
        }
        // The members of a grid do not change, so they cannot be watched.
        for arguments in [
            &["resize", "train", "--add", "h1"][..],
            &["evict", "train", "0"],
            &["watch", "train"],
        ] {
            let refused = job(arguments);
            assert_eq!(refused.status.code(), Some(5), "{refused:?}");
            let text = String::from_utf8_lossy(&refused.stderr).into_owned();
            let jobs = lines.join(", ");
            let expected = format!(
                "error: train is a grid of the jobs {jobs}, whose members cannot be changed; "
            );
            assert!(text.starts_with(&expected), "{text}");
        }
        let checked = job(&["check", "train", "--output=json"]);
        assert_eq!(checked.status.code(), Some(1));
        let checked: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
        assert_eq!(
            checked[3]["findings"][0]["advice"],
            "start its agent: `ultima agent --job train --host h2`"
        );
        let deleted = job(&["delete", "train"]);
        assert!(deleted.status.success(), "{deleted:?}");
        let said = String::from_utf8_lossy(&deleted.stdout).into_owned();
        assert!(
            lines
                .iter()
                .all(|line| said.contains(&format!("deleted {line}\n")))
        );
        assert_eq!(names(), ["net.column1"]);
    });
}

#[test]
fn show_marks_a_disconnected_switch() {
    Target::Sockets.run(Fabric::pair(), &[HEAVY], |stage| {
        // Another controller becomes the switch's primary.
        stage.operate(1, async |_| {
            let text = show(&stage, &[]);
            let [.., near, far, away] = text.lines().collect::<Vec<_>>()[..] else {
                panic!("two switches: {text}")
            };
            assert!(near.starts_with("s1      0 "), "{text}");
            assert_eq!(far, "s2      unreachable");
            let problem = away.strip_prefix("s2: unreachable: ").expect("why");
            assert!(problem.contains("primary"), "{text}");
        });
    });
}

#[test]
fn the_help_names_every_field_of_a_job() {
    let help = printed(&["job", "create", "--help"]);
    for field in [
        "name",
        "members",
        "gather",
        "seed",
        "loss_threshold",
        "weight",
        "groups",
    ] {
        assert!(help.contains(&format!("\n  {field}: ")), "{field}: {help}");
    }
}

fn document(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The documents that scripts read.
#[test]
fn each_command_prints_documents() {
    Target::Sockets.run(Fabric::pair(), &[HEAVY], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        fs::write(&file, "{ name: train, members: [h1, h3] }").expect("written");
        let file = file.to_str().expect("text");
        let job =
            |arguments: &[&str]| printed(&[&["job", "--controller", &address], arguments].concat());
        let created = document(&job(&["create", "-f", file, "-o", "json"]));
        assert_eq!(created["name"], "train");
        assert_eq!(created["status"]["tree"], json!(["s1/9-s2/9"]));
        let listed = document(&job(&["list", "--output=json"]));
        let names = [0, 1].map(|at| &listed[at]["name"]);
        assert_eq!(names, ["heavy", "train"]);
        assert_eq!(
            listed[0]["status"]["tree"],
            json!([]),
            "it gathers by unicast"
        );
        let yaml = job(&["list", "-o", "yaml"]);
        assert!(yaml.starts_with("- name: heavy\n  members:\n"), "{yaml}");
        let deleted = document(&job(&["delete", "train", "--wait", "10s", "-o", "json"]));
        let nothing_left = json!({ "name": "train", "pending_switches": [] });
        assert_eq!(deleted, nothing_left);
        let both = ["list", "-o", "json", "-o", "yaml"];
        common::refused(&[&["job", "--controller", &address], &both[..]].concat());
    });
}

#[test]
fn wait_has_a_timeout() {
    Target::Sockets.run(Fabric::pair(), &[HEAVY], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        fs::write(&file, "{ name: train, members: [h1, h3] }").expect("written");
        let file = file.to_str().expect("text");
        let at = ["job", "--controller", &address];
        let create = ["create", "-f", file, "--wait", "200ms", "-o", "json"];
        let late = output(&[&at[..], &create].concat());
        let said = String::from_utf8_lossy(&late.stderr);
        assert_eq!(late.status.code(), Some(6), "{said}");
        assert!(said.contains("rank 0 on h1, rank 1 on h3"), "{said}");
        assert_eq!(
            document(&String::from_utf8_lossy(&late.stdout))["name"],
            "train"
        );
        let shown = document(&printed(
            &[&at[..], &["show", "train", "--output=json"]].concat(),
        ));
        assert_eq!(shown["status"]["members"][0]["state"], "free");

        // Another controller is the primary of the second switch, which keeps its entries.
        stage.operate(1, async |_| {
            let delete = ["delete", "train", "nosuch", "--wait", "200ms"];
            let late = common::refused_with(6, &[&at[..], &delete].concat());
            assert!(late.contains("disconnected: s2"), "{late}");
            assert!(late.contains("no job is named nosuch; "), "{late}");
        });
        let gone = common::refused_with(4, &[&at[..], &["show", "train"]].concat());
        assert!(gone.contains("no job \"train\""), "{gone}");
        printed(&[&at[..], &["delete", "heavy", "--wait", "10s"]].concat());
    });
}

/// A job of a switch that is away is not ready: its creation says so, and a rank waits for it.
#[test]
fn a_rank_waits_until_its_job_is_ready() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        fs::write(&file, "{ name: train, members: [h1, h3] }").expect("written");
        let at = ["--controller", &address];
        let rank = |timeout| {
            let agent = [
                "agent",
                "--job",
                "train",
                "--host",
                "h3",
                "--join-timeout",
                timeout,
            ];
            common::ultima(&[&agent[..], &at].concat())
        };
        let waiting = "waiting for a rank on h3: job train is not ready: switch s2: ";
        let mut patient = None;
        stage.operate(1, async |_| {
            let file = file.to_str().expect("text");
            let create = ["job", "create", "-f", file, "--wait", "200ms", "-o", "json"];
            let late = output(&[&create[..], &at].concat());
            assert_eq!(late.status.code(), Some(6), "{late:?}");
            assert_eq!(
                document(&String::from_utf8_lossy(&late.stdout))["status"]["conditions"][0]["element"],
                "s2"
            );
            // It asks twice: the controller itself waits for a second.
            let late = rank("1500ms").output().expect("it runs");
            let said = String::from_utf8_lossy(&late.stderr).into_owned();
            assert_eq!(late.status.code(), Some(6), "{said}");
            assert_eq!(said.matches(waiting).count(), 1, "{said}");
            assert!(
                said.contains("error: timed out: job train is not ready"),
                "{said}"
            );
            let mut rank = rank("120s")
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts");
            let mut line = String::new();
            let mut errors = BufReader::new(rank.stderr.take().expect("piped"));
            errors.read_line(&mut line).expect("a line");
            assert!(line.starts_with(waiting), "{line}");
            patient = Some((rank, errors));
        });
        // The switch is back.
        common::wait_until("the rank joins", || {
            let events = printed(&[&["events", "job/train"], &at[..]].concat());
            events.contains("Joined")
        });
        let (mut rank, _errors) = patient.expect("started");
        // It may have ended: this machine need not have an address of the host.
        rank.kill().expect("it was not waited for");
        rank.wait().expect("it ends");
    });
}

/// Without `--wait` a creation waits for the switch, and prints which one. With `--wait 0` it ends at once.
#[test]
fn a_creation_waits_for_an_absent_switch() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("{{ name: {name}, members: [h1, h3] }}")).expect("written");
            path.to_str().expect("text").to_owned()
        };
        let (train, other) = (file("train"), file("other"));
        let create = [
            "job",
            "create",
            "--controller",
            &address,
            "-o",
            "json",
            "-f",
        ];
        let mut waiting = None;
        stage.operate(1, async |_| {
            let mut create_and_wait = common::ultima(&[&create[..], &[&train]].concat());
            create_and_wait
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut waits = create_and_wait.spawn().expect("it starts");
            let mut errors = BufReader::new(waits.stderr.take().expect("piped"));
            let mut line = String::new();
            errors.read_line(&mut line).expect("a line");
            let progress = "job train: 1/2 switches are ready; s2: not connected: ";
            assert!(line.starts_with(progress), "{line}");

            let at_once = output(&[&create[..], &[&other, "--wait", "0"]].concat());
            assert_eq!(at_once.status.code(), Some(0), "{at_once:?}");
            assert_eq!(at_once.stderr, b"");
            let created = document(&String::from_utf8_lossy(&at_once.stdout));
            assert_eq!(created["name"], "other");
            // The other switch may be `pending`.
            let conditions = created["status"]["conditions"].as_array().expect("a list");
            let of_s2 = conditions.iter().find(|it| it["element"] == "s2");
            assert_eq!(of_s2.expect("a condition")["kind"], "degraded");
            assert!(waits.try_wait().expect("a child").is_none(), "it waits");
            waiting = Some((waits, errors));
        });
        let (waits, _errors) = waiting.expect("started");
        let created = waits.wait_with_output().expect("it ends");
        assert_eq!(created.status.code(), Some(0), "{created:?}");
        let created = document(&String::from_utf8_lossy(&created.stdout));
        assert_eq!(
            (&created["name"], &created["status"]["conditions"]),
            (&json!("train"), &json!([]))
        );
    });
}

/// The command deletes all jobs before it waits, and `--wait` bounds the time for all of them.
#[test]
fn a_grid_is_deleted_as_a_whole_while_a_switch_is_disconnected() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("grid.yaml");
        let grid = "{ name: train, members: [h1, h2, h3, h4], groups: 2 }";
        fs::write(&file, grid).expect("written");
        let at = ["job", "--controller", &address];
        let create = ["create", "-f", file.to_str().expect("text")];
        printed(&[&at[..], &create].concat());
        stage.operate(1, async |_| {
            let delete = ["delete", "train", "--wait", "200ms"];
            let late = common::refused_with(6, &[&at[..], &delete].concat());
            assert!(late.contains("disconnected: s2"), "{late}");
        });
        let left = document(&printed(&[&at[..], &["list", "--output=json"]].concat()));
        assert_eq!(left, json!([]));
    });
}

/// A member is named by its rank or its host. The exit code for an unknown member is 4.
#[test]
fn members_are_named_by_rank_or_host() {
    Target::Sockets.run(Fabric::pair(), &[HEAVY], |stage| {
        let address = stage.controller.address();
        let at = ["job", "--controller", &address];
        let refused = |arguments: &[&str]| common::refused_with(4, &[&at[..], arguments].concat());
        let said = refused(&["evict", "heavy", "7"]);
        assert!(said.contains("no rank 7; it has ranks 0 to 1"), "{said}");
        let said = refused(&["evict", "heavy", "--host", "7"]);
        assert!(
            said.contains("unknown host \"7\" (the fabric has h1, h2, h3, h4)"),
            "{said}"
        );
        let said = refused(&["evict", "heavy", "h2"]);
        assert!(said.contains("has no member on host h2"), "{said}");
        let evict = ["evict", "heavy", "0", "--epoch", "2"];
        let said = common::refused_with(5, &[&at[..], &evict].concat());
        assert!(
            said.contains("job heavy is in epoch 1, and its members have changed"),
            "{said}"
        );
        let said = refused(&["resize", "heavy", "--add", "h99"]);
        assert!(said.contains("unknown host \"h99\""), "{said}");
        let said = refused(&["resize", "heavy", "--remove", "h2"]);
        assert!(
            said.contains("job heavy has no member on host h2"),
            "{said}"
        );
        common::refused(&[&at[..], &["evict", "heavy"]].concat());
        common::refused(&[&at[..], &["evict", "heavy", "0", "--host", "h1"]].concat());

        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        fs::write(&file, "{ name: train, members: [h1, h99] }").expect("written");
        let said = refused(&["create", "-f", file.to_str().expect("text")]);
        assert!(
            said.contains("job.yaml:1:30: members[1]: unknown host \"h99\""),
            "{said}"
        );

        // The job runs, and the new member does not join.
        let client = stage.controller.client();
        let joined = client.join("heavy", "h1", Duration::ZERO);
        (stage.testbed.runtime.block_on(joined)).expect("it has a place");
        let resize = ["resize", "heavy", "--add", "h2", "--wait", "200ms"];
        let late = output(&[&at[..], &resize].concat());
        let said = String::from_utf8_lossy(&late.stderr).into_owned();
        assert_eq!(late.status.code(), Some(6), "{said}");
        assert!(
            said.starts_with("error: job heavy: the change is not complete after 200ms"),
            "{said}"
        );
    });
}
