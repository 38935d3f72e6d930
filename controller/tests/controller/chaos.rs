//! A P4Runtime server that holds what is written to it and fails on purpose, and says of its ports what it is told to.

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
use ultima_gnmi::v0::g_nmi_server::GNmiServer;
use ultima_p4runtime::v1::p4_runtime_server::P4RuntimeServer;
use ultima_p4runtime::v1::{
    Entity, ForwardingPipelineConfig, MeterConfig, StreamMessageResponse, update,
};
use wire::Wire;

use crate::target::Target;

/// What a switch is asked for, and where it may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// To take a client as its primary.
    Arbitration,
    /// Which program it has.
    GetPipeline,
    /// To run another program.
    SetPipeline,
    /// What it holds.
    Read,
    /// One update of a write.
    Update,
}

/// All of them.
pub const CALLS: [Call; 5] = [
    Call::Arbitration,
    Call::GetPipeline,
    Call::SetPipeline,
    Call::Read,
    Call::Update,
];

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused; of a batch of updates the rest goes on.
    Refuse,
    /// It is done, late.
    Delay,
    /// Half of it is done, and what is answered says not which: of a batch all updates up to this one, of a read the
    /// answer's first half; of a new program only that the old one goes with its tables; and a client is primary
    /// whose stream ends.
    HalfApply,
    /// It is done, and all connections break before anything is answered.
    DoAndDisconnect,
    /// All connections break before it is done.
    Disconnect,
    /// The switch forgets everything, as one that is restarted.
    Forget,
    /// It is done, with what follows it in a batch, and answered so late that who has others waiting does not wait for it any more. A write is
    /// done even if nobody does.
    Hang,
}

/// All of them.
pub const FAULTS: [Fault; 7] = [
    Fault::Refuse,
    Fault::Delay,
    Fault::HalfApply,
    Fault::DoAndDisconnect,
    Fault::Disconnect,
    Fault::Forget,
    Fault::Hang,
];

/// What the switch has, and what it will do.
#[derive(Default)]
pub struct State {
    pub pipeline: Option<ForwardingPipelineConfig>,
    /// Everything that was inserted, by key.
    pub held: Held,
    /// Counter cells that were written, by counter and index.
    pub cells: BTreeMap<(u32, i64), Entity>,
    /// Meter cells that have a configuration, by meter and index.
    pub meters: BTreeMap<(u32, i64), MeterConfig>,
    /// Calls seen so far.
    calls: BTreeMap<Call, usize>,
    /// What was done to entities, or refused, in the order of all switches.
    pub log: Vec<Done>,
    /// What goes wrong, and at which of the calls.
    faults: BTreeMap<(Call, usize), Fault>,
    /// How often it has lost what its tables held.
    pub emptied: usize,
    /// How often it has forgotten everything.
    lives: usize,
    /// Digest lists that a new primary is sent, numbered from 0.
    pub digest_lists: u64,
    /// The bytes of each one's digest.
    pub digest_bytes: usize,
    /// Those that were acknowledged.
    pub acknowledged: u64,
    /// The open streams, their election ids, and where they are told of others.
    elections: BTreeMap<u64, (u128, Answers)>,
    /// The highest election id ever seen.
    highest: u128,
    streams: u64,
    /// Whether reads are never answered, although everything else is.
    pub stalls_reads: bool,
    /// Whether writes wait until this is not so any more.
    pub stalls_writes: bool,
    /// Writes that do.
    pub stalled_writes: usize,
    /// Whether a new program does.
    pub stalls_pipelines: bool,
    /// Whether what hangs does so until this is not so any more.
    pub keeps_hanging: bool,
    /// Whether the next read ends that, and what hung is done before it is answered with what was there.
    pub is_late_to_read: bool,
}

/// An update.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its place in the order of all switches.
    pub at: u64,
    /// What was to become of an entity.
    pub kind: update::Type,
    /// The entity's key.
    pub key: Vec<u8>,
}

/// Where a stream's answers go.
type Answers = mpsc::Sender<Result<StreamMessageResponse, Status>>;

/// The ways to a switch.
type Wires = Arc<Mutex<Vec<Arc<Wire>>>>;

