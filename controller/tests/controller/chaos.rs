//! A P4Runtime and gNMI server with fault injection, in place of a switch. It forwards no packets.

mod emulate;
mod ports;
mod service;
pub mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ports::Ports;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::transport::Server;
use ultima_controller::p4rt::Device;
use ultima_gnmi::v0::g_nmi_server::GNmiServer;
use ultima_p4runtime::v1::p4_runtime_server::P4RuntimeServer;
use ultima_p4runtime::v1::{
    Entity, ForwardingPipelineConfig, MeterConfig, StreamMessageResponse, update,
};
use wire::Wire;

use crate::target::Target;

/// The kinds of calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Master arbitration.
    Arbitration,
    /// GetForwardingPipelineConfig.
    GetPipeline,
    /// SetForwardingPipelineConfig.
    SetPipeline,
    /// Read.
    Read,
    /// One update of a Write.
    Update,
}

pub const CALLS: [Call; 5] = [
    Call::Arbitration,
    Call::GetPipeline,
    Call::SetPipeline,
    Call::Read,
    Call::Update,
];

/// A fault at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is rejected. The other updates of a batch are done.
    Refuse,
    /// The call is done, and answered late.
    Delay,
    /// Half of the call is done, and the answer does not say which half: a batch up to this update; the first half of a
    /// read's answer; of a new program only the removal of the old one with its tables; an arbitration whose stream ends.
    HalfApply,
    /// The call is done, and all connections break before the answer.
    DoAndDisconnect,
    /// All connections break before the call is done.
    Disconnect,
    /// The switch loses all state, as in a restart.
    Forget,
    /// The call, and the rest of its batch, is done so late that a client with waiting reroutes gives it up. A write is done
    /// even then.
    Hang,
}

pub const FAULTS: [Fault; 7] = [
    Fault::Refuse,
    Fault::Delay,
    Fault::HalfApply,
    Fault::DoAndDisconnect,
    Fault::Disconnect,
    Fault::Forget,
    Fault::Hang,
];

/// A switch's state and its armed faults.
#[derive(Default)]
pub struct State {
    pub pipeline: Option<ForwardingPipelineConfig>,
    /// All entities, by key.
    pub held: Held,
    /// Written counter cells, by counter and index.
    pub cells: BTreeMap<(u32, i64), Entity>,
    /// Configured meter cells, by meter and index.
    pub meters: BTreeMap<(u32, i64), MeterConfig>,
    /// The number of calls so far.
    calls: BTreeMap<Call, usize>,
    /// All updates, also rejected ones.
    pub log: Vec<Done>,
    /// The armed faults, by the number of the call.
    faults: BTreeMap<(Call, usize), Fault>,
    /// The number of times that the tables were emptied.
    pub emptied: usize,
    /// The number of times that all state was lost.
    restarts: usize,
    /// The number of digest lists that a new primary receives. Their ids start at 0.
    pub digest_lists: u64,
    /// The bytes of each list's digest.
    pub digest_bytes: usize,
    /// The number of acknowledged lists.
    pub acknowledged: u64,
    /// The open streams, with their election ids and outgoing messages.
    elections: BTreeMap<u64, (u128, Answers)>,
    /// The highest election id so far.
    highest: u128,
    streams: u64,
    /// True if reads wait until this is false.
    pub stalls_reads: bool,
    /// True if writes wait until this is false.
    pub stalls_writes: bool,
    /// The number of waiting writes.
    pub stalled_writes: usize,
    /// True if SetForwardingPipelineConfig waits until this is false.
    pub stalls_pipelines: bool,
    /// Updates of this kind are refused, of table entries with this value in their key.
    pub refuses: Option<(update::Type, Vec<u8>)>,
    /// True if hanging calls wait until this is false.
    pub keeps_hanging: bool,
    /// True if the next read ends the hanging calls, and is answered after them with the entities from before them.
    pub is_late_to_read: bool,
}

/// An update in the log.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its number among the updates of all switches.
    pub at: u64,
    /// Insert, modify or delete.
    pub kind: update::Type,
    /// The entity's key.
    pub key: Vec<u8>,
}

/// A stream's outgoing messages.
type Answers = mpsc::Sender<Result<StreamMessageResponse, Status>>;

/// The wires to a switch.
type Wires = Arc<Mutex<Vec<Arc<Wire>>>>;

fn cut_all(wires: &Wires) {
    wires.lock().unwrap().iter().for_each(|wire| wire.cut());
}

/// The number of a switch's hanging calls.
#[derive(Clone, Default)]
pub struct Hanging(Arc<AtomicUsize>);

/// A hanging call, until this is dropped.
struct Hangs(Hanging);

