//! What happens to a packet, step by step, for those who ask.
//!
//! [`Engine::record`] puts a [`Recorder`] in; all that the engine then does for a packet is written
//! down until [`Engine::recorded`] takes it out again. Copies that are ordered in between carry a
//! [`Mark`], so that whoever keeps them in queues can go on with the same recorder when they leave.
//!
//! Without a recorder nothing is looked up, compared or allocated for it: the loops that run
//! actions and tables exist twice, and the one without hooks is the one that packets usually take.

mod event;
mod flow;
mod pass;
mod steps;
mod symbols;
mod value;

use std::num::NonZeroU16;
use std::sync::Arc;

pub use event::{
    Arrival, Call, Counted, Event, Fate, KeyField, Matched, Named, Origin, Source, Step, Via,
};
pub(super) use symbols::Symbols;
pub use value::{Octets, Value};

use super::Engine;
use super::bits::Slot;
use super::layout::Layout;
use super::phv::Phv;

/// Events of one packet and its copies that are kept, as long as they have less than a mebibyte of
/// values; what ends copies is kept beyond that.
pub const MAX_EVENTS: usize = 4096;
/// Bytes of values and frames of one packet that are kept.
const MAX_BYTES: usize = 1 << 20;
/// Copies of one packet that are followed.
pub const MAX_COPIES: u16 = 512;

/// Which trace a copy belongs to, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The number of the trace, the caller's.
    pub trace: NonZeroU16,
    /// 0 for the packet that entered, else the number of a copy.
    pub copy: u16,
}

/// What is recorded of one packet.
#[derive(Debug)]
pub struct Recorder {
    trace: NonZeroU16,
    /// Whose events come next.
    copy: u16,
    /// Numbers given to copies.
    copies: u16,
    now_us: u64,
    steps: Vec<Step>,
    /// What the steps weigh.
    bytes: usize,
    omitted: u64,
    symbols: Arc<Symbols>,
    /// Whose primitives run.
    code: Code,
    /// Where in the source the next event comes from.
    source: Option<Source>,
    before: steps::Before,
}

/// Whose primitives run.
#[derive(Debug, Clone, Copy)]
enum Code {
    /// Nobody's that the source shows.
    None,
    /// An action's.
    Action(usize),
    /// An operation of a parser state.
    Op { state: usize, op: usize },
}

impl Recorder {
    /// Begins with the packet that enters.
    pub fn new(trace: NonZeroU16) -> Recorder {
        Recorder {
            trace,
            copy: 0,
            copies: 0,
            now_us: 0,
            steps: Vec::new(),
            bytes: 0,
            omitted: 0,
            symbols: Arc::default(),
            code: Code::None,
            source: None,
            before: steps::Before::default(),
        }
    }

    /// The number of this trace.
    pub fn trace(&self) -> NonZeroU16 {
        self.trace
    }

    /// What comes next happens to this copy, at this time in microseconds.
    pub fn follow(&mut self, copy: u16, now_us: u64) {
        (self.copy, self.now_us) = (copy, now_us);
    }

    /// Adds what happened outside the engine. It is what ends a copy's way or a part of it, and is
    /// kept when there are too many events.
    pub fn conclude(&mut self, event: Event) {
        let (copy, at_us, source) = (self.copy, self.now_us, self.source.take());
        self.bytes += event.weight();
        self.steps.push(Step {
            copy,
            at_us,
            source,
            event,
        });
    }

    /// All events so far, in order, and how many there were beyond [`MAX_EVENTS`].
    pub fn into_steps(self) -> (Vec<Step>, u64) {
        (self.steps, self.omitted)
    }

    /// The program's names.
    pub(super) fn symbols(&self) -> Arc<Symbols> {
        self.symbols.clone()
    }

    /// Whether there is no room for more than what ends copies.
    fn is_full(&self) -> bool {
        self.steps.len() >= MAX_EVENTS || self.bytes >= MAX_BYTES
    }

    /// A parser state is entered.
    pub(super) fn enter_state(&mut self, state: usize, at: usize) {
        let symbols = self.symbols();
        let symbol = &symbols.states[state];
        self.source.clone_from(&symbol.source);
        let name = symbol.name.clone();
        self.note(Event::State { name, at });
    }

    /// An operation of a parser state comes next.
    pub(super) fn enter_op(&mut self, state: usize, op: usize) {
        self.code = Code::Op { state, op };
        self.source = self.source_of(0);
    }

    /// The primitives of an action come next.
    pub(super) fn enter_action(&mut self, action: usize) {
        self.code = Code::Action(action);
    }

    /// Where the source has a primitive of what runs.
    fn source_of(&self, primitive: usize) -> Option<Source> {
        let symbols = &self.symbols;
        match self.code {
            Code::None => None,
            Code::Action(action) => symbols.actions.get(action)?.get(primitive)?.clone(),
            Code::Op { state, op } => symbols.states.get(state)?.ops.get(op)?.clone(),
        }
    }

    /// Adds an event, if there is room.
    pub(super) fn note(&mut self, event: Event) {
        if self.is_full() {
            self.omitted += 1;
            self.source = None;
        } else {
            self.conclude(event);
        }
    }

    /// Numbers a copy that is ordered; `None` if it is one too many to be followed.
    pub(super) fn order(&mut self, port: u16, rid: u16, origin: Origin) -> Option<Mark> {
        let number = self.copies + 1;
        if number > MAX_COPIES {
            self.note(Event::Ordered {
                number: 0,
                port,
                rid,
                origin,
            });
            return None;
        }
        self.copies = number;
        self.conclude(Event::Ordered {
            number,
            port,
            rid,
            origin,
        });
        Some(Mark {
            trace: self.trace,
            copy: number,
        })
    }
}

impl Engine {
    /// Records what is done from now on.
    pub fn record(&mut self, mut recorder: Box<Recorder>) {
        recorder.symbols = self.program.symbols.clone();
        self.state.trace = Some(recorder);
    }

    /// Who records now.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.state.trace.as_deref_mut()
    }

    /// Ends recording; what [`Engine::record`] was given comes back.
    pub fn recorded(&mut self) -> Option<Box<Recorder>> {
        self.state.trace.take()
    }
}

/// The fields of a header as a packet has them.
pub(super) fn fields(layout: &Layout, phv: &Phv, header: usize) -> Vec<Named> {
    let fields = layout.shape(header).fields.iter().enumerate();
    fields
        .map(|(index, field)| Named {
            name: field.name.clone(),
            value: field_value(layout, phv, header, index),
        })
        .collect()
}

fn field_value(layout: &Layout, phv: &Phv, header: usize, field: usize) -> Value {
    match layout.shape(header).varbit {
        Some(varbit) if varbit.field == field => Value::new(phv.varbit(layout, header)),
        _ => Value::new(&layout.slot(header, field).canonical(&phv.bytes)),
    }
}

/// The name of the field that stands at a slot.
fn field_at(layout: &Layout, slot: Slot) -> String {
    for (header, instance) in layout.instances.iter().enumerate() {
        let fields = layout.shape(header).fields.iter().enumerate();
        for (index, field) in fields {
            if layout.slot(header, index) == slot {
                return symbols::field_name(&instance.name, &field.name);
            }
        }
    }
    // A part of a field: the compiler names whole ones.
    format!("bits {}..{}", slot.bit(), slot.bit() + slot.width as usize)
}
