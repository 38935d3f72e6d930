//! Fixed timeouts, as configured.

use crate::time::Time;

use super::{Bounds, Policy};

pub(super) struct Fixed(Bounds);

impl Fixed {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self(bounds)
    }
}

impl Policy for Fixed {
    fn start(&mut self, _now: Time, _bucket: u16, _values: usize) -> Bounds {
        self.0
    }

    fn learns(&self) -> bool {
        false
    }
}
