//! Port states, for action-profile members with a watch port (P4Runtime §9.2.2) and for gNMI.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use tokio::sync::watch;

use super::{Datapath, LINK_EVENTS};
use crate::config::MAX_PORT;
use crate::pipeline::Pipeline;
use crate::port::links::LinkEvents;
use ultima_engine::PortState;

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

/// The status of all ports that programs and subscribers were given.
#[derive(Default)]
pub(super) struct Reported {
    ports: Arc<[PortStatus]>,
    subscribers: watch::Sender<Arc<[PortStatus]>>,
}

impl PortStatus {
    fn state(&self) -> (u16, PortState) {
        let state = match self.up {
            true => PortState::Up,
            false => PortState::Down,
        };
        (self.number, state)
    }
}

impl Datapath {
    /// Starts following the state of network interfaces.
    pub(super) fn follow_links(&mut self) -> io::Result<()> {
        if self.links.is_none() {
            let events = LinkEvents::open()?;
            let bell = EpollEvent::new(EpollFlags::EPOLLIN, LINK_EVENTS);
            self.poller.add(events.as_fd(), bell)?;
            self.links = Some(events);
        }
        Ok(())
    }

    /// Handles interface notifications.
    pub(crate) fn links_changed(&mut self) {
        if let Some(events) = &self.links {
            events.take();
        }
        for (port, io) in self.ports.iter_mut().zip(&mut self.attachments) {
            io.link_changed();
            // Frames may leave now, or be counted as lost.
            port.ready |= io.interface().is_some();
        }
    }

    /// Reports changed port states to programs and subscribers.
    pub(crate) fn watch_ports(&mut self) {
        let ports = self.ports.iter().zip(&self.attachments);
        let mut both = self.reported.ports.iter().zip(ports.clone());
        let unchanged = self.reported.ports.len() == self.ports.len()
            && both.all(|(before, (port, io))| {
                (before.number, before.up, before.enabled)
                    == (port.number, io.connected(), io.enabled())
            });
        if unchanged {
            return;
        }
        let status: Arc<[PortStatus]> = ports
            .map(|(port, io)| PortStatus {
                number: port.number,
                name: port.attachment.clone(),
                up: io.connected(),
                enabled: io.enabled(),
                interface: io.interface(),
            })
            .collect();
        let before = self.reported.ports.iter();
        let absent = before.map(|port| (port.number, PortState::Absent));
        let states: Vec<_> = absent.chain(status.iter().map(PortStatus::state)).collect();
        for pipeline in [&mut self.active, &mut self.saved].into_iter().flatten() {
            pipeline.engine.set_ports(&states);
        }
        self.reported.ports = status.clone();
        self.reported.subscribers.send_replace(status);
    }

    pub(crate) fn port_status(&self) -> watch::Receiver<Arc<[PortStatus]>> {
        self.reported.subscribers.subscribe()
    }

    /// Reports all port states to a new program.
    pub(super) fn introduce_ports(&mut self, pipeline: &mut Pipeline) {
        self.watch_ports();
        let absent = (0..=MAX_PORT).map(|number| (number, PortState::Absent));
        let states = self.reported.ports.iter().map(PortStatus::state);
        let states: Vec<_> = absent.chain(states).collect();
        pipeline.engine.set_ports(&states);
    }
}
