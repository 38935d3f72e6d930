//! Killed controllers: committed jobs survive, and no job is half installed. Those that share etcd are here, those alone in `alone`.

mod alone;

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ultima_planner::job::JobSpec;

use crate::common::{Switch, output, ultima};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::Code;
use ultima_api::client::{Client, ClientError};
use ultima_testing::etcd::Etcd;
use ultima_testing::{full_run, per_run, signals};
use ultima_tests::needs;

/// The number of jobs that are created at once.
fn jobs() -> usize {
    per_run(30, 100)
}

/// The seed of the random places at which controllers are killed.
const SEED: u64 = 1;

/// Three switches in a row, and a folder for two controllers.
struct Bed {
    folder: tempfile::TempDir,
    switches: Vec<Switch>,
    fabric: PathBuf,
}

/// A controller's process. Dropping it kills the process.
struct Controller(Child);

impl Controller {
    /// Sends SIGKILL.
    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }

    fn signal(&self, signal: Signal) {
        signals::signal(self.0.id(), signal);
    }

    /// Limits the size of the process's files from now on; 0 acts as a full disk.
    fn limit_files(&self, bytes: &str) {
        let limit = [
            &format!("--pid={}", self.0.id()),
            &format!("--fsize={bytes}:"),
        ];
        let limited = Command::new("prlimit").args(limit).status();
        assert!(limited.expect("it runs").success());
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // The process may have been killed before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut text = "switches:\n".to_owned();
        let mut switches = Vec::new();
        for n in 1..=3 {
            let port = format!("1@unix:{}", folder.path().join(format!("p{n}")).display());
            let switch = Switch::start(&["-i", &port]);
            text += &format!(
                "  - {{ name: s{n}, target: v1model, grpc: \"{}\", device_id: 1 }}\n",
                switch.address
            );
            switches.push(switch);
        }
        text += "hosts:\n";
        for n in 1..=3 {
            text +=
                &format!("  - {{ name: h{n}, mac: \"02:00:00:00:00:0{n}\", ip: 10.0.0.{n} }}\n");
        }
        text += "links:\n";
        for n in 1..=3 {
            text += &format!("  - {{ ends: [h{n}, s{n}/1] }}\n");
        }
        text += "  - { ends: [s1/9, s2/9] }\n  - { ends: [s2/8, s3/8] }\n";
        let fabric = folder.path().join("fabric.yaml");
        std::fs::write(&fabric, text).expect("a file");
        Bed {
            folder,
            switches,
            fabric,
        }
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = self.folder.path();
        path.join(name).to_str().expect("a plain path").to_owned()
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}", self.path(&format!("{name}.sock")))
    }

    /// Starts a controller with a file of its own.
    fn start(&self, name: &str) -> Controller {
        let state = self.path(&format!("{name}.redb"));
        self.start_by(ultima(&[]), name, Some(&state), Stdio::inherit())
    }

    /// Starts a controller that shares etcd.
    fn start_with(&self, etcd: &Etcd, name: &str) -> Controller {
        self.start_by(ultima(&[]), name, Some(&state_of(etcd)), Stdio::inherit())
    }

    /// Starts a controller by a command that takes its arguments, with a destination for its log.
    fn start_by(
        &self,
        mut command: Command,
        name: &str,
        state: Option<&str>,
        log: Stdio,
    ) -> Controller {
        let fabric = self.fabric.to_str().expect("a plain path");
        let listen = self.address(name);
        let mut child = command
            .args(["controller", "serve", "--fabric", fabric])
            .args(["--listen", &listen])
            .args(state.into_iter().flat_map(|state| ["--state", state]))
            .args(
                state
                    .filter(|state| state.starts_with("etcd:"))
                    .map(|_| "--insecure"),
            )
            .env_remove("ULTIMA_LOG")
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, format!("listening on {listen}\n"));
        Controller(child)
    }
}

/// `--state` of controllers that share etcd.
fn state_of(etcd: &Etcd) -> String {
    format!("etcd://{}/three", etcd.endpoints().join(","))
}

fn name(n: usize) -> String {
    format!("job{n}")
}

fn spec(n: usize) -> JobSpec {
    JobSpec::new(name(n), ["h1", "h2", "h3"])
}

/// The numbers of answers after which controllers are killed: one in each third of the jobs, and none. A quick run has one
/// place.
fn places() -> Vec<usize> {
    let mut random = StdRng::seed_from_u64(SEED);
    let third = jobs() / 3;
    let thirds = (0..3).map(|at| 1 + at * third + random.random_range(0..third - 5));
    thirds.chain([0]).take(per_run(1, 4)).collect()
}

