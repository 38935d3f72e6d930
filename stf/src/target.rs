//! What the tests run on: an embedded switch of their own, or a target that is there already.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tonic::transport::{Channel, Endpoint};
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::{Attach, PortConfig, Switch, SwitchConfig, SwitchError, WireConfig};

use super::client::{Client, ClientError};
use super::ends::{EndError, Ends, Frames};
use super::interface::Interface;

/// The embedded switch's device id.
const DEVICE: u64 = 1;

/// Why there is no target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The embedded switch does not start.
    #[error(transparent)]
    Start(#[from] SwitchError),
    /// There is no control.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What is left from before does not go away.
    #[error(transparent)]
    End(#[from] EndError),
    /// No descriptors left.
    #[error("port {port}: {source}")]
    Port {
        /// The port.
        port: u16,
        /// Why it cannot be opened.
        source: io::Error,
    },
    /// An interface that is given cannot be opened.
    #[error("-i {port}@{interface}: {source}")]
    Interface {
        /// The port.
        port: u16,
        /// Its far end.
        interface: String,
        /// Why it cannot be opened.
        source: io::Error,
    },
}

/// A target under control, for one test.
pub struct Bench<'a> {
    /// Its control plane.
    pub client: &'a mut Client,
    /// Its ports' far ends.
    pub ends: &'a mut Ends,
}

/// A target.
pub enum Target {
    /// An embedded switch, a new one for each test, with the ports that the test speaks of.
    Embedded,
    /// One that is running: each test gives it its program.
    Running(Box<Running>),
}

/// A target that is running.
pub struct Running {
    client: Client,
    ends: Ends,
}

impl Target {
    /// Takes control of a running target.
    ///
    /// # Errors
    /// Nobody answers at the address, somebody else is in control, or an interface is not there.
    pub async fn running(
        grpc: SocketAddr,
        device_id: u64,
        ports: &[(u16, String)],
        quiet: Duration,
    ) -> Result<Target, TargetError> {
        let client = Client::connect(connect(grpc).await?, device_id).await?;
        let mut interfaces = BTreeMap::new();
        for (port, interface) in ports {
            let end = Interface::open(interface).map_err(|source| TargetError::Interface {
                port: *port,
                interface: interface.clone(),
                source,
            })?;
            interfaces.insert(*port, end);
        }
        let ends = Ends::Interfaces {
            interfaces,
            quiet,
            burst: 0,
        };
        Ok(Target::Running(Box::new(Running { client, ends })))
    }

    /// Makes the target ready for a test that speaks of these ports, and lets `test` use it.
    ///
    /// # Errors
    /// There is no target.
    pub async fn with<T>(
        &mut self,
        ports: &BTreeSet<u16>,
        test: impl AsyncFnOnce(Bench<'_>) -> T,
    ) -> Result<T, TargetError> {
        match self {
            Target::Running(running) => {
                let Running { client, ends } = running.as_mut();
                // Leftovers of the test before.
                ends.settle(&mut Frames::new()).await?;
                Ok(test(Bench { client, ends }).await)
            }
            Target::Embedded => {
                let (switch, sockets) = start(ports).await?;
                let channel = connect(switch.grpc_addr()).await?;
                let mut client = Client::connect(channel.clone(), DEVICE).await?;
                let mut ends = Ends::Virtual {
                    sockets,
                    statistics: PortStatisticsClient::new(channel),
                    sent: 0,
                };
                let bench = Bench {
                    client: &mut client,
                    ends: &mut ends,
                };
                let result = test(bench).await;
                // The server ends at once when its connections are closed.
                drop((client, ends));
                switch.stop().await?;
                Ok(result)
            }
        }
    }
}

async fn connect(grpc: SocketAddr) -> Result<Channel, TargetError> {
    let refused = |error: tonic::transport::Error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        ClientError::Connect(format!("{grpc}: {}", cause.unwrap_or(error.to_string())))
    };
    let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(refused)?;
    Ok(endpoint.connect().await.map_err(refused)?)
}

/// An embedded switch without a program, and the far ends of its ports.
async fn start(
    ports: &BTreeSet<u16>,
) -> Result<(Switch, BTreeMap<u16, UnixDatagram>), TargetError> {
    let mut sockets = BTreeMap::new();
    let mut configs = Vec::new();
    for &number in ports {
        let failed = |source| TargetError::Port {
            port: number,
            source,
        };
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(|errno| failed(errno.into()))?;
        // The standard library's calls do not ask for the socket's type.
        let far_end = UnixDatagram::from(theirs);
        far_end.set_nonblocking(true).map_err(failed)?;
        sockets.insert(number, far_end);
        configs.push(PortConfig {
            number,
            attach: Attach::Socket(ours),
            wire: WireConfig::default(),
        });
    }
    let config = SwitchConfig {
        device_id: DEVICE,
        grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ports: configs,
        ..SwitchConfig::default()
    };
    Ok((Switch::start(config).await?, sockets))
}
