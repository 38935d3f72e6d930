//! `ultima apply`: creates missing jobs, changes jobs that differ, and leaves the others unchanged.

use crate::common::{output, refused, refused_with};
use serde_json::Value;
use ultima_tests::fabric::Fabric;
use ultima_tests::stage::Target;

const JOBS: &str = "\
name: near
members: [h1, h2]
---
name: grid
members: [h1, h2, h3, h4]
groups: 2
weight: 3
";

#[test]
fn a_second_apply_changes_nothing() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.yaml");
        let file = path.to_str().expect("text");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        let apply = |options: &[&str]| {
            let output =
                output(&[&["apply", "-f", file, "--controller", &address], options].concat());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.is_empty(), "{errors}");
            let text = String::from_utf8(output.stdout).expect("text");
            (output.status.code().expect("it ends"), text)
        };
        let parts = [
            "near",
            "grid.row0",
            "grid.row1",
            "grid.column0",
            "grid.column1",
        ];
        let all = |what: &str| parts.map(|name| format!("{name}: {what}\n")).concat();
        write(JOBS);
        let (code, text) = apply(&["--dry-run"]);
        assert_eq!(code, 0);
        assert!(text.starts_with(&all("would be created")), "{text}");
        assert!(text.contains("\ngrid.row0: id 2 on s1\n"), "{text}");
        assert_eq!(apply(&[]), (0, all("created")));
        assert_eq!(apply(&[]), (0, all("unchanged")));

        // A missing job of a grid is created with the seed of the others.
        let at = ["--controller", &address];
        let job = |arguments: &[&str]| output(&[&["job"], arguments, &at].concat());
        job(&["delete", "grid.row1"]);
        let (code, text) = apply(&["-o", "json"]);
        let report: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(code, 0);
        let created = report["jobs"].as_array().expect("a list").iter();
        let created: Vec<&Value> = created.filter(|job| job["action"] == "created").collect();
        assert_eq!(created.len(), 1);
        assert_eq!(created[0]["name"], "grid.row1");
        let shown: Value =
            serde_json::from_slice(&job(&["show", "grid", "--output=json"]).stdout).expect("JSON");
        assert_eq!(shown[1]["seed"], shown[0]["seed"]);

        // Other members are a new epoch, which starts when all have joined.
        write(&JOBS.replace("[h1, h2]\n", "[h1, h3]\n"));
        let (code, text) = apply(&["--dry-run"]);
        assert_eq!(
            (code, text.contains("near: would be resized\n")),
            (0, true),
            "{text}"
        );
        // The entries of the new epoch are added to those of the current one.
        assert!(text.contains("\nnear: id "), "{text}");
        assert!(text.contains("\n+ "), "{text}");
        // --dry-run names what the controller would reject.
        write(&JOBS.replace("[h1, h2]\n", "[h1, h99]\n"));
        let (code, text) = apply(&["--dry-run"]);
        assert_eq!(code, 4, "{text}");
        let no_host = "jobs.yaml:2:15: members[1]: unknown host \"h99\"";
        assert!(text.contains(no_host), "{text}");
        assert!(
            text.starts_with("grid.row0: unchanged\n") && !text.contains("would be resized"),
            "{text}"
        );
        assert!(text.contains("near: would be rejected\n"), "{text}");
        let planned = output(&["fabric", "--controller", &address, "plan", "-f", file]);
        assert_eq!(planned.status.code(), Some(4));
        let text = String::from_utf8_lossy(&planned.stdout);
        assert!(text.contains(no_host), "{text}");
        let resized = refused_with(4, &["apply", "-f", file, "--controller", &address]);
        assert!(resized.contains(no_host), "{resized}");
        write(&JOBS.replace("[h1, h2]\n", "[h1, h3]\n"));
        // No rank has joined the old epoch, so none has to acknowledge the new one.
        let (code, text) = apply(&["--wait", "10s"]);
        assert_eq!(
            (code, text.contains("near: resized; ")),
            (0, true),
            "{text}"
        );
        let (code, text) = apply(&[]);
        assert_eq!(
            (code, text.contains("near: unchanged\n")),
            (0, true),
            "{text}"
        );

        // Fields on which members agree cannot change, and the grid stays as it is.
        job(&["delete", "grid.row1"]);
        let gather = "weight: 4\ngather: unicast\n---\nname: new\nmembers: [h3, h4]";
        write(&JOBS.replace("weight: 3", gather));
        let apply = |options: &[&str]| {
            let apply = ["apply", "-f", file, "--controller", &address];
            let output = output(&[&apply, options].concat());
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8(text).expect("text");
            (output.status.code().expect("it ends"), text)
        };
        let (code, text) = apply(&["--dry-run"]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("new: would be created\n"), "{text}");
        let grid = "grid.row0, grid.column0, grid.column1, grid.row1";
        let why =
            format!("the file differs from {grid} in fields that cannot change; delete the job first, or correct the file");
        let (code, text) = apply(&[]);
        assert_eq!(code, 1, "{text}");
        let differs = format!(
            "grid.row0: {file}:8:9: gather is multicast, but the file has unicast, and cannot change: members agree on it when they \
             join; delete"
        );
        assert!(text.contains(&differs), "{text}");
        assert!(text.contains("new: created\n"), "{text}");
        assert!(
            text.ends_with(&format!(
                "error: applied near, new, but not the rest: {why}\n"
            )),
            "{text}"
        );
        assert!(!job(&["show", "grid.row1"]).status.success());
        let (code, text) = apply(&[]);
        assert_eq!(code, 5, "{text}");
        assert!(
            text.ends_with(&format!("error: {why}; nothing was changed\n")),
            "{text}"
        );
        for (from, to, why) in [
            ("weight: 3", "sealed: false", "sealed is true, but the file has false"),
            ("weight: 3", "seed: 1", "but the file has 1"),
            ("[h1, h2, h3, h4]", "[h1, h2, h4, h3]", "the members of a grid are fixed"),
        ] {
            write(&JOBS.replace(from, to));
            let (code, text) = apply(&["--dry-run"]);
            assert_eq!(code, 5, "{text}");
            assert!(text.contains(why), "{text}");
        }
    });
}

