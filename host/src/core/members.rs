//! The state of the other ranks across operations: last packets, suspicion, departure, progress.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::time::Time;

use super::progress::Progress;

/// A rank is suspected after this many consecutive steps with an operation without its packets.
const SUSPECT_AFTER: u32 = 3;
/// A rank stops after this many consecutive steps without a packet from any rank, if they lasted that many
/// times t_B. More than [`SUSPECT_AFTER`]: a link may be down for a moment, and a single peer may be
/// suspended.
const ALONE_AFTER: u32 = 10;
const ALONE_FOR: Duration = Duration::from_secs(10);

/// The state of the other ranks.
pub(super) struct Members {
    /// By rank: number of operations started when its last packet arrived.
    heard: Vec<u32>,
    progress: Progress,
    /// Other ranks that are silent, or were in the current step.
    silent: BTreeMap<u16, Silence>,
    /// Operations started.
    started: u32,
    /// Total duration of operations without a packet, since the last packet.
    alone_for: Duration,
    /// End of the time that is included: operations overlap.
    counted_until: Time,
    /// Ranks that have left, with the times until which operations wait for their last packets.
    leaving: VecDeque<(Time, u16)>,
    /// Ranks that have left, after those times.
    absent: BTreeSet<u16>,
}

#[derive(Clone, Copy)]
struct Silence {
    /// Consecutive steps.
    steps: u32,
    /// The last of them. Parallel buckets miss the same packets, and count once.
    last: u32,
}

impl Members {
    pub(super) fn new(ranks: u16, is_sealed: bool) -> Self {
        Self {
            heard: vec![0; ranks.into()],
            progress: Progress::new(ranks, is_sealed),
            silent: BTreeMap::new(),
            started: 0,
            alone_for: Duration::ZERO,
            counted_until: Time::ZERO,
            leaving: VecDeque::new(),
            absent: BTreeSet::new(),
        }
    }

    /// Notes that `rank` has left. Operations wait for its last packets until `until`.
    pub(super) fn leaves(&mut self, rank: u16, until: Time) {
        let is_known =
            self.absent.contains(&rank) || self.leaving.iter().any(|(_, leaving)| *leaving == rank);
        if !is_known {
            let at = self.leaving.partition_point(|(other, _)| *other <= until);
            self.leaving.insert(at, (until, rank));
        }
    }

    /// When [`Members::next_absent`] returns a rank.
    pub(super) fn absent_at(&self) -> Option<Time> {
        self.leaving.front().map(|(until, _)| *until)
    }

    /// The next rank that operations do not wait for from now on.
    pub(super) fn next_absent(&mut self, now: Time) -> Option<u16> {
        self.absent_at().filter(|until| *until <= now)?;
        let (_, rank) = self.leaving.pop_front()?;
        self.absent.insert(rank);
        Some(rank)
    }

