//! The records of one operation at one rank, from a trace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};
use ultima_host::trace::{Clock, Fate, Happened, Head, PacketKind, Record, Timer};
use ultima_host::{ClosedBy, Layout, OperationId, Phase, Rotation, Time};

use super::read::TraceReader;

/// An operation and a rank.
pub type Which = (OperationId, u16);

/// A list entry for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Start time.
    pub started: Time,
    /// The end; none if the trace stops before.
    pub ended: Option<End>,
}

/// An operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Time since the start.
    pub after: Duration,
    /// The reason of the end.
    pub by: ClosedBy,
    /// The reason for closing the rank's own shard: that of its worst slot.
    pub shard: ClosedBy,
    /// Contributions missing in the own shard.
    pub lost_contributions: u64,
    /// Missing aggregates of other shards.
    pub lost_aggregates: u64,
}

/// The operations whose start is in the trace.
#[derive(Debug, Default)]
pub struct Index(BTreeMap<Which, Entry>);

impl Index {
    /// Reads a whole trace.
    pub fn read(mut trace: TraceReader) -> Result<Self> {
        let mut index = Self::default();
        while let Some(record) = trace.next_record()? {
            index.add(&record);
        }
        Ok(index)
    }

    fn add(&mut self, record: &Record) {
        let which = (record.id(), record.rank);
        match record.happened {
            Happened::Started { .. } => {
                let entry = Entry {
                    started: record.time,
                    ended: None,
                };
                self.0.insert(which, entry);
            }
            Happened::Ended {
                by,
                shard,
                lost_contributions,
                lost_aggregates,
            } => {
                if let Some(entry) = self.0.get_mut(&which) {
                    entry.ended = Some(End {
                        after: record.time.since(entry.started),
                        by,
                        shard,
                        lost_contributions,
                        lost_aggregates,
                    });
                }
            }
            _ => {}
        }
    }

    /// The operations at one rank, or at all ranks.
    pub fn entries(&self, rank: Option<u16>) -> impl Iterator<Item = (Which, Entry)> + '_ {
        let all = self.0.iter().map(|(which, entry)| (*which, *entry));
        all.filter(move |((_, at), _)| rank.is_none_or(|rank| rank == *at))
    }

    /// The slowest of the operations that match `id` and `rank`.
    ///
    /// # Errors
    /// No operation matches; the error describes the trace.
    pub fn choose(&self, id: Option<OperationId>, rank: Option<u16>) -> Result<Which> {
        let matching = self
            .entries(rank)
            .filter(|((it, _), _)| id.is_none_or(|id| id == *it));
        let longest = matching.max_by_key(|(_, entry)| entry.ended.map(|end| end.after));
        if let Some((which, _)) = longest {
            return Ok(which);
        }
        let (first, last) = (self.0.keys().next(), self.0.keys().next_back());
        let Some(((first, _), (last, _))) = first.zip(last) else {
            bail!("the trace contains no start of an operation");
        };
        let ranks: BTreeSet<u16> = self.0.keys().map(|which| which.1).collect();
        let ranks: Vec<String> = ranks.iter().map(u16::to_string).collect();
        bail!(
            "no such operation; the trace has {first} to {last}, at rank {}; see --list",
            ranks.join(", ")
        );
    }
}

/// A packet received for the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Arrival time.
    pub at: Time,
    /// Contribution or aggregate.
    pub phase: Phase,
    /// The sender's rank.
    pub source: u16,
    /// A contribution's position in the sender's order, or an aggregate's slot.
    pub position: u32,
    /// How the receiver used it.
    pub fate: Fate,
}

/// A packet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Send time.
    pub at: Time,
    /// Contribution or aggregate.
    pub phase: Phase,
    /// The slot of an aggregate.
    pub slot: u32,
}

/// A closed slot of the own shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Closing time.
    pub at: Time,
    /// The slot.
    pub slot: u32,
    /// The reason.
    pub by: ClosedBy,
}

/// An operation at one rank.
#[derive(Debug)]
pub struct Operation {
    /// The trace's header.
    pub head: Head,
    /// The operation.
    pub id: OperationId,
    /// The rank.
    pub rank: u16,
    /// Start time.
    pub started: Time,
    /// The division of its bucket into shards and slots.
    pub layout: Layout,
    /// Bound of the own shard.
    pub t_s: Duration,
    /// Bound of the operation.
    pub t_b: Duration,
    /// Early bound by phase: the time from the first of everyone's last packets.
    pub t_c: [Option<Duration>; 2],
    /// Packets received, in order.
    pub received: Vec<Received>,
    /// Packets sent, in order.
    pub sent: Vec<Sent>,
    /// Slots in the order of their closing.
    pub closed: Vec<Closed>,
    /// Bounds that have passed.
    pub timers: Vec<(Time, Timer)>,
    /// The end.
    pub ended: Option<End>,
    /// Records that the trace's writer dropped.
    pub dropped: u64,
}

impl Operation {
    /// Reads the records of an operation whose start is in the trace.
    pub fn read(mut trace: TraceReader, which: Which) -> Result<Self> {
        let mut operation: Option<Self> = None;
        while let Some(record) = trace.next_record()? {
            if (record.id(), record.rank) != which {
                continue;
            }
            if let Some(operation) = &mut operation {
                if !operation.add(&record) {
                    bail!("{}: slot out of range", trace.place());
                }
            } else if matches!(record.happened, Happened::Started { .. }) {
                operation = Some(Self::new(trace.head().clone(), &record));
            }
        }
        match operation {
            Some(operation) => Ok(operation),
            None => bail!("{}: the file changed while it was read", trace.place()),
        }
    }

