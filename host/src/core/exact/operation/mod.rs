//! One exact operation at one rank, from its start until no other rank can need it.

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::{Config, Gather};
use crate::core::exact::ELEMENT;
use crate::core::exact::repeats::Repeats;
use crate::core::exact::want::{Spacing, Want};
use crate::core::outbox::Turn;
use crate::exact::{Exact, ExactOutcome, Incomplete};
use crate::layout::Layout;
use crate::operation::OperationId;
use crate::rotation::{Rotation, Tour};
use crate::stats::Phases;
use crate::time::Time;

pub(super) use transmit::{Body, ExactPacket};

/// After this many of its longest waits without a request, a rank with missing slots counts as absent. Our
/// choice: if half of all packets are lost, that many consecutive requests are lost once in 16 times.
const LONGEST_WAITS: u32 = 4;

/// See the table of states in `docs/transport.md`.
pub(super) struct ExactOperation {
    pub(super) id: OperationId,
    exact: Exact,
    layout: Layout,
    rank: u16,
    ranks: u16,
    gather: Gather,
    spacing: Spacing,
    started: Time,
    limit: Duration,
    /// The limit. After the end: when to remove the operation.
    until: Time,
    ended: bool,
    /// This rank's contribution. In its own shard, aggregates replace it slot by slot as they close.
    own: Vec<f32>,
    /// The others' contributions to this rank's shard, by source.
    received: Vec<f32>,
    /// By slot of this rank's shard: number of missing contributions.
    open: Vec<u16>,
    result: Vec<f32>,
    /// Number of missing slots of the result.
    missing: u32,
    peers: Vec<Peer>,
    rotation: Rotation,
    tour: Tour,
    /// SCATTER packets that were never sent.
    scatter: u64,
    /// Closed slots that were not sent to all ranks.
    closed: VecDeque<u32>,
    turn: Turn,
    /// GATHER packets owed and not sent, closed or not.
    gather_left: u64,
    /// True if data waits for credit, from the last call of [`ExactOperation::transmit`].
    held: bool,
    notice: Option<Notice>,
    requests: u64,
    wanted: Vec<u8>,
    phases: Phases,
}

/// The state of another rank. This rank's own entry is unused.
struct Peer {
    contributions: Want,
    aggregates: Want,
    asked_contributions: Repeats,
    asked_aggregates: Repeats,
    heard: bool,
    /// Time of its last packet; the start before the first.
    last: Time,
    differs: bool,
    /// True if it has the result.
    done: bool,
    /// True if it has left the job.
    left: bool,
}

impl Peer {
    fn is_missing(&self) -> bool {
        self.contributions.missing() + self.aggregates.missing() > 0
    }
}

struct Notice {
    sent: u32,
    due: Time,
    wait: Duration,
    turn: Turn,
}

/// The start of an exact operation.
pub(in crate::core) struct Start {
    pub(in crate::core) id: OperationId,
    pub(in crate::core) exact: Exact,
    pub(in crate::core) limit: Duration,
    /// Number of owners that get contributions at a time.
    pub(in crate::core) incast: u16,
    pub(in crate::core) now: Time,
}

impl ExactOperation {
    pub(super) fn new(
        config: &Config,
        Start {
            id,
            exact,
            limit,
            incast,
            now,
        }: Start,
        mut own: Vec<f32>,
    ) -> Self {
        let Config {
            rank,
            ranks,
            gather,
            ..
        } = *config;
        if exact == Exact::AllGather {
            let part = own.len();
            own.resize(part * usize::from(ranks), 0.0);
            own.copy_within(..part, part * usize::from(rank));
        }
        let layout = Layout::new(own.len(), ranks, config.slot_bytes / ELEMENT.size());
        let spacing = Spacing::of(config.t_b);
        let own_slots = layout.slots(rank);
        let slots_of = |source, owner| match exact.contributes(source, owner) {
            true => layout.slots(owner),
            false => 0,
        };
        let peers = (0..ranks).map(|peer| {
            let (contributions, aggregates) = match peer == rank {
                true => (0, 0),
                false => (slots_of(peer, rank), layout.slots(peer)),
            };
            Peer {
                contributions: Want::new(contributions, spacing, now),
                aggregates: Want::new(aggregates, spacing, now),
                asked_contributions: Repeats::default(),
                asked_aggregates: Repeats::default(),
                heard: false,
                last: now,
                differs: false,
                done: false,
                left: false,
            }
        });
        let others = || (0..ranks).filter(|&other| other != rank);
        let sources = others()
            .filter(|&source| exact.contributes(source, rank))
            .count();
        let receivers = match gather {
            Gather::Multicast => 1,
            Gather::Unicast => u64::from(ranks - 1),
        };
        let mut phases = Phases::default();
        phases.scatter.slots = others().map(|owner| u64::from(slots_of(rank, owner))).sum();
        phases.gather.slots = u64::from(own_slots) * receivers;
        let mut operation = Self {
            id,
            exact,
            layout,
            rank,
            ranks,
            gather,
            spacing,
            started: now,
            limit,
            until: now + limit,
            ended: false,
            received: vec![0.0; layout.shard(rank).len() * sources],
            open: vec![sources as u16; own_slots as usize],
            result: vec![0.0; own.len()],
            missing: others().map(|owner| layout.slots(owner)).sum::<u32>() + own_slots,
            own,
            peers: peers.collect(),
            rotation: Rotation::new(config.seed, id, rank),
            tour: Tour::new(ranks, incast, config.send_run),
            scatter: phases.scatter.slots,
            closed: VecDeque::new(),
            turn: Turn::default(),
            gather_left: phases.gather.slots,
            held: false,
            notice: None,
            requests: 0,
            wanted: Vec::new(),
            phases,
        };
        if sources == 0 {
            (0..own_slots).for_each(|slot| operation.close(slot));
        }
        operation
    }

