//! Adding and removing ports while others forward.

use std::io;

use tonic::Code;

use super::{Datapath, NewPort, Port, PortSnapshot};
use crate::port::mmsg::RxBatch;
use crate::port::{PortIo, Received};
use crate::stats::{Count, Key, Place, PortStats};
use crate::target::Refusal;
use crate::tm::EgressPort;

/// The most batches to read from a port that is removed, since its peer may continue to send.
const LAST_READING: usize = 512;

/// The error text for a port number that the switch does not have. `numbers` are those that it has.
pub fn unknown_port(port: u32, numbers: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers
        .into_iter()
        .map(|number| number.to_string())
        .collect();
    match &numbers[..] {
        [] => format!("unknown port {port}; the switch has no ports"),
        numbers => format!("unknown port {port}; the switch has {}", numbers.join(", ")),
    }
}

impl Datapath {
    pub(crate) fn add_port(&mut self, new: NewPort) -> Result<(), Refusal> {
        let number = new.number;
        let mut io = new.io;
        self.admits(number, io.interface())?;
        let failed = |source: io::Error| {
            Refusal::new(Code::FailedPrecondition, format!("port {number}: {source}"))
        };
        if io.interface().is_some() {
            self.follow_links().map_err(failed)?;
        }
        io.register(&self.poller, number.into()).map_err(failed)?;
        // Events follow from here on.
        io.link_changed();
        let at = self.ports.partition_point(|port| port.number < number);
        for slot in self.by_number.iter_mut().flatten() {
            *slot += usize::from(*slot >= at);
        }
        self.by_number[usize::from(number)] = Some(at);
        self.attachments.insert(at, io);
        let port = Port {
            number,
            attachment: new.attachment,
            egress: EgressPort::new(new.wire, new.seed, new.priority_queues),
            stats: PortStats::new(self.stats_key.is_some()),
            capture: new.capture,
            ready: false,
            due: None,
        };
        self.ports.insert(at, port);
        self.watch_ports();
        Ok(())
    }

    /// Checks that a port with this number and interface index can be added.
    pub(crate) fn admits(&self, number: u16, interface: Option<u32>) -> Result<(), Refusal> {
        if self.by_number[usize::from(number)].is_some() {
            let what = format!("port {number} exists already; remove it first");
            return Err(Refusal::new(Code::AlreadyExists, what));
        }
        let mut ports = self.ports.iter().zip(&self.attachments);
        let same = |io: &dyn PortIo| interface.is_some() && io.interface() == interface;
        match ports.find(|(_, io)| same(io.as_ref())) {
            Some((other, _)) => {
                let (name, other) = (&other.attachment, other.number);
                let what = format!(
                    "port {number}: {name} is already attached to port {other}; an interface serves one port"
                );
                Err(Refusal::new(Code::AlreadyExists, what))
            }
            None => Ok(()),
        }
    }

    /// Returns a port's number if the switch has it.
    pub(crate) fn find(&self, number: u32) -> Result<u16, Refusal> {
        let numbers = || self.ports.iter().map(|port| port.number.into());
        let found = numbers().position(|known| known == number);
        let found = found.map(|index| self.ports[index].number);
        found.ok_or_else(|| Refusal::new(Code::NotFound, unknown_port(number, numbers())))
    }

    /// Removes a port and returns its counts. Copies in its queue or on its wire are dropped and counted; unread frames count as
    /// overruns.
    pub(crate) fn remove_port(&mut self, number: u32) -> Result<PortSnapshot, Refusal> {
        let number = self.find(number)?;
        if self.controllers.cpu_port == Some(number) {
            let what = format!("port {number} is the CPU port, which cannot be removed");
            return Err(Refusal::new(Code::FailedPrecondition, what));
        }
        let index = self.ports.partition_point(|port| port.number < number);
        let unread = self.read_last(index);
        let mut port = self.ports.remove(index);
        let mut io = self.attachments.remove(index);
        for slot in &mut self.by_number {
            *slot = match *slot {
                Some(at) if at == index => None,
                Some(at) if at > index => Some(at - 1),
                other => other,
            };
        }
        let overrun = Count {
            packets: unread,
            bytes: 0,
        };
        port.stats.add(Place::Overrun, Key::NONE, overrun);
        port.egress.discard_all(&mut port.stats);
        let now = self.clock.now() / 1000;
        for (mark, place) in port.stats.take_noted() {
            self.tracer.counted(mark, place, None, now);
        }
        self.watch_ports();
        // Its descriptors are closed with it, which removes them from the poller.
        Ok(port.snapshot(io.as_mut()))
    }

    /// Reads and counts pending frames.
    fn read_last(&mut self, index: usize) -> u64 {
        let mut batch = RxBatch::new();
        let mut unread = 0;
        for _ in 0..LAST_READING {
            let received = self.receive(index, &mut batch, &mut |_, _| unread += 1);
            if received == Received::Empty {
                break;
            }
        }
        unread
    }
}

impl Port {
    /// Returns a snapshot of a port, with its attachment's overruns.
    pub(super) fn snapshot(&mut self, io: &mut dyn PortIo) -> PortSnapshot {
        self.take_overruns(io);
        PortSnapshot {
            number: self.number,
            attachment: self.attachment.clone(),
            connected: io.connected(),
            stats: self.stats.clone(),
            held: self.egress.held(),
        }
    }

    /// Counts frames that the kernel dropped since the last call.
    pub(super) fn take_overruns(&mut self, io: &mut dyn PortIo) {
        let overrun = Count {
            packets: io.take_overruns(),
            bytes: 0,
        };
        self.stats.add(Place::Overrun, Key::NONE, overrun);
    }
}
