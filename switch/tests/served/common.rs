//! A switch with virtual ports and a controller, for tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::batch;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, multicast_group};
use ultima_p4runtime::text;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    CounterEntry, DigestList, Entity, ForwardingPipelineConfig, MasterArbitrationUpdate, PacketIn,
    ReadRequest, Role, SetForwardingPipelineConfigRequest, StreamMessageRequest,
    StreamMessageResponse, TableEntry, Update, WriteRequest, entity,
    set_forwarding_pipeline_config_request, stream_error, stream_message_request,
    stream_message_response,
};
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::proto::{Count, GetRequest, GetResponse, Port};
use ultima_switch::{Attach, PortConfig, ProgramFiles, Switch, SwitchConfig, WireConfig};

/// How long a test waits for an event before it fails.
pub const TIMEOUT: Duration = Duration::from_secs(10);

pub const DEVICE: u64 = 7;
pub const JSON: &[u8] = include_bytes!("../programs/testbed.json");
pub const P4INFO: &str = include_str!("../programs/testbed.p4info.txtpb");

pub fn names() -> Names {
    Names::new(text::parse(P4INFO).expect("P4Info")).expect("a valid P4Info")
}

pub fn program() -> ProgramFiles {
    ProgramFiles {
        json: JSON.to_vec(),
        p4info: Some(P4INFO.to_owned()),
    }
}

pub fn pipeline_config() -> ForwardingPipelineConfig {
    let p4info: P4Info = text::parse(P4INFO).expect("P4Info");
    ForwardingPipelineConfig {
        p4info: Some(p4info),
        p4_device_config: JSON.to_vec(),
        cookie: None,
    }
}

/// `programs/controller.p4`.
pub fn controller_program() -> ProgramFiles {
    ProgramFiles {
        json: include_bytes!("../programs/controller.json").to_vec(),
        p4info: Some(include_str!("../programs/controller.p4info.txtpb").to_owned()),
    }
}

/// The base of the tests' configurations: no ports and no program.
pub fn base_config() -> SwitchConfig {
    SwitchConfig {
        device_id: DEVICE,
        grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..SwitchConfig::default()
    }
}

/// The far end of a virtual port.
pub struct Peer(UnixDatagram);

impl Peer {
    /// Returns the switch's end and the far end of a new socket pair.
    pub fn pair() -> (OwnedFd, Peer) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("socketpair");
        (ours, Peer::new(theirs))
    }

    /// Wraps a connected SOCK_SEQPACKET socket. The standard library's calls work with any type.
    pub fn new(socket: OwnedFd) -> Peer {
        let socket = UnixDatagram::from(socket);
        socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
        Peer(socket)
    }

    pub fn send(&self, frame: &[u8]) {
        assert_eq!(self.0.send(frame).expect("send"), frame.len());
    }

    pub fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let len = self.0.recv(&mut buffer).expect("a frame");
        buffer.truncate(len);
        buffer
    }
}

/// A running switch with virtual ports, their far ends, and the names of its program.
pub struct Testbed {
    pub switch: Switch,
    pub peers: BTreeMap<u16, Peer>,
    pub names: Names,
}

impl Testbed {
    /// Starts a switch with the program `testbed` and a port for each wire, from port 1 on.
    pub async fn with_wires(config: SwitchConfig, wires: Vec<WireConfig>) -> Testbed {
        Testbed::with_program(config, program(), wires).await
    }

    /// Starts a switch with this program and a port for each wire, from port 1 on.
    pub async fn with_program(
        config: SwitchConfig,
        program: ProgramFiles,
        wires: Vec<WireConfig>,
    ) -> Testbed {
        let p4info = program.p4info.as_deref().expect("P4Info");
        let p4info: P4Info = text::parse(p4info).expect("P4Info");
        let names = Names::new(p4info).expect("a valid P4Info");
        let mut config = SwitchConfig {
            program: Some(program),
            ..config
        };
        let mut peers = BTreeMap::new();
        for (number, wire) in (1..).zip(wires) {
            let (ours, peer) = Peer::pair();
            config.ports.push(PortConfig {
                number,
                attach: Attach::Socket(ours.into()),
                wire,
            });
            peers.insert(number, peer);
        }
        let switch = Switch::start(config).await.expect("the switch starts");
        Testbed {
            switch,
            peers,
            names,
        }
    }

