//! Requests to a switch's gRPC server, P4Runtime's and others.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::stream_message_request::Update;
use ultima_p4runtime::v1::stream_message_response::Update as Answer;
use ultima_p4runtime::v1::{
    ForwardingPipelineConfig, MasterArbitrationUpdate, ReadRequest,
    SetForwardingPipelineConfigRequest, StreamMessageRequest, StreamMessageResponse, Uint128,
    WriteRequest,
};
use ultima_switch::proto::trace_client::TraceClient;
use ultima_switch::proto::trace_request::Packets;
use ultima_switch::proto::traffic_manager_client::TrafficManagerClient;
use ultima_switch::proto::{Change, SetSettingsRequest, TraceRequest};
use ultima_switch::trace::PacketTrace;
use ultima_switch::{Attach, PortConfig, Switch, SwitchConfig, WireConfig};

use super::programs::{PROGRAMS, Program};
use super::updates;

/// Requests of one input.
const MAX_REQUESTS: usize = 16;
/// Updates of one generated batch.
const MAX_UPDATES: u8 = 8;
/// The switch's ports.
const PORTS: [u16; 2] = [1, 2];
const DEVICE: u64 = 1;
/// No input's is higher: a role's primary is who has the highest that there ever was.
const ELECTION: Uint128 = Uint128 {
    high: u64::MAX,
    low: u64::MAX,
};
/// The deadline of a response. A missing response is a hang.
const TIMEOUT: Duration = Duration::from_secs(20);

static BED: LazyLock<Mutex<Bed>> = LazyLock::new(|| Mutex::new(Bed::new()));

/// Structured: a program, then requests. Some are the bytes of a protobuf message, sent as the
/// primary's, most of them with the right device and election id; some are made to fit the program.
/// A batch that is rolled back must leave everything as it was.
pub fn p4runtime(data: &[u8]) {
    let mut bed = BED.lock().unwrap_or_else(PoisonError::into_inner);
    // An input that ends early is none.
    let _ = bed.run(&mut Unstructured::new(data));
}

/// A switch, and its primary.
struct Bed {
    runtime: Runtime,
    _switch: Switch,
    far_ends: Vec<OwnedFd>,
    clients: Clients,
    stream: Option<Primary>,
}

/// A client of each service.
struct Clients {
    p4runtime: P4RuntimeClient<Channel>,
    traffic: TrafficManagerClient<Channel>,
    trace: TraceClient<Channel>,
}

struct Primary {
    requests: mpsc::Sender<StreamMessageRequest>,
    responses: Streaming<StreamMessageResponse>,
}

impl Bed {
    fn new() -> Bed {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (mut ports, mut far_ends) = (Vec::new(), Vec::new());
        for number in PORTS {
            let (ours, theirs) = socketpair(
                AddressFamily::Unix,
                SockType::SeqPacket,
                None,
                SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            )
            .expect("sockets");
            far_ends.push(theirs);
            ports.push(PortConfig {
                number,
                attach: Attach::Socket(ours.into()),
                wire: WireConfig::default(),
            });
        }
        let config = SwitchConfig {
            device_id: DEVICE,
            grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
            cpu_port: Some(510),
            ports,
            ..SwitchConfig::default()
        };
        let switch = runtime.block_on(Switch::start(config));
        let switch = switch.expect("it starts");
        let address = format!("http://{}", switch.grpc_addr());
        let endpoint = Channel::from_shared(address).expect("an address");
        let channel = runtime.block_on(endpoint.connect()).expect("it listens");
        Bed {
            clients: Clients {
                p4runtime: P4RuntimeClient::new(channel.clone()),
                traffic: TrafficManagerClient::new(channel.clone()),
                trace: TraceClient::new(channel),
            },
            _switch: switch,
            far_ends,
            runtime,
            stream: None,
        }
    }

    fn run(&mut self, input: &mut Unstructured) -> Result<()> {
        let program = &PROGRAMS[usize::from(u8::arbitrary(input)?) % PROGRAMS.len()];
        // Frames of earlier inputs.
        let mut frame = [0; 1 << 16];
        for end in &self.far_ends {
            while recv(end.as_raw_fd(), &mut frame, MsgFlags::empty()).is_ok() {}
        }
        let clients = &mut self.clients;
        self.runtime.block_on(async {
            // An input's changes to the stream end with it.
            let mut primary = match self.stream.take() {
                Some(primary) => primary,
                None => Primary::new(&mut clients.p4runtime).await,
            };
            reset(clients, program).await;
            let mut stream_used = false;
            for _ in 0..MAX_REQUESTS {
                if input.is_empty() {
                    break;
                }
                stream_used |= request(clients, program, &mut primary, input).await?;
            }
            if !stream_used {
                self.stream = Some(primary);
            }
            Ok(())
        })
    }
}

