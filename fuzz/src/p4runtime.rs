//! P4Runtime requests, to a server that runs a program.

use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::stream_message_request::Update;
use ultima_p4runtime::v1::{
    ForwardingPipelineConfig, MasterArbitrationUpdate, ReadRequest,
    SetForwardingPipelineConfigRequest, StreamMessageRequest, StreamMessageResponse, Uint128,
    WriteRequest,
};
use ultima_switch::{Switch, SwitchConfig};

use super::programs::{PROGRAMS, Program};

/// Requests of one input.
const MAX_REQUESTS: usize = 8;
const DEVICE: u64 = 1;
const ELECTION: Uint128 = Uint128 { high: 0, low: 1 };
/// An answer that takes longer is a hang.
const PATIENCE: Duration = Duration::from_secs(20);

static BED: LazyLock<Mutex<Bed>> = LazyLock::new(|| Mutex::new(Bed::new()));

/// Structured: a program, then requests, each the bytes of a protobuf message. All are sent as the
/// primary's, most of them with the right device and election id.
pub fn p4runtime(data: &[u8]) {
    let mut bed = BED.lock().unwrap_or_else(PoisonError::into_inner);
    // An input that ends early is none.
    let _ = bed.run(&mut Unstructured::new(data));
}

/// A switch without ports, and its primary.
struct Bed {
    runtime: Runtime,
    _switch: Switch,
    client: P4RuntimeClient<Channel>,
    stream: Option<Primary>,
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
        let config = SwitchConfig {
            device_id: DEVICE,
            grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
            cpu_port: Some(510),
            ..SwitchConfig::default()
        };
        let switch = runtime.block_on(Switch::start(config));
        let switch = switch.expect("it starts");
        let address = format!("http://{}", switch.grpc_addr());
        let client = runtime.block_on(P4RuntimeClient::connect(address));
        Bed {
            client: client.expect("it listens"),
            _switch: switch,
            runtime,
            stream: None,
        }
    }

    fn run(&mut self, input: &mut Unstructured) -> Result<()> {
        let program = &PROGRAMS[usize::from(u8::arbitrary(input)?) % PROGRAMS.len()];
        self.runtime.block_on(async {
            // What an input did to the stream ends with it.
            let mut primary = match self.stream.take() {
                Some(primary) => primary,
                None => Primary::new(&mut self.client).await,
            };
            reset(&mut self.client, program).await;
            let mut stream_used = false;
            for _ in 0..MAX_REQUESTS {
                if input.is_empty() {
                    break;
                }
                stream_used |= request(&mut self.client, &mut primary, input).await?;
            }
            if !stream_used {
                self.stream = Some(primary);
            }
            Ok(())
        })
    }
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
            // While the last one is still there, its election id is taken.
            match timely(primary.responses.message()).await {
                Ok(Some(_)) => return primary,
                Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
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
    let answer = tokio::time::timeout(PATIENCE, answer).await;
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

/// Puts the program in, and its entries.
async fn reset(client: &mut P4RuntimeClient<Channel>, program: &Program) {
    let config = ForwardingPipelineConfig {
        p4info: Some(program.p4info()),
        p4_device_config: program.json.to_vec(),
        cookie: None,
    };
    let request = SetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        election_id: Some(ELECTION),
        action: Action::VerifyAndCommit.into(),
        config: Some(config),
        ..SetForwardingPipelineConfigRequest::default()
    };
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
}

/// Sends one request. True: it was for the stream.
async fn request(
    client: &mut P4RuntimeClient<Channel>,
    primary: &mut Primary,
    input: &mut Unstructured<'_>,
) -> Result<bool> {
    let kind = u8::arbitrary(input)?;
    let length = usize::from(u16::arbitrary(input)?);
    let bytes = input.bytes(length.min(input.len()))?;
    // Most requests should get past the checks of who sends them.
    let ours = kind & 0x80 == 0;
    match kind % 4 {
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
        _ => {
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
    }
    Ok(false)
}
