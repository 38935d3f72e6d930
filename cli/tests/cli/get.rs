//! `ultima get` and `ultima describe`, and the contexts of the configuration file.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use ultima_tests::fabric::Fabric;
use ultima_tests::stage::{Stage, Target};

use crate::common::{output, refused, refused_with, ultima, wait_until};

const JOB: &str = "{ name: train, members: [h1, h3] }";

/// Runs `test` with a function that prints what a command of `ultima` prints at a controller with [`JOB`].
fn with_job(test: impl FnOnce(&Stage, &dyn Fn(&str) -> String) + Send) {
    Target::Sockets.run(Fabric::pair(), &[JOB], |stage| {
        let address = stage.controller.address();
        let printed = |line: &str| {
            let mut words: Vec<&str> = line.split(' ').collect();
            words.extend(["--controller", &address]);
            let output = output(&words);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}: {errors}");
            String::from_utf8(output.stdout).expect("text")
        };
        test(&stage, &printed);
    });
}

#[test]
fn get_lists_each_kind_in_each_format() {
    with_job(|stage, printed| {
        let jobs = printed("get jobs");
        let (header, row) = jobs.split_once('\n').expect("two lines");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(header), ["NAME", "RANKS", "READY", "STATUS", "AGE"]);
        let row = words(row);
        assert_eq!(row[..4], ["train", "0/2", "2/2", "Idle"]);
        let age: u32 = row[4].trim_end_matches('s').parse().expect("seconds");
        assert!(age < 120, "{row:?}");
        assert_eq!(printed("job list -o name"), "job/train\n");
        assert_eq!(printed("get sw -o name"), "switch/s1\nswitch/s2\n");
        // `get` and `describe` take what `-o name` prints.
        for kind in ["jobs", "switches", "hosts", "links", "ports"] {
            let names = printed(&format!("get {kind} -o name"));
            let name = names.lines().next().expect("one");
            assert_eq!(printed(&format!("get {name} -o name")), format!("{name}\n"));
            let (_, bare) = name.split_once('/').expect("a kind");
            let described = printed(&format!("describe {name}"));
            assert!(
                described.lines().any(|line| line.ends_with(bare)),
                "{described}"
            );
        }
        // They also take the files of jobs.
        let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
        fs::write(file.path(), printed("get job train -o yaml")).expect("it is written");
        let file = file.path().display();
        assert_eq!(printed(&format!("get -f {file} -o name")), "job/train\n");
        assert!(printed(&format!("describe -f {file}")).contains("UID:"));
        printed(&format!("wait -f {file}"));
        printed("wait jobs --all --for=condition=Ready");
        assert!(printed("job show job/train").contains("REPLICATED"));
        // The job's members stay there, so that the exit code is 1.
        let address = stage.controller.address();
        let drained = output(&["fabric", "drain", "switch/s1", "--controller", &address]);
        assert_eq!(drained.status.code(), Some(1), "{drained:?}");
        assert!(printed("events switch/s1").contains("Drained"));
        let port = printed("get ports -o name");
        let port = port.lines().next().expect("one");
        printed(&format!("events {port}"));
        printed("fabric undrain switch/s1");
        assert!(printed("get jobs -o wide").contains("SWITCHES"));
        let bare = printed("get hosts --no-headers");
        assert!(bare.starts_with("h1 "), "{bare}");
        let one: Value = serde_json::from_str(&printed("get link -o json")).expect("JSON");
        let name = one[0]["name"].as_str().expect("a name");
        assert_eq!(
            printed("get links -o jsonpath={[*].name}"),
            format!("{name}\n")
        );
        assert_eq!(one[0]["jobs"][0], "train");
        let host: Value = serde_json::from_str(&printed("get host h3 -o json")).expect("JSON");
        assert_eq!(host["jobs"][0], "train");
        let described = printed("describe job train");
        assert!(
            described.starts_with("NAME:") && described.contains("REPLICATED"),
            "{described}"
        );
        let setting = |words: &str| {
            described
                .lines()
                .any(|line| line.split_whitespace().eq(words.split(' ')))
        };
        assert!(
            setting("EVICTION: never") && setting("SEALED: true"),
            "{described}"
        );
        assert!(printed("describe switch s1").contains("DEVICE-ID:"));

        let at = ["--controller", &address];
        refused_with(4, &[&["get", "job/none"], &at[..]].concat());
        assert!(refused(&["get", "job/a", "b"]).contains("such as job/b"));
        assert!(refused(&["get", "pods"]).contains("switches"));
        assert!(refused(&["get", "jobs", "-o", "jsonpath={..name}"]).contains("{[*].name}"));
    });
}