    /// The ranks that have left.
    pub(super) fn absent(&self) -> impl Iterator<Item = u16> + '_ {
        self.absent.iter().copied()
    }

    /// True if `rank` has left.
    pub(super) fn has_left(&self, rank: u16) -> bool {
        self.absent.contains(&rank)
    }

    /// True if operations do not wait for `rank`: it has left, or was silent for several steps.
    pub(super) fn is_given_up(&self, rank: u16) -> bool {
        self.has_left(rank) || self.is_suspected(rank)
    }

    /// True if all other ranks have left, and none has sent a packet of `step` or of a later one.
    pub(super) fn have_all_left(&self, step: u32) -> bool {
        self.absent.len() == self.heard.len() - 1 && self.newest_step() < Some(step)
    }

    /// Notes the start of an operation. Returns its number for [`Members::operation_ended`].
    pub(super) fn operation_starts(&mut self) -> u32 {
        self.started = self.started.wrapping_add(1);
        self.started
    }

    /// Notes a packet of `rank`, which ends a suspicion, at a rank that has itself started step `own`. Returns
    /// true if `rank` has reached `step`.
    pub(super) fn heard(&mut self, rank: u16, step: u32, own: Option<u32>) -> bool {
        self.heard_any(rank);
        self.progress.heard(rank, step, own)
    }

    /// See [`Progress::take_refuted`].
    pub(super) fn take_refuted(&mut self) -> u64 {
        self.progress.take_refuted()
    }

    /// As [`Members::heard`], for a packet that says nothing about its sender's earlier packets.
    pub(super) fn heard_any(&mut self, rank: u16) {
        self.alone_for = Duration::ZERO;
        self.heard[usize::from(rank)] = self.started;
        if let Some(silence) = self.silent.get_mut(&rank) {
            silence.steps = 0;
        }
    }

    /// True if `rank` needs nothing of `step` any more: it has left, or has sent a packet of a later step.
    pub(super) fn is_done_with(&self, rank: u16, step: u32) -> bool {
        self.has_left(rank) || self.is_past(rank, step)
    }

    /// True if `rank` has sent a packet of a step after `step`.
    pub(super) fn is_past(&self, rank: u16, step: u32) -> bool {
        self.progress.of(rank) > Some(step)
    }

    /// The newest step that another rank has reached.
    pub(super) fn newest_step(&self) -> Option<u32> {
        self.progress.newest()
    }

    /// True if `rank` was silent for several steps.
    pub(super) fn is_suspected(&self, rank: u16) -> bool {
        (self.silent.get(&rank)).is_some_and(|silence| silence.steps >= SUSPECT_AFTER)
    }

    /// Number of consecutive steps without a packet from any rank, if this rank should stop for that reason.
    pub(super) fn is_alone(&self) -> Option<u32> {
        self.silence()
            .filter(|&silent| silent >= ALONE_AFTER && self.alone_for >= ALONE_FOR)
    }

    /// True if all other ranks of the job are suspected: then this rank is as likely to be the disconnected one.
    pub(super) fn suspects_all(&self) -> bool {
        self.silence() >= Some(SUSPECT_AFTER)
    }

    /// Number of consecutive steps without a packet from any rank of the job. None if all others have left.
    fn silence(&self) -> Option<u32> {
        let others = self.heard.len() - 1 - self.absent.len();
        let present = |(rank, _): &(&u16, &Silence)| !self.has_left(**rank);
        let silent = self.silent.iter().filter(present);
        match silent.clone().count() < others {
            true => Some(0),
            false => silent.map(|(_, silence)| silence.steps).min(),
        }
    }

    /// Notes the end of operation `number` in `step` at this rank, and updates the silence of all others.
    pub(super) fn operation_ended(
        &mut self,
        rank: u16,
        number: u32,
        step: u32,
        started: Time,
        now: Time,
    ) {
        let mut alone = true;
        // Ranks that sent again after their silence in another step.
        self.silent
            .retain(|_, silence| silence.steps > 0 || silence.last == step);
        let others = (0u16..).zip(&self.heard);
        for (other, heard) in others.filter(|(other, _)| *other != rank) {
            // Numbers wrap. Those heard since the start are at most a few ahead.
            if *heard == 0 || number.wrapping_sub(*heard).cast_signed() > 0 {
                let new = Silence {
                    steps: 1,
                    last: step,
                };
                let silence = self.silent.entry(other).or_insert(new);
                if silence.last != step {
                    silence.last = step;
                    silence.steps = silence.steps.saturating_add(1);
                }
            } else {
                alone = false;
            }
        }
        if alone {
            self.alone_for += now.since(started.max(self.counted_until));
        }
        self.counted_until = self.counted_until.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One operation after the other, each lasting `ms`.
    fn operation(members: &mut Members, now: &mut Time, ms: u64) {
        let (number, started) = (members.operation_starts(), *now);
        *now = *now + Duration::from_millis(ms);
        members.operation_ended(0, number, number, started, *now);
    }

    #[test]
    fn a_rank_without_packets_for_long_is_alone() {
        for (ms, operations) in [(1000, 10), (5000, 10), (100, 100)] {
            let (mut members, mut now) = (Members::new(3, true), Time::ZERO);
            for ended in 0..operations {
                assert_eq!(members.suspects_all(), ended >= SUSPECT_AFTER);
                assert_eq!(members.is_alone(), None, "{ms} ms");
                operation(&mut members, &mut now, ms);
            }
            assert_eq!(members.is_alone(), Some(operations));
            members.heard_any(2);
            assert!(members.is_alone().is_none() && !members.suspects_all());
        }
    }

    #[test]
    fn silence_makes_suspect_and_one_packet_trusted() {
        let (mut members, mut now) = (Members::new(3, true), Time::ZERO);
        for _ in 0..SUSPECT_AFTER {
            assert!(!members.is_suspected(1));
            let number = members.operation_starts();
            members.heard(2, 5, Some(4));
            members.operation_ended(0, number, number, now, now + MS);
            now = now + MS;
        }
        assert!(members.is_suspected(1) && !members.is_suspected(2));
        // Rank 2 leaves, so every rank that remains is suspected.
        assert!(!members.suspects_all());
        members.leaves(2, now);
        assert_eq!(members.next_absent(now), Some(2));
        assert!(members.suspects_all());
        members.heard(1, 5, Some(5));
        assert!(!members.suspects_all());
        assert!(!members.is_suspected(1));
        assert!(members.is_past(1, 4) && !members.is_past(1, 5));
    }

    #[test]
    fn operations_side_by_side_hear_the_same_packets() {
        let mut members = Members::new(2, true);
        let end = Time::ZERO + ALONE_FOR * 2 / 3;
        let [first, second] = [(); 2].map(|()| members.operation_starts());
        members.heard_any(1);
        members.operation_ended(0, first, 0, Time::ZERO, end);
        members.operation_ended(0, second, 0, Time::ZERO, end);
        assert!(!members.is_suspected(1));
        let numbers = [(); ALONE_AFTER as usize].map(|()| members.operation_starts());
        for number in numbers {
            members.operation_ended(0, number, 1, end, end + ALONE_FOR * 2 / 3);
        }
        assert!(!members.is_suspected(1), "one step");
        assert_eq!(members.is_alone(), None, "ten operations in the same time");
    }
}
