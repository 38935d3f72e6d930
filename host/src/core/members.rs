//! What this rank knows of the others, beyond one operation.

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
    /// By rank.
    members: Vec<Member>,
    /// The newest step of anyone.
    newest: Option<u32>,
    /// Operations started.
    started: u32,
    /// How long operations have lasted in which nobody was heard, since someone was.
    alone_for: Duration,
    /// Up to when that is counted: operations run side by side.
    counted_until: Time,
}

#[derive(Clone, Copy, Default)]
struct Member {
    /// How many operations had been started when it was heard last.
    heard: u32,
    silent_steps: u32,
    /// The last of them: buckets side by side miss the same packets.
    silent_in: Option<u32>,
    newest_step: Option<u32>,
}

impl Members {
    pub(super) fn new(ranks: u16) -> Self {
        Self {
            members: vec![Member::default(); usize::from(ranks)],
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
        let member = &mut self.members[usize::from(rank)];
        member.newest_step = member.newest_step.max(Some(step));
        self.newest = self.newest.max(Some(step));
    }

    /// The same for a packet that says nothing of what its sender sent before.
    pub(super) fn lives(&mut self, rank: u16) {
        self.alone_for = Duration::ZERO;
        let member = &mut self.members[usize::from(rank)];
        member.heard = self.started;
        member.silent_steps = 0;
    }

    /// Whether `rank` has sent a packet of a step after `step`.
    pub(super) fn is_past(&self, rank: u16, step: u32) -> bool {
        self.members[usize::from(rank)].newest_step > Some(step)
    }

    /// The newest step of which anyone has sent a packet.
    pub(super) fn newest_step(&self) -> Option<u32> {
        self.newest
    }

    /// Whether nothing came from `rank` for several steps: it is not waited for.
    pub(super) fn is_suspected(&self, rank: u16) -> bool {
        self.members[usize::from(rank)].silent_steps >= SUSPECT_AFTER
    }

    /// For how many steps in a row nobody but `rank`, which is this one, was heard, where that is why it should
    /// stop.
    pub(super) fn is_alone(&self, rank: u16) -> Option<u32> {
        self.silence(rank)
            .filter(|&silent| silent >= ALONE_AFTER && self.alone_for >= ALONE_FOR)
    }

    /// Whether everybody but `rank`, which is this one, is suspected: then it is as likely this one that is cut off.
    pub(super) fn suspects_all(&self, rank: u16) -> bool {
        self.silence(rank) >= Some(SUSPECT_AFTER)
    }

    /// Since how many steps nobody was heard.
    fn silence(&self, rank: u16) -> Option<u32> {
        let others = (0u16..)
            .zip(&self.members)
            .filter(|(other, _)| *other != rank);
        others.map(|(_, member)| member.silent_steps).min()
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
        for (other, member) in (0u16..).zip(&mut self.members) {
            // Numbers wrap; those heard since it started are few ahead of it.
            if member.heard == 0 || number.wrapping_sub(member.heard).cast_signed() > 0 {
                if member.silent_in.replace(step) != Some(step) {
                    member.silent_steps = member.silent_steps.saturating_add(1);
                }
            } else {
                alone &= other == rank;
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
                assert_eq!(members.suspects_all(0), ended >= SUSPECT_AFTER);
                assert_eq!(members.is_alone(0), None, "{ms} ms");
                operation(&mut members, &mut now, ms);
            }
            assert_eq!(members.is_alone(0), Some(operations));
            members.lives(2);
            assert!(members.is_alone(0).is_none() && !members.suspects_all(0));
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
        assert_eq!(members.is_alone(0), None, "ten operations in the same time");
    }
}
