//! What this rank knows of the others, beyond one operation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Time;

/// Steps in a row with an operation without a packet after which a rank is suspected.
const SUSPECT_AFTER: u32 = 3;
/// A rank stops when in as many steps in a row nothing came from anyone, so that operations last until t_B, and they
/// took as long. More than [`SUSPECT_AFTER`]: a link may be down for a moment, and the only other rank may sleep.
const ALONE_AFTER: u32 = 10;
const ALONE_FOR: Duration = Duration::from_secs(10);

/// A packet of a step that many after the newest that anyone was heard of says nothing of what its sender has done.
const LONGEST_LEAD: u32 = 1 << 16;

/// Who was heard, and of what.
pub(super) struct Members {
    /// By rank: how many operations had been started when it was heard last.
    heard: Vec<u32>,
    /// By rank: the newest step that it was heard of; zero before.
    newest_step: Vec<u32>,
    /// The others who are silent, or were in the present step.
    silent: BTreeMap<u16, Silence>,
    /// The newest step of anyone.
    newest: Option<u32>,
    /// Operations started.
    started: u32,
    /// How long operations have lasted in which nobody was heard, since someone was.
    alone_for: Duration,
    /// Up to when that is counted: operations run side by side.
    counted_until: Time,
}

#[derive(Clone, Copy)]
struct Silence {
    /// Steps in a row.
    steps: u32,
    /// The last of them: buckets side by side miss the same packets.
    last: u32,
}

impl Members {
    pub(super) fn new(ranks: u16) -> Self {
        Self {
            heard: vec![0; ranks.into()],
            newest_step: vec![0; ranks.into()],
            silent: BTreeMap::new(),
            newest: None,
            started: 0,
            alone_for: Duration::ZERO,
            counted_until: Time::ZERO,
        }
    }

    /// An operation starts; returns its number, for [`Members::operation_ended`].
    pub(super) fn operation_starts(&mut self) -> u32 {
        self.started = self.started.wrapping_add(1);
        self.started
    }

    /// A packet of `rank` came: it is trusted (again).
    pub(super) fn heard(&mut self, rank: u16, step: u32) {
        self.lives(rank);
        let known = self.newest;
        // Who is so far ahead is not, and one packet must not make it so for good.
        if known.is_some_and(|known| step.saturating_sub(known) > LONGEST_LEAD) {
            return;
        }
        let newest = &mut self.newest_step[usize::from(rank)];
        *newest = step.max(*newest);
        self.newest = self.newest.max(Some(step));
    }

    /// The same for a packet that says nothing of what its sender sent before.
    pub(super) fn lives(&mut self, rank: u16) {
        self.alone_for = Duration::ZERO;
        self.heard[usize::from(rank)] = self.started;
        if let Some(silence) = self.silent.get_mut(&rank) {
            silence.steps = 0;
        }
    }

    /// Whether `rank` has sent a packet of a step after `step`.
    pub(super) fn is_past(&self, rank: u16, step: u32) -> bool {
        self.newest_step[usize::from(rank)] > step
    }

    /// The newest step of which anyone has sent a packet.
    pub(super) fn newest_step(&self) -> Option<u32> {
        self.newest
    }

    /// Whether nothing came from `rank` for several steps: it is not waited for.
    pub(super) fn is_suspected(&self, rank: u16) -> bool {
        (self.silent.get(&rank)).is_some_and(|silence| silence.steps >= SUSPECT_AFTER)
    }

    /// For how many steps in a row nobody was heard, where that is why this rank should stop.
    pub(super) fn is_alone(&self) -> Option<u32> {
        self.silence()
            .filter(|&silent| silent >= ALONE_AFTER && self.alone_for >= ALONE_FOR)
    }

    /// Whether everybody else is suspected: then it is as likely this rank that is cut off.
    pub(super) fn suspects_all(&self) -> bool {
        self.silence() >= Some(SUSPECT_AFTER)
    }

    /// Since how many steps nobody was heard.
    fn silence(&self) -> Option<u32> {
        match self.silent.len() < self.heard.len() - 1 {
            true => Some(0),
            false => self.silent.values().map(|silence| silence.steps).min(),
        }
    }

    /// An operation of `rank`, which is this one, ended, the one with `number` in `step`: who was silent during it?
    pub(super) fn operation_ended(
        &mut self,
        rank: u16,
        (number, step): (u32, u32),
        started: Time,
        now: Time,
    ) {
        let mut alone = true;
        // Who spoke again and was silent in another step.
        self.silent
            .retain(|_, silence| silence.steps > 0 || silence.last == step);
        let others = (0u16..).zip(&self.heard);
        for (other, heard) in others.filter(|(other, _)| *other != rank) {
            // Numbers wrap; those heard since it started are few ahead of it.
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
        members.operation_ended(0, (number, number), started, *now);
    }

    #[test]
    fn alone_is_who_hears_nobody_for_long() {
        for (ms, operations) in [(1000, 10), (5000, 10), (100, 100)] {
            let (mut members, mut now) = (Members::new(3), Time::ZERO);
            for ended in 0..operations {
                assert_eq!(members.suspects_all(), ended >= SUSPECT_AFTER);
                assert_eq!(members.is_alone(), None, "{ms} ms");
                operation(&mut members, &mut now, ms);
            }
            assert_eq!(members.is_alone(), Some(operations));
            members.lives(2);
            assert!(members.is_alone().is_none() && !members.suspects_all());
        }
    }

    #[test]
    fn silence_makes_suspect_and_one_packet_trusted() {
        let (mut members, mut now) = (Members::new(3), Time::ZERO);
        for _ in 0..SUSPECT_AFTER {
            assert!(!members.is_suspected(1));
            let number = members.operation_starts();
            members.heard(2, 5);
            members.operation_ended(0, (number, number), now, now + MS);
            now = now + MS;
        }
        assert!(members.is_suspected(1) && !members.is_suspected(2));
        members.heard(1, 5);
        assert!(!members.is_suspected(1));
        assert!(members.is_past(1, 4) && !members.is_past(1, 5));
    }

    #[test]
    fn operations_side_by_side_hear_the_same_packets() {
        let mut members = Members::new(2);
        let end = Time::ZERO + ALONE_FOR * 2 / 3;
        let [first, second] = [(); 2].map(|()| members.operation_starts());
        members.lives(1);
        members.operation_ended(0, (first, 0), Time::ZERO, end);
        members.operation_ended(0, (second, 0), Time::ZERO, end);
        assert!(!members.is_suspected(1));
        let numbers = [(); ALONE_AFTER as usize].map(|()| members.operation_starts());
        for number in numbers {
            members.operation_ended(0, (number, 1), end, end + ALONE_FOR * 2 / 3);
        }
        assert!(!members.is_suspected(1), "one step");
        assert_eq!(members.is_alone(), None, "ten operations in the same time");
    }
}