/// Settings that members do not know change while they run, also together with members.
#[test]
fn apply_changes_settings_in_place() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.yaml");
        let file = path.to_str().expect("text");
        let at = ["--controller", &address];
        let apply = |text: &str, options: &[&str]| {
            std::fs::write(&path, text).expect("written");
            let output = output(&[&["apply", "-f", file], &at[..], options].concat());
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8(text).expect("text");
            (output.status.code().expect("it ends"), text)
        };
        let settings = || {
            let path = "jsonpath={.weight} {.loss_threshold} {.evict_after_s} {.status.epoch}";
            let got = output(&[&["get", "job", "near", "-o", path], &at[..]].concat());
            let got = String::from_utf8(got.stdout).expect("text");
            got.trim_end().to_owned()
        };
        apply(JOBS, &[]);
        let before = settings();
        let other = JOBS.replace(
            "[h1, h2]\n",
            "[h1, h2]\nweight: 5\nloss_threshold: 0\nevict_after_s: 60\n",
        );
        let all = "loss_threshold: 1 -> 0, weight: 1 -> 5, evict_after_s: 0 -> 60";
        let (code, text) = apply(&other, &["--dry-run"]);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains(&format!("near: would be changed ({all})\n")),
            "{text}"
        );
        assert_eq!(settings(), before);
        let (code, text) = apply(&other, &[]);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.ends_with(&format!("near: changed ({all})\n")),
            "{text}"
        );
        assert_eq!(settings(), "5 0 60 1");
        let (code, text) = apply(&other, &[]);
        assert!(code == 0 && text.starts_with("near: unchanged\n"), "{text}");
        // Without a line, a setting has its default again. A grid's jobs change, too.
        let both = JOBS
            .replace("[h1, h2]\n", "[h1, h3]\n")
            .replace("weight: 3", "weight: 4");
        let (code, text) = apply(&both, &["--prune", "--wait", "10s"]);
        assert_eq!(code, 0, "{text}");
        let back = "(loss_threshold: 0 -> 1, weight: 5 -> 1, evict_after_s: 60 -> 0)";
        assert!(
            text.contains(&format!(
                "near: resized; a running job changes when all new members have joined {back}\n"
            )),
            "{text}"
        );
        assert!(
            text.contains("grid.column1: changed (weight: 3 -> 4)\n"),
            "{text}"
        );
        assert_eq!(settings(), "1 1 0 2");
        let (code, text) = apply(&both, &[]);
        assert!(code == 0 && !text.contains("changed ("), "{text}");
    });
}

