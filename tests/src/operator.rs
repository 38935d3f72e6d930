//! Somebody at a switch: an operator with a P4Runtime client, who outranks the controller.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ultima_controller::p4rt::{Device, ELECTION_ID, SwitchClient};
use ultima_p4::names::{job, replica, source};
use ultima_p4runtime::names::{EntryBuilder, EntryError, Names};
use ultima_p4runtime::v1::{Entity, MulticastGroupEntry, TableEntry, Update};
use ultima_p4runtime::{config::v1::P4Info, text};

use crate::fabric::{Fabric, device_id, switch_name};
use crate::job::Job;

/// A P4Runtime client that outbids the controller at one switch, until it is dropped.
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
            tls: None,
        };
        // A switch may not have noticed yet that an earlier operator has gone.
        static OPERATORS: AtomicU64 = AtomicU64::new(1);
        let election_id = ELECTION_ID + u128::from(OPERATORS.fetch_add(1, Ordering::Relaxed));
        let client = SwitchClient::connect(device, election_id, Duration::from_secs(5)).await;
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
        let port = fabric.host(job.members[usize::from(rank)].host).port;
        self.silence_at(port, job, rank).await;
    }

    /// Deletes the entry that admits a rank at a port.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn silence_at(&self, port: u16, job: &Job, rank: u16) {
        self.write(vec![Update::delete(self.admission(port, job, rank))])
            .await;
    }

    /// Deletes a job's multicast group.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn disband(&self, job: &Job) {
        let group = MulticastGroupEntry {
            multicast_group_id: job.group,
            ..MulticastGroupEntry::default()
        };
        self.write(vec![Update::delete(group)]).await;
    }

    /// Inserts it again.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn admit(&self, fabric: &Fabric, job: &Job, rank: u16) {
        let port = fabric.host(job.members[usize::from(rank)].host).port;
        self.write(vec![Update::insert(self.admission(port, job, rank))])
            .await;
    }

    /// Deletes the entry that addresses copies to a rank.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn forget(&self, job: &Job, rank: u16) {
        self.write(vec![Update::delete(self.address(job, rank))])
            .await;
    }

    /// Inserts it again.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn remember(&self, job: &Job, rank: u16) {
        self.write(vec![Update::insert(self.address(job, rank))])
            .await;
    }

    /// Takes the numbers of jobs to come, so that no controller can announce a job here.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn occupy_jobs(&self, numbers: RangeInclusive<u16>) {
        self.write(
            numbers
                .map(|number| Update::insert(self.occupied(number)))
                .collect(),
        )
        .await;
    }

    /// Gives them back.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn release_jobs(&self, numbers: RangeInclusive<u16>) {
        self.write(
            numbers
                .map(|number| Update::delete(self.occupied(number)))
                .collect(),
        )
        .await;
    }

    /// All table entries and multicast groups of the switch, printed.
    ///
    /// # Panics
    /// If the switch refuses.
    pub async fn holdings(&self) -> BTreeSet<String> {
        let all: [Entity; 2] = [
            TableEntry::default().into(),
            MulticastGroupEntry::default().into(),
        ];
        let read = self
            .client
            .read(all.to_vec())
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        read.iter().map(|entity| format!("{entity:?}")).collect()
    }

    /// A job with a number, that counts with the unknown ones and has no group.
    fn occupied(&self, number: u16) -> TableEntry {
        let call = [(job::INDEX, 0u16.into()), (job::GROUP, 0u16.into())];
        self.entry(job::TABLE, |row| {
            row.exact(job::JOB, number)?
                .action(job::SET_JOB, &call)?
                .build()
        })
    }

    fn admission(&self, port: u16, job: &Job, rank: u16) -> TableEntry {
        let member = &job.members[usize::from(rank)];
        self.entry(source::TABLE, |row| {
            row.exact(source::INGRESS_PORT, port)?
                .exact(source::JOB, job.id)?
                .exact(source::EPOCH, job.epoch)?
                .exact(source::SOURCE_RANK, rank)?
                .exact(source::SRC_ADDR, *member.address.ip())?
                .action(source::ADMIT, &[])?
                .build()
        })
    }

    fn address(&self, job: &Job, rank: u16) -> TableEntry {
        let member = &job.members[usize::from(rank)];
        let call = [
            (replica::DST_MAC, member.mac.octets().into()),
            (replica::DST_ADDR, (*member.address.ip()).into()),
            (replica::DST_PORT, member.address.port().into()),
        ];
        self.entry(replica::TABLE, |row| {
            row.exact(replica::JOB, job.id)?
                .exact(replica::RID, rank)?
                .action(replica::READDRESS, &call)?
                .build()
        })
    }

    fn entry(
        &self,
        table: &str,
        fill: impl FnOnce(EntryBuilder<'_>) -> Result<TableEntry, EntryError>,
    ) -> TableEntry {
        let table = self
            .names
            .table(table)
            .unwrap_or_else(|error| panic!("{error}"));
        fill(table.entry()).unwrap_or_else(|error| panic!("{error}"))
    }

    async fn write(&self, updates: Vec<Update>) {
        self.client
            .write(updates)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}