    pub(super) fn is_running(&self) -> bool {
        !self.ended
    }

    pub(super) fn phases(&self) -> &Phases {
        &self.phases
    }

    /// Ends the operation if it is complete or its limit has passed.
    pub(super) fn finish(
        &mut self,
        now: Time,
    ) -> Option<Result<(ExactOutcome, Vec<f32>), Incomplete>> {
        let complete = self.missing == 0;
        if self.ended || !(complete || now >= self.until || self.is_hopeless()) {
            return None;
        }
        self.ended = true;
        // Every participant has started by now, unless only one rank contributes, and ends within another
        // limit.
        self.until = now + self.limit;
        let duration = now.since(self.started);
        if !complete {
            return Some(Err(self.incomplete(duration)));
        }
        self.notice = Some(Notice {
            sent: 0,
            due: now,
            wait: self.spacing.first,
            turn: Turn::default(),
        });
        self.received = Vec::new();
        let outcome = ExactOutcome {
            id: self.id,
            duration,
            requests: self.requests,
        };
        Some(Ok((outcome, std::mem::take(&mut self.result))))
    }

    /// Notes that `rank` has left the job.
    pub(super) fn left(&mut self, rank: u16) {
        self.peers[usize::from(rank)].left = true;
        self.held = false;
    }

    /// True if a rank has left that this one or another needs.
    fn is_hopeless(&self) -> bool {
        let all_contribute = !matches!(self.exact, Exact::Broadcast { .. });
        let mut left = self.peers.iter().filter(|peer| peer.left);
        left.any(|peer| peer.is_missing() || all_contribute && !peer.done && !peer.heard)
    }

    fn incomplete(&self, waited: Duration) -> Incomplete {
        let which = |is: &dyn Fn(&Peer) -> bool| -> Vec<u16> {
            let peers = (0u16..).zip(&self.peers);
            peers
                .filter(|(_, peer)| is(peer))
                .map(|(rank, _)| rank)
                .collect()
        };
        Incomplete {
            id: self.id,
            waited,
            contributions: which(&|peer| peer.contributions.missing() > 0),
            aggregates: which(&|peer| peer.aggregates.missing() > 0),
            silent: which(&|peer| !peer.heard && peer.is_missing()),
            left: which(&|peer| peer.left && (peer.is_missing() || !peer.done)),
            differing: which(&|peer| peer.differs),
        }
    }

    /// The time when [`ExactOperation::finish`] is due, or removal.
    pub(super) fn due(&self) -> Time {
        self.until
    }

    /// True if no rank can need anything of it: each other rank has reported the result, has left the step
    /// (`past`), or has given up.
    pub(super) fn is_over(&self, now: Time, past: impl Fn(u16) -> bool) -> bool {
        let unsent = !self.closed.is_empty() || self.notice.is_some();
        self.ended && (now >= self.until || !unsent && self.all_done(past))
    }

    fn all_done(&self, past: impl Fn(u16) -> bool) -> bool {
        let mut peers = (0u16..).zip(&self.peers);
        peers.all(|(rank, peer)| rank == self.rank || peer.done || past(rank))
    }

    /// For a rank that leaves: when the last rank that still responds can no longer need anything. A rank
    /// with missing slots requests them again and again; one that does not counts as absent. Ranks may start a
    /// broadcast only after this.
    pub(super) fn needed_until(&self, past: impl Fn(u16) -> bool) -> Option<Time> {
        let silence = self.spacing.longest * LONGEST_WAITS;
        let all_contribute = !matches!(self.exact, Exact::Broadcast { .. });
        let peers = (0u16..).zip(&self.peers);
        let lacking = peers.filter(|(rank, peer)| *rank != self.rank && !peer.done && !past(*rank));
        let until = lacking.map(|(_, peer)| match peer.heard || all_contribute {
            true => self.until.min(peer.last + silence),
            false => self.until,
        });
        until.max()
    }

    /// True if another rank may wait for data, or has not been notified that this rank is done.
    pub(super) fn may_be_needed(&self, past: impl Fn(u16) -> bool) -> bool {
        !self.ended || !self.closed.is_empty() || self.notice.is_some() || !self.all_done(past)
    }

    /// Notes that a receiver may have room again, or that another packet is to be sent.
    pub(super) fn retry_held(&mut self) {
        self.held = false;
    }

    /// Stops notices: packets of the later step that started say the same.
    pub(super) fn stop_repeating(&mut self) {
        if self.ended {
            self.notice = None;
        }
    }

    /// The counters of a finished operation. Packets still owed count as never sent.
    pub(super) fn into_phases(mut self) -> Phases {
        self.phases.scatter.never_sent += self.scatter;
        self.phases.gather.never_sent += self.gather_left;
        self.phases
    }
}
