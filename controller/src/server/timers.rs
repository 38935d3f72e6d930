//! The controller's timers. They are no options of an operator; tests shorten them.

use std::time::Duration;

use ultima_planner::membership;

/// The timers that a controller's configuration carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Time that a write has for all its calls together once a reroute waits for it.
    pub change: Duration,
    /// Timeout of one call of a reroute, and of a round, plus some time for each update. The reroute
    /// continues without a switch that takes longer. Together with the detection of the failure and
    /// the end of writes in progress, all other switches are done in less than a second.
    pub reroute_call: Duration,
    /// The pause before a resync, or a step of a membership change, is retried.
    pub retry: Duration,
    /// The first pause before a switch is connected again.
    pub reconnect: Duration,
    /// The pause before a switch with an unanswered write is read again.
    pub unanswered_read: Duration,
    /// The pause before a gNMI subscription that has ended is renewed.
    pub resubscribe: Duration,
    /// The pause after which new events are stored.
    pub events: Duration,
    /// The pause after an eviction that was refused or cancelled.
    pub eviction_retry: Duration,
    /// Time for clients to read pending answers when the controller stops.
    pub stop: Duration,
    /// The time without a request in progress after which a client's connection ends. The client connects again for the next one.
    pub connection: Duration,
    /// The timers of members.
    pub members: membership::MemberTimers,
}

impl Default for Timers {
    fn default() -> Self {
        Timers {
            change: Duration::from_millis(150),
            reroute_call: Duration::from_millis(300),
            retry: Duration::from_secs(1),
            reconnect: Duration::from_millis(200),
            unanswered_read: Duration::from_secs(1),
            resubscribe: Duration::from_secs(1),
            events: Duration::from_secs(5),
            eviction_retry: Duration::from_secs(5),
            stop: Duration::from_secs(5),
            connection: Duration::from_secs(45),
            members: membership::MemberTimers::default(),
        }
    }
}
