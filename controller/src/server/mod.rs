//! The controller as a server: it brings up the fabric's switches and serves the control API.
//!
//! [`Controller`] is what happens; `service` is its gRPC face.

mod attendants;
mod check;
mod controller;
mod counters;
mod error;
mod registry;
mod seats;
mod service;
mod switch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

pub use controller::{Controller, JobState, SwitchState};
pub use error::{JobRequestError, ServeError};

use crate::api::control_server::ControlServer;
use crate::fabric::Fabric;
use crate::p4rt::ELECTION_ID;
use crate::program::Program;

/// Where the control API listens unless told otherwise: beside P4Runtime's 9559.
pub const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9555);

/// What a controller needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The fabric to run.
    pub fabric: Fabric,
    /// The program to put on its switches.
    pub program: Program,
    /// Where the control API listens; port 0 takes any free one.
    pub listen: SocketAddr,
    /// How long switches may take to answer at the start.
    pub patience: Duration,
    /// Our P4Runtime election id; see [`ELECTION_ID`].
    pub election_id: u128,
}

impl Config {
    /// The defaults for a fabric: Ultima's own program, [`DEFAULT_LISTEN`], five seconds for the
    /// switches to answer.
    ///
    /// # Errors
    /// None as long as the embedded program is what p4c printed.
    pub fn new(fabric: Fabric) -> Result<Self, ServeError> {
        Ok(Config {
            fabric,
            program: Program::v1model()?,
            listen: DEFAULT_LISTEN,
            patience: Duration::from_secs(5),
            election_id: ELECTION_ID,
        })
    }
}

/// A controller at work. Dropping it leaves the switches as they are and ends everything else.
pub struct Handle {
    address: SocketAddr,
    controller: Arc<Controller>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// Brings up every switch of the fabric (program, routes), then serves the control API.
///
/// # Errors
/// A limit that the fabric is over, a switch that doesn't answer or refuses, or an address that is
/// taken; nothing keeps running then.
pub async fn serve(config: Config) -> Result<Handle, ServeError> {
    let listen = config.listen;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|source| ServeError::Listen { listen, source })?;
    let address = listener
        .local_addr()
        .map_err(|source| ServeError::Listen { listen, source })?;

    let controller = Controller::start(config).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let service = ControlServer::new(service::ControlService::new(Arc::clone(&controller)));
    let server = Server::builder().add_service(service);
    // The server's own option of this name is for listeners that it binds itself.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = tokio::spawn(server.serve_with_incoming_shutdown(incoming, async {
        // Either way the handle is gone.
        let _ = stopped.await;
    }));
    Ok(Handle {
        address,
        controller,
        stop: Some(stop),
        server,
    })
}

impl Handle {
    /// Where the control API listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The controller itself, without gRPC in between.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Stops serving; calls that wait are ended. The switches keep what they have.
    pub async fn stop(mut self) {
        self.controller.close();
        drop(self.stop.take());
        // It ends with its listener, or has panicked and said so.
        let _ = (&mut self.server).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.controller.close();
        self.server.abort();
    }
}