/// True if this client is the primary.
fn is_ok(answer: &MasterArbitrationUpdate) -> bool {
    answer.status.as_ref().is_none_or(|status| status.code == 0)
}

impl Primary {
    async fn new(client: &mut P4RuntimeClient<Channel>) -> Primary {
        loop {
            let (requests, receiver) = mpsc::channel(16);
            let stream = client.stream_channel(ReceiverStream::new(receiver));
            let responses = stream.await.expect("a stream").into_inner();
            let mut primary = Primary {
                requests,
                responses,
            };
            let arbitration = MasterArbitrationUpdate {
                device_id: DEVICE,
                election_id: Some(ELECTION),
                ..MasterArbitrationUpdate::default()
            };
            primary.send(Update::Arbitration(arbitration)).await;
            let answer = timely(primary.responses.message()).await;
            let answer = answer.ok().flatten().and_then(|answer| answer.update);
            match answer {
                Some(Answer::Arbitration(answer)) if is_ok(&answer) => return primary,
                // While the last one is still there, its election id is taken, or beaten.
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    async fn send(&mut self, update: Update) {
        let update = Some(update);
        // A stream that the server has closed takes no more.
        let _ = self.requests.send(StreamMessageRequest { update }).await;
    }
}

/// Every request is answered in time, and never by a panic.
async fn timely<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let answer = tokio::time::timeout(TIMEOUT, answer).await;
    let answer = answer.expect("an answer in time");
    if let Err(status) = &answer {
        let bad = matches!(
            status.code(),
            Code::Internal | Code::Unavailable | Code::DataLoss
        );
        assert!(!bad, "{status:?}");
    }
    answer
}

/// Puts the program in, and its entries; and takes settings off the wires.
async fn reset(clients: &mut Clients, program: &Program) {
    let client = &mut clients.p4runtime;
    let request = pipeline(program, Action::VerifyAndCommit);
    let answer = timely(client.set_forwarding_pipeline_config(request)).await;
    answer.expect("the program loads");
    let entries = WriteRequest {
        device_id: DEVICE,
        election_id: Some(ELECTION),
        ..program.entries()
    };
    timely(client.write(entries))
        .await
        .expect("its entries fit");
    let request = SetSettingsRequest {
        device_id: DEVICE,
        changes: vec![Change {
            settings: WireConfig::default().to_string(),
            ..Change::default()
        }],
    };
    timely(clients.traffic.set(request))
        .await
        .expect("perfect wires");
}

fn pipeline(program: &Program, action: Action) -> SetForwardingPipelineConfigRequest {
    SetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        election_id: Some(ELECTION),
        action: action.into(),
        config: Some(ForwardingPipelineConfig {
            p4info: Some(program.p4info()),
            p4_device_config: program.json.to_vec(),
            cookie: None,
        }),
        ..SetForwardingPipelineConfigRequest::default()
    }
}

/// Reads everything there is.
async fn read_all(client: &mut P4RuntimeClient<Channel>) {
    let request = ReadRequest {
        device_id: DEVICE,
        entities: updates::everything(),
        ..ReadRequest::default()
    };
    let mut stream = timely(client.read(request))
        .await
        .expect("all can be read")
        .into_inner();
    while timely(stream.message())
        .await
        .expect("all can be read")
        .is_some()
    {}
}

/// Sends a batch of generated updates.
async fn batch(
    client: &mut P4RuntimeClient<Channel>,
    program: &Program,
    input: &mut Unstructured<'_>,
) -> Result<()> {
    let p4info = program.p4info();
    let mut batch = Vec::new();
    for _ in 0..=u8::arbitrary(input)? % MAX_UPDATES {
        batch.push(updates::update(input, &p4info)?);
        if input.is_empty() {
            break;
        }
    }
    let request = WriteRequest {
        device_id: DEVICE,
        election_id: Some(ELECTION),
        updates: batch,
        ..WriteRequest::default()
    };
    // Random updates fail as well as succeed; all that is there can be read afterwards.
    let _ = timely(client.write(request)).await;
    read_all(client).await;
    Ok(())
}

/// Sends a frame into a port and waits for the trace of it.
async fn frame(trace: &mut TraceClient<Channel>, port: u16, frame: &[u8]) {
    let request = TraceRequest {
        device_id: DEVICE,
        port: port.into(),
        time_limit_ms: 20,
        packets: Some(Packets::Frame(frame.to_vec())),
    };
    let Ok(stream) = timely(trace.packets(request)).await else {
        return;
    };
    let mut stream = stream.into_inner();
    while let Ok(Some(traced)) = timely(stream.message()).await {
        let traced: PacketTrace =
            serde_json::from_slice(&traced.document).expect("a trace can be read");
        assert_eq!(traced.frame.0, frame);
    }
}

/// Sends one request. True: it was for the stream.
async fn request(
    clients: &mut Clients,
    program: &Program,
    primary: &mut Primary,
    input: &mut Unstructured<'_>,
) -> Result<bool> {
    let client = &mut clients.p4runtime;
    let kind = u8::arbitrary(input)?;
    match kind & 0x0f {
        4..8 => {
            batch(client, program, input).await?;
            return Ok(false);
        }
        8 => {
            let actions = [
                Action::Verify,
                Action::VerifyAndSave,
                Action::VerifyAndCommit,
                Action::Commit,
                Action::ReconcileAndCommit,
            ];
            let action = *input.choose(&actions)?;
            let other = usize::from(u8::arbitrary(input)?);
            let mut request = pipeline(PROGRAMS.get(other).unwrap_or(program), action);
            if action == Action::Commit {
                request.config = None;
            }
            let _ = timely(client.set_forwarding_pipeline_config(request)).await;
            return Ok(false);
        }
        _ => {}
    }
    let length = usize::from(u16::arbitrary(input)?);
    let bytes = input.bytes(length.min(input.len()))?;
    // Most requests should get past the checks of who sends them.
    let ours = kind & 0x80 == 0;
    match kind & 0x0f {
        0 => {
            let Ok(mut request) = WriteRequest::decode(bytes) else {
                return Ok(false);
            };
            if ours {
                (request.device_id, request.election_id) = (DEVICE, Some(ELECTION));
                request.role.clear();
            }
            let _ = timely(client.write(request)).await;
        }
        1 => {
            let Ok(mut request) = ReadRequest::decode(bytes) else {
                return Ok(false);
            };
            if ours {
                request.device_id = DEVICE;
                request.role.clear();
            }
            if let Ok(stream) = timely(client.read(request)).await {
                let mut stream = stream.into_inner();
                while let Ok(Some(_)) = timely(stream.message()).await {}
            }
        }
        2 => {
            let request = SetForwardingPipelineConfigRequest::decode(bytes);
            let Ok(mut request) = request else {
                return Ok(false);
            };
            if ours {
                (request.device_id, request.election_id) = (DEVICE, Some(ELECTION));
                request.role.clear();
            }
            let _ = timely(client.set_forwarding_pipeline_config(request)).await;
        }
        3 => {
            let Ok(request) = StreamMessageRequest::decode(bytes) else {
                return Ok(false);
            };
            if let Some(update) = request.update {
                primary.send(update).await;
                // Wait until it has been seen: reads come behind it.
                let read = ReadRequest {
                    device_id: DEVICE,
                    ..ReadRequest::default()
                };
                let _ = timely(client.read(read)).await;
                return Ok(true);
            }
        }
        9 => {
            let Ok(mut request) = SetSettingsRequest::decode(bytes) else {
                return Ok(false);
            };
            request.device_id = DEVICE;
            let _ = timely(clients.traffic.set(request)).await;
        }
        10 => {
            let Ok(mut request) = TraceRequest::decode(bytes) else {
                return Ok(false);
            };
            request.time_limit_ms = request.time_limit_ms.clamp(1, 5);
            if let Ok(stream) = timely(clients.trace.packets(request)).await {
                let mut stream = stream.into_inner();
                while let Ok(Some(_)) = timely(stream.message()).await {}
            }
        }
        other => frame(&mut clients.trace, PORTS[usize::from(other & 1)], bytes).await,
    }
    Ok(false)
}