/// Creates all jobs at once and kills the controller after `after` answers; returns the committed jobs.
async fn create_and_kill(
    client: &Client,
    controller: &mut Controller,
    after: usize,
) -> Vec<String> {
    let promised = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..jobs())
        .map(|n| {
            let (client, promised) = (client.clone(), Arc::clone(&promised));
            tokio::spawn(async move {
                client.create_job(&spec(n)).await?;
                promised.fetch_add(1, Ordering::SeqCst);
                Ok::<String, ClientError>(name(n))
            })
        })
        .collect();
    if after == 0 {
        // The first request has left by then.
        sleep(Duration::from_millis(1)).await;
    }
    while promised.load(Ordering::SeqCst) < after {
        let are_over = tasks.iter().all(JoinHandle::is_finished);
        assert!(!are_over, "jobs are refused");
        sleep(Duration::from_millis(1)).await;
    }
    controller.kill();
    let mut names = Vec::new();
    for task in tasks {
        names.extend(task.await.expect("no panic"));
    }
    assert!(names.len() < jobs(), "it was killed too late");
    names
}

/// Waits until `comes_true` returns true. Fails after 60 seconds.
async fn until(what: &str, mut comes_true: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !comes_true().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = timeout(Duration::from_secs(60), looks).await;
    assert!(in_time.is_ok(), "not within 60 s: {what}");
}

/// Waits until the controller at `address` leads; returns its client.
async fn until_it_leads(address: &str) -> Client {
    let mut client = None;
    until("the other one leads", async || {
        client = Client::connect(address).await.ok();
        match &client {
            Some(client) => client.jobs().await.is_ok(),
            None => false,
        }
    })
    .await;
    client.expect("it leads")
}

/// True if the request is done, by this answer or by an earlier one that was lost.
fn is_done<T>(answer: Result<T, ClientError>, done: Code) -> bool {
    match answer {
        Ok(_) => true,
        Err(ClientError::Refused { code, .. }) => code == done,
        Err(_) => false,
    }
}

/// Creates a job; tries again until a controller leads.
async fn create(client: &Client, n: usize) {
    until("a job is created", async || {
        is_done(client.create_job(&spec(n)).await, Code::AlreadyExists)
    })
    .await;
}

/// Deletes a job; tries again until a controller leads.
async fn delete(client: &Client, job: &str) {
    until("a job is deleted", async || {
        is_done(client.delete_job(job).await, Code::NotFound)
    })
    .await;
}

/// Checks that committed jobs exist and that switches have the entries of the existing jobs only; returns the jobs.
async fn check(client: &Client, promised: &[String]) -> Vec<String> {
    let jobs = client.jobs().await.expect("an answer");
    let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    for promised in promised {
        assert!(names.contains(promised), "{promised} is lost");
    }
    for job in &jobs {
        assert_eq!(job.switches, ["s1", "s2", "s3"], "{}", job.name);
    }
    for switch in client.diff_fabric().await.expect("an answer") {
        assert_eq!(switch.problem, "", "{}", switch.switch);
        assert_eq!(switch.differences, [], "{}", switch.switch);
    }
    names
}

/// A command that watches. Dropping it kills the process.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    notes: Lines<BufReader<ChildStderr>>,
}

