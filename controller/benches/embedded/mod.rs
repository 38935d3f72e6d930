//! Embedded switches in this process, with a controller.

use std::net::SocketAddr;
use std::slice;

use ultima_api::client::READY_WAIT;
use ultima_controller::server::{self, Config, Controller, Handle, JobRequestError, JobState};
use ultima_planner::fabric;
use ultima_planner::job::JobSpec;
use ultima_switch::{Switch, SwitchConfig};

/// Two spines over four leaves of two hosts each, in the file's order: the spines first.
pub const LEAF_SPINE: &str = include_str!("../../../topologies/leaf-spine.yaml");

/// Starts a switch that serves P4Runtime at `grpc`.
pub async fn switch_at(grpc: SocketAddr) -> Switch {
    let config = SwitchConfig {
        grpc,
        ..SwitchConfig::default()
    };
    Switch::start(config).await.expect("it starts")
}

/// Starts the controller of a topology, and every switch that has no address yet. Hosts have room for `ranks` ranks.
pub async fn start(topology: &str, ranks: u32) -> (Vec<Switch>, Handle) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (mut switches, mut lines) = (Vec::new(), Vec::new());
    for line in topology.lines() {
        // Switches have nothing but a name, hosts have a MAC address and perhaps room for several ranks.
        let name = line.strip_prefix("  - { name: ");
        let name = name.and_then(|rest| rest.strip_suffix(" }"));
        lines.push(match name {
            Some(host) if host.contains("mac:") => {
                let host = host.split(", ranks:").next().unwrap_or(host);
                format!("  - {{ name: {host}, ranks: {ranks} }}")
            }
            Some(name) if !name.contains("grpc:") => {
                let switch = switch_at(any).await;
                let grpc = switch.grpc_addr();
                switches.push(switch);
                format!("  - {{ name: {name}, grpc: \"{grpc}\", device_id: 1 }}")
            }
            _ => line.to_owned(),
        });
    }
    let config = Config {
        listen: any.into(),
        ..Config::new(fabric::parse(&lines.join("\n"), "topology").expect("a fabric"))
            .expect("a program")
    };
    (switches, server::serve(config).await.expect("it starts"))
}

/// A job of ranks on the hosts with these numbers.
pub fn spec(name: &str, hosts: impl Iterator<Item = usize>) -> JobSpec {
    JobSpec {
        seed: Some(1),
        ..JobSpec::new(name, hosts.map(|number| format!("h{number}")))
    }
}

/// Creates a job, and waits until it is ready.
pub async fn create(controller: &Controller, spec: &JobSpec) -> Result<JobState, JobRequestError> {
    let created = controller.create_jobs(slice::from_ref(spec)).await;
    let created = created.map_err(|refused| *refused.error)?;
    let mut created = controller.until_ready(&created, READY_WAIT).await?;
    Ok(created.pop().expect("as many as were asked for"))
}
