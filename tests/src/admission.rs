//! Somebody at the switch: an operator who takes a rank's admission away, and gives it back.

use std::net::SocketAddr;
use std::time::Duration;

use ultima_controller::p4rt::{Device, ELECTION_ID, SwitchClient};
use ultima_p4::names::source;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{TableEntry, Update};
use ultima_p4runtime::{config::v1::P4Info, text};

use crate::fabric::{Fabric, device_id, switch_name};
use crate::job::Job;

/// A P4Runtime client that outbids the controller at one switch.
pub struct Operator {
    client: SwitchClient,
    names: Names,
}

impl Operator {
    /// Becomes the primary of a fabric's switch whose P4Runtime server listens at `grpc`.
    ///
    /// # Panics
    /// If the switch does not let it.
    pub async fn at(switch: usize, grpc: SocketAddr) -> Self {
        let device = Device {
            name: switch_name(switch),
            grpc: grpc.to_string(),
            device_id: device_id(switch),
        };
        let client = SwitchClient::connect(device, ELECTION_ID + 1, Duration::from_secs(5)).await;
        let p4info: P4Info = text::parse(ultima_p4::v1model().p4info).expect("p4c printed it");
        let names = Names::new(p4info).expect("p4c printed it");
        Self {
            client: client.unwrap_or_else(|error| panic!("{error}")),
            names,
        }
    }

    /// Deletes the entry that admits a rank at its own port.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn silence(&self, fabric: &Fabric, job: &Job, rank: u16) {
        self.write(Update::delete(self.admission(fabric, job, rank)))
            .await;
    }

    /// Inserts it again.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn admit(&self, fabric: &Fabric, job: &Job, rank: u16) {
        self.write(Update::insert(self.admission(fabric, job, rank)))
            .await;
    }

    fn admission(&self, fabric: &Fabric, job: &Job, rank: u16) -> TableEntry {
        let member = &job.members[usize::from(rank)];
        let entry = || {
            self.names
                .table(source::TABLE)?
                .entry()
                .exact(source::INGRESS_PORT, fabric.host(member.host).port)?
                .exact(source::JOB, job.id)?
                .exact(source::EPOCH, job.epoch)?
                .exact(source::SOURCE_RANK, rank)?
                .exact(source::SRC_ADDR, *member.address.ip())?
                .action(source::ADMIT, &[])?
                .build()
                .map_err(Box::<dyn std::error::Error>::from)
        };
        entry().unwrap_or_else(|error| panic!("{error}"))
    }

    async fn write(&self, update: Update) {
        self.client
            .write(vec![update])
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}