impl Watch {
    fn start(arguments: &[&str]) -> Self {
        let mut child = ultima(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdout = child.stdout.take().expect("piped");
        let stderr = child.stderr.take().expect("piped");
        Watch {
            child,
            lines: BufReader::new(stdout).lines(),
            notes: BufReader::new(stderr).lines(),
        }
    }

    /// The next document.
    fn next(&mut self) -> serde_json::Value {
        let line = self.lines.next().expect("it goes on").expect("text");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A watch prints one line when the leader ends, and continues with the next leader, which logs that it leads.
#[test]
fn watches_continue_with_the_next_leader() {
    let Some(etcd) = Etcd::start(1) else { return };
    let bed = Bed::new();
    let (a, b) = (bed.address("a"), bed.address("b"));
    let mut first = bed.start_with(&etcd, "a");
    // The first controller leads before the second starts.
    while !output(&["controller", "status", "--controller", &a])
        .status
        .success()
    {}
    let mut second = bed.start_by(ultima(&[]), "b", Some(&state_of(&etcd)), Stdio::piped());
    let both = format!("{a},{b}");
    let file = bed.path("job.yaml");
    std::fs::write(&file, "{ name: train, members: [h1, h2] }").expect("written");
    let job = |arguments: &[&str]| {
        let output = output(&[&["job", "--controller", &both], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), errors)
    };
    while job(&["create", "-f", &file]).0 == Some(3) {}
    assert_eq!(job(&["show", "train"]), (Some(0), String::new()));
    let at = ["--controller", &both, "-o", "json"];
    let mut members = Watch::start(&[&["job", "watch", "train"], &at[..]].concat());
    let mut losses = Watch::start(&[&["telemetry", "--watch"], &at[..]].concat());
    assert_eq!(members.next()["kind"], "current");
    assert_eq!(losses.next()["jobs"][0]["job"], "train");

    first.kill();
    let log = second.0.stderr.take().expect("piped");
    let mut log = BufReader::new(log).lines().map(|line| line.expect("text"));
    assert!(log.any(|line| line.contains("leading revision=")));
    for watch in [&mut members, &mut losses] {
        let note = watch.notes.next().expect("a line").expect("text");
        assert_eq!(
            note,
            "warning: lost the connection to the controller; looking for the current leader"
        );
    }
    // The watches print the current state again.
    assert_eq!(members.next()["kind"], "current");
    assert_eq!(losses.next()["jobs"][0]["job"], "train");
    let first = bed.start_with(&etcd, "a");
    while job(&["delete", "train"]).0 == Some(3) {}
    assert_eq!(members.next()["kind"], "deleted");
    assert!(members.child.wait().expect("it ends").success());

    // No controller is left: the watch gives up after ten seconds.
    if !full_run() {
        return;
    }
    drop((first, second));
    let note = losses.notes.next().expect("a line").expect("text");
    assert!(
        note.starts_with("warning: lost the connection to the controller"),
        "{note}"
    );
    let error = losses.notes.by_ref().last().expect("a line").expect("text");
    assert!(error.starts_with("error: no controller at "), "{error}");
    assert_eq!(losses.child.wait().expect("it ends").code(), Some(3));
}

/// A command that waits continues with the next leader. Without any leader it reports that the job is created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_continue_with_the_next_leader() {
    let Some(etcd) = Etcd::start(1) else { return };
    let bed = Bed::new();
    let (a, b) = (bed.address("a"), bed.address("b"));
    let mut first = bed.start_with(&etcd, "a");
    // The first controller leads before the second starts.
    while !output(&["controller", "status", "--controller", &a])
        .status
        .success()
    {}
    let second = bed.start_with(&etcd, "b");
    let both = format!("{a},{b}");
    let client = Client::connect(&both).await.expect("one leads");
    create(&client, 0).await;
    let waits = ["train", "never"].map(|name| {
        let file = bed.path(name);
        let text = format!("{{ name: {name}, members: [h1, h2] }}");
        std::fs::write(&file, text).expect("written");
        let create = [
            "job",
            "--controller",
            &both,
            "create",
            "--wait",
            "600s",
            "-f",
        ];
        ultima(&[&create[..], &[&file]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    });
    for name in ["train", "never"] {
        until("both are created", async || client.job(name).await.is_ok()).await;
    }

    first.kill();
    until("the next one leads", async || {
        client.job("train").await.is_ok()
    })
    .await;
    // A rank is assigned when the standby has it.
    let first = bed.start_with(&etcd, "a");
    for host in ["h1", "h2"] {
        until("a rank is given", async || {
            let joined = client.join("train", host, Duration::ZERO).await;
            is_done(joined, Code::FailedPrecondition)
        })
        .await;
    }
    let [train, mut never] = waits;
    let train = train.wait_with_output().expect("it ends");
    let note = "warning: lost the connection to the controller; looking for the current leader\n";
    // No host is connected here, so the job may be degraded by then.
    let warns = |line: &&str| line.starts_with("warning: job train is ready, but degraded: h1: ");
    let said = String::from_utf8_lossy(&train.stderr);
    let rest = said.lines().filter(|line| !warns(line));
    assert!(rest.eq(note.lines()), "{said}");
    assert_eq!(train.status.code(), Some(0));

    // No controller is left: the command gives up after ten seconds.
    if !full_run() {
        never.kill().expect("it runs");
        never.wait().expect("it ends");
        return;
    }
    drop((first, second));
    let never = never.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&never.stderr);
    let error = said.lines().last().expect("a line");
    let why = "error: the request succeeded, but the controller failed while this command waited: ";
    assert!(error.starts_with(why), "{error}");
    assert_eq!(never.status.code(), Some(3));
}

/// Two controllers are killed in turn; the other one takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_jobs_survive_a_killed_leader() {
    let Some(etcd) = Etcd::start(1) else { return };
    let bed = Bed::new();
    let names = ["a", "b"];
    let addresses = names.map(|name| bed.address(name));
    let start = |at: usize| bed.start_with(&etcd, names[at]);
    let first = start(0);
    // The first controller leads before the second has a socket.
    drop(Client::connect(&addresses[0]).await.expect("it leads"));
    let mut controllers = [first, start(1)];
    let both = addresses.join(",");
    let client = Client::connect(&both).await.expect("one leads");
    let leader = || {
        let status = output(&["controller", "status", "--controller", &both, "-o", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
        let leads = (0..2).find(|&at| status[at]["role"] == "leader");
        let leads = leads.unwrap_or_else(|| panic!("one leads: {status}"));
        let revision = status[leads]["status"]["revision"].as_u64();
        (leads, revision.expect("a leader has one"))
    };
    let mut promised = Vec::new();
    for place in places() {
        for job in client.jobs().await.expect("an answer") {
            delete(&client, &job.name).await;
        }
        let (leads, revision) = leader();
        promised = create_and_kill(&client, &mut controllers[leads], place).await;
        let killed = Instant::now();
        // The client finds the next leader by itself.
        until("the other one leads", async || client.jobs().await.is_ok()).await;
        eprintln!(
            "killed after {place}: takeover of {} jobs: {:?}",
            client.jobs().await.expect("an answer").len(),
            killed.elapsed()
        );
        check(&client, &promised).await;
        let (next, next_revision) = leader();
        assert_eq!(next, 1 - leads);
        assert!(next_revision > revision, "{next_revision} after {revision}");
        // The killed controller starts again as a standby.
        controllers[leads] = start(leads);
    }

    // The jobs that were not committed can be created.
    for n in 0..jobs() {
        create(&client, n).await;
    }
    assert_eq!(check(&client, &promised).await.len(), jobs());
    let text = output(&["controller", "status", "--controller", &both]).stdout;
    let text = String::from_utf8(text).expect("text");
    let leader = &addresses[leader().0];
    assert!(text.contains(&format!("standby of {leader}")), "{text}");

    // A key without a lease, so that no controller leads.
    etcd.put("three/leader", "{}");
    let read = |arguments: &[&str]| {
        let output = output(&[arguments, &["--controller", &both]].concat());
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"))
    };
    until("the leader steps down", async || {
        read(&["get", "jobs"])[1].starts_with("warning: no leader answers; the standby at ")
    })
    .await;
    let [all, _] = read(&["get", "all"]);
    for row in [" -/3 ", " Unknown  unknown ", " Up "] {
        assert!(all.contains(row), "{all}");
    }
    let [described, _] = read(&["describe", "job", "job0"]);
    for line in ["STATUS: ", "10.0.0.3:"] {
        assert!(described.contains(line), "{described}");
    }
    assert!(read(&["fabric", "show"])[0].contains("a standby is not connected to switches"));
    etcd.delete("three/leader");
    until_it_leads(&both).await;
}

/// While etcd is stopped, each command prints one line with the reason, and waits for a leader before.
#[tokio::test]
async fn a_stopped_etcd_is_named_in_one_line() {
    let Some(mut etcd) = Etcd::start(1) else {
        return;
    };
    let bed = Bed::new();
    let (a, b) = (bed.address("a"), bed.address("b"));
    let _first = bed.start_with(&etcd, "a");
    let _second = bed.start_with(&etcd, "b");
    let both = format!("{a},{b}");
    create(&Client::connect(&both).await.expect("one leads"), 0).await;
    etcd.kill(0);
    let said = |words: &[&str]| {
        let output = output(&[words, &["--controller", &both]].concat());
        let said = String::from_utf8(output.stderr).expect("text");
        (output.status.code(), said)
    };
    let error = format!("error: no controller at {both} leads: etcd://");
    until("the reason is known", async || {
        let (code, said) = said(&["controller", "status"]);
        code == Some(1) && said.starts_with(&error)
    })
    .await;
    let error = format!("error: no controller at {a}, {b} leads: etcd://");
    let is_named = |words: &[&str]| {
        let (code, said) = said(words);
        assert_eq!(
            (code, said.lines().count()),
            (Some(3), 1),
            "{words:?}: {said}"
        );
        assert!(said.starts_with(&error), "{said}");
    };
    thread::scope(|scope| {
        scope.spawn(|| is_named(&["get", "jobs"]));
        scope.spawn(|| is_named(&["wait", "job/job0"]));
    });
    etcd.restart(0);
    until_it_leads(&both).await;
    assert_eq!(said(&["get", "jobs"]), (Some(0), String::new()));
}

#[tokio::test]
async fn a_leader_without_switches_is_not_ok() {
    let Some(etcd) = Etcd::start(1) else { return };
    let mut bed = Bed::new();
    bed.switches.clear();
    let _controller = bed.start_with(&etcd, "a");
    let address = bed.address("a");
    let status = || {
        let output = output(&["controller", "status", "--controller", &address]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("text"))
    };
    // It is ok until a switch has not answered.
    let why = "leads none of its switches: switch s1 at ";
    let is_known = |(code, said): (Option<i32>, String)| {
        code == Some(1) && said.contains(" 0 of 3 led ") && said.contains(why)
    };
    until("the reason is known", async || is_known(status())).await;
}

/// A leader that is stopped and continued finds another leader. It changes nothing, and drops requests that it had received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_paused_changes_nothing() {
    let Some(etcd) = Etcd::start(1) else { return };
    let bed = Bed::new();
    let (a, b) = (bed.address("a"), bed.address("b"));
    let first = bed.start_with(&etcd, "a");
    let client = Client::connect(&a).await.expect("it leads");
    let _second = bed.start_with(&etcd, "b");
    create(&client, 0).await;

    first.signal(Signal::SIGSTOP);
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.create_job(&spec(1)).await }
    });
    let next = until_it_leads(&b).await;
    assert_eq!(check(&next, &[]).await, [name(0)]);
    first.signal(Signal::SIGCONT);
    asked
        .await
        .expect("no panic")
        .expect_err("it leads no more");
    create(&next, 2).await;
    delete(&next, &name(0)).await;
    assert_eq!(check(&next, &[]).await, [name(2)]);
    let status = output(&["controller", "status", "--controller", &format!("{a},{b}")]);
    let text = String::from_utf8(status.stdout).expect("text");
    assert!(text.contains(&format!("standby of {b}")), "{text}");
}

