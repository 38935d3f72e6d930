//! The far ends of the target's ports, and detection of the end of traffic.

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
/// Time after which frames that are still in the switch count as stuck.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Number of frames sent to interfaces in a row. BMv2 loses more at its input.
const BURST: u32 = 16;
/// Pause after that number of frames.
const PAUSE: Duration = Duration::from_millis(20);
/// Shortest frame on an interface: an Ethernet header.
const MIN_FRAME: usize = 14;

/// Frames by port, in order of arrival.
pub type Frames = BTreeMap<u16, Vec<Vec<u8>>>;

/// Why frames cannot be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The port has no far end.
    #[error("port {0} has no interface: add -i {0}@INTERFACE")]
    NoPort(u16),
    /// A frame too short for an Ethernet interface.
    #[error("frame of {0} bytes: an interface carries at least {MIN_FRAME}")]
    TooShort(usize),
    /// The kernel reports an error.
    #[error("port {port}: {source}")]
    Io {
        /// The port.
        port: u16,
        /// The reason.
        source: io::Error,
    },
    /// Reading the embedded switch's port statistics fails.
    #[error("port statistics: {0}")]
    Statistics(#[from] tonic::Status),
    /// Frames are stuck in the switch.
    #[error("frames are still in the switch after {} s", TIMEOUT.as_secs())]
    Stuck,
}

/// The far ends.
pub enum Ends {
    /// Sockets of the embedded switch, which reports frames in flight.
    Virtual {
        /// By port.
        sockets: BTreeMap<u16, UnixDatagram>,
        /// The switch's port statistics.
        statistics: PortStatisticsClient<Channel>,
        /// Number of frames sent.
        sent: u64,
    },
    /// Interfaces of a target that counts as finished after a time without frames.
    Interfaces {
        /// By port.
        interfaces: BTreeMap<u16, Interface>,
        /// This time.
        quiet: Duration,
        /// Number of frames sent since the last pause.
        burst: u32,
    },
}

impl Ends {
    /// Checks that a port exists.
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

    /// Waits until all sent frames are processed, and collects received ones.
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
            // Frames that are not in flight any more have arrived.
            if self.collect(received)? {
                last = Instant::now();
            }
            if !under_way {
                return Ok(());
            }
            if begin.elapsed() > TIMEOUT {
                return Err(EndError::Stuck);
            }
        }
    }

    /// Collects received frames. Returns true if there are any.
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

/// Receives the next frame, if there is one.
fn receive(socket: &UnixDatagram) -> io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0; MAX_FRAME];
    match socket.recv(&mut frame) {
        // An empty frame, or the end of the connection.
        Ok(0) if has_ended(socket)? => Ok(None),
        Ok(len) => {
            frame.truncate(len);
            Ok(Some(frame))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the switch has closed its end.
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