    /// Starts a switch with the program `testbed` and this many ports with perfect wires.
    pub async fn new(ports: u16) -> Testbed {
        Testbed::with_wires(
            base_config(),
            vec![WireConfig::default(); usize::from(ports)],
        )
        .await
    }

    pub async fn controller(&self) -> Controller {
        Controller::primary(self.switch.grpc_addr(), 1).await
    }

    pub async fn statistics(&self) -> GetResponse {
        let address = format!("http://{}", self.switch.grpc_addr());
        let mut client = PortStatisticsClient::connect(address)
            .await
            .expect("connects");
        client
            .get(GetRequest { device_id: DEVICE })
            .await
            .expect("statistics")
            .into_inner()
    }

    pub async fn port(&self, number: u16) -> Port {
        let statistics = self.statistics().await;
        let found = statistics
            .ports
            .into_iter()
            .find(|port| port.number == u32::from(number));
        found.expect("the port exists")
    }

    /// Waits until this many copies were ordered to the port and none is queued or in flight. Returns the port.
    pub async fn until_drained(&self, number: u16, copies: u64) -> Port {
        loop {
            let port = self.port(number).await;
            let held = packets(&port.queued) + packets(&port.in_flight);
            if accounted(&port).1 == copies && held == 0 {
                return port;
            }
        }
    }

    /// Waits until this many frames have entered the port. Returns the port.
    pub async fn until_entered(&self, number: u16, frames: u64) -> Port {
        loop {
            let port = self.port(number).await;
            if accounted(&port).0 == frames {
                return port;
            }
        }
    }

    /// Waits until a frame is on the port's wire.
    pub async fn until_in_flight(&self, number: u16) {
        while packets(&self.port(number).await.in_flight) == 0 {}
    }

    /// `dst → port` in the table `forward`.
    pub fn unicast(&self, dst: u64, port: u16) -> TableEntry {
        self.forward(dst, "IngressPipe.send", ("port", port.into()))
    }

    /// `dst → group` in the table `forward`.
    pub fn flood(&self, dst: u64, group: u16) -> TableEntry {
        self.forward(dst, "IngressPipe.flood", ("group", group.into()))
    }

    fn forward(&self, dst: u64, action: &str, value: (&str, Bytestring)) -> TableEntry {
        let table = self.names.table("IngressPipe.forward").expect("table");
        let entry = table.entry().exact("hdr.ethernet.dst", dst).expect("key");
        entry
            .action(action, &[value])
            .expect("action")
            .build()
            .expect("entry")
    }

    /// The entry of the table `replica` for replicas with this RID.
    pub fn replica(&self, rid: u16, action: &str, values: &[(&str, Bytestring)]) -> TableEntry {
        let table = self.names.table("EgressPipe.replica").expect("table");
        let entry = table
            .entry()
            .exact("standard.egress_rid", rid)
            .expect("key");
        entry
            .action(action, values)
            .expect("action")
            .build()
            .expect("entry")
    }
}

/// A frame of the program `testbed`: EtherType 0x88B5 and a probe header.
pub fn probe(dst: u64, kind: u8, number: u32, len: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(len.max(19));
    frame.extend_from_slice(&dst.to_be_bytes()[2..]);
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 0xaa]);
    frame.extend_from_slice(&[0x88, 0xb5, kind]);
    frame.extend_from_slice(&number.to_be_bytes());
    frame.resize(len.max(19), 0);
    frame
}

/// The number in a probe.
pub fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[15..19].try_into().expect("a probe"))
}

