//! Targets of tests: an embedded switch for each test, or a running target.

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

/// Why the target is not available.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The embedded switch does not start.
    #[error(transparent)]
    Start(#[from] SwitchError),
    /// The target cannot be controlled.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Frames of an earlier test remain.
    #[error(transparent)]
    End(#[from] EndError),
    /// A port's socket cannot be opened.
    #[error("port {port}: {source}")]
    Port {
        /// The port.
        port: u16,
        /// The reason.
        source: io::Error,
    },
    /// An interface cannot be opened.
    #[error("-i {port}@{interface}: {source}")]
    Interface {
        /// The port.
        port: u16,
        /// The interface at its far end.
        interface: String,
        /// The reason.
        source: io::Error,
    },
}

/// A controlled target, for one test.
pub struct Bench<'a> {
    /// The target's controller.
    pub client: &'a mut Client,
    /// The far ends of the target's ports.
    pub ends: &'a mut Ends,
}

/// A target.
pub enum Target {
    /// A new embedded switch for each test, with the ports that the test names.
    Embedded,
    /// A running target, whose program each test sets.
    Running(Box<Running>),
}

/// A running target.
pub struct Running {
    client: Client,
    ends: Ends,
}

impl Target {
    /// Takes control of a running target.
    ///
    /// # Errors
    /// The target does not answer, has another primary, or an interface does not exist.
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

    /// Prepares the target for a test with these ports, and runs `test`.
    ///
    /// # Errors
    /// The target is not available.
    pub async fn with<T>(
        &mut self,
        ports: &BTreeSet<u16>,
        test: impl AsyncFnOnce(Bench<'_>) -> T,
    ) -> Result<T, TargetError> {
        match self {
            Target::Running(running) => {
                let Running { client, ends } = running.as_mut();
                // Drop frames of the previous test.
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
                // The server stops at once when its connections are closed.
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

/// Starts an embedded switch without a program, and returns it with the far ends of its ports.
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
        // The standard library's calls ignore the socket's type.
        let far_end = UnixDatagram::from(theirs);
        far_end.set_nonblocking(true).map_err(failed)?;
        sockets.insert(number, far_end);
        configs.push(PortConfig {
            number,
            attach: Attach::Socket(ours.into()),
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