/// Controllers whose clocks jump by days keep their leader and their jobs, and the other one takes over as always.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_jump_change_nothing() {
    let (Some(library), Some(etcd)) = (needs::faketime(), Etcd::start(1)) else {
        return;
    };
    let bed = Bed::new();
    let (a, b) = (bed.address("a"), bed.address("b"));
    // libfaketime reads what a clock is ahead from a file.
    let set = |name: &str, days: i64| {
        let (file, new) = (bed.path(&format!("{name}.clock")), bed.path("new"));
        std::fs::write(&new, format!("{days:+}d")).expect("written");
        std::fs::rename(new, file).expect("renamed");
    };
    let start = |name: &str| {
        let mut command = ultima(&[]);
        command
            .env("LD_PRELOAD", &library)
            .env(
                "FAKETIME_TIMESTAMP_FILE",
                bed.path(&format!("{name}.clock")),
            )
            .envs([
                ("FAKETIME_NO_CACHE", "1"),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ]);
        bed.start_by(command, name, Some(&state_of(&etcd)), Stdio::inherit())
    };
    for name in ["a", "b"] {
        set(name, 0);
    }
    let mut first = start("a");
    let client = Client::connect(&a).await.expect("it leads");
    let _second = start("b");
    let revision = || {
        let status = output(&["controller", "status", "--controller", &a, "-o", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
        assert_eq!(status[0]["role"], "leader", "{status}");
        status[0]["status"]["revision"].as_u64().expect("a number")
    };
    let leads = revision();
    let jumps = [(0, 0), (2, -1), (-3, 4), (365, -365)];
    let mut jobs = Vec::new();
    for (n, (days, others)) in jumps.into_iter().enumerate() {
        set("a", days);
        set("b", others);
        // The leader renews its lease of three seconds once a second; a full run waits for more than a lease.
        sleep(per_run(Duration::from_secs(1), Duration::from_secs(4))).await;
        create(&client, n).await;
        jobs.push(name(n));
        assert_eq!(check(&client, &jobs).await, jobs);
        assert_eq!(revision(), leads, "after a jump by {days} days");
        let created = client.job(&name(n)).await.expect("an answer").created_at;
        let now = std::time::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
            .as_secs();
        let ahead = created.cast_signed() - now.cast_signed();
        assert!(
            (ahead - days * 86_400).abs() < 3_600,
            "the clock did not jump: {ahead} s"
        );
    }

    first.kill();
    let killed = Instant::now();
    let next = until_it_leads(&b).await;
    eprintln!("takeover after {:?}", killed.elapsed());
    assert_eq!(check(&next, &jobs).await, jobs);
}

/// A request that cannot be stored changes neither the controller nor the switches, also after a restart. The controller
/// continues when the disk has room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_rejected_by_a_full_disk_changes_nothing() {
    if !needs::prlimit() {
        return;
    }
    let bed = Bed::new();
    let start = || {
        // A write beyond the limit returns an error instead of ending the process.
        let mut shell = Command::new("sh");
        let ignore = "trap '' XFSZ; exec \"$0\" \"$@\"";
        shell.args(["-c", ignore, env!("CARGO_BIN_EXE_ultima")]);
        // The log might go to a file, too.
        bed.start_by(shell, "a", Some(&bed.path("a.redb")), Stdio::null())
    };
    let mut controller = start();
    let connect = async || {
        Client::connect(&bed.address("a"))
            .await
            .expect("it listens")
    };
    let client = connect().await;
    client.create_job(&spec(0)).await.expect("there is room");
    let seat = client.join(&name(0), "h3", Duration::ZERO).await;
    assert_eq!(seat.expect("there is room").rank, 2);
    // Without what a controller learns of the ports, which have no link here.
    let jobs = async |client: &Client| {
        let mut jobs = client.jobs().await.expect("an answer");
        for job in &mut jobs {
            job.conditions.clear();
            job.members
                .iter_mut()
                .for_each(|member| member.cut_off = false);
        }
        jobs
    };
    let before = jobs(&client).await;
    let unchanged = async |client: &Client| {
        assert_eq!(jobs(client).await, before);
        check(client, &[]).await;
    };

    controller.limit_files("0");
    let two = ["h1", "h3"].map(String::from);
    let second = Duration::from_secs(1);
    // The second attempt opens the store again.
    for _ in 0..2 {
        let created = client.create_job(&spec(1)).await.map(drop);
        let resized = client.resize_job(&name(0), None, &two, second, false).await;
        let joined = client.join(&name(0), "h1", Duration::ZERO).await.map(drop);
        let deleted = client.delete_job(&name(0)).await.map(drop);
        for refused in [created, resized.map(drop), joined, deleted] {
            let text = refused.expect_err("it cannot be kept").to_string();
            assert!(text.contains("a.redb"), "{text}");
        }
        unchanged(&client).await;
    }
    controller.kill();
    let controller = start();
    let client = connect().await;
    unchanged(&client).await;

    controller.limit_files("0");
    client.create_job(&spec(1)).await.expect_err("no room");
    controller.limit_files("unlimited");
    let resized = client.resize_job(&name(0), None, &two, second, false).await;
    assert_eq!(resized.expect("there is room").epoch, 1);
    client.create_job(&spec(1)).await.expect("there is room");
    assert_eq!(check(&client, &[]).await, [name(0), name(1)]);
}

