//! No machine code for this processor or system: all operations are interpreted.

use super::super::action::{Context, State};
use super::{Address, Arrays, Code};

#[derive(Debug)]
pub(super) enum Native {}

impl Native {
    pub fn new(_: &mut Code, _: Arrays) -> Option<Native> {
        None
    }

    pub fn complete(&self, _: &mut State, _: &mut Context) {
        match *self {}
    }

    pub fn run(&self, _: Address, _: &mut [u8], _: &[u8], _: &mut Context) -> Address {
        match *self {}
    }
}
