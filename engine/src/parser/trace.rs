//! Traces of parsers.

use num_bigint::BigUint;

use super::super::action::{self, Machine};
use super::super::bits::low_bits;
use super::super::expression::{EXACT, Env, Num};
use super::super::key::words_of;
use super::super::octets::{hex, plural};
use super::{Case, Parser, State, Transition};

impl Parser {
    /// Records that a state is entered.
    #[cold]
    pub fn entered(&self, machine: &mut Machine, state: usize) {
        let at = machine.context.parsed;
        if let Some(recorder) = &mut machine.state.trace {
            recorder.enter_state(state, at);
        }
    }

    /// Records where a state goes, and by which of its transitions, unless an error ends the parser there.
    #[cold]
    pub fn selected(&self, machine: &mut Machine, state: usize) {
        let known = &self.states[state];
        let Some(values) = known.values(machine.env()) else {
            return;
        };
        let taken = known.taken(&values, machine.state);
        let next = taken.map_or(known.default, |taken| known.transitions[taken].next);
        let Some(recorder) = &mut machine.state.trace else {
            return;
        };
        let symbols = recorder.symbols();
        let symbol = &symbols.states[state];
        let next = next.map_or("accept", |next| &symbols.states[next].name);
        if values.is_empty() {
            return recorder.note(3, format_args!("go to {next}"));
        }
        let parts = symbol.key.iter().zip(&values);
        let parts = parts.map(|(name, (value, _))| format!("{name}={}", hex(&value.to_bytes_be())));
        let key = parts.collect::<Vec<_>>().join(" ");
        let case = taken.map_or("default", |at| &symbol.cases[at]);
        recorder.note(3, format_args!("select {key}: {case}, go to {next}"));
    }

    /// Records how the parser ended.
    #[cold]
    pub fn ended(&self, machine: &mut Machine) {
        let (parsed, frame) = (machine.context.parsed, machine.payload);
        let Some(recorder) = &mut machine.state.trace else {
            return;
        };
        if machine.parser_error != self.errors.no_error {
            let error = recorder.symbols().error(machine.parser_error);
            recorder.note(2, format_args!("parser error {error} at byte {parsed}"));
        }
        let [done, left] = [parsed, frame.len() - parsed];
        let [done, left] = [done, left].map(|bytes| plural(bytes as u64, "byte"));
        recorder.note(2, format_args!("parsed {done}, {left} of payload"));
    }
}

impl State {
    /// The values of the key's parts with their widths; none without transitions. `None` if the frame or a stack has no such part.
    fn values(&self, env: Env) -> Option<Vec<(BigUint, u32)>> {
        let parts = self.key.iter().filter(|_| !self.transitions.is_empty());
        let value = |part: &Num| {
            let there = match part {
                Num::Ahead(offset, width) => env.ahead.len() * 8 >= (offset + width) as usize,
                Num::Element(field) => field.resolve(env).is_some(),
                _ => true,
            };
            let width = part.bound().bits;
            there.then(|| (low_bits(&part.eval(env, EXACT), width), width))
        };
        parts.map(value).collect()
    }

    /// The transition that a packet takes; `None` is the default one.
    fn taken(&self, values: &[(BigUint, u32)], state: &mut action::State) -> Option<usize> {
        let key = values
            .iter()
            .flat_map(|(value, width)| words_of(value, *width));
        let key: Vec<u64> = key.collect();
        let action::State {
            value_sets, masked, ..
        } = state;
        let matches = |transition: &Transition| match &transition.case {
            Case::Value { value, mask } => {
                let mut words = value.iter().zip(mask).zip(&key);
                words.all(|((value, mask), key)| key & mask == *value)
            }
            Case::Set(set) => value_sets[*set].holds(&key, masked),
        };
        self.transitions.iter().position(matches)
    }
}
