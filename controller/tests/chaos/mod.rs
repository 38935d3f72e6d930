//! A P4Runtime server that holds what is written to it and fails on purpose.

#![allow(dead_code)] // Each test uses its part.

mod service;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use ultima_p4runtime::v1::p4_runtime_server::P4RuntimeServer;
use ultima_p4runtime::v1::{Entity, ForwardingPipelineConfig, MeterConfig};

use wire::Wire;

/// What goes wrong at an update.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is refused; the rest of the batch goes on.
    Refuse,
    /// It is done, and the connection breaks before anything is answered.
    DoAndDisconnect,
    /// The connection breaks before it is done.
    Disconnect,
}

/// What the switch has, and what it will do.
#[derive(Default)]
pub struct State {
    pub pipeline: Option<ForwardingPipelineConfig>,
    /// Everything that was inserted, by key.
    pub held: BTreeMap<Vec<u8>, Entity>,
    /// Counter cells that were written, by counter and index.
    pub cells: BTreeMap<(u32, i64), Entity>,
    /// Meter cells that have a configuration, by meter and index.
    pub meters: BTreeMap<(u32, i64), MeterConfig>,
    /// Updates seen so far.
    pub updates: usize,
    /// What goes wrong, and at which update.
    fault: Option<(usize, Fault)>,
    /// Empty digest lists that a new primary is sent, numbered from 0.
    pub digest_lists: u64,
    /// Those that were acknowledged.
    pub acknowledged: u64,
    /// The open streams and their election ids.
    elections: BTreeMap<u64, u128>,
    streams: u64,
}

/// A running server.
pub struct ChaosSwitch {
    state: Arc<Mutex<State>>,
    wire: Arc<Wire>,
    server: tokio::task::JoinHandle<()>,
}

impl ChaosSwitch {
    /// Starts a switch, device 1, on a free port of loopback.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Arc::new(Wire::start(listener.local_addr().unwrap()).await);
        let state = Arc::new(Mutex::new(State::default()));
        let service = service::Service {
            state: Arc::clone(&state),
            wire: Arc::clone(&wire),
        };
        let server = Server::builder().add_service(P4RuntimeServer::new(service));
        let server = tokio::spawn(async move {
            server
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        ChaosSwitch {
            state,
            wire,
            server,
        }
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.wire.address()
    }

    /// What it holds.
    pub fn held(&self) -> BTreeMap<Vec<u8>, Entity> {
        self.state().held.clone()
    }

    /// The configurations of its meters' cells.
    pub fn meters(&self) -> BTreeMap<(u32, i64), MeterConfig> {
        self.state().meters.clone()
    }

    /// How many updates it has seen.
    pub fn updates(&self) -> usize {
        self.state().updates
    }

    /// How many clients have asked to be primary so far, also again.
    pub fn streams(&self) -> u64 {
        self.state().streams
    }

    /// Makes the `nth` update from now go wrong, counting from 0.
    pub fn fail_at(&self, nth: usize, fault: Fault) {
        let mut state = self.state();
        state.fault = Some((state.updates + nth, fault));
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.wire.cut();
    }

    /// Does not answer any more, or again; what it holds stays.
    pub fn refuse(&self, refuse: bool) {
        self.wire.refuse(refuse);
    }

    /// Forgets everything, as a switch that was restarted.
    pub fn reboot(&self) {
        let mut state = self.state();
        state.pipeline = None;
        state.held.clear();
        state.cells.clear();
        state.meters.clear();
        drop(state);
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
        self.wire.cut();
    }
}