#[test]
fn several_objects_and_kinds_may_be_named() {
    with_job(|stage, printed| {
        assert_eq!(
            printed("get switches s2 s1 -o name"),
            "switch/s2\nswitch/s1\n"
        );
        assert_eq!(
            printed("get job/train switch/s1 -o name"),
            "job/train\nswitch/s1\n"
        );
        let all: Value = serde_json::from_str(&printed("get jobs,hosts -o json")).expect("JSON");
        assert_eq!(
            (&all[0]["name"], &all[1]["name"]),
            (&"train".into(), &"h1".into())
        );
        let tables = printed("get all");
        for header in ["NAME   RANKS", "HEALTH", "ADDRESS"] {
            assert!(tables.contains(header), "{tables}");
        }
        let described = printed("describe switches");
        assert_eq!(described.matches("DEVICE-ID:").count(), 2, "{described}");
        assert_eq!(
            printed("get switches -o jsonpath={.items[*].name}"),
            "s1 s2\n"
        );
        assert!(printed("get ports").contains(" Up "));

        let at = ["--controller", &stage.controller.address()];
        let one = "no switch is named s9, s8";
        let two = "no switch is named s9; no job is named none, other";
        for (words, unknown) in [
            ("get switch s9 s1 s8 -o name", one),
            ("get switch/s1 job/none switch/s9 job/other", two),
            ("describe switch s1 s9 s8", one),
            ("describe switch/s1 job/none switch/s9 job/other", two),
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            let found = output(&[&words[..], &at].concat());
            assert_eq!(found.status.code(), Some(4), "{found:?}");
            let [printed, said] =
                [found.stdout, found.stderr].map(|it| String::from_utf8(it).expect("text"));
            assert!(printed.contains("s1"), "{printed}");
            assert_eq!(said, format!("error: {unknown}\n"), "{words:?}");
        }
        let watch = [&["get", "jobs,hosts", "-w"], &at[..]].concat();
        assert!(refused(&watch).contains("one kind"));
    });
}

/// Every verb takes a grid's name for all its jobs, and `get events` takes objects as `events` does.
#[test]
fn a_grid_s_name_stands_for_its_jobs() {
    with_job(|stage, printed| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("grid.yaml");
        let grid = "{ name: grid, members: [h1, h2, h3, h4], groups: 2 }";
        fs::write(&file, grid).expect("written");
        printed(&format!("apply -f {}", file.display()));
        let lines = ["grid.row0", "grid.row1", "grid.column0", "grid.column1"];
        let names = lines.map(|name| format!("job/{name}\n")).concat();
        assert_eq!(printed("get job grid -o name"), names);
        assert_eq!(
            printed("get job/grid job/train -o name"),
            names + "job/train\n"
        );
        assert_eq!(
            printed("get job grid -o jsonpath={[*].name}"),
            lines.join(" ") + "\n"
        );
        let described = printed("describe job/grid");
        for name in lines {
            let name = |line: &str| line.starts_with("NAME:") && line.ends_with(name);
            assert!(described.lines().any(name), "{described}");
        }
        printed("wait job/grid");
        let told = printed("telemetry grid -o json");
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(told["jobs"].as_array().map(Vec::len), Some(4));
        let plan = printed(&format!("fabric plan {} --without grid", file.display()));
        assert!(plan.starts_with("grid.row0: would be created, "), "{plan}");

        let events = printed("events job/grid -o jsonpath={[*].object}");
        assert!(
            events.contains("job/grid.row0") && !events.contains("train"),
            "{events}"
        );
        for objects in ["job/grid", "job/train", "jobs", "job/train job/grid"] {
            let [one, other] =
                ["get events", "events"].map(|verb| printed(&format!("{verb} {objects} -o name")));
            assert!(one == other && !one.is_empty(), "{objects}: {one}");
        }
        let id = printed("get events job/train -o name");
        let id = id.lines().next().expect("one");
        assert_eq!(printed(&format!("get {id} -o name")), format!("{id}\n"));

        let at = ["--controller", &stage.controller.address()];
        let waits = [&["wait", "job/grid", "--for", "deleted"], &at[..]].concat();
        let mut waits = ultima(&waits).spawn().expect("it starts");
        printed("delete job grid");
        assert_eq!(waits.wait().expect("it ends").code(), Some(0));
        let unknown = refused_with(4, &[&["get", "job", "grid"], &at[..]].concat());
        assert_eq!(unknown, "error: no job is named grid\n");
    });
}

