//! A journal for tests.

use super::*;

/// The journal of a leader with one follower, which must store every change. `leads` tells whether
/// the switches still accept the leader.
pub fn leader_of_two(leads: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Journal> {
    let lead = Lead {
        term: Term { number: 3, by: 1 },
        group: Shape {
            controllers: 2,
            copies: 1,
            ..Shape::default()
        },
        ack_timeout: Duration::from_secs(1),
        by_majority: true,
        outranked: watch::Sender::new(None),
    };
    let store = Arc::new(Store::in_memory().unwrap());
    Arc::new(Journal::new(store, lead, leads))
}
