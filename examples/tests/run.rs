//! The examples run, and average correctly.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use ultima_api::client::Client;
use ultima_controller::server;
use ultima_planner::fabric;
use ultima_planner::job::{Gather, JobSpec};
use ultima_switch::{Switch, SwitchConfig};

/// Operations of ten that must be complete: a busy machine may drop packets of one.
const LEAST_COMPLETE: usize = 9;

fn printed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Checks rank 0's lines.
fn averages(text: &str) {
    assert_eq!(text.lines().count(), 10, "{text}");
    assert!(text.matches("Complete").count() >= LEAST_COMPLETE, "{text}");
    for line in text.lines() {
        let (line, error) = line
            .split_once(" % lost, largest error ")
            .expect("an error");
        let error: f32 = error.parse().expect("a number");
        let (_, percent) = line.rsplit_once(' ').expect("a share");
        let lost: f32 = percent.parse::<f32>().expect("a number") / 100.0;
        let bound = match line.contains("Complete") {
            true => 1e-5,
            // The Hadamard transform spreads the loss: an entry's error is about the mean times √lost.
            false => 0.1 + 10.0 * lost.sqrt(),
        };
        assert!(error < bound, "{line}: error {error}");
    }
}

#[test]
fn allreduce_averages_in_one_process() {
    let mut allreduce = Command::new(env!("CARGO_BIN_EXE_allreduce"));
    let output = allreduce.env_remove("RANK").output();
    averages(&printed(&output.expect("it runs")));
}

#[test]
fn allreduce_averages_in_a_process_per_rank() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let ranks: Vec<Child> = (0..4)
        .map(|rank| {
            let mut allreduce = Command::new(env!("CARGO_BIN_EXE_allreduce"));
            allreduce
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", "4")
                .env("MASTER_ADDR", "localhost")
                .env("MASTER_PORT", port.to_string())
                .env("ULTIMA_STORE", "host");
            allreduce.stdout(Stdio::piped()).stderr(Stdio::piped());
            allreduce.spawn().expect("it starts")
        })
        .collect();
    let ended = ranks.into_iter().map(|rank| rank.wait_with_output());
    let texts: Vec<String> = ended
        .map(|output| printed(&output.expect("it ends")))
        .collect();
    averages(&texts[0]);
    assert!(texts[1..].iter().all(String::is_empty), "{texts:?}");
}

/// A program needs ten lines for Ultima; the others make its data and print.
#[test]
fn allreduce_needs_ten_lines_of_ultima() {
    let names = ["ultima_", "Job", "TcpStore", "Reduced", "job.", "outcome."];
    let lines = include_str!("../allreduce.rs").lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    let lines: Vec<&str> = code
        .filter(|line| names.iter().any(|name| line.contains(name)))
        .collect();
    // The last one starts a rank.
    assert!(
        lines
            .last()
            .is_some_and(|line| line.contains("Job::builder")),
        "{lines:#?}"
    );
    assert!(lines.len() <= 10, "{lines:#?}");
}

/// One line that says what is wrong.
#[test]
fn allreduce_says_what_is_wrong() {
    for (wrong, expected) in [
        (("MASTER_ADDR", "::1"), "is the IPv6 address ::1"),
        (
            ("RANK", "x"),
            "environment variable RANK is \"x\": expected a number",
        ),
        (("RANK", "7"), "rank 7 of a job with 2 ranks"),
        (
            ("WORLD_SIZE", ""),
            "environment variable WORLD_SIZE is not set",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_allreduce"))
            .envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "1")])
            .envs([("MASTER_ADDR", "127.0.0.1"), wrong])
            .env_remove("RUST_BACKTRACE")
            .output();
        let output = output.expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
}

/// Two hosts' addresses on the loopback interface of a namespace, so that ranks reach each other without a switch. The
/// controller has one to manage all the same.
#[test]
fn ranks_join_a_job_at_the_controller() {
    if !Uid::effective().is_root() {
        ultima_testing::skipped("needs root");
        return;
    }
    let run = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root makes namespaces");
        for arguments in [
            "link set lo up",
            "address add 10.0.0.1/32 dev lo",
            "address add 10.0.0.2/32 dev lo",
        ] {
            let done = Command::new("ip").args(arguments.split(' ')).status();
            assert!(done.expect("iproute2").success(), "ip {arguments}");
        }
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(train());
    });
    run.join().expect("no panic");
}

async fn train() {
    let switch = SwitchConfig {
        device_id: 1,
        grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ..SwitchConfig::default()
    };
    let switch = Switch::start(switch).await.expect("the switch starts");
    let fabric = format!(
        "switches: [{{ name: s1, grpc: '{}' }}]
hosts:
  - {{ name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }}
  - {{ name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }}
links: [{{ ends: [h1, s1/1] }}, {{ ends: [h2, s1/2] }}]",
        switch.grpc_addr()
    );
    let fabric = fabric::parse(&fabric, "fabric.yaml").expect("a fabric");
    let mut config = server::Config::new(fabric).expect("our program");
    config.listen = "127.0.0.1:0".parse().expect("an address");
    let controller = server::serve(config).await.expect("the controller starts");
    let address = controller.address().to_string();
    let client = Client::connect(&address).await.expect("it answers");
    let job = JobSpec {
        gather: Gather::Unicast,
        ..JobSpec::new("train", ["h1", "h2"].map(String::from))
    };
    client.create_job(&job).await.expect("the job is created");

    let ranks = ["h1", "h2"].map(|host| {
        let mut rank = Command::new(env!("CARGO_BIN_EXE_rank"));
        rank.args([&address, "train", host]);
        rank.stdout(Stdio::piped()).stderr(Stdio::piped());
        rank.spawn().expect("it starts")
    });
    let outputs =
        tokio::task::spawn_blocking(|| ranks.map(|rank| rank.wait_with_output().expect("it ends")));
    for (rank, output) in outputs.await.expect("no panic").iter().enumerate() {
        let text = printed(output);
        assert!(text.starts_with(&format!("rank {rank} of 2\n")), "{text}");
        let means = text.matches("mean 0.500, Complete").count();
        assert!(means >= LEAST_COMPLETE, "{text}");
        for (_, mean) in text.lines().filter_map(|line| line.split_once(": mean ")) {
            let (mean, _) = mean.split_once(',').expect("a mean");
            let error = (mean.parse::<f32>().expect("a number") - 0.5).abs();
            assert!(error < 0.5, "{text}");
        }
    }
    controller.stop().await;
    switch.stop().await.expect("the switch stops");
}
