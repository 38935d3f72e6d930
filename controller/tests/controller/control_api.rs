//! The control API, used as its clients do.

mod connections;
mod counters;
mod jobs;
mod members;
mod plans;
mod ports;

use std::time::Duration;

use tonic::Code;
use ultima_api::client::{Client, ClientError};
use ultima_controller::server::{self, Config, Handle};
use ultima_planner::job::JobSpec;

use crate::chaos::ChaosSwitch;
use crate::target::Target;

/// Longer than any wait in these tests.
const LONG: Duration = Duration::from_secs(60);

/// Starts a controller of `topologies/star4.yaml` with one replacement, and a chaos switch.
async fn start_with(target: Target, (from, to): (&str, &str)) -> (ChaosSwitch, Handle, Client) {
    let switch = ChaosSwitch::start_as(target).await;
    let text = include_str!("../../../topologies/star4.yaml")
        .replace("127.0.0.1:9559", &switch.address().to_string());
    assert!(text.contains(from), "{from} in the topology");
    let fabric = target.fabric(&text.replace(from, to), "star.yaml");
    let listen = "127.0.0.1:0".parse().unwrap();
    let handle = server::serve(Config {
        listen,
        ..target.config(fabric)
    })
    .await
    .unwrap();
    let client = Client::connect(&handle.address().to_string())
        .await
        .unwrap();
    (switch, handle, client)
}

/// Starts a controller with room for two ranks on h1.
async fn start(target: Target) -> (ChaosSwitch, Handle, Client) {
    start_with(target, ("ip: 10.0.0.1 }", "ip: 10.0.0.1, ranks: 2 }")).await
}

fn spec(name: &str, members: &[&str]) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, members.iter().copied())
    }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (Code, String) {
    match answer.unwrap_err() {
        ClientError::Refused { code, message, .. } => (code, message),
        other => panic!("{other}"),
    }
}
