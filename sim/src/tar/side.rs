//! A core on its host: what it gives out leaves when its stage has begun.

use ultima_host::{Config, Core, Destination};
use ultima_wire::Kind;

use super::Datagram;
use crate::clock::Ps;
use crate::network::Network;
use crate::packet::{Packet, Target};

pub(super) struct Side {
    pub(super) core: Core,
    /// The present operation's GATHER is a message of its own, and has not begun.
    gather_ahead: bool,
    /// Nothing leaves before that.
    quiet_until: Ps,
    /// What the core gave out while its stage had yet to begin.
    held: Option<Packet<Datagram>>,
}

/// How packets leave a host.
pub(super) struct Way<'a> {
    pub(super) host: u32,
    /// What the host hands to its link at once.
    pub(super) train: Ps,
    pub(super) to: &'a dyn Fn(Destination) -> Target,
}

impl Side {
    /// # Panics
    /// If the configuration cannot work.
    pub(super) fn new(config: Config) -> Self {
        Self {
            core: Core::new(config).expect("an experiment's configuration was checked"),
            gather_ahead: false,
            quiet_until: Ps::ZERO,
            held: None,
        }
    }

    /// The message of an operation's first stage begins at `at`.
    pub(super) fn begin(&mut self, net: &mut Network<Datagram>, at: Ps, gather_ahead: bool) {
        if let Some(late) = self.held.take() {
            let budget = late.body.header.budget;
            net.send(late, budget);
        }
        self.quiet_until = at;
        self.gather_ahead = gather_ahead;
    }

    /// Sends what the core has and the link takes; `before` says what the gather's message waits. Whether anything left the
    /// core.
    pub(super) fn transmit(
        &mut self,
        net: &mut Network<Datagram>,
        way: &Way<'_>,
        out: &mut [u8],
        before: impl Fn() -> Ps,
    ) -> bool {
        let now = net.now();
        if now < self.quiet_until {
            return false;
        }
        if let Some(held) = self.held.take() {
            let budget = held.body.header.budget;
            net.send(held, budget);
        }
        let mut sent = false;
        while net.sent_by(way.host) < now + way.train {
            let Some(transmit) = self.core.poll_transmit(now.to_core(), out) else {
                break;
            };
            sent = true;
            let datagram = Datagram::read(out, transmit);
            let (kind, budget) = (datagram.header.kind, datagram.header.budget);
            let packet = datagram.into_packet(way.host, (way.to)(transmit.to));
            if kind == Kind::Gather && std::mem::take(&mut self.gather_ahead) {
                let before = before();
                self.quiet_until = now + before;
                if before > Ps::ZERO {
                    self.held = Some(packet);
                    break;
                }
            }
            net.send(packet, budget);
        }
        sent
    }

    /// When the core has something to do, or something to send and the link takes it.
    pub(super) fn next(&self, net: &Network<Datagram>, host: u32) -> Ps {
        let timer = self.core.poll_timeout().map_or(Ps::NEVER, Ps::from_core);
        let ready = match &self.held {
            Some(_) => Ps::ZERO,
            None => {
                let ready = self.core.poll_transmit_at();
                let room = net.sent_by(host);
                ready.map_or(Ps::NEVER, |at| Ps::from_core(at).max(room))
            }
        };
        timer.min(ready.max(self.quiet_until))
    }
}
