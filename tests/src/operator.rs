//! An operator: a P4Runtime client with a higher election id than the controller's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use ultima_controller::p4rt::{Device, ELECTION_ID, Order, SwitchClient};
use ultima_p4::names::{job, loss, queue, replica, share, source};
use ultima_p4runtime::names::{EntryBuilder, EntryError, Names};
use ultima_p4runtime::v1::{
    DigestList, MeterConfig, MulticastGroupEntry, TableEntry, Update, WriteRequest, WriteResponse,
    entity,
};
use ultima_p4runtime::write::EncodedWriteRequest;
use ultima_p4runtime::{config::v1::P4Info, text};
use ultima_planner::telemetry::OperationLoss;

use crate::fabric::{Fabric, device_id, switch_name};
use crate::job::Job;

/// A P4Runtime client that is the primary of one switch in place of the controller. Dropping it ends its stream.
pub struct Operator {
    client: SwitchClient,
    grpc: SocketAddr,
    /// A request without updates.
    request: WriteRequest,
    names: Names,
    digests: mpsc::Receiver<DigestList>,
}

/// One of a switch's virtual queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VirtualQueue {
    /// The queue of an egress port.
    Port(u16),
    /// The queue of a job's share of a port, by the share's index.
    Share(u32),
}

/// The deadline for a switch to report a loss.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Operator {
    /// Becomes the primary of a switch with its P4Runtime server at `grpc`.
    ///
    /// # Panics
    /// If the switch rejects it.
    pub async fn at(switch: usize, grpc: SocketAddr) -> Self {
        let device = Device {
            name: switch_name(switch),
            grpc: grpc.to_string(),
            device_id: device_id(switch),
            tls: None,
            packing: Default::default(),
        };
        // A switch may not have detected the end of an earlier operator's stream, so each operator has a higher id.
        static OPERATORS: AtomicU64 = AtomicU64::new(1);
        let election_id = ELECTION_ID + u128::from(OPERATORS.fetch_add(1, Ordering::Relaxed));
        let client = SwitchClient::connect(device, election_id, Duration::from_secs(5)).await;
        let p4info: P4Info = text::parse(ultima_p4::v1model().p4info).expect("p4c printed it");
        let names = Names::new(p4info).expect("p4c printed it");
        let client = client.unwrap_or_else(|error| panic!("{error}"));
        Self {
            digests: client
                .digests()
                .expect("this is the first call of digests()"),
            client,
            grpc,
            request: WriteRequest {
                device_id: device_id(switch),
                election_id: Some(election_id.into()),
                ..WriteRequest::default()
            },
            names,
        }
    }

    /// Encodes requests once, so that the client can write them often at little cost.
    pub fn encoded<const N: usize>(&self, requests: [Vec<Update>; N]) -> EncodedWrites<N> {
        let requests = requests.map(|updates| {
            let empty = self.request.clone();
            EncodedWriteRequest::from(WriteRequest { updates, ..empty })
        });
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc));
        let channel = endpoint.expect("an address").connect_lazy();
        EncodedWrites {
            rpc: Grpc::new(channel),
            requests,
        }
    }

    /// Deletes the entry that admits a rank at its host's port.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn delete_admission(&self, fabric: &Fabric, job: &Job, rank: u16) {
        let port = fabric.host(job.members[usize::from(rank)].host).port;
        self.delete_admission_at(port, job, rank).await;
    }

    /// Deletes the entry that admits a rank at a port.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn delete_admission_at(&self, port: u16, job: &Job, rank: u16) {
        self.write(vec![Update::delete(self.admission(port, job, rank))])
            .await;
    }

    /// Deletes a job's multicast group.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn delete_group(&self, job: &Job) {
        let group = MulticastGroupEntry {
            multicast_group_id: job.group,
            ..MulticastGroupEntry::default()
        };
        self.write(vec![Update::delete(group)]).await;
    }

    /// Inserts the entry that admits a rank at its host's port.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn insert_admission(&self, fabric: &Fabric, job: &Job, rank: u16) {
        let port = fabric.host(job.members[usize::from(rank)].host).port;
        self.write(vec![Update::insert(self.admission(port, job, rank))])
            .await;
    }

    /// Deletes the entry that addresses copies to a rank.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn delete_address(&self, job: &Job, rank: u16) {
        self.write(vec![Update::delete(self.address(job, rank))])
            .await;
    }

    /// Inserts the entry that addresses copies to a rank.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn insert_address(&self, job: &Job, rank: u16) {
        self.write(vec![Update::insert(self.address(job, rank))])
            .await;
    }

    /// Gives a virtual queue a rate of almost zero: it marks packets after `mark` bytes, and trims them after `trim` bytes.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn limit(&self, queue: VirtualQueue, mark: i64, trim: i64) {
        let config = MeterConfig {
            cir: 1,
            cburst: mark,
            pir: 1,
            pburst: trim,
            ..Default::default()
        };
        self.configure(queue, Some(config)).await;
    }

    /// Removes the limit of a virtual queue.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn unlimit(&self, queue: VirtualQueue) {
        self.configure(queue, None).await;
    }

    async fn configure(&self, queue: VirtualQueue, config: Option<MeterConfig>) {
        let (meter, index) = match queue {
            VirtualQueue::Port(port) => (queue::METER, u64::from(port)),
            VirtualQueue::Share(share) => (share::METER, u64::from(share)),
        };
        let meter = self
            .names
            .meter(meter)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut cell = meter.cell(index).unwrap_or_else(|error| panic!("{error}"));
        cell.config = config;
        self.write(vec![Update::modify(cell)]).await;
    }

    /// The virtual queues with a meter configuration: committed rate, committed burst, peak rate and peak burst.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn virtual_queues(&self) -> BTreeMap<VirtualQueue, [i64; 4]> {
        let mut queues = BTreeMap::new();
        let ports: fn(u32) -> VirtualQueue = |index| VirtualQueue::Port(index as u16);
        for (name, of_index) in [(queue::METER, ports), (share::METER, VirtualQueue::Share)] {
            let meter = self.names.meter(name);
            let meter = meter.unwrap_or_else(|error| panic!("{error}"));
            let read = self.client.read(vec![meter.cells().into()]).await;
            for entity in read.unwrap_or_else(|error| panic!("{error}")) {
                let Some(entity::Entity::MeterEntry(cell)) = entity.entity else {
                    panic!("no cell of a meter: {entity:?}");
                };
                let index = cell.index.expect("every cell has an index").index;
                if let Some(config) = cell.config {
                    let queue = of_index(u32::try_from(index).expect("meters are small"));
                    let MeterConfig {
                        cir,
                        cburst,
                        pir,
                        pburst,
                        ..
                    } = config;
                    queues.insert(queue, [cir, cburst, pir, pburst]);
                }
            }
        }
        queues
    }

    /// The operations with losses in the switch's next digest.
    ///
    /// # Panics
    /// If the program has no such digest, or the switch sends none in ten seconds.
    pub async fn losses(&mut self) -> Vec<OperationLoss> {
        let digest = self
            .names
            .digest(loss::DIGEST)
            .unwrap_or_else(|error| panic!("{error}"));
        let list = timeout(TIMEOUT, self.digests.recv())
            .await
            .expect("the switch reports losses");
        let list = list.expect("the stream lasts as long as the operator");
        assert_eq!(list.digest_id, digest.id);
        let losses = list.data.iter().map(|message| {
            OperationLoss::read(digest, message).unwrap_or_else(|error| panic!("{error}"))
        });
        losses.collect()
    }

    /// Inserts entries for the numbers of future jobs, so that a controller cannot insert them.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn occupy_jobs(&self, numbers: RangeInclusive<u16>) {
        self.write(self.occupied(numbers).map(Update::insert).collect())
            .await;
    }

    /// Deletes these entries.
    ///
    /// # Panics
    /// If the switch rejects the request.
    pub async fn release_jobs(&self, numbers: RangeInclusive<u16>) {
        self.write(self.occupied(numbers).map(Update::delete).collect())
            .await;
    }

    /// Entries of jobs that count as unknown ones and have no group.
    pub fn occupied(&self, numbers: RangeInclusive<u16>) -> impl Iterator<Item = TableEntry> {
        let call = [
            (job::INDEX, 0u16.into()),
            (job::GROUP, 0u16.into()),
            (job::LOSS_THRESHOLD, 0u32.into()),
        ];
        numbers.map(move |number| {
            self.entry(job::TABLE, |row| {
                row.exact(job::JOB, number)?
                    .action(job::SET_JOB, &call)?
                    .build()
            })
        })
    }

    fn admission(&self, port: u16, job: &Job, rank: u16) -> TableEntry {
        let member = &job.members[usize::from(rank)];
        self.entry(source::TABLE, |row| {
            let index = [(source::SOURCE_INDEX, member.source.into())];
            row.exact(source::INGRESS_PORT, port)?
                .exact(source::JOB, job.id)?
                .exact(source::EPOCH, job.epoch)?
                .exact(source::SOURCE_RANK, rank)?
                .exact(source::SRC_ADDR, *member.address.ip())?
                .action(source::ADMIT_FROM_HOST, &index)?
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

    /// Writes updates in their order.
    ///
    /// # Panics
    /// If the switch rejects one.
    pub async fn write(&self, updates: Vec<Update>) {
        self.client
            .write(updates, Order::AsGiven)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Encoded requests to one switch.
pub struct EncodedWrites<const N: usize> {
    rpc: Grpc<Channel>,
    requests: [EncodedWriteRequest; N],
}

impl<const N: usize> EncodedWrites<N> {
    /// Writes all requests, one after the other.
    ///
    /// # Panics
    /// If the switch rejects one.
    pub async fn write(&mut self) {
        for request in &self.requests {
            self.rpc.ready().await.expect("the switch serves");
            let codec = ProstCodec::<EncodedWriteRequest, WriteResponse>::default();
            let path = PathAndQuery::from_static("/p4.v1.P4Runtime/Write");
            let written = self.rpc.unary(Request::new(request.clone()), path, codec);
            written.await.unwrap_or_else(|status| panic!("{status}"));
        }
    }
}
