//! Traces of parsers.

use super::super::action::Machine;
use super::super::key::word_count;
use super::super::trace::{Event, Named, Value};
use super::{KeyPart, Op, Parser};

impl Parser {
    /// Records that a state is entered.
    #[cold]
    pub fn entered(&self, machine: &mut Machine, state: usize) {
        let at = machine.parsed.bytes;
        if let Some(recorder) = &mut machine.state.trace {
            recorder.enter_state(state, at);
        }
    }

    /// Records an operation that is about to run.
    #[cold]
    pub fn before_op(&self, machine: &mut Machine, state: usize, index: usize) {
        if let Some(recorder) = &mut machine.state.trace {
            recorder.enter_op(state, index);
            recorder.watch(machine.layout, machine.phv);
        }
    }

    /// Records what an operation has done; it began `start` bytes into the frame.
    #[cold]
    pub fn after_op(&self, machine: &mut Machine, (state, index): (usize, usize), start: usize) {
        let (layout, at) = (machine.layout, machine.parsed.bytes);
        let op = &self.states[state].ops[index];
        let Some(recorder) = &mut machine.state.trace else {
            return;
        };
        let header = match op {
            Op::Extract(header) | Op::ExtractVarbit { header, .. } => *header,
            Op::ExtractNext { stack, member, .. } => {
                let stack = &layout.stacks[*stack];
                let last = machine.phv.next(stack).saturating_sub(1);
                stack.elements[last][*member]
            }
            Op::Advance(_) => return recorder.note(Event::Advance { bytes: at - start }),
            Op::Lookahead { .. } => return recorder.changes(layout, machine.phv),
            // What primitives do is recorded where they run; a `verify` that holds does nothing.
            Op::Primitive(_) | Op::Remove { .. } | Op::Verify { .. } => return,
        };
        let event = Event::Extract {
            header: layout.instances[header].name.clone(),
            at: start,
            bytes: at - start,
            fields: super::super::trace::fields(layout, machine.phv, header),
        };
        recorder.note(event);
    }

    /// Records where a state goes, and by which of its transitions, unless an error ends the parser there.
    #[cold]
    pub fn selected(&self, machine: &mut Machine, state: usize) {
        let key = &mut Vec::new();
        let Ok(taken) = self.taken(state, machine, key) else {
            return;
        };
        let known = &self.states[state];
        let next = taken.map_or(known.default, |taken| known.transitions[taken].next);
        let Some(recorder) = &mut machine.state.trace else {
            return;
        };
        let symbols = recorder.symbols();
        let (mut rest, symbol) = (key.as_slice(), &symbols.states[state]);
        let parts = self.states[state].key.iter().zip(&symbol.key);
        let part = |(part, name): (&KeyPart, &String)| {
            let words;
            (words, rest) = rest.split_at(word_count(part.width()).min(rest.len()));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            Named {
                name: name.clone(),
                value: Value::new(&bytes),
            }
        };
        let event = Event::Select {
            key: match key.as_slice() {
                [] => Vec::new(),
                _ => parts.map(part).collect(),
            },
            case: taken.map_or_else(|| "default".to_owned(), |at| symbol.cases[at].clone()),
            next: next.map_or_else(
                || "accept".to_owned(),
                |next| symbols.states[next].name.clone(),
            ),
        };
        recorder.note(event);
    }

    /// Records how the parser ended.
    #[cold]
    pub(super) fn ended(&self, machine: &mut Machine) {
        let (parsed, frame) = (machine.parsed, machine.payload);
        let Some(recorder) = &mut machine.state.trace else {
            return;
        };
        if parsed.error != self.errors.no_error {
            let error = recorder.symbols().error(parsed.error);
            let at = parsed.bytes;
            recorder.note(Event::ParserError { error, at });
        }
        recorder.note(Event::Parsed {
            bytes: parsed.bytes,
            payload: frame.len() - parsed.bytes,
        });
    }
}
