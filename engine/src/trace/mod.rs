//! Records the processing of a packet step by step.
//!
//! [`Engine::record`](super::Engine::record) installs a [`Recorder`], which records everything that the engine does for a packet until
//! [`Engine::recorded`](super::Engine::recorded) removes it. Copies that are made in between carry a [`Mark`], so that the caller can continue with the
//! same recorder when they leave their queues.
//!
//! Without a recorder, tracing costs no lookup, comparison or allocation: the compiler builds the loops that execute a program
//! twice, with and without hooks.

mod flow;
mod packet;
mod pass;
mod steps;
mod symbols;

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

pub use super::octets::Octets;
use packet::as_rid;
pub use packet::{CopyTrace, Fate, Origin, PacketTrace, Source, Step, VERSION};
pub(super) use symbols::Symbols;

use super::bits::Slot;
use super::layout::Layout;
use super::octets::hex;
use super::outcome::DropCause;
use super::phv::Phv;

/// Largest number of events of one packet and its copies. Outcomes of copies are kept beyond it.
pub const MAX_EVENTS: usize = 4096;
/// Largest size of the texts and frames of one packet, in bytes.
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
    copies: Vec<CopyTrace>,
    /// True if there were too many copies to follow.
    lost: bool,
    dropped: Option<DropCause>,
    now_us: u64,
    steps: Vec<Step>,
    /// Size of texts and frames.
    bytes: usize,
    omitted: u64,
    pub(super) symbols: Arc<Symbols>,
    /// Source position of the next event.
    source: Option<Source>,
    before: Before,
}

impl Recorder {
    /// Starts a record with the packet that enters.
    pub fn new(trace: NonZeroU16) -> Recorder {
        Recorder {
            trace,
            copy: 0,
            copies: Vec::new(),
            lost: false,
            dropped: None,
            now_us: 0,
            steps: Vec::new(),
            bytes: 0,
            omitted: 0,
            symbols: Arc::default(),
            source: None,
            before: Before::default(),
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

    /// Adds an event that is kept beyond the limit on events.
    fn conclude(&mut self, depth: u8, text: fmt::Arguments<'_>) {
        let (copy, at_us, source) = (self.copy, self.now_us, self.source.take());
        let text = text.to_string();
        self.bytes += text.len();
        self.steps.push(Step {
            copy,
            at_us,
            depth,
            text,
            source,
        });
    }

    /// Records the end of the current copy.
    pub fn end(&mut self, fate: Fate) {
        self.conclude(1, format_args!("{fate}"));
        if let Some(copy) = self.copy() {
            copy.fate = fate;
        }
    }

    /// Records that the traffic manager marks the current copy with ECN's Congestion Experienced.
    pub fn marked(&mut self) {
        self.conclude(2, format_args!("marked with ECN's Congestion Experienced"));
    }

    /// Records that the program or a limit drops the packet or copy.
    pub(super) fn dropped(&mut self, cause: DropCause) {
        self.source = None;
        self.conclude(1, format_args!("dropped: {cause}"));
        match self.copy() {
            Some(copy) => copy.cause = Some(cause),
            None => self.dropped = Some(cause),
        }
    }

    /// Returns the current copy; `None` for the packet that entered.
    fn copy(&mut self) -> Option<&mut CopyTrace> {
        self.copies.get_mut(usize::from(self.copy).checked_sub(1)?)
    }

    /// Returns the trace of the packet, which entered at a port and a time.
    pub fn finish(self, port: u16, at_us: u64, frame: Vec<u8>) -> PacketTrace {
        let under_way = |copy: &CopyTrace| copy.fate == Fate::UnderWay;
        PacketTrace {
            version: VERSION,
            port,
            at_us,
            frame: Octets(frame),
            dropped: self.dropped,
            complete: self.omitted == 0 && !self.lost && !self.copies.iter().any(under_way),
            omitted: self.omitted,
            copies: self.copies,
            events: self.steps,
        }
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
        self.note(2, format_args!("state {} at byte {at}", symbol.name));
    }

    fn source_of(&self, action: usize, primitive: usize) -> Option<Source> {
        self.symbols.actions.get(action)?.get(primitive)?.clone()
    }

    /// Adds an event, if there is room.
    pub(super) fn note(&mut self, depth: u8, text: fmt::Arguments<'_>) {
        if self.is_full() {
            self.omitted += 1;
            self.source = None;
        } else {
            self.conclude(depth, text);
        }
    }

    /// Numbers a new copy; `None` if there are too many to follow.
    pub fn order(&mut self, port: u16, rid: u16, origin: Origin) -> Option<Mark> {
        let to = format!("to port {port}{}, {origin}", as_rid(rid));
        let number = self.copies.len() as u16 + 1;
        if number > MAX_COPIES {
            self.lost = true;
            self.note(2, format_args!("copy {to}, not followed"));
            return None;
        }
        self.conclude(2, format_args!("copy {number} {to}"));
        self.copies.push(CopyTrace {
            copy: number,
            of: self.copy,
            port,
            rid,
            origin,
            fate: Fate::UnderWay,
            cause: None,
            frame: None,
        });
        Some(Mark {
            trace: self.trace,
            copy: number,
        })
    }
}

/// The packet's state before a primitive.
#[derive(Debug, Default)]
struct Before {
    phv: Phv,
    /// The primitive's target field, whose write is recorded even if its value stays.
    target: Option<Slot>,
    /// The cell of a counter, meter or register.
    index: u64,
    /// Bytes that the parser had extracted or skipped.
    parsed: usize,
    /// The cell's value.
    cell: Option<String>,
}

/// Returns a packet's fields of a header, such as `dst=0x1 type=0x800`.
fn fields(layout: &Layout, phv: &Phv, header: usize) -> String {
    let fields = layout.shape(header).fields.iter().enumerate();
    let fields = fields.map(|(index, field)| {
        let value = field_value(layout, phv, header, index);
        format!("{}={value}", field.name)
    });
    fields.collect::<Vec<_>>().join(" ")
}

fn field_value(layout: &Layout, phv: &Phv, header: usize, field: usize) -> String {
    match layout.shape(header).varbit {
        Some(varbit) if varbit.field == field => hex(phv.varbit(layout, header)),
        _ => hex(&layout.slot(header, field).canonical(&phv.bytes)),
    }
}

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
