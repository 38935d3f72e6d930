//! No machine code for this processor or system: all operations are interpreted.

use super::super::action::Machine;
use super::{Address, Arrays, Code};

#[derive(Debug)]
pub(super) enum Native {}

impl Native {
    pub fn new(_: &mut Code, _: Arrays) -> Option<Native> {
        None
    }

    pub fn context(&self, _: &mut Machine) {
        match *self {}
    }

    pub fn run(
        &self,
        _: Address,
        _: &mut [u8],
        _: &[u8],
        _: (&mut usize, &mut Address),
        _: &mut (),
    ) -> Address {
        match *self {}
    }
}
