//! Counters of switches, read over P4Runtime without being primary.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use tonic::transport::Channel;
use ultima_p4::names::counter;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{CounterEntry, Entity, ReadRequest, entity};
use ultima_p4runtime::{config::v1::P4Info, text};

/// One cell of a counter array of one switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The index of the switch in the fabric.
    pub switch: usize,
    /// The array's name in P4Info.
    pub array: &'static str,
    /// The index in the array.
    pub index: u32,
}

/// The value of a cell.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes of whole frames.
    pub bytes: u64,
}

/// Cells that are not zero.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<Cell, Count>);

impl Counts {
    /// Counts frames of `bytes` in a cell.
    pub fn add(&mut self, cell: Cell, packets: u64, bytes: usize) {
        if packets > 0 {
            let count = self.0.entry(cell).or_default();
            count.packets += packets;
            count.bytes += packets * bytes as u64;
        }
    }

    /// The counts that are not by source. Those by source depend on earlier packets.
    pub fn without_sources(&self) -> Counts {
        let others = self
            .0
            .iter()
            .filter(|(cell, _)| !by_source().any(|array| array == cell.array));
        Counts(others.map(|(cell, count)| (*cell, *count)).collect())
    }

    /// The difference to `earlier`.
    ///
    /// # Panics
    /// If a counter has decreased.
    pub fn since(&self, earlier: &Counts) -> Counts {
        assert!(
            earlier.0.keys().all(|cell| self.0.contains_key(cell)),
            "a counter was reset"
        );
        let grown = self.0.iter().filter_map(|(cell, now)| {
            let before = earlier.0.get(cell).copied().unwrap_or_default();
            let packets = now
                .packets
                .checked_sub(before.packets)
                .expect("counters grow");
            let bytes = now.bytes.checked_sub(before.bytes).expect("counters grow");
            (packets > 0 || bytes > 0).then_some((*cell, Count { packets, bytes }))
        });
        Counts(grown.collect())
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{} {}[{}]", self.switch + 1, self.array, self.index)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets, {} bytes", self.packets, self.bytes)
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0).finish()
    }
}

/// The counter arrays by source.
fn by_source() -> impl Iterator<Item = &'static str> + Clone {
    counter::GAPS.into_iter().chain(counter::BY_SOURCE)
}

/// The other counter arrays of the program.
fn not_by_source() -> impl Iterator<Item = &'static str> + Clone {
    (counter::BY_JOB.into_iter())
        .chain([counter::MALFORMED, counter::UNROUTED])
        .chain(counter::BY_SHARE)
}

/// Reads counters of a fabric's switches without being any switch's primary.
pub struct CounterReader {
    switches: Vec<(P4RuntimeClient<Channel>, u64)>,
    names: Names,
}

impl CounterReader {
    /// Connects to P4Runtime servers, given with their device ids.
    ///
    /// # Errors
    /// A server does not answer.
    pub async fn connect(
        switches: impl IntoIterator<Item = (SocketAddr, u64)>,
    ) -> Result<Self, tonic::transport::Error> {
        let p4info: P4Info = text::parse(ultima_p4::v1model().p4info).expect("p4c printed it");
        let names = Names::new(p4info).expect("p4c printed it");
        let mut clients = Vec::new();
        for (grpc, device_id) in switches {
            clients.push((
                P4RuntimeClient::connect(format!("http://{grpc}")).await?,
                device_id,
            ));
        }
        Ok(Self {
            switches: clients,
            names,
        })
    }

    /// All cells of all arrays of all switches.
    ///
    /// # Errors
    /// A switch rejects the request.
    pub async fn read(&mut self) -> Result<Counts, tonic::Status> {
        self.read_arrays(not_by_source().chain(by_source())).await
    }

    /// As [`CounterReader::read`], but without the arrays by source, which have most of the cells.
    ///
    /// # Errors
    /// A switch rejects the request.
    pub async fn read_without_sources(&mut self) -> Result<Counts, tonic::Status> {
        self.read_arrays(not_by_source()).await
    }

    async fn read_arrays(
        &mut self,
        arrays: impl Iterator<Item = &'static str> + Clone,
    ) -> Result<Counts, tonic::Status> {
        let mut counts = Counts::default();
        for (switch, (client, device_id)) in self.switches.iter_mut().enumerate() {
            let by_id: BTreeMap<u32, &'static str> = (arrays.clone())
                .map(|name| {
                    (
                        self.names.counter(name).expect("the program has it").id,
                        name,
                    )
                })
                .collect();
            let all = by_id.keys().map(|id| CounterEntry {
                counter_id: *id,
                ..Default::default()
            });
            let request = ReadRequest {
                device_id: *device_id,
                entities: all.map(Entity::from).collect(),
                ..Default::default()
            };
            let mut responses = client.read(request).await?.into_inner();
            while let Some(response) = responses.message().await? {
                for entity in response.entities {
                    let Some(entity::Entity::CounterEntry(entry)) = entity.entity else {
                        continue;
                    };
                    let (Some(index), Some(data)) = (entry.index, entry.data) else {
                        continue;
                    };
                    let index = u32::try_from(index.index).expect("arrays are smaller");
                    let cell = Cell {
                        switch,
                        array: by_id[&entry.counter_id],
                        index,
                    };
                    if data.packet_count != 0 || data.byte_count != 0 {
                        let count = Count {
                            packets: u64::try_from(data.packet_count).expect("counts are positive"),
                            bytes: u64::try_from(data.byte_count).expect("counts are positive"),
                        };
                        counts.0.insert(cell, count);
                    }
                }
            }
        }
        Ok(counts)
    }
}
