//! The keys of sealed jobs and the tokens of members are in no log and in no output of a command.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::runtime;
use ultima_api::client::Client;
use ultima_api::v1::JoinResponse;

use crate::common::{Switch, ultima};

/// Commands whose output shows jobs, their entries and events. `JOBS` and `FABRIC` are files.
const COMMANDS: [&str; 17] = [
    "get job train other -o json",
    "get job train other -o yaml",
    "get all",
    "get jobs -o wide",
    "job show train",
    "describe job train",
    "events",
    "events -o json",
    "events -o yaml",
    "fabric show -o json",
    "fabric diff",
    "fabric diff -o json",
    "fabric plan -f JOBS",
    "fabric plan -f JOBS --without train -o json",
    "fabric plan -f JOBS --without train -o yaml",
    "fabric plan -f FABRIC -o json",
    "telemetry train -o json",
];

/// A process with a log of level `trace`. Dropping it ends the process.
struct Logging(Child);

impl Drop for Logging {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn logging(arguments: &[&str]) -> Command {
    let mut command = ultima(arguments);
    command.env("ULTIMA_LOG", "trace");
    command
}

/// Bytes in the forms in which Rust prints them, without white space.
fn forms(bytes: &[u8]) -> Vec<String> {
    let list = |print: fn(&u8) -> String| bytes.iter().map(print).collect::<Vec<_>>().join(",");
    let hex = bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("memory");
        text
    });
    let lists = [
        list(|byte| format!("{byte}")),
        list(|byte| format!("{byte:x}")),
        list(|byte| format!("{byte:02x}")),
        list(|byte| format!("{byte:#x}")),
        list(|byte| format!("{byte:#04x}")),
    ];
    let escaped = bytes.escape_ascii().to_string().to_lowercase();
    lists.into_iter().chain([hex, escaped]).collect()
}

/// The form of a secret that is in a text; none if none is.
fn found(text: &str, secrets: &[String]) -> Option<String> {
    let text: String = text.split_whitespace().collect();
    let text = text.to_lowercase();
    secrets.iter().find(|form| text.contains(*form)).cloned()
}

#[test]
fn each_printed_form_of_a_key_is_found() {
    let key: Vec<u8> = (0..16).map(|at| 7 + 16 * at).collect();
    let secrets = forms(&key);
    let of_bytes = key.escape_ascii();
    for text in [
        format!("{key:?}"),
        format!("{key:#?}"),
        format!("{key:x?}"),
        format!("{key:02X?}"),
        format!("{key:#04x?}"),
        format!("b\"{of_bytes}\""),
        format!(
            "{:032x}",
            u128::from_be_bytes(key.clone().try_into().expect("16"))
        ),
    ] {
        assert!(found(&text, &secrets).is_some(), "{text}");
    }
    assert_eq!(found("7, 23, 39", &secrets), None);
}

#[test]
fn keys_and_tokens_are_in_no_log_and_no_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let switch = Switch::start(&[]);
    let text = include_str!("../../../topologies/star4.yaml");
    let (fabric, jobs, log) = (path("fabric.yaml"), path("jobs.yaml"), path("log"));
    fs::write(&fabric, text.replace("127.0.0.1:9559", &switch.address)).expect("written");
    let text = "{ name: train, members: [h1, h2] }\n---\n{ name: other, members: [h3, h4] }\n";
    fs::write(&jobs, text).expect("written");

    let serve = [
        "controller",
        "serve",
        "--state",
        "memory",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut serve = logging(&[&serve[..], &["--fabric", &fabric]].concat());
    let errors = File::create(&log).expect("a file");
    let child = serve.stdout(Stdio::piped()).stderr(errors).spawn();
    let mut controller = Logging(child.expect("it starts"));
    let mut line = String::new();
    let stdout = controller.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on ");
    let address = address.expect("it listens");

    let mut printed = Vec::new();
    let mut run = |line: &str| {
        let line = line.replace("JOBS", &jobs).replace("FABRIC", &fabric);
        let words: Vec<&str> = line.split(' ').collect();
        let output = logging(&[&words[..], &["--controller", address]].concat()).output();
        let output = output.expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let [shown, log] = [output.stdout, output.stderr].map(text);
        assert!(
            output.status.code() != Some(2) && !shown.is_empty(),
            "{line}: {log}"
        );
        printed.push((line.clone(), shown + &log));
    };
    run("apply -f JOBS -o json");

    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let client = runtime
        .block_on(Client::connect(address))
        .expect("it answers");
    let join = |job: &str, host: &str, wait: u64| -> JoinResponse {
        let joined = client.join(job, host, Duration::from_secs(wait));
        runtime.block_on(joined).expect("a seat")
    };
    let mut seats = vec![join("train", "h1", 0), join("train", "h2", 0)];
    run("job resize train --add h3 -o json");
    // The key of the next epoch.
    seats.push(join("train", "h3", 0));
    assert!(
        seats[2].epoch == 2 && seats[2].key != seats[0].key,
        "{seats:?}"
    );

    // An agent gets the key. It cannot use the address of its host.
    let agent = [
        "agent",
        "--job",
        "other",
        "--host",
        "h3",
        "--controller",
        address,
    ];
    let (mut agent, of_agent) = (logging(&agent), path("agent"));
    let errors = File::create(&of_agent).expect("a file");
    let agent = agent.stdout(Stdio::null()).stderr(errors).spawn();
    let mut agent = Logging(agent.expect("it starts"));
    seats.push(join("other", "h4", 60));
    agent.0.wait().expect("it ends");

    COMMANDS.iter().for_each(|line| run(line));
    // Its log is complete when it has ended.
    drop(controller);
    for (name, log) in [("controller", log), ("agent", of_agent)] {
        let text = fs::read_to_string(log).expect("a log");
        assert!(text.contains("TRACE"), "{name}: {text}");
        printed.push((name.to_owned(), text));
    }
    for seat in seats {
        assert_eq!(seat.key.len(), 16, "job {} is sealed", seat.job_id);
        let mut secrets = forms(&seat.key);
        secrets.extend([seat.token.to_string(), format!("{:x}", seat.token)]);
        for (name, text) in &printed {
            let form = found(text, &secrets);
            assert_eq!(form, None, "in {name}");
        }
    }
}
