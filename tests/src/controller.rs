//! Our controller at work on a testbed, told what to do as its users tell it: fabric and jobs as YAML,
//! requests over the control API.

use std::net::SocketAddr;

use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_controller::server::{self, Config, Handle};
use ultima_controller::{fabric, job};

use crate::fabric::{Fabric, HostId};
use crate::job::{Job, Member};
use crate::testbed::Testbed;

/// The jobs that scenarios for one switch need.
pub const LEFT: &str = "{ name: left, members: [h1, h1, h2, h3] }";
/// The other of them.
pub const RIGHT: &str = "{ name: right, members: [h2, h4] }";
/// A job across two switches.
pub const ACROSS: &str = "{ name: across, members: [h1, h1, h2, h3, h4, h3] }";

/// The controller of a testbed.
pub struct Controller {
    client: Client,
    /// Ends the controller when it goes; the switches keep what they have.
    _server: Handle,
}

impl Controller {
    /// Starts a controller, which puts the program and the fabric's routes on all switches.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(testbed: &Testbed) -> Self {
        let yaml = testbed.fabric.yaml(&testbed.grpc());
        let fabric = fabric::parse(&yaml, "fabric.yaml").unwrap_or_else(|error| panic!("{error}"));
        let config = Config::new(fabric).unwrap_or_else(|error| panic!("{error}"));
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..config
        };
        testbed.runtime.block_on(async {
            let server = server::serve(config)
                .await
                .unwrap_or_else(|error| panic!("{error}"));
            let address = server.address().to_string();
            let client = Client::connect(&address)
                .await
                .unwrap_or_else(|error| panic!("{error}"));
            Self {
                client,
                _server: server,
            }
        })
    }

    /// Creates the job in `yaml`.
    ///
    /// # Panics
    /// If the controller refuses.
    pub fn create(&self, testbed: &Testbed, yaml: &str) -> Job {
        let spec = job::parse(yaml, "job.yaml").unwrap_or_else(|error| panic!("{error}"));
        let created = testbed.runtime.block_on(self.client.create_job(&spec));
        as_installed(
            &testbed.fabric,
            &created.unwrap_or_else(|error| panic!("{error}")),
        )
    }

    /// Deletes a job.
    ///
    /// # Panics
    /// If the controller refuses.
    pub fn delete(&self, testbed: &Testbed, name: &str) {
        let deleted = testbed.runtime.block_on(self.client.delete_job(name));
        deleted.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn as_installed(fabric: &Fabric, job: &api::Job) -> Job {
    let number = |number: u32| u16::try_from(number).expect("it has 16 bits in packets");
    let members = job.members.iter().map(|member| {
        let host = fabric
            .hosts
            .iter()
            .position(|host| host.name == member.host);
        Member {
            host: HostId(host.expect("a host of the fabric")),
            mac: member.mac.parse().expect("a MAC address"),
            address: format!("{}:{}", member.ip, member.udp_port)
                .parse()
                .expect("an address"),
        }
    });
    Job {
        id: number(job.id),
        epoch: number(job.epoch),
        counter: job.counter_index,
        group: job.group_id,
        group_address: job.group_address.parse().expect("it gathers by multicast"),
        members: members.collect(),
    }
}