#[test]
fn all_files_are_read_before_the_first_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.yaml");
    let file = path.to_str().expect("text");
    std::fs::write(
        &path,
        format!("{JOBS}---\nname: worse\nmembers: [h1, h2]\nweight: 0\n"),
    )
    .expect("written");
    let text = refused(&["apply", "-f", file]);
    assert!(
        text.contains("jobs.yaml:11:9: weight: 0 is out of range; use a weight of 1 to 100"),
        "{text}"
    );
    std::fs::write(
        &path,
        "{ name: a, members: [h1, h2] }\n--- { name: a, members: [h1, h2] }\n",
    )
    .expect("written");
    let text = refused(&["apply", "-f", file]);
    assert!(
        text.contains("jobs.yaml:2:13: name: duplicate job a"),
        "{text}"
    );
    for nothing in ["", "# nothing\n---\n"] {
        std::fs::write(&path, nothing).expect("written");
        let text = refused(&["apply", "-f", file]);
        assert!(text.contains("jobs.yaml: the file has no job"), "{text}");
    }
    std::fs::write(&path, JOBS).expect("written");
    refused_with(3, &["apply", "-f", file, "--controller", "127.0.0.1:1"]);
}

#[test]
fn an_apply_that_fails_half_way_has_exit_code_1() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.yaml");
        let file = path.to_str().expect("text");
        let apply = ["apply", "-f", file, "--controller", &address];
        let wrong = "{ name: two, members: [h1, h99] }\n";
        std::fs::write(&path, wrong).expect("written");
        let text = refused_with(4, &apply);
        assert!(
            text.starts_with(&format!(
                "error: {file}:1:28: members[1]: unknown host \"h99\""
            )) && text.ends_with("; nothing was changed\n"),
            "{text}"
        );
        let dry_run = || output(&[&apply[..], &["--dry-run"]].concat()).status.code();
        assert_eq!(dry_run(), Some(4));
        // Missing jobs are created all together or not at all.
        let both = format!("{{ name: one, members: [h1, h2] }}\n--- {wrong}");
        std::fs::write(&path, both).expect("written");
        let text = refused_with(4, &apply);
        let no_host = format!("{file}:2:32: members[1]: unknown host \"h99\"");
        assert!(
            text.starts_with(&format!("error: {no_host}"))
                && text.ends_with("; nothing was changed\n"),
            "{text}"
        );
        assert!(
            stage
                .testbed
                .runtime
                .block_on(stage.controller.client().jobs())
                .expect("it answers")
                .is_empty()
        );
        // Existing jobs are changed first.
        std::fs::write(&path, "{ name: one, members: [h1, h2] }\n").expect("written");
        assert!(output(&apply).status.success());
        let other = format!("{{ name: one, members: [h1, h3] }}\n--- {wrong}");
        std::fs::write(&path, other).expect("written");
        assert_eq!(dry_run(), Some(1));
        let text = refused_with(1, &apply);
        assert!(text.contains("applied one, but not the rest"), "{text}");
        assert!(text.contains(&no_host), "{text}");
    });
}

/// An error of the controller names the place in the file, for a grid, too, whose jobs order the members differently.
#[test]
fn an_error_of_the_controller_names_the_place_in_the_file() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.yaml");
        let file = path.to_str().expect("text");
        let create = ["job", "--controller", &address, "create", "-f", file];
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        let grid = "# Rows and columns.\nname: train\nmembers:\n  - h1\n  - h2\n  - h3\n  - h99\ngroups: 2\n";
        write(grid);
        let text = refused_with(4, &create);
        assert!(
            text.starts_with(&format!("error: {file}:7:5: members[3]: unknown host \"h99\"")),
            "{text}"
        );
        write(&grid.replace("h99", "h4"));
        assert!(output(&create).status.success());
        let text = refused_with(5, &create);
        assert!(
            text.starts_with(&format!("error: {file}:2:7: name: job train.row0 already exists; ")),
            "{text}"
        );
    });
}

#[test]
fn wait_names_the_missing_ranks_of_created_jobs() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.yaml");
        std::fs::write(&path, JOBS).expect("written");
        let file = path.to_str().expect("text");
        let at = ["apply", "-f", file, "--controller", &address];
        let waited = output(&[&at[..], &["--wait", "2s"]].concat());
        let (said, late) = (&waited.stdout, &waited.stderr);
        let (said, late) = (String::from_utf8_lossy(said), String::from_utf8_lossy(late));
        assert_eq!(waited.status.code(), Some(6), "{late}");
        assert!(said.contains("near: created\n"), "{said}");
        let missing = "not joined after 2s: rank 0 on h1";
        assert!(late.contains(missing), "{late}");
    });
}

