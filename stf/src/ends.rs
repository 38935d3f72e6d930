//! The far ends of the target's ports, and when it has nothing more to say.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tonic::transport::Channel;
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::proto::{Count, GetRequest, Port};

use super::interface::Interface;

/// Longest frame.
const MAX_FRAME: usize = 65_535;
/// Frames that are not through by then will never be.
const PATIENCE: Duration = Duration::from_secs(20);
/// Frames sent into interfaces one after the other; more at once are lost at BMv2's input.
const BURST: u32 = 16;
/// The pause after so many.
const PAUSE: Duration = Duration::from_millis(20);
/// What an interface takes at least: an Ethernet header.
const MIN_FRAME: usize = 14;

/// Frames by port, in the order in which they came.
pub type Frames = BTreeMap<u16, Vec<Vec<u8>>>;

/// Why frames do not come or go.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The target has no such port here.
    #[error("port {0} has no interface: add -i {0}@INTERFACE")]
    NoPort(u16),
    /// An Ethernet interface does not carry it.
    #[error("a frame of {0} bytes, and an interface takes {MIN_FRAME} at least")]
    TooShort(usize),
    /// The kernel refuses.
    #[error("port {port}: {source}")]
    Io {
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// The embedded switch does not say what its ports saw.
    #[error("port statistics: {0}")]
    Statistics(#[from] tonic::Status),
    /// Frames are held up.
    #[error("after {} s frames are still under way", PATIENCE.as_secs())]
    Stuck,
}

/// The far ends.
pub enum Ends {
    /// Of the embedded switch, which tells what is under way.
    Virtual {
        /// By port.
        sockets: BTreeMap<u16, UnixDatagram>,
        /// Of the switch.
        statistics: PortStatisticsClient<Channel>,
        /// Frames sent.
        sent: u64,
    },
    /// Interfaces, from a target that counts as done when it has been silent for a while.
    Interfaces {
        /// By port.
        interfaces: BTreeMap<u16, Interface>,
        /// How long.
        quiet: Duration,
        /// Frames sent since the last pause.
        burst: u32,
    },
}

impl Ends {
    /// Whether there is such a port.
    pub fn check(&self, port: u16) -> Result<(), EndError> {
        let found = match self {
            Ends::Virtual { sockets, .. } => sockets.contains_key(&port),
            Ends::Interfaces { interfaces, .. } => interfaces.contains_key(&port),
        };
        found.then_some(()).ok_or(EndError::NoPort(port))
    }

    /// Sends a frame into a port.
    pub fn send(&mut self, port: u16, frame: &[u8]) -> Result<(), EndError> {
        let result = match self {
            Ends::Virtual { sockets, sent, .. } => {
                let socket = sockets.get(&port).ok_or(EndError::NoPort(port))?;
                *sent += 1;
                socket.send(frame).map(|_| ())
            }
            Ends::Interfaces {
                interfaces, burst, ..
            } => {
                let interface = interfaces.get(&port).ok_or(EndError::NoPort(port))?;
                if frame.len() < MIN_FRAME {
                    return Err(EndError::TooShort(frame.len()));
                }
                *burst += 1;
                if *burst > BURST {
                    std::thread::sleep(PAUSE);
                    *burst = 1;
                }
                interface.send(frame)
            }
        };
        result.map_err(|source| EndError::Io { port, source })
    }

    /// Waits until all frames sent are through, and collects what came out.
    pub async fn settle(&mut self, received: &mut Frames) -> Result<(), EndError> {
        let begin = Instant::now();
        let mut last = begin;
        loop {
            let under_way = match self {
                Ends::Virtual {
                    statistics, sent, ..
                } => {
                    let request = GetRequest { device_id: 0 };
                    let now = statistics.get(request).await?.into_inner();
                    let entered: u64 = (now.ports.iter()).map(|port| packets(&port.entered)).sum();
                    let nowhere = packets(&now.unattached_queued) > 0;
                    entered < *sent || nowhere || now.ports.iter().any(holds_frames)
                }
                Ends::Interfaces { quiet, .. } => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    last.elapsed() < *quiet
                }
            };
            // What was not under way before this is there now.
            if self.collect(received)? {
                last = Instant::now();
            }
            if !under_way {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(EndError::Stuck);
            }
        }
    }

    /// Whether any frame came.
    fn collect(&mut self, received: &mut Frames) -> Result<bool, EndError> {
        let mut any = false;
        let mut keep = |port, frame| {
            received.entry(port).or_default().push(frame);
            any = true;
        };
        match self {
            Ends::Virtual { sockets, .. } => {
                for (&port, socket) in sockets {
                    while let Some(frame) =
                        receive(socket).map_err(|source| EndError::Io { port, source })?
                    {
                        keep(port, frame);
                    }
                }
            }
            Ends::Interfaces { interfaces, .. } => {
                for (&port, interface) in interfaces {
                    while let Some(frame) = interface
                        .receive()
                        .map_err(|source| EndError::Io { port, source })?
                    {
                        keep(port, frame);
                    }
                }
            }
        }
        Ok(any)
    }
}

/// The next frame; `None` when there is none.
fn receive(socket: &UnixDatagram) -> io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0; MAX_FRAME];
    match socket.recv(&mut frame) {
        // A frame without a byte, or the end of the connection: nothing comes after that.
        Ok(0) if has_ended(socket)? => Ok(None),
        Ok(len) => {
            frame.truncate(len);
            Ok(Some(frame))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the switch has closed its end.
fn has_ended(socket: &UnixDatagram) -> io::Result<bool> {
    let mut state = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut state, PollTimeout::ZERO)?;
    let events = state[0].revents();
    Ok(events.is_some_and(|events| events.contains(PollFlags::POLLHUP)))
}

fn holds_frames(port: &Port) -> bool {
    packets(&port.queued) + packets(&port.in_flight) > 0
}

fn packets(count: &Option<Count>) -> u64 {
    count.as_ref().map_or(0, |count| count.packets)
}