fn cut_all(wires: &Wires) {
    wires.lock().unwrap().iter().for_each(|wire| wire.cut());
}

/// Counts the calls of a switch that hang.
#[derive(Clone, Default)]
pub struct Hanging(Arc<AtomicUsize>);

/// A call that hangs, until this is dropped.
struct Hangs(Hanging);

impl Hanging {
    /// Whether any does.
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

/// What a switch holds, by key.
pub type Held = BTreeMap<Vec<u8>, Entity>;

/// A running server.
pub struct ChaosSwitch {
    state: Arc<Mutex<State>>,
    hanging: Hanging,
    ports: watch::Sender<Ports>,
    wire: Arc<Wire>,
    wires: Wires,
    server_address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
}

/// How often a switch asks whether a client is there that says nothing.
const KEEPALIVE: Duration = Duration::from_millis(200);
/// How long that may take to answer: longer than a test comes to nothing on a machine that has too much to do.
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

    /// Another way to it, which may break on its own.
    pub async fn wire(&self) -> Arc<Wire> {
        let wire = Arc::new(Wire::start(self.server_address).await);
        self.wires.lock().unwrap().push(Arc::clone(&wire));
        wire
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.wire.address()
    }

    /// It says from now on of this port that it is up, or not.
    pub fn port(&self, number: u16, is_up: bool) {
        self.ports.send_modify(|ports| {
            ports.insert(number, is_up);
        });
    }

    /// What it holds.
    pub fn held(&self) -> Held {
        self.state().held.clone()
    }

    /// The configurations of its meters' cells.
    pub fn meters(&self) -> BTreeMap<(u32, i64), MeterConfig> {
        self.state().meters.clone()
    }

    /// How many updates it has seen.
    pub fn updates(&self) -> usize {
        self.calls(Call::Update)
    }

    /// How many calls of this kind it has seen.
    pub fn calls(&self, of: Call) -> usize {
        self.state().calls.get(&of).copied().unwrap_or_default()
    }

    /// How many clients have asked to be primary so far, also again.
    pub fn streams(&self) -> u64 {
        self.state().streams
    }

    /// What was done since this was last asked for.
    pub fn take_log(&self) -> Vec<Done> {
        std::mem::take(&mut self.state().log)
    }

    /// Makes the `nth` update from now go wrong, counting from 0.
    pub fn fail_at(&self, nth: usize, fault: Fault) {
        self.fail(Call::Update, nth, fault);
    }

    /// Makes the `nth` call of this kind from now go wrong, counting from 0. Whatever else is to go wrong does, too.
    pub fn fail(&self, call: Call, nth: usize, fault: Fault) {
        let place = (call, self.calls(call) + nth);
        self.state().faults.insert(place, fault);
    }

    /// How much is to go wrong.
    pub fn armed(&self) -> usize {
        self.state().faults.len()
    }

    /// Nothing goes wrong any more; how much of it has not yet.
    pub fn forgive(&self) -> usize {
        std::mem::take(&mut self.state().faults).len()
    }

    /// What hangs.
    pub fn hanging(&self) -> Hanging {
        self.hanging.clone()
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        cut_all(&self.wires);
    }

    /// Does not answer any more, or again; what it holds stays.
    pub fn refuse(&self, refuse: bool) {
        self.wire.refuse(refuse);
    }

    /// Nothing comes through any more, and nobody is told, or all that waits does.
    pub fn swallow(&self, swallow: bool) {
        self.wire.swallow(swallow);
    }

    /// Somebody gives it another program, as the specification has it: it is empty then.
    pub fn replace_program(&self) {
        self.state().held.clear();
        self.replace_program_alone();
    }

    /// The same where groups stay.
    pub fn replace_program_alone(&self) {
        let mut state = self.state();
        state.empty();
        let pipeline = state.pipeline.as_mut().expect("it has one");
        let cookie = pipeline.cookie.as_mut().expect("ours has one");
        cookie.cookie ^= 1;
    }

    /// Forgets everything, as a switch that was restarted.
    pub fn reboot(&self) {
        self.state().forget();
        self.cut();
    }

    /// What it has, to look at or to change behind the controller's back.
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