#[test]
fn prune_deletes_the_jobs_that_no_file_names() {
    let old = "{ name: old, members: [h1, h3] }";
    Target::Sockets.run(Fabric::pair(), &[old], |stage| {
        let address = stage.controller.address();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.yaml");
        let file = path.to_str().expect("text");
        let apply = |text: &str, options: &[&str]| {
            std::fs::write(&path, text).expect("written");
            let apply = ["apply", "-f", file, "--controller", &address];
            let output = output(&[&apply[..], options].concat());
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8(said).expect("text");
            (output.status.code().expect("it ends"), said)
        };
        let new = "{ name: new, members: [h2, h4] }";
        let (code, text) = apply(new, &["--prune", "--dry-run"]);
        assert_eq!(code, 0, "{text}");
        let planned = "new: would be created\nold: would be deleted\n";
        assert!(text.starts_with(planned), "{text}");
        // Nothing is deleted if the rest does not fit.
        let (code, text) = apply("{ name: new, members: [h2, h99] }", &["--prune"]);
        assert_eq!(code, 4, "{text}");
        assert!(text.ends_with("; nothing was changed\n"), "{text}");
        assert!(
            text.contains("jobs.yaml:1:28: members[1]: unknown host \"h99\""),
            "{text}"
        );
        // Without the option, other jobs stay.
        assert_eq!(apply(new, &[]), (0, "new: created\n".into()));
        // Nothing is deleted if a job differs.
        for options in [&["--prune", "--dry-run"][..], &["--prune"]] {
            let (code, text) = apply("{ name: old, members: [h1, h3], sealed: false }", options);
            assert_eq!(code, 5, "{text}");
        }
        // Another controller is the primary of the second switch.
        stage.operate(1, async |_| {
            let (code, text) = apply(new, &["--prune"]);
            let deleted = "new: unchanged\nold: deleted; disconnected: s2; ";
            assert!(code == 0 && text.starts_with(deleted), "{text}");
        });
        let names = output(&["get", "jobs", "-o", "name", "--controller", &address]);
        assert_eq!(names.stdout, b"job/new\n");
    });
}

/// The output of `get` is a file of jobs: `apply` and `job create` ignore the status, and no other unknown field.
#[test]
fn printed_jobs_are_files_of_jobs() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let at = ["--controller", &stage.controller.address()];
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.yaml");
        let file = path.to_str().expect("text");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        let done = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            let output = output(&[&words[..], &at].concat());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{words:?}: {errors}");
            String::from_utf8(output.stdout).expect("text")
        };
        write(&JOBS.replace("weight: 3", "weight: 3\nseed: 18446744073709551615"));
        done(&format!("apply -f {file}"));
        let jobs = "near grid.row0 grid.row1 grid.column0 grid.column1";
        let all = |what: &str| {
            let lines = jobs.split(' ').map(|name| format!("{name}: {what}\n"));
            lines.collect::<String>()
        };
        for (get, expected) in [
            ("get job near -o yaml", "near: unchanged\n".to_owned()),
            ("get jobs -o yaml", all("unchanged")),
            ("get jobs -o json", all("unchanged")),
        ] {
            write(&done(get));
            assert_eq!(done(&format!("apply -f {file}")), expected, "{get}");
        }
        // The jobs can be created from it again.
        let before = done("get jobs -o yaml");
        write(&before);
        done("delete jobs --all");
        assert_eq!(done(&format!("apply -f {file}")), all("created"));
        done(&format!("delete -f {file}"));
        let near = before.split("\n- name").next().expect("a job");
        write(near);
        let created = done(&format!("job create -f {file} -o json"));
        let created: Value = serde_json::from_str(&created).expect("JSON");
        let before: Value = serde_yaml::from_str(&before).expect("YAML");
        for field in ["name", "members", "seed", "gather"] {
            assert_eq!(created[field], before[0][field], "{field}");
        }
        // The new members of a change that has begun are the job's members.
        done("job resize near --add h3");
        write(&done("get job near -o yaml"));
        assert_eq!(done(&format!("apply -f {file}")), "near: unchanged\n");
        write(&near.replace("  weight:", "  wait:"));
        let typo = refused(&[&["apply", "-f", file], &at[..]].concat());
        assert!(typo.contains("unknown field `wait`"), "{typo}");
    });
}