#[test]
fn jobs_are_deleted_by_name_and_by_file() {
    with_job(|stage, printed| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("jobs.yaml");
        let jobs = ["a", "b", "c"].map(|name| format!("{{ name: {name}, members: [h1, h3] }}"));
        fs::write(&file, jobs.join("\n---\n")).expect("written");
        let file = file.display();
        printed(&format!("apply -f {file}"));

        let at = ["--controller", &stage.controller.address()];
        let delete = |words: &[&str], code| refused_with(code, &[&["delete"], words, &at].concat());
        let unknown = "error: no job is named nosuch, other\n";
        assert_eq!(delete(&["job", "nosuch", "other"], 4), unknown);
        assert!(delete(&["switch", "s1"], 2).contains("fabric file"));
        assert!(delete(&["jobs"], 2).contains("names of jobs"));
        assert_eq!(printed("get jobs -o jsonpath={[*].name}"), "train a b c\n");
        printed("delete job/train job/a");
        assert_eq!(printed("get jobs -o jsonpath={[*].name}"), "b c\n");
        // An unknown name does not stop the other deletions.
        let half = output(&[&["delete", "job", "nosuch", "b"], &at[..]].concat());
        assert_eq!(half.status.code(), Some(1), "{half:?}");
        assert_eq!(half.stdout, b"deleted b\n");
        let said = String::from_utf8(half.stderr).expect("text");
        let expected = "error: not all jobs were deleted: no job is named nosuch\n";
        assert_eq!(said, expected);
        assert_eq!(printed("get jobs -o name"), "job/c\n");
        printed("job delete nosuch --ignore-not-found");
        printed(&format!("apply -f {file}"));
        printed(&format!("delete -f {file}"));
        printed("delete jobs --all");
        printed(&format!("apply -f {file}"));
        let [one, other] = ["events --for job/a -o name", "events job/a -o name"].map(printed);
        assert!(one == other && !one.is_empty(), "{one}");
        printed("delete jobs --all");
        let folder = folder.path().display();
        printed(&format!("apply -f {folder}"));
        assert_eq!(
            printed("get jobs -o jsonpath={[*].name}"),
            "a b c
"
        );
        printed(&format!("delete -f {folder}"));
        assert_eq!(printed("get jobs -o name"), "");
        assert_eq!(printed("delete jobs --all -o json"), "[]\n");
    });
}

#[test]
fn wait_ends_when_jobs_are_ready_joined_or_deleted() {
    with_job(|stage, printed| {
        let at = ["--controller", &stage.controller.address()];
        let waited = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let found = output(&[&["wait"], &words[..], &at].concat());
            let said = String::from_utf8(found.stderr).expect("text");
            (found.status.code().expect("it ends"), said)
        };
        let done = (0, String::new());
        assert_eq!(waited("job/train"), done);
        assert_eq!(waited("jobs --for condition=Ready"), done);
        let (code, said) = waited("job train --for joined --timeout 10ms");
        assert_eq!(code, 6, "{said}");
        assert!(said.contains("rank 0 on h1, rank 1 on h3"), "{said}");
        let unknown = "error: no job is named other\n".to_owned();
        assert_eq!(waited("job/train job/other"), (4, unknown));
        assert_eq!(waited("switch s1").0, 2);
        let late = "error: job train: not deleted after 10ms\n".to_owned();
        assert_eq!(waited("job/train --for delete --timeout 10ms"), (6, late));
        let waits = [&["wait", "job/train", "--for", "delete"], &at[..]].concat();
        let mut waits = ultima(&waits).spawn().expect("it starts");
        printed("delete job/train");
        assert_eq!(waits.wait().expect("it ends").code(), Some(0));
        assert_eq!(waited("job/train --for deleted"), done);
    });
}

