//! What this rank knows of the others, beyond one operation.

use std::time::Duration;

/// Operations in a row without a packet after which a rank is suspected.
const SUSPECT_AFTER: u32 = 3;
/// A rank stops when for as many operations in a row nothing came from anyone, each of which lasts until t_B, and for
/// as long. More than [`SUSPECT_AFTER`]: a link may be down for a moment, and the only other rank may sleep.
const ALONE_AFTER: u32 = 10;
const ALONE_FOR: Duration = Duration::from_secs(10);

/// Who was heard, and of what.
pub(super) struct Members {
    /// By rank.
    members: Vec<Member>,
    alone_after: u32,
}

#[derive(Clone, Copy, Default)]
struct Member {
    /// Since the end of the last operation.
    heard: bool,
    silent_operations: u32,
    newest_step: Option<u32>,
}

impl Members {
    pub(super) fn new(ranks: u16, t_b: Duration) -> Self {
        let operations = ALONE_FOR.as_nanos().div_ceil(t_b.as_nanos().max(1));
        Self {
            members: vec![Member::default(); usize::from(ranks)],
            alone_after: u32::try_from(operations)
                .unwrap_or(u32::MAX)
                .max(ALONE_AFTER),
        }
    }

    /// A packet of `rank` came: it is trusted (again).
    pub(super) fn heard(&mut self, rank: u16, step: u32) {
        self.lives(rank);
        let member = &mut self.members[usize::from(rank)];
        member.newest_step = member.newest_step.max(Some(step));
    }

    /// The same for a packet that says nothing of what its sender sent before.
    pub(super) fn lives(&mut self, rank: u16) {
        let member = &mut self.members[usize::from(rank)];
        member.heard = true;
        member.silent_operations = 0;
    }

    /// Whether `rank` has sent a packet of a step after `step`.
    pub(super) fn is_past(&self, rank: u16, step: u32) -> bool {
        self.members[usize::from(rank)].newest_step > Some(step)
    }

    /// The newest step of which anyone has sent a packet.
    pub(super) fn newest_step(&self) -> Option<u32> {
        self.members
            .iter()
            .filter_map(|member| member.newest_step)
            .max()
    }

    /// Whether nothing came from `rank` for several operations: it is not waited for.
    pub(super) fn is_suspected(&self, rank: u16) -> bool {
        self.members[usize::from(rank)].silent_operations >= SUSPECT_AFTER
    }

    /// For how many operations in a row nobody but `rank`, which is this one, was heard, where that is why it should
    /// stop.
    pub(super) fn is_alone(&self, rank: u16) -> Option<u32> {
        self.silence(rank)
            .filter(|&silent| silent >= self.alone_after)
    }

    /// Whether everybody but `rank`, which is this one, is suspected: then it is as likely this one that is cut off.
    pub(super) fn suspects_all(&self, rank: u16) -> bool {
        self.silence(rank) >= Some(SUSPECT_AFTER)
    }

    /// Since how many operations nobody was heard.
    fn silence(&self, rank: u16) -> Option<u32> {
        let others = (0u16..)
            .zip(&self.members)
            .filter(|(other, _)| *other != rank);
        others.map(|(_, member)| member.silent_operations).min()
    }

    /// An operation ended: who was silent during it?
    pub(super) fn operation_ended(&mut self) {
        for member in &mut self.members {
            if !std::mem::take(&mut member.heard) {
                member.silent_operations = member.silent_operations.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_is_who_hears_nobody_for_long() {
        let mut members = Members::new(3, Duration::from_secs(1));
        for operations in 0..ALONE_AFTER {
            assert_eq!(members.suspects_all(0), operations >= SUSPECT_AFTER);
            assert_eq!(members.is_alone(0), None);
            members.operation_ended();
        }
        assert_eq!(members.is_alone(0), Some(ALONE_AFTER));
        members.lives(2);
        assert!(members.is_alone(0).is_none() && !members.suspects_all(0));
    }

    #[test]
    fn silence_makes_suspect_and_one_packet_trusted() {
        let mut members = Members::new(2, Duration::from_secs(1));
        for _ in 0..SUSPECT_AFTER {
            assert!(!members.is_suspected(1));
            members.heard(0, 5);
            members.operation_ended();
        }
        assert!(members.is_suspected(1) && !members.is_suspected(0));
        members.heard(1, 5);
        assert!(!members.is_suspected(1));
        assert!(members.is_past(1, 4) && !members.is_past(1, 5));
    }
}
