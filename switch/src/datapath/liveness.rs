//! Which ports are up, for members of action profiles that watch one (P4Runtime §9.2.2).

use std::io;
use std::os::fd::AsFd;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::{Datapath, LINK_NEWS};
use crate::config::MAX_PORT;
use crate::engine::PortState;
use crate::pipeline::Pipeline;
use crate::port::links::LinkNews;

/// What the programs were told of the ports.
pub(super) struct Told {
    /// By port number.
    states: Vec<PortState>,
    /// Ports that are there.
    present: usize,
}

impl Default for Told {
    fn default() -> Told {
        Told {
            states: vec![PortState::Absent; usize::from(MAX_PORT) + 1],
            present: 0,
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
    /// Follows the state of network interfaces from now on.
    pub(super) fn follow_links(&mut self) -> io::Result<()> {
        if self.links.is_none() {
            let news = LinkNews::open()?;
            let bell = EpollEvent::new(EpollFlags::EPOLLIN, LINK_NEWS);
            self.poller.add(news.as_fd(), bell)?;
            self.links = Some(news);
        }
        Ok(())
    }

    /// The poller reports news of network interfaces.
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

    /// Tells the programs of ports that came, went, or found or lost their peer.
    pub(crate) fn watch_ports(&mut self) {
        let mut ports = self.ports.iter().zip(&self.attachments);
        let as_told = self.told.present == self.ports.len()
            && ports.all(|(port, io)| {
                self.told.states[usize::from(port.number)] == state(io.connected())
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
            if *told != now {
                *told = now;
                changed.push((number, now));
            }
        }
        self.told.present = self.ports.len();
        for pipeline in [&mut self.active, &mut self.saved].into_iter().flatten() {
            pipeline.engine.set_ports(&changed);
        }
    }

    /// Tells a program that comes of all ports.
    pub(super) fn introduce_ports(&mut self, pipeline: &mut Pipeline) {
        self.watch_ports();
        let states: Vec<_> = (0..).zip(self.told.states.iter().copied()).collect();
        pipeline.engine.set_ports(&states);
    }
}