#[test]
fn verbs_of_kubectl_lead_to_our_commands() {
    for (verb, ours) in [
        ("drain", "fabric drain"),
        ("scale", "job resize"),
        ("rollout", "wait"),
    ] {
        let said = refused(&[verb, "s1"]);
        let similar = format!("'{verb}'; a similar subcommand exists: '{ours}'\n");
        assert!(said.ends_with(&similar), "{said}");
    }
    let selects = "error: unexpected argument '-l' found\n";
    assert_eq!(refused(&["get", "jobs", "-l", "app=x"]), selects);
    for (group, verb, ours) in [
        ("job", "describe", "describe job/NAME"),
        ("fabric", "describe", "describe KIND/NAME"),
        ("job", "events", "events job/NAME"),
    ] {
        let said = refused(&[group, verb, "s1"]);
        let ours = format!("exists: 'ultima {ours}'\n");
        assert!(said.ends_with(&ours), "{said}");
    }
}

#[test]
fn a_watch_prints_what_changes() {
    with_job(|stage, printed| {
        let address = stage.controller.address();
        let mut watch = ultima(&["get", "jobs", "-w", "-o", "name", "--controller", &address]);
        let mut watch = watch.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
        let mut next = || lines.next().expect("a line").expect("text");
        assert_eq!(next(), "job/train");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        fs::write(&file, "{ name: second, members: [h1, h3] }").expect("written");
        printed(&format!("job create -f {}", file.display()));
        assert_eq!(next(), "job/second");
        printed("job delete second");
        assert_eq!(next(), "job/second deleted");
        watch.kill().expect("it runs");
        watch.wait().expect("it ends");
    });
}

#[test]
fn a_context_names_a_controller() {
    with_job(|stage, _| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.yaml");
        let address = stage.controller.address();
        let text = format!(
            "current: gone\ncontexts:\n  gone: {{ controller: '127.0.0.1:1' }}\n  here: {{ controller: '{address}' }}\n"
        );
        fs::write(&file, text).expect("written");
        let run = |options: &[&str]| {
            let mut get = ultima(&[&["get", "jobs", "-o", "name"], options].concat());
            get.env("ULTIMA_CONFIG", &file)
                .env_remove("ULTIMA_CONTROLLER");
            let output = get.output().expect("it runs");
            let said = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8(said).expect("text"))
        };
        assert_eq!(run(&["--context", "here"]), (Some(0), "job/train\n".into()));
        let mut get = ultima(&["--context", "here", "get", "jobs", "-o", "name"]);
        let before = get.env("ULTIMA_CONFIG", &file).output().expect("it runs");
        assert_eq!(before.stdout, b"job/train\n", "{before:?}");
        assert_eq!(run(&[]).0, Some(3));
        // The option goes before the variables, and these before `current`.
        for (variable, value, options) in [
            ("ULTIMA_CONTEXT", "here", &[][..]),
            ("ULTIMA_CONTROLLER", &address, &[]),
            ("ULTIMA_CONTROLLER", "127.0.0.1:1", &["--context", "here"]),
            ("ULTIMA_CONTEXT", "gone", &["--controller", &address]),
        ] {
            let mut get = ultima(&[&["get", "jobs", "-o", "name"], options].concat());
            let output = get
                .env("ULTIMA_CONFIG", &file)
                .env(variable, value)
                .output();
            let output = output.expect("it runs");
            assert_eq!(output.stdout, b"job/train\n", "{variable} {options:?}");
        }
        let (code, said) = run(&["--context", "moon"]);
        assert!(
            code == Some(2) && said.contains("there are: gone, here"),
            "{code:?} {said}"
        );
        let (code, said) = run(&["--context", "here", "--controller", &address]);
        assert!(
            code == Some(2) && said.contains("--context"),
            "{code:?} {said}"
        );
        fs::remove_file(&file).expect("ours");
        for options in [&[][..], &["--context", "here"]] {
            let expected = format!(
                "error: {}: No such file or directory (os error 2)\n",
                file.display()
            );
            assert_eq!(run(options), (Some(2), expected));
        }
    });
}

