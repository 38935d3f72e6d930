//! No rate control.

use crate::time::Time;

use super::{RateControl, Seen};

/// Always the limit.
pub(super) struct Fixed;

impl RateControl for Fixed {
    fn adapt(&mut self, _: Time, _: &Seen) -> f64 {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fixed_rate_never_changes() {
        let seen = Seen {
            queue: Duration::from_secs(1),
            marked: 1.0,
            trimmed: 1.0,
            round_trip: Some(Duration::from_secs(1)),
        };
        assert_eq!(Fixed.adapt(Time::ZERO, &seen), 1.0);
    }
}
