//! The parser: states, their instructions and transitions. [`Code`](super::code::Code) runs it.

mod load;
mod trace;

use super::expression::Num;

#[derive(Debug)]
pub(super) struct Parser {
    pub states: Vec<State>,
    pub start: Option<usize>,
    pub errors: Errors,
}

#[derive(Debug)]
pub(super) struct State {
    /// The instructions, by their position among the program's actions.
    pub block: usize,
    /// Unsigned fields, and bits ahead.
    pub key: Vec<Num>,
    pub transitions: Vec<Transition>,
    pub default: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Transition {
    pub case: Case,
    pub next: Option<usize>,
}

/// When a transition is taken.
#[derive(Debug)]
pub(super) enum Case {
    /// The key equals `value` where `mask` has ones.
    Value { value: Vec<u64>, mask: Vec<u64> },
    /// The key is in a value set, by its position.
    Set(usize),
}

/// The numbers that the program gives to the errors of the core library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Errors {
    pub no_error: u32,
    pub packet_too_short: u32,
    pub stack_out_of_bounds: u32,
    pub header_too_short: u32,
    pub parser_invalid_argument: u32,
}

/// How far a parser came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parsed {
    /// Bytes extracted or skipped.
    pub bytes: usize,
    /// The program's number for the error that ended it, or for `NoError`.
    pub error: u32,
}

impl Parser {
    /// Whether packets start in a state, and none comes back to it.
    pub fn starts_once_at(&self, at: usize) -> bool {
        let nexts = |state: &State| {
            let transitions = state.transitions.iter().map(|transition| transition.next);
            transitions.chain([state.default]).any(|to| to == Some(at))
        };
        self.start == Some(at) && !self.states.iter().any(nexts)
    }
}
