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

/// The most states of a parser that is searched for loops.
const MAX_SHORT: usize = 256;

impl Parser {
    /// True if no packet can visit more states than `max_states`.
    pub fn is_short(&self, max_states: u32) -> bool {
        let mut ends = vec![false; self.states.len()];
        if ends.len() > MAX_SHORT.min(max_states as usize) {
            return false;
        }
        // In each round, the states whose successors all lead to the end.
        for _ in 0..ends.len() {
            for (at, state) in self.states.iter().enumerate() {
                ends[at] = state.nexts().flatten().all(|next| ends[next]);
            }
        }
        ends.iter().all(|ends| *ends)
    }
}

impl State {
    /// The states that may follow; `None` is the end.
    fn nexts(&self) -> impl Iterator<Item = Option<usize>> {
        let transitions = self.transitions.iter().map(|transition| transition.next);
        transitions.chain([self.default])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parser whose states go on to these.
    fn parser(nexts: &[&[Option<usize>]]) -> Parser {
        let value = || Case::Value {
            value: vec![],
            mask: vec![],
        };
        let state = |nexts: &&[Option<usize>]| State {
            block: 0,
            key: vec![],
            transitions: (nexts[1..].iter())
                .map(|next| Transition {
                    case: value(),
                    next: *next,
                })
                .collect(),
            default: nexts[0],
        };
        Parser {
            states: nexts.iter().map(state).collect(),
            start: Some(0),
            errors: Errors {
                no_error: 0,
                packet_too_short: 1,
                stack_out_of_bounds: 2,
                header_too_short: 3,
                parser_invalid_argument: 4,
            },
        }
    }

    #[test]
    fn a_parser_is_short_without_loops_and_within_the_limit() {
        let chain: &[&[_]] = &[&[Some(1), Some(2)], &[Some(2), None], &[None]];
        assert!(parser(chain).is_short(3));
        assert!(!parser(chain).is_short(2));
        assert!(parser(&[&[Some(2)], &[None], &[Some(1)]]).is_short(3));
        assert!(!parser(&[&[Some(1)], &[None, Some(1)]]).is_short(256));
        assert!(!parser(&[&[Some(1)], &[Some(2)], &[None, Some(0)]]).is_short(256));
    }
}
