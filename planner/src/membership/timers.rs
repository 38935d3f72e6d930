//! The controller's timers of members.

use std::time::Duration;

/// The controller's time limits for members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberTimers {
    /// Time without a session before a member is suspected. A lost connection is back within a
    /// second.
    pub suspicion: Duration,
    /// Additional time after a restart or a takeover of the controller: members detect the loss of their session only after some
    /// seconds, and at different times.
    pub takeover: Duration,
    /// Least time for surviving members to acknowledge a change, from when each was notified.
    pub answer: Duration,
    /// Time to wait for an absent member once the new epoch is decided. A lost connection is back
    /// within a second.
    pub reconnect: Duration,
}

impl Default for MemberTimers {
    fn default() -> Self {
        let all = Duration::from_secs(3);
        MemberTimers {
            suspicion: all,
            takeover: Duration::from_secs(10),
            answer: all,
            reconnect: all,
        }
    }
}