/// A multicast group with replicas of (port, RID).
pub fn group(id: u32, replicas: &[(u32, u32)]) -> Entity {
    let replicas = replicas
        .iter()
        .map(|&(port, instance)| Replica { port, instance });
    multicast_group(id, replicas).expect("a group").into()
}

/// The packets of a count, 0 if it is not set.
pub fn packets(count: &Option<Count>) -> u64 {
    count.as_ref().map_or(0, |count| count.packets)
}

/// Asserts that the port's counts add up. Returns the frames that entered it and the copies ordered to it.
pub fn accounted(port: &Port) -> (u64, u64) {
    let entered = packets(&port.entered);
    let ingress = [
        &port.forwarded,
        &port.ingress_program,
        &port.no_program,
        &port.too_long,
    ]
    .map(packets);
    assert_eq!(ingress.iter().sum::<u64>(), entered, "{port:?}");
    let ordered = packets(&port.ordered);
    let drops = port.drops.as_ref().expect("drops");
    let egress = [
        &port.left,
        &port.queued,
        &port.in_flight,
        &drops.queue,
        &drops.egress_program,
        &drops.recirculated,
        &drops.wire,
        &drops.no_peer,
        &drops.oversize,
        &drops.reconfigured,
        &drops.removed,
    ]
    .map(packets);
    assert_eq!(egress.iter().sum::<u64>(), ordered, "{port:?}");
    (entered, ordered)
}

/// A P4Runtime client with its stream.
pub struct Controller {
    pub client: P4RuntimeClient<Channel>,
    pub role: String,
    pub election_id: u128,
    requests: mpsc::Sender<StreamMessageRequest>,
    responses: Streaming<StreamMessageResponse>,
}

impl Controller {
    /// Opens a stream and sends no message.
    pub async fn connect(address: SocketAddr, election_id: u128) -> Controller {
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("address");
        let endpoint = endpoint.http2_max_header_list_size(batch::header_list_size(1000));
        let channel = endpoint.connect().await.expect("connects");
        let mut client = P4RuntimeClient::new(channel);
        let (requests, receiver) = mpsc::channel(16);
        let responses = client
            .stream_channel(ReceiverStream::new(receiver))
            .await
            .expect("stream");
        let (role, responses) = (String::new(), responses.into_inner());
        Controller {
            client,
            role,
            election_id,
            requests,
            responses,
        }
    }

    /// Opens a stream and becomes the primary.
    pub async fn primary(address: SocketAddr, election_id: u128) -> Controller {
        let mut controller = Controller::connect(address, election_id).await;
        controller.arbitrate(Some(election_id)).await;
        assert_eq!(
            controller.arbitration().await.expect("an update"),
            (Code::Ok, Some(election_id))
        );
        controller
    }

    /// Sends an arbitration update with this election id.
    pub async fn arbitrate(&mut self, election_id: Option<u128>) {
        self.election_id = election_id.unwrap_or(self.election_id);
        let role = (!self.role.is_empty()).then(|| Role {
            name: self.role.clone(),
            ..Role::default()
        });
        let update = MasterArbitrationUpdate {
            device_id: DEVICE,
            role,
            election_id: election_id.map(Into::into),
            status: None,
        };
        self.send(stream_message_request::Update::Arbitration(update))
            .await;
    }

    pub async fn send(&mut self, update: stream_message_request::Update) {
        let request = StreamMessageRequest {
            update: Some(update),
        };
        self.requests
            .send(request)
            .await
            .expect("the stream is open");
    }

    /// The next message; `None` at the end of the stream.
    pub async fn message(&mut self) -> Result<Option<stream_message_response::Update>, Status> {
        let message = tokio::time::timeout(TIMEOUT, self.responses.message());
        let message = message.await.expect("a message in time")?;
        Ok(message.and_then(|message| message.update))
    }