#[test]
fn events_are_listed_counted_and_described() {
    with_job(|stage, printed| {
        let address = stage.controller.address();
        for verb in ["drain", "undrain", "drain"] {
            // The job has a member there, which the exit code says.
            output(&["fabric", verb, "s1", "--controller", &address]);
        }
        let all: Value = serde_json::from_str(&printed("events -o json")).expect("JSON");
        let all: Vec<[&str; 2]> = (all.as_array().expect("a list").iter())
            .map(|event| ["object", "reason"].map(|field| event[field].as_str().expect("text")))
            .collect();
        for event in [
            ["job/train", "Created"],
            ["switch/s1", "Undrained"],
            ["switch/s1", "Drained"],
        ] {
            assert!(all.contains(&event), "{event:?}: {all:?}");
        }
        let of_switch = printed("events switch/s1");
        let words =
            |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        let rows: Vec<Vec<String>> = of_switch.lines().map(words).collect();
        assert_eq!(
            rows[0],
            ["LAST-SEEN", "COUNT", "OBJECT", "REASON", "MESSAGE"]
        );
        assert_eq!(rows[1][1..], ["1", "switch/s1", "Undrained"]);
        assert_eq!(rows[2][1..], ["2", "switch/s1", "Drained"]);
        assert!(printed("describe switch/s1").ends_with(&rows_after(&of_switch)));
        assert!(!printed("events jobs").contains("switch/"));
        assert!(printed("get events -o wide").contains("FIRST-SEEN"));
    });
}

/// A job of the same name is another object: `describe` shows only its events, and `events` tells them apart.
#[test]
fn a_new_job_has_none_of_the_events_of_a_deleted_job_of_its_name() {
    with_job(|_, printed| {
        let uid = || {
            printed("get job train -o jsonpath={.status.uid}")
                .trim()
                .to_owned()
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, printed("get job train -o yaml")).expect("written");
        let uids = [uid(), {
            printed("delete job train");
            printed(&format!("apply -f {}", file.path().display()));
            uid()
        }];
        assert!(uids[0] != uids[1] && uids[1].len() == 16, "{uids:?}");
        let as_kubectl = printed("get jobs -o jsonpath={.items[*].metadata.uid}");
        assert_eq!(as_kubectl, format!("{}\n", uids[1]));
        let described = printed("describe job/train");
        assert!(
            described.contains("Created") && !described.contains("Deleted"),
            "{described}"
        );
        let all: Value = serde_json::from_str(&printed("events job/train -o json")).expect("JSON");
        let of = |reason: &str| -> Vec<String> {
            let events = all.as_array().expect("a list").iter();
            let events = events.filter(|event| event["reason"] == reason);
            events
                .map(|event| event["uid"].as_str().expect("text").to_owned())
                .collect()
        };
        assert_eq!(of("Created"), uids);
        assert_eq!(of("Deleted"), [uids[0].clone()]);
        let wide = printed("events job/train -o wide");
        assert!(uids.iter().all(|uid| wide.contains(uid)), "{wide}");
    });
}

#[test]
fn joins_leaves_and_fetched_keys_are_events() {
    with_job(|stage, printed| {
        let client = stage.controller.client();
        stage.testbed.runtime.block_on(async {
            let join = |host| client.join("train", host, Duration::ZERO);
            join("h1").await.expect("a seat");
            let seat = join("h3").await.expect("a seat");
            client.leave(seat.leave("train")).await.expect("it left");
        });
        let events: Value =
            serde_json::from_str(&printed("events job/train -o json")).expect("JSON");
        let events: Vec<[&str; 2]> = (events.as_array().expect("a list").iter())
            .map(|event| ["reason", "message"].map(|field| event[field].as_str().expect("text")))
            .filter(|[reason, _]| *reason != "Created")
            .collect();
        let [first, second] = ["rank 0 on h1", "rank 1 on h3"];
        let expected = [
            ["KeyFetched", first],
            ["Joined", first],
            ["KeyFetched", second],
            ["Joined", second],
            ["Left", second],
        ];
        assert_eq!(events, expected);
    });
}

/// A host's port, and one end of a link, are removed from a switch.
#[test]
fn describe_shows_the_events_of_a_job_a_host_and_a_link() {
    with_job(|stage, printed| {
        let grpc = stage.testbed.grpc()[0].to_string();
        for port in ["1", "9"] {
            let removed = output(&["switch", "port", "remove", port, "--grpc", &grpc]);
            assert!(removed.status.success(), "{removed:?}");
        }
        for (object, event) in [
            ("host/h1", "Down"),
            ("link/s1/9-s2/9", "Down"),
            ("job/train", "Created"),
            ("job/train", "Degraded"),
        ] {
            let describe = format!("describe {object}");
            wait_until(&format!("{describe}: {event}"), || {
                let text = printed(&describe);
                let events = text.split_once("\nEVENTS:\n").map(|(_, events)| events);
                events.is_some_and(|events| {
                    events.contains(&format!(" {object} ")) && events.contains(event)
                })
            });
        }
    });
}

