//! A core on its host: its packets are sent when their stage has started.

use ultima_host::{Config, Core, Destination};
use ultima_wire::Kind;

use super::Datagram;
use crate::clock::Ps;
use crate::network::Network;
use crate::packet::{Packet, Target};
use crate::values::Payload;

pub(super) struct Side<V> {
    pub(super) core: Core<V>,
    /// True if the current operation's GATHER is a message of its own that has not started.
    gather_ahead: bool,
    /// The earliest time of the next packet.
    silent_until: Ps,
    /// A packet of the core whose stage has not started.
    held: Option<Packet<Datagram>>,
}

/// A host's link, with the destinations of a job's packets.
pub(super) struct HostLink<'a> {
    pub(super) host: u32,
    /// Bytes that the host passes to its link at once.
    pub(super) train: Ps,
    pub(super) to: &'a dyn Fn(Destination) -> Target,
}

impl<V: Payload> Side<V> {
    /// # Panics
    /// If the configuration is invalid.
    pub(super) fn new(config: Config) -> Self {
        Self {
            core: Core::with_store(config).expect("an experiment's configuration was checked"),
            gather_ahead: false,
            silent_until: Ps::ZERO,
            held: None,
        }
    }

    /// Starts the message of an operation's first stage at `at`.
    pub(super) fn begin(&mut self, net: &mut Network<Datagram>, at: Ps, gather_ahead: bool) {
        if let Some(late) = self.held.take() {
            let budget = late.body.header.budget;
            net.send(late, budget);
        }
        self.silent_until = at;
        self.gather_ahead = gather_ahead;
    }

    /// Sends the core's packets while the link takes them. `before` returns the wait of the gather's message.
    /// Returns true if any packet was sent.
    pub(super) fn transmit(
        &mut self,
        net: &mut Network<Datagram>,
        link: &HostLink<'_>,
        out: &mut [u8],
        before: impl Fn() -> Ps,
    ) -> bool {
        let now = net.now();
        if now < self.silent_until {
            return false;
        }
        if let Some(held) = self.held.take() {
            let budget = held.body.header.budget;
            net.send(held, budget);
        }
        let mut sent = false;
        while net.sent_by(link.host) < now + link.train {
            let Some(transmit) = self.core.next_datagram(now.to_core(), out) else {
                break;
            };
            sent = true;
            let datagram = Datagram::read::<V>(out, transmit);
            let (kind, budget) = (datagram.header.kind, datagram.header.budget);
            let packet = datagram.into_packet(link.host, (link.to)(transmit.to));
            if kind == Kind::Gather && std::mem::take(&mut self.gather_ahead) {
                let before = before();
                self.silent_until = now + before;
                if before > Ps::ZERO {
                    self.held = Some(packet);
                    break;
                }
            }
            net.send(packet, budget);
        }
        sent
    }

    /// The time at which the core has something to do, or a packet to send and the link takes it.
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
        timer.min(ready.max(self.silent_until))
    }
}