    fn new(head: Head, record: &Record) -> Self {
        let mut operation = Self {
            layout: head.layout(0),
            head,
            id: record.id(),
            rank: record.rank,
            started: record.time,
            t_s: Duration::ZERO,
            t_b: Duration::ZERO,
            t_c: [None; 2],
            received: Vec::new(),
            sent: Vec::new(),
            closed: Vec::new(),
            timers: Vec::new(),
            ended: None,
            dropped: 0,
        };
        if let Happened::Started {
            values,
            t_s,
            t_b,
            t_c_scatter,
            t_c_gather,
        } = record.happened
        {
            operation.layout = operation.head.layout(values);
            (operation.t_s, operation.t_b) = (t_s, t_b);
            operation.t_c = [t_c_scatter, t_c_gather];
        }
        operation
    }

    /// Adds a record; false if its slot is out of range.
    fn add(&mut self, record: &Record) -> bool {
        let at = record.time;
        match record.happened {
            Happened::Received {
                kind,
                source,
                owner,
                slot,
                fate,
                ..
            } => {
                let Some(phase) = phase_of(kind).filter(|_| fate != Fate::Refused) else {
                    return true;
                };
                let slots = self.layout.slots(owner);
                if slot >= slots {
                    return false;
                }
                let position = match phase {
                    Phase::Scatter => self.rotation(source).position(slot, slots),
                    Phase::Gather => slot,
                };
                self.received.push(Received {
                    at,
                    phase,
                    source,
                    position,
                    fate,
                });
            }
            Happened::Sent {
                kind, owner, slot, ..
            } => {
                if let Some(phase) = phase_of(kind) {
                    if slot >= self.layout.slots(owner) {
                        return false;
                    }
                    self.sent.push(Sent { at, phase, slot });
                }
            }
            Happened::SlotClosed { slot, by, .. } => {
                if slot >= self.layout.slots(self.rank) {
                    return false;
                }
                self.closed.push(Closed { at, slot, by });
            }
            Happened::Timer { timer } => self.timers.push((at, timer)),
            Happened::Ended {
                by,
                shard,
                lost_contributions,
                lost_aggregates,
            } => {
                self.ended = Some(End {
                    after: at.since(self.started),
                    by,
                    shard,
                    lost_contributions,
                    lost_aggregates,
                });
            }
            Happened::Dropped { records } => self.dropped += records,
            Happened::Started { .. } => {}
        }
        true
    }

    fn rotation(&self, source: u16) -> Rotation {
        self.head.rotation(self.id, source)
    }

    /// Seconds since the start; negative before it.
    pub fn after(&self, at: Time) -> f64 {
        match at < self.started {
            true => -self.started.since(at).as_secs_f64(),
            false => at.since(self.started).as_secs_f64(),
        }
    }

    /// The number of packets that `source` had to send to this rank in a phase.
    pub fn owed(&self, phase: Phase, source: u16) -> u32 {
        match phase {
            Phase::Scatter => self.layout.slots(self.rank),
            Phase::Gather => self.layout.slots(source),
        }
    }

    /// All ranks but this one.
    pub fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let rank = self.rank;
        (0..self.head.ranks).filter(move |other| *other != rank)
    }

    /// The packets of a phase by source and position; of several copies the one that counts most.
    pub fn slots(&self, phase: Phase) -> Vec<Vec<Option<Fate>>> {
        let worth = |fate| match fate {
            Fate::InTime => 3,
            Fate::Trimmed | Fate::MarkedLate => 2,
            Fate::Late => 1,
            Fate::Duplicate | Fate::Heard | Fate::Refused => 0,
        };
        let owed = |source| match source == self.rank {
            true => 0,
            false => self.owed(phase, source) as usize,
        };
        let mut slots: Vec<Vec<Option<Fate>>> = (0..self.head.ranks)
            .map(|source| vec![None; owed(source)])
            .collect();
        for came in self.received.iter().filter(|came| came.phase == phase) {
            let of_source = slots.get_mut(usize::from(came.source));
            if let Some(slot) = of_source.and_then(|s| s.get_mut(came.position as usize))
                && slot.is_none_or(|before| worth(came.fate) > worth(before))
            {
                *slot = Some(came.fate);
            }
        }
        slots
    }

    /// Arrival of the last packet of a phase that was in time, by source.
    pub fn last(&self, phase: Phase) -> Vec<Option<Time>> {
        let mut last = vec![None; usize::from(self.head.ranks)];
        let counted =
            (self.received.iter()).filter(|came| came.phase == phase && came.fate == Fate::InTime);
        for came in counted {
            last[usize::from(came.source)] = Some(came.at);
        }
        last
    }

    /// Closing time of the last slot of the own shard, if all have closed.
    pub fn shard_closed(&self) -> Option<Time> {
        let whole = self.closed.len() == self.layout.slots(self.rank) as usize;
        self.closed.last().filter(|_| whole).map(|closed| closed.at)
    }

    /// A title with trace, operation and rank.
    pub fn title(&self) -> String {
        let Self { head, id, rank, .. } = self;
        format!("{}: {id} at rank {rank} of {}", origin(head), head.ranks)
    }
}

/// The trace's title, marked as real or simulated.
fn origin(head: &Head) -> String {
    match head.clock {
        Clock::Real => format!("Real: {}", head.title),
        Clock::Simulated => format!("SIMULATED: {}", head.title),
    }
}

fn phase_of(kind: PacketKind) -> Option<Phase> {
    match kind {
        PacketKind::Scatter => Some(Phase::Scatter),
        PacketKind::Gather => Some(Phase::Gather),
        _ => None,
    }
}