    /// The next message, a packet-in.
    pub async fn packet_in(&mut self) -> PacketIn {
        match self.message().await {
            Ok(Some(stream_message_response::Update::Packet(packet))) => packet,
            other => panic!("expected a packet-in, got {other:?}"),
        }
    }

    /// The next message, a digest list.
    pub async fn digest_list(&mut self) -> DigestList {
        match self.message().await {
            Ok(Some(stream_message_response::Update::Digest(list))) => list,
            other => panic!("expected a digest list, got {other:?}"),
        }
    }

    /// The next message, a stream error: its code and details.
    pub async fn error(&mut self) -> (Code, stream_error::Details) {
        match self.message().await {
            Ok(Some(stream_message_response::Update::Error(error))) => {
                assert!(!error.message.is_empty());
                let details = error.details.expect("details");
                (Code::from(error.canonical_code), details)
            }
            other => panic!("expected a stream error, got {other:?}"),
        }
    }

    /// The next message, an arbitration update: its status, and the highest election id.
    pub async fn arbitration(&mut self) -> Result<(Code, Option<u128>), Status> {
        let message = self.message().await?;
        let Some(stream_message_response::Update::Arbitration(update)) = message else {
            panic!("expected an arbitration update, got {message:?}");
        };
        let code = Code::from(update.status.expect("a status").code);
        Ok((code, update.election_id.as_ref().map(u128::from)))
    }

    pub async fn write(&mut self, updates: Vec<Update>) -> Result<(), Status> {
        let request = WriteRequest {
            device_id: DEVICE,
            role: self.role.clone(),
            election_id: Some(self.election_id.into()),
            updates,
            ..WriteRequest::default()
        };
        self.client.write(request).await.map(|_| ())
    }

    /// Writes one update and returns its error code.
    pub async fn try_write(&mut self, update: Update) -> Result<(), Code> {
        match self.write(vec![update]).await {
            Ok(()) => Ok(()),
            Err(status) => {
                let outcomes = batch::outcomes(&status).expect("outcomes");
                assert_eq!(outcomes.len(), 1);
                assert!(!outcomes[0].message.is_empty());
                Err(Code::from(outcomes[0].canonical_code))
            }
        }
    }

    pub async fn insert(&mut self, entities: Vec<Entity>) {
        let updates = entities.into_iter().map(Update::insert).collect();
        self.write(updates).await.expect("written");
    }

    pub async fn read(&mut self, entities: Vec<Entity>) -> Result<Vec<entity::Entity>, Status> {
        let request = ReadRequest {
            device_id: DEVICE,
            entities,
            ..ReadRequest::default()
        };
        let mut stream = self.client.read(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(response) = stream.message().await? {
            found.extend(
                response
                    .entities
                    .into_iter()
                    .filter_map(|entity| entity.entity),
            );
        }
        Ok(found)
    }

    /// The cells of a counter that are not zero, as (index, packets, bytes).
    pub async fn counter(&mut self, entry: CounterEntry) -> Vec<(i64, i64, i64)> {
        let found = self.read(vec![entry.into()]).await.expect("read");
        let cell = |entity| {
            let entity::Entity::CounterEntry(entry) = entity else {
                panic!("a counter")
            };
            let data = entry.data.expect("data");
            (
                entry.index.expect("an index").index,
                data.packet_count,
                data.byte_count,
            )
        };
        found
            .into_iter()
            .map(cell)
            .filter(|cell| cell.1 != 0)
            .collect()
    }

    pub async fn set_pipeline(
        &mut self,
        action: set_forwarding_pipeline_config_request::Action,
        config: Option<ForwardingPipelineConfig>,
    ) -> Result<(), Status> {
        let request = SetForwardingPipelineConfigRequest {
            device_id: DEVICE,
            role: self.role.clone(),
            election_id: Some(self.election_id.into()),
            action: action.into(),
            config,
            ..SetForwardingPipelineConfigRequest::default()
        };
        self.client
            .set_forwarding_pipeline_config(request)
            .await
            .map(|_| ())
    }
}
