//! What this rank knows of the others, beyond one operation.

/// Operations in a row without a packet after which a rank is suspected.
const SUSPECT_AFTER: u8 = 3;

/// Who was heard, and of what.
pub(super) struct Members(Vec<Member>);

#[derive(Clone, Copy, Default)]
struct Member {
    /// Since the end of the last operation.
    heard: bool,
    silent_operations: u8,
    newest_step: Option<u32>,
}

impl Members {
    pub(super) fn new(ranks: u16) -> Self {
        Self(vec![Member::default(); usize::from(ranks)])
    }

    /// A packet of `rank` came: it is trusted (again).
    pub(super) fn heard(&mut self, rank: u16, step: u32) {
        self.lives(rank);
        let member = &mut self.0[usize::from(rank)];
        member.newest_step = member.newest_step.max(Some(step));
    }

    /// The same for a packet that says nothing of what its sender sent before.
    pub(super) fn lives(&mut self, rank: u16) {
        let member = &mut self.0[usize::from(rank)];
        member.heard = true;
        member.silent_operations = 0;
    }

    /// Whether `rank` has sent a packet of a step after `step`.
    pub(super) fn is_past(&self, rank: u16, step: u32) -> bool {
        self.0[usize::from(rank)].newest_step > Some(step)
    }

    /// The newest step of which anyone has sent a packet.
    pub(super) fn newest_step(&self) -> Option<u32> {
        self.0.iter().filter_map(|member| member.newest_step).max()
    }

    /// Whether nothing came from `rank` for several operations: it is not waited for.
    pub(super) fn is_suspected(&self, rank: u16) -> bool {
        self.0[usize::from(rank)].silent_operations >= SUSPECT_AFTER
    }

    /// An operation ended: who was silent during it?
    pub(super) fn operation_ended(&mut self) {
        for member in &mut self.0 {
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
    fn silence_makes_suspect_and_one_packet_trusted() {
        let mut members = Members::new(2);
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
