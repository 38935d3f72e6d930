//! Records the processing of a packet step by step.
//!
//! [`Engine::record`] installs a [`Recorder`], which records everything that the engine does for a packet until
//! [`Engine::recorded`] removes it. Copies that are made in between carry a [`Mark`], so that the caller can continue with the
//! same recorder when they leave their queues.
//!
//! Without a recorder, tracing costs no lookup, comparison or allocation: the compiler builds the loops that execute a program
//! twice, with and without hooks.

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

/// Largest number of events of one packet and its copies. Outcomes of copies are kept beyond it.
pub const MAX_EVENTS: usize = 4096;
/// Largest size of the values and frames of one packet, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Largest number of copies of one packet that are followed.
pub const MAX_COPIES: u16 = 512;

/// A copy's trace and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The trace's number, chosen by the caller.
    pub trace: NonZeroU16,
    /// 0 for the packet that entered, else the number of a copy.
    pub copy: u16,
}

/// The record of one packet.
#[derive(Debug)]
pub struct Recorder {
    trace: NonZeroU16,
    /// The copy of the next events.
    copy: u16,
    /// Numbers given to copies.
    copies: u16,
    now_us: u64,
    steps: Vec<Step>,
    /// Size of the events.
    bytes: usize,
    omitted: u64,
    symbols: Arc<Symbols>,
    /// Source position of the next event.
    source: Option<Source>,
    before: steps::Before,
}

impl Recorder {
    /// Starts a record with the packet that enters.
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
            source: None,
            before: steps::Before::default(),
        }
    }

    /// Returns the trace's number.
    pub fn trace(&self) -> NonZeroU16 {
        self.trace
    }

    /// Sets the copy and time, in microseconds, of the next events.
    pub fn follow(&mut self, copy: u16, now_us: u64) {
        (self.copy, self.now_us) = (copy, now_us);
    }

    /// Adds an event from outside the engine: the outcome of a copy or of a stage. It is kept beyond the limit on events.
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

    /// Returns all events in order, and the number of omitted events.
    pub fn into_steps(self) -> (Vec<Step>, u64) {
        (self.steps, self.omitted)
    }

    /// Returns the program's names.
    pub(super) fn symbols(&self) -> Arc<Symbols> {
        self.symbols.clone()
    }

    /// True if only outcomes of copies are still kept.
    fn is_full(&self) -> bool {
        self.steps.len() >= MAX_EVENTS || self.bytes >= MAX_BYTES
    }

    /// Records the entry into a parser state.
    pub(super) fn enter_state(&mut self, state: usize, at: usize) {
        let symbols = self.symbols();
        let symbol = &symbols.states[state];
        self.source.clone_from(&symbol.source);
        let name = symbol.name.clone();
        self.note(Event::State { name, at });
    }

    /// Returns the source position of a primitive.
    fn source_of(&self, action: usize, primitive: usize) -> Option<Source> {
        self.symbols.actions.get(action)?.get(primitive)?.clone()
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

    /// Numbers a new copy; `None` if there are too many to follow.
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
    /// Starts recording.
    pub fn record(&mut self, mut recorder: Box<Recorder>) {
        recorder.symbols = self.program.symbols.clone();
        self.state.trace = Some(recorder);
    }

    /// Returns the active recorder.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.state.trace.as_deref_mut()
    }

    /// Ends recording and returns the recorder of [`Engine::record`].
    pub fn recorded(&mut self) -> Option<Box<Recorder>> {
        self.state.trace.take()
    }
}

/// Returns a packet's fields of a header.
fn fields(layout: &Layout, phv: &Phv, header: usize) -> Vec<Named> {
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

/// Returns the name of the field at a slot.
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
