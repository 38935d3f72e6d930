//! Bad input: one line with the place, the problem and the expected value; exit code 2.

use std::fs;

use crate::common::{self, refused, refused_with};

fn assert_says(arguments: &[&str], parts: &[&str]) {
    assert_has(arguments, &refused(arguments), parts);
}

fn assert_has(arguments: &[&str], line: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            line.contains(part),
            "{arguments:?} says {line:?}, which lacks {part:?}"
        );
    }
}

#[test]
fn bad_options_are_rejected() {
    assert_says(
        &["demo", "--workers", "1"],
        &["'1' for '--workers <N>': expected an integer from 2 to 32"],
    );
    assert_says(
        &["switch", "--device-id", "x"],
        &["'x' for '--device-id <ID>'"],
    );
    assert_says(&["demo", "--loss", "2"], &["--loss", "at most 1"]);
    assert_says(&["demo", "--loss", "-1"], &["--loss", "at least 0"]);
    assert_says(&["demo", "--grpc", "here"], &["--grpc", "ADDRESS:PORT"]);
    assert_says(&["demo", "--burst-loss", "0.1"], &["--burst-loss", "P:LEN"]);
    assert_says(&["demo", "--straggler", "2:5"], &["--straggler", "P:MS"]);
    assert_says(&["demo", "--late", "two:5"], &["--late", "RANK:MS"]);
    assert_says(&["demo", "--late", "4:5"], &["rank 4", "0 to 3"]);
    assert_says(&["demo", "--skip-loss", "2"], &["--skip-loss", "0 to 1"]);
    assert_says(&["demo", "--estimator", "best"], &["--estimator", "scaled"]);
    assert_says(
        &["demo", "--preset", "published", "--recycling", "on"],
        &["--estimator scaled", "--recycling off"],
    );
    assert_says(
        &["agent", "--job", "x", "--recycle", "--verify"],
        &["--recycle", "--verify"],
    );
    assert_says(
        &["agent", "--job", "x", "--recycle", "--preset", "published"],
        &["recycling", "estimator scaled"],
    );
    assert_says(
        &["demo", "--stop-loss", "0.1:0"],
        &["--stop-loss", "SHARE:N"],
    );
    assert_says(
        &["demo", "--drop-slots", "9..3"],
        &["--drop-slots", "A < B"],
    );
    assert_says(
        &["demo", "--drop-slots", "5000..6000"],
        &[
            "--drop-slots 5000..6000: a shard has ",
            " slots; expected a range in 0..",
        ],
    );
    assert_says(&["demo", "--link-delay", "5"], &["--link-delay", "unit"]);
    assert_says(
        &["demo", "--link-rate", "0"],
        &["--link-rate", "bits per second, more than 0"],
    );
    assert_says(&["demo", "--deadline", "0ms"], &["--deadline"]);
    assert_says(&["demo", "--steps", "0"], &["--steps", "from 1 to 1000000"]);
    assert_says(&["demo", "--shards", "odd"], &["--shards", "by-class"]);
    assert_says(&["demo", "--programm", "x"], &["--programm"]);
    assert_says(&["demo", "--program", "x"], &["--p4info"]);
    assert_says(&["switch", "-i", "1veth"], &["PORT@INTERFACE"]);
    assert_says(&["switch", "-i", "600@veth"], &["600"]);
    assert_says(&["frobnicate"], &["frobnicate"]);
    for wrong in ["0s", "24.1h", "5d"] {
        assert_says(
            &[
                "job",
                "resize",
                "train",
                "--add",
                "h1",
                "--join-timeout",
                wrong,
            ],
            &["--join-timeout", "expected a time "],
        );
    }
    let agent = |option| ["agent", "--job", "x", option, "0"];
    assert_says(&agent("--ranks"), &["--ranks", "from 1 to 65535"]);
    assert_says(
        &agent("--allreduce"),
        &["--allreduce", "from 1 to 4294967295"],
    );
    assert_says(&agent("--repeat"), &["--repeat", "from 1 to 4294967295"]);
    let negative = "no option takes a negative value";
    assert_says(&["demo", "--workers", "-1"], &["-1", negative]);
    assert_says(&["fabric", "sync", "--wait", "-1s"], &["-1", negative]);
}

/// The command may have done its work, so the exit code is not that of bad input.
#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    for arguments in [&["schema", "job"][..], &["--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let output = common::ultima(arguments)
            .stdout(full.expect("a full device"))
            .stderr(std::process::Stdio::piped())
            .output()
            .expect("the binary runs");
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(
            text.starts_with("error: cannot write to standard output: No space left")
                && text.lines().count() == 1,
            "{arguments:?}: {text}"
        );
    }
}