impl Hanging {
    /// Returns true if any call hangs.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    fn begin(&self) -> Hangs {
        self.0.fetch_add(1, Ordering::SeqCst);
        Hangs(self.clone())
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        let Hangs(Hanging(count)) = self;
        count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A switch's entities, by key.
pub type Held = BTreeMap<Vec<u8>, Entity>;

/// A running switch.
pub struct ChaosSwitch {
    state: Arc<Mutex<State>>,
    hanging: Hanging,
    ports: watch::Sender<Ports>,
    wire: Arc<Wire>,
    wires: Wires,
    server_address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
}

/// The interval of HTTP/2 pings to silent clients.
const KEEPALIVE: Duration = Duration::from_millis(200);
/// The timeout of a ping: longer than a busy machine delays a test.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

impl ChaosSwitch {
    /// Starts a switch of the run's target, device 1, on a free port of loopback.
    pub async fn start() -> Self {
        Self::start_as(Target::of_run()).await
    }

    pub async fn start_as(target: Target) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server_address = listener.local_addr().unwrap();
        let wire = Arc::new(Wire::start(server_address).await);
        let wires = Arc::new(Mutex::new(vec![Arc::clone(&wire)]));
        let state = Arc::new(Mutex::new(State::default()));
        let hanging = Hanging::default();
        let service = service::Service {
            target,
            state: Arc::clone(&state),
            hanging: hanging.clone(),
            wires: Arc::clone(&wires),
        };
        let ports = watch::Sender::default();
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(P4RuntimeServer::new(service))
            .add_service(GNmiServer::new(ports::Telling(ports.clone())));
        let server = tokio::spawn(async move {
            server
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        ChaosSwitch {
            state,
            hanging,
            ports,
            wire,
            wires,
            server_address,
            server,
        }
    }

    /// Adds a wire to the switch, which can break on its own.
    pub async fn wire(&self) -> Arc<Wire> {
        let wire = Arc::new(Wire::start(self.server_address).await);
        self.wires.lock().unwrap().push(Arc::clone(&wire));
        wire
    }

    /// Its description for a client.
    pub fn device(&self) -> Device {
        Device {
            name: "s1".into(),
            grpc: self.address().to_string(),
            device_id: 1,
            tls: None,
            packing: Default::default(),
        }
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.wire.address()
    }

    /// Reports a port as up or down from now on.
    pub fn port(&self, number: u16, is_up: bool) {
        self.ports.send_modify(|ports| {
            ports.insert(number, is_up);
        });
    }

    /// Read.
    pub fn held(&self) -> Held {
        self.state().held.clone()
    }

    /// The configured meter cells.
    pub fn meters(&self) -> BTreeMap<(u32, i64), MeterConfig> {
        self.state().meters.clone()
    }

    /// The number of updates so far.
    pub fn updates(&self) -> usize {
        self.calls(Call::Update)
    }

    /// The number of calls of a kind so far.
    pub fn calls(&self, of: Call) -> usize {
        self.state().calls.get(&of).copied().unwrap_or_default()
    }

    /// The number of arbitration streams so far.
    pub fn streams(&self) -> u64 {
        self.state().streams
    }

    /// Removes and returns the log.
    pub fn take_log(&self) -> Vec<Done> {
        std::mem::take(&mut self.state().log)
    }

    /// Arms a fault at the `nth` update from now, counting from 0.
    pub fn fail_at(&self, nth: usize, fault: Fault) {
        self.fail(Call::Update, nth, fault);
    }

    /// Arms a fault at the `nth` call of this kind from now, counting from 0. Other faults stay armed.
    pub fn fail(&self, call: Call, nth: usize, fault: Fault) {
        let place = (call, self.calls(call) + nth);
        self.state().faults.insert(place, fault);
    }

    /// The number of armed faults.
    pub fn armed(&self) -> usize {
        self.state().faults.len()
    }

    /// Disarms all faults. Returns how many had not happened.
    pub fn forgive(&self) -> usize {
        std::mem::take(&mut self.state().faults).len()
    }

    /// The counter of hanging calls.
    pub fn hanging(&self) -> Hanging {
        self.hanging.clone()
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        cut_all(&self.wires);
    }

    /// Refuses connections, or accepts them again. Entities stay.
    pub fn refuse(&self, refuse: bool) {
        self.wire.refuse(refuse);
    }

    /// Holds back all bytes without closing connections, or delivers them.
    pub fn swallow(&self, swallow: bool) {
        self.wire.swallow(swallow);
    }

    /// Another client replaces the program. All entities are lost, as P4Runtime specifies.
    pub fn replace_program(&self) {
        self.state().held.clear();
        self.replace_program_alone();
    }

    /// Another client replaces the program. Groups stay, as on BMv2.
    pub fn replace_program_alone(&self) {
        let mut state = self.state();
        state.empty();
        let pipeline = state.pipeline.as_mut().expect("it has one");
        let cookie = pipeline.cookie.as_mut().expect("ours has one");
        cookie.cookie ^= 1;
    }

    /// Loses all state and breaks all connections, as in a restart.
    pub fn reboot(&self) {
        self.state().forget();
        self.cut();
    }

    /// The state, to read it or to change it without the controller.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for ChaosSwitch {
    fn drop(&mut self) {
        self.server.abort();
        self.cut();
    }
}