/// `get` and `describe` show drained elements as drained, and those of a lost switch as unknown.
#[test]
fn drained_and_unknown_elements_are_not_shown_as_up() {
    Target::Sockets.run(Fabric::pair(), &[JOB], |mut stage| {
        let address = stage.controller.address();
        let run = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let found = output(&[&words[..], &["--controller", &address]].concat());
            let [out, said] =
                [found.stdout, found.stderr].map(|it| String::from_utf8(it).expect("text"));
            (found.status.code(), out, said)
        };
        let status = |object: &str| {
            let (_, table, said) = run(&format!("get {object} --no-headers"));
            let status = table.split_whitespace().nth(1);
            status
                .unwrap_or_else(|| panic!("{object}: {said}"))
                .to_owned()
        };
        assert_eq!(["host/h1", "port/s1/1"].map(status), ["Up", "Up"]);
        // The job's members stay there, so that the exit code is 1.
        assert_eq!(run("fabric drain s1/1").0, Some(1));
        let all = ["host/h1", "port/s1/1", "host/h2"].map(status);
        assert_eq!(all, ["Drained", "Drained", "Up"]);
        let (_, described, _) = run("describe job/train");
        let reason = "rank 0 uses port s1/1, which is drained";
        assert!(described.contains(reason), "{described}");
        run("fabric undrain s1/1");
        assert_eq!(run("fabric drain s2").0, Some(1));
        assert_eq!(
            ["host/h3", "port/s2/1", "port/s2/9"].map(status),
            ["Drained"; 3]
        );
        let reason = "h3: rank 1 uses switch s2, which is drained";
        let (_, described, _) = run("describe job/train");
        assert!(
            described.contains("STATUS:          Idle") && described.contains(&reason[4..]),
            "{described}"
        );

        // A ready job at a drained switch is no error, but the commands say so.
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "{ name: other, members: [h1, h3] }").expect("written");
        let (code, _, said) = run(&format!("job create -f {}", file.path().display()));
        let warning = |job: &str| format!("warning: job {job} is ready, but drained: {reason}\n");
        assert_eq!((code, said), (Some(0), warning("other")));
        let (code, _, said) = run("wait job/train");
        assert_eq!((code, said), (Some(0), warning("train")));
        run("fabric undrain s2");
        assert_eq!(run("wait job/train").2, "");
        let conditions = "get job train -o jsonpath={.status.conditions}";
        assert_eq!(run(conditions).1, "[]\n");

        stage.testbed.kill(1);
        wait_until("s2 is away", || status("switch/s2") == "NotReady");
        let all = ["host/h3", "port/s2/1", "port/s2/9", "host/h1"].map(status);
        assert_eq!(all, ["Unknown", "Unknown", "Unknown", "Up"]);
        let host: Value = serde_json::from_str(&run("get host h3 -o json").1).expect("JSON");
        assert_eq!(
            (&host["state"], &host["up"]),
            (&"unknown".into(), &false.into())
        );
    });
}

#[test]
fn a_host_whose_port_is_down_is_a_condition_of_its_jobs() {
    with_job(|stage, printed| {
        let grpc = stage.testbed.grpc()[0].to_string();
        let removed = output(&["switch", "port", "remove", "1", "--grpc", &grpc]);
        assert!(removed.status.success(), "{removed:?}");
        wait_until("train is degraded", || {
            let text = printed("describe job/train");
            let reason = "rank 0 receives nothing: port s1/1 is down";
            let (state, events) = text.split_once("\nEVENTS:\n").unwrap_or_default();
            state.contains("h1: degraded for ")
                && state.contains(reason)
                && events.contains(&format!("h1: {reason}"))
        });
    });
}

/// The last line of a table, without the age.
fn rows_after(table: &str) -> String {
    let last = table.lines().last().expect("a row");
    let (_, rest) = last.split_once(' ').expect("cells");
    format!("{}\n", rest.trim_start())
}