/// An error is one line of text, even if a name or a key has control characters.
#[test]
fn control_characters_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let shown = |arguments: &[&str], parts: &[&str]| {
        let line = refused(arguments);
        assert_has(arguments, &line, parts);
        assert!(!line.trim_end().contains(char::is_control), "{line:?}");
    };
    let key = file(
        "job.yaml",
        "name: x\nmembers: [h1, h2]\n\"a\\nerror: \\e[2J\": 1\n",
    );
    shown(
        &["job", "create", "-f", &key],
        &[r"unknown field `a\nerror: \u{1b}[2J`"],
    );
    shown(
        &["apply", "-f", "no\nsuch\u{1b}file"],
        &[r"no\nsuch\u{1b}file: "],
    );
    shown(
        &["job", "list", "--controller", "a\nb:5"],
        &["--controller"],
    );
}

#[test]
fn bad_programs_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ours = ultima_p4::v1model();
    let json = file("ultima.json", ours.device_config);
    let p4info = file("ultima.p4info.txtpb", ours.p4info.as_bytes());

    assert_says(
        &["demo", "--program", "missing.json", "--p4info", &p4info],
        &["missing.json", "No such file"],
    );
    assert_says(
        &["demo", "--program", &json, "--p4info", "missing.txtpb"],
        &["missing.txtpb"],
    );
    let renamed = ours
        .p4info
        .replace("UltimaIngress.jobs.job", "UltimaIngress.jobs.jobs");
    let renamed = file("renamed.p4info.txtpb", renamed.as_bytes());
    assert_says(
        &["demo", "--program", &json, "--p4info", &renamed],
        &["UltimaIngress.jobs.job"],
    );
    let cut = file("cut.json", &ours.device_config[..1000]);
    assert_says(&["demo", "--program", &cut, "--p4info", &p4info], &["line"]);
    assert_says(
        &["switch", "--program", &cut, "--p4info", &p4info],
        &["cut.json: program: line"],
    );
    assert_says(
        &["switch", "--program", &json, "--p4info", &json],
        &["ultima.json: P4Info: "],
    );
    let trace = ["switch", "trace", "--port", "1", "--frame", "00"];
    assert_says(
        &[&trace[..], &["--program", &cut, "--p4info", &p4info]].concat(),
        &["cut.json: line"],
    );
    assert_says(
        &[&trace[..], &["--program", &json, "--p4info", &json]].concat(),
        &["ultima.json: P4Info: "],
    );
    assert_says(
        &[
            "switch",
            "--grpc",
            "127.0.0.1:0",
            "-i",
            "1@fd:3",
            "-i",
            "1@fd:4",
        ],
        &["port 1", "twice"],
    );
    assert_says(
        &["switch", "--grpc", "127.0.0.1:0", "-i", "1@no-such-if0"],
        &["port 1", "no-such-if0"],
    );
}

