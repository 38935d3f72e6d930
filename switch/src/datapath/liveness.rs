//! Port states, for action-profile members with a watch port (P4Runtime §9.2.2) and for gNMI.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use tokio::sync::watch;

use super::{Datapath, LINK_NEWS};
use crate::config::MAX_PORT;
use crate::engine::PortState;
use crate::pipeline::Pipeline;
use crate::port::links::LinkNews;
use crate::stats::{Count, Place};

/// A port's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortStatus {
    pub(crate) number: u16,
    /// Its attachment, as configured.
    pub(crate) name: String,
    /// True if the port has a peer that can receive frames.
    pub(crate) up: bool,
    /// The administrative state.
    pub(crate) enabled: bool,
    /// Index of its network interface, if it has one.
    pub(crate) interface: Option<u32>,
}

/// A port's counts since it was added, in frames and in bytes from Ethernet header to payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PortCounts {
    /// Its attachment, as configured.
    pub(crate) name: String,
    /// Received frames, without [overruns](Self::overrun).
    pub(crate) received: Count,
    /// Sent frames, including those that were lost on the emulated wire.
    pub(crate) sent: Count,
    /// Frames that the kernel dropped before the switch could read them.
    pub(crate) overrun: u64,
    /// Frames that did not fit into an egress queue.
    pub(crate) tail_dropped: u64,
}

/// Why a port's administrative state cannot be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnableError {
    #[error("no port is attached to {name:?}; there are: {there}")]
    Unknown { name: String, there: String },
    #[error("{0} is no network interface, and is up as long as it has a peer")]
    NoInterface(String),
    #[error("{name}: {source}")]
    Kernel { name: String, source: io::Error },
}

/// The port states that programs and subscribers were given.
pub(super) struct Told {
    /// By port number.
    states: Vec<PortState>,
    /// By port number.
    enabled: Vec<bool>,
    /// Number of ports.
    present: usize,
    /// Status of all ports.
    status: watch::Sender<Arc<[PortStatus]>>,
}

impl Default for Told {
    fn default() -> Told {
        Told {
            states: vec![PortState::Absent; usize::from(MAX_PORT) + 1],
            enabled: vec![true; usize::from(MAX_PORT) + 1],
            present: 0,
            status: watch::Sender::new(Arc::default()),
        }
    }
}

fn state(connected: bool) -> PortState {
    match connected {
        true => PortState::Up,
        false => PortState::Down,
    }
}

impl Datapath {
    /// Starts following the state of network interfaces.
    pub(super) fn follow_links(&mut self) -> io::Result<()> {
        if self.links.is_none() {
            let news = LinkNews::open()?;
            let bell = EpollEvent::new(EpollFlags::EPOLLIN, LINK_NEWS);
            self.poller.add(news.as_fd(), bell)?;
            self.links = Some(news);
        }
        Ok(())
    }

    /// Handles interface notifications.
    pub(crate) fn links_changed(&mut self) {
        if let Some(news) = &self.links {
            news.take();
        }
        for (port, io) in self.ports.iter_mut().zip(&mut self.attachments) {
            io.link_changed();
            // Frames may leave now, or be counted as lost.
            port.ready |= io.interface().is_some();
        }
    }

    /// Reports changed port states to programs and subscribers.
    pub(crate) fn watch_ports(&mut self) {
        let mut ports = self.ports.iter().zip(&self.attachments);
        let as_told = self.told.present == self.ports.len()
            && ports.all(|(port, io)| {
                let at = usize::from(port.number);
                self.told.states[at] == state(io.connected())
                    && self.told.enabled[at] == io.enabled()
            });
        if as_told {
            return;
        }
        let mut changed = Vec::new();
        for (number, told) in (0..).zip(&mut self.told.states) {
            let index = self.by_number[usize::from(number)];
            let now = index.map_or(PortState::Absent, |index| {
                state(self.attachments[index].connected())
            });
            let enabled = index.is_none_or(|index| self.attachments[index].enabled());
            self.told.enabled[usize::from(number)] = enabled;
            if *told != now {
                *told = now;
                changed.push((number, now));
            }
        }
        self.told.present = self.ports.len();
        let ports = self.ports.iter().zip(&self.attachments);
        let status = ports.map(|(port, io)| PortStatus {
            number: port.number,
            name: port.attachment.clone(),
            up: io.connected(),
            enabled: io.enabled(),
            interface: io.interface(),
        });
        self.told.status.send_replace(status.collect());
        for pipeline in [&mut self.active, &mut self.saved].into_iter().flatten() {
            pipeline.engine.set_ports(&changed);
        }
    }

    /// Returns a channel with the status of all ports.
    pub(crate) fn port_status(&self) -> watch::Receiver<Arc<[PortStatus]>> {
        self.told.status.subscribe()
    }

    /// Returns a consistent snapshot of all ports' counts.
    pub(crate) fn port_counts(&mut self) -> Vec<PortCounts> {
        let ports = self.ports.iter_mut().zip(&mut self.attachments);
        let counts = ports.map(|(port, io)| {
            port.take_overruns(io.as_mut());
            let at = |place| port.stats.at(place);
            let mut sent = at(Place::Left);
            sent += at(Place::Wire);
            PortCounts {
                name: port.attachment.clone(),
                received: at(Place::Entered),
                sent,
                overrun: at(Place::Overrun).packets,
                tail_dropped: at(Place::Queue).packets,
            }
        });
        counts.collect()
    }

    /// Sets the administrative state of the port on the interface of this name.
    pub(crate) fn enable_port(&mut self, name: &str, enabled: bool) -> Result<(), EnableError> {
        let Some(at) = self.ports.iter().position(|port| port.attachment == name) else {
            let there = self.ports.iter().map(|port| port.attachment.as_str());
            return Err(EnableError::Unknown {
                name: name.to_owned(),
                there: there.collect::<Vec<_>>().join(", "),
            });
        };
        let io = &mut self.attachments[at];
        if io.interface().is_none() {
            return Err(EnableError::NoInterface(name.to_owned()));
        }
        let set = io.enable(enabled).map_err(|source| EnableError::Kernel {
            name: name.to_owned(),
            source,
        });
        self.watch_ports();
        set
    }

    /// Reports all port states to a new program.
    pub(super) fn introduce_ports(&mut self, pipeline: &mut Pipeline) {
        self.watch_ports();
        let states: Vec<_> = (0..).zip(self.told.states.iter().copied()).collect();
        pipeline.engine.set_ports(&states);
    }
}