#[test]
fn bad_options_are_rejected_in_one_line() {
    let fabric = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/star4.yaml");
    let serve = [
        "controller",
        "serve",
        "--fabric",
        fabric,
        "--listen",
        "127.0.0.1:0",
    ];
    let etcd = ["--state", "etcd://127.0.0.1:1/x"];
    for (options, says) in [
        (
            &["--state", "etcd://localhost"][..],
            "expected etcd://HOST:PORT,.../PREFIX",
        ),
        (
            &["--state", "memory", "--etcd-lease", "3s"],
            "needs --state etcd://",
        ),
        (
            &["--state", "memory", "--advertise", "10.0.0.1:9555"],
            "needs --state etcd://",
        ),
        (
            &["--state", "etcd://10.0.0.1:2379"],
            "plain text; pass --etcd-ca",
        ),
        (
            &[&etcd[..], &["--etcd-lease", "1s"]].concat(),
            "expected whole seconds, 2s or more",
        ),
        (
            &[&etcd[..], &["--etcd-user", "a"]].concat(),
            "--etcd-password-file",
        ),
        (
            &[&etcd[..], &["--startup-timeout", "1s"]].concat(),
            "leave it out",
        ),
        // The keys would be stored in plain text.
        (&etcd, "pass --etcd-secret"),
    ] {
        let output = output(&[&serve[..], options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(text.contains(says), "{options:?}: {text}");
    }
}