#[test]
fn bad_fabrics_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let serve_with = |code, yaml: &str, parts: &[&str]| {
        let path = dir.path().join("fabric.yaml");
        fs::write(&path, yaml).unwrap();
        let arguments = [
            "controller",
            "serve",
            "--state",
            "memory",
            "--listen",
            "127.0.0.1:0",
            "--startup-timeout",
            "300ms",
            "--fabric",
            path.to_str().unwrap(),
        ];
        assert_has(&arguments, &refused_with(code, &arguments), parts);
    };
    let serve = |yaml: &str, parts: &[&str]| serve_with(2, yaml, parts);
    let good = "\
switches:
  - { name: s1, target: v1model, grpc: \"127.0.0.1:1\", device_id: 1 }
hosts:
  - { name: h1, mac: \"02:00:00:00:00:01\", ip: 10.0.0.1 }
  - { name: h2, mac: \"02:00:00:00:00:02\", ip: 10.0.0.2 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [h2, s1/2] }
";
    // No process listens at port 1.
    serve_with(3, good, &["s1", "127.0.0.1:1", "does not answer"]);
    serve(
        &good.replace("device_id: 1", "device_id: 1, colour: red"),
        &["fabric.yaml", "colour", "2"],
    );
    serve(&good.replace("s1/2", "s1/1"), &["s1/1"]);
    serve(&good.replace("  - { ends: [h2, s1/2] }\n", ""), &["h2"]);
    serve(&good.replace("s1/2", "s2/2"), &["s2"]);
    serve(&good.replace("s1/2", "s1/600"), &["600"]);
    serve(&good.replace("10.0.0.2", "10.0.0.1"), &["10.0.0.1"]);
    serve("", &["fabric.yaml"]);
    assert_says(
        &["controller", "serve", "--fabric", "missing.yaml"],
        &["missing.yaml", "No such file"],
    );
    let star = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/star4.yaml");
    assert_says(
        &[
            "controller",
            "serve",
            "--fabric",
            star,
            "--program",
            "/nosuch",
        ],
        &["cannot read /nosuch: No such file", "pass the folder"],
    );
    let serve = [
        "controller",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--fabric",
        star,
    ];
    assert_says(
        &[&serve[..], &["--state", star]].concat(),
        &["star4.yaml is not a store of Ultima; pass --state with "],
    );
    let anywhere = ["--listen", "0.0.0.0:0", "--insecure", "--state"];
    let serve = ["controller", "serve", "--fabric", star];
    assert_says(
        &[&serve[..], &anywhere, &["etcd://127.0.0.1:1/x"]].concat(),
        &["0.0.0.0:0", "--advertise"],
    );
}

#[test]
fn bad_jobs_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.yaml");
    fs::write(&path, "name: train\nmembers: [h1]\nranks: 3\n").unwrap();
    let path = path.to_str().unwrap();
    assert_says(&["job", "create", "-f", path], &["job.yaml", "ranks", "3"]);
    assert_says(
        &["job", "create", "-f", "missing.yaml"],
        &["missing.yaml", "No such file"],
    );
    let unreachable = ["job", "list", "--controller", "127.0.0.1:1"];
    let line = refused_with(3, &unreachable);
    assert_has(&unreachable, &line, &["127.0.0.1:1", "does not answer"]);
    let unreachable = ["job", "list", "--controller", "127.0.0.1:1,127.0.0.1:2"];
    let line = refused_with(3, &unreachable);
    let none = "no controller at 127.0.0.1:1, 127.0.0.1:2 answers";
    assert_has(&unreachable, &line, &[none]);
    for (addresses, why) in [
        (
            "127.0.0.1:1",
            "error: the controller at 127.0.0.1:1 does not answer",
        ),
        (
            "127.0.0.1:1,127.0.0.1:2",
            "error: no controller at 127.0.0.1:1,127.0.0.1:2 answers\n",
        ),
    ] {
        let status = common::output(&["controller", "status", "--controller", addresses]);
        let line = String::from_utf8(status.stderr).expect("text");
        assert_eq!((status.status.code(), line.lines().count()), (Some(3), 1));
        assert!(line.starts_with(why) && !status.stdout.is_empty(), "{line}");
    }
    for nowhere in ["", "leaf1", "127.0.0.1:9555,", "http://127.0.0.1:9555"] {
        assert_says(
            &["job", "list", "--controller", nowhere],
            &["--controller", "expected HOST:PORT or unix:PATH"],
        );
    }
    assert_says(&["job", "list", "--controller", ""], &["ULTIMA_CONTROLLER"]);
    let variable = |name, value: &str, parts: &[&str]| {
        let refused = common::ultima(&["job", "list"]).env(name, value).output();
        let refused = refused.expect("the binary runs");
        let line = String::from_utf8(refused.stderr).expect("text");
        assert_eq!(
            (refused.status.code(), line.lines().count()),
            (Some(2), 1),
            "{line}"
        );
        assert_has(&[name, value], &line, parts);
    };
    variable("ULTIMA_CONTROLLER", "::", &["'::'", "ULTIMA_CONTROLLER"]);
    for wrong in ["debg", "ultima_host=debg", "warn,ultima_host"] {
        variable(
            "ULTIMA_LOG",
            wrong,
            &["ULTIMA_LOG", wrong, "warn, info, debug"],
        );
    }
    let two = dir.path().join("two.yaml");
    fs::write(
        &two,
        "{ name: a, members: [h1, h2] }\n---\n{ name: b, members: [h1, h2] }\n",
    )
    .unwrap();
    assert_says(
        &["job", "create", "-f", two.to_str().unwrap()],
        &["two.yaml:3:1: 2 jobs", "use `ultima apply -f` for several"],
    );
    let folder = dir.path().to_str().unwrap();
    assert_says(
        &["job", "create", "-f", folder],
        &["job.yaml:3:1: unknown field `ranks`"],
    );
    let empty = tempfile::tempdir().unwrap();
    assert_says(
        &["job", "create", "-f", empty.path().to_str().unwrap()],
        &["the folder has no .yaml, .yml or .json file"],
    );
    let dear = dir.path().join("dear.yaml");
    fs::write(&dear, "name: train\nmembers: [h1, h2]\nweight: dear\n").unwrap();
    assert_says(
        &["job", "create", "-f", dear.to_str().unwrap()],
        &["dear.yaml:3:9: weight: "],
    );
}
