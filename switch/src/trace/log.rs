//! The packet log: the trace of every packet that enters the switch.

use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};

use super::PacketTrace;

/// Number of entries that wait for the reader.
const BACKLOG: usize = 256;

/// A packet in the log.
#[derive(Debug)]
pub struct LogEntry {
    /// The time of day at which the packet entered, since the Unix epoch.
    pub time: Duration,
    /// The packet.
    pub trace: PacketTrace,
    /// Number of packets before this one that are not in the log, because its reader is slower than they entered.
    pub missed: u64,
}

/// The switch's end of a packet log ([`crate::SwitchConfig::packet_log`]). Forwarding does not wait for the log's reader.
#[derive(Debug)]
pub struct PacketLog {
    entries: Sender<LogEntry>,
    missed: u64,
}

pub(super) struct Reservation {
    permit: OwnedPermit<LogEntry>,
    missed: u64,
}

impl PacketLog {
    /// Returns a log and its reader, which receives an entry when a packet and all its copies have left the switch. It ends
    /// with the switch.
    pub fn new() -> (PacketLog, Receiver<LogEntry>) {
        let (entries, reader) = channel(BACKLOG);
        (PacketLog { entries, missed: 0 }, reader)
    }

    /// Reserves room for a packet, or counts it as missed.
    pub(super) fn reserve(&mut self) -> Option<Reservation> {
        match self.entries.clone().try_reserve_owned() {
            Ok(permit) => Some(Reservation {
                permit,
                missed: std::mem::take(&mut self.missed),
            }),
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => {
                self.miss();
                None
            }
        }
    }

    pub(super) fn miss(&mut self) {
        self.missed += 1;
    }
}

impl Reservation {
    pub(super) fn fill(self, time: Duration, trace: PacketTrace) {
        self.permit.send(LogEntry {
            time,
            trace,
            missed: self.missed,
        });
    }
}
