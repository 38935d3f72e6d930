//! Traces of primitives, before and after execution.

use super::super::action::{Instruction, Machine, Target};
use super::super::bits::Slot;
use super::super::compile::Place;
use super::super::expression::Num;
use super::super::layout::Layout;
use super::super::phv::Phv;
use super::event::{Counted, Event};
use super::value::Value;
use super::{Recorder, field_value, fields, symbols};

/// The packet's state before a primitive.
#[derive(Debug, Default)]
pub(super) struct Before {
    phv: Phv,
    /// The primitive's target field, whose write is recorded even if its value stays.
    target: Option<Slot>,
    /// The cell of a counter, meter or register.
    index: u64,
    /// Bytes that the parser had extracted or skipped.
    parsed: usize,
    /// The cell's value.
    cell: Option<Value>,
}

impl Machine<'_> {
    /// Records a primitive that is about to run, by its action and its position there.
    #[cold]
    pub(crate) fn before(&mut self, (action, at): (usize, usize), instruction: &Instruction) {
        match &mut self.state.trace {
            // Nothing more can be recorded, so nothing is looked at.
            Some(recorder) if recorder.is_full() => return recorder.omitted += 1,
            _ => {}
        }
        let event = self.announced(instruction);
        let (target, index) = self.aims(instruction);
        let cell = match instruction {
            Instruction::RegisterRead { register, .. }
            | Instruction::RegisterWrite { register, .. } => self.register_cell(*register, index),
            _ => None,
        };
        let Some(recorder) = self.state.trace.as_deref_mut() else {
            return;
        };
        recorder.source = recorder.source_of(action, at);
        if let Some(event) = event {
            recorder.note(event);
            recorder.source = recorder.source_of(action, at);
        }
        let before = &mut recorder.before;
        self.phv.save(self.layout, &mut before.phv);
        (before.target, before.index, before.cell) = (target, index, cell);
        before.parsed = self.parsed.bytes;
    }

    /// Records the changes of a primitive.
    #[cold]
    pub(crate) fn after(&mut self, instruction: &Instruction) {
        if self
            .state
            .trace
            .as_ref()
            .is_some_and(|trace| trace.is_full())
        {
            return;
        }
        let Some(mut recorder) = self.state.trace.take() else {
            return;
        };
        let index = recorder.before.index;
        if let Some(event) = self.resources(instruction, &mut recorder.before, index) {
            let source = recorder.source.clone();
            recorder.note(event);
            recorder.source = source;
        }
        if !matches!(instruction, Instruction::Extract(..)) {
            recorder.changes(self.layout, self.phv);
        }
        recorder.source = None;
        self.state.trace = Some(recorder);
    }

    /// Returns the event of a primitive if it does not depend on the result.
    fn announced(&self, instruction: &Instruction) -> Option<Event> {
        let env = self.env();
        let primitive = |name: &str, argument: Option<&Num>| {
            Some(Event::Primitive {
                name: name.to_owned(),
                argument: argument.map(|num| Value::from(num.eval_amount(env))),
            })
        };
        match instruction {
            Instruction::MarkToDrop { .. } => primitive("mark_to_drop", None),
            Instruction::Random { .. } => primitive("random", None),
            Instruction::Clone { session, .. } => primitive("clone", Some(session)),
            Instruction::Resubmit { .. } => primitive("resubmit", None),
            Instruction::Recirculate { .. } => primitive("recirculate", None),
            Instruction::Truncate(length) => primitive("truncate", Some(length)),
            Instruction::Exit => primitive("exit", None),
            Instruction::JumpUnless(test, _) => Some(Event::Condition {
                name: "if".to_owned(),
                holds: test.eval(env),
            }),
            Instruction::Assert(test) => Some(Event::Assert {
                holds: test.eval(env),
            }),
            Instruction::Hash { calculation, .. } => Some(Event::Hash {
                calculation: self.calculations[*calculation].name.clone(),
            }),
            Instruction::Digest(list) => {
                let (digest, values) = self.learn_lists[*list].values(&self.phv.bytes);
                let values = values.iter().map(|value| Value::new(value)).collect();
                Some(Event::Digest { digest, values })
            }
            Instruction::Log { format, values } => Some(Event::Log {
                text: self.log_text(format, values),
            }),
            _ => None,
        }
    }

    /// The field that a primitive writes, and the cell that it uses.
    fn aims(&self, instruction: &Instruction) -> (Option<Slot>, u64) {
        let env = self.env();
        let place = |to: &Place| match to {
            Place::Fixed(slot) => Some(*slot),
            Place::Element(field) => field.resolve(env),
        };
        match instruction {
            Instruction::Assign(to, _)
            | Instruction::Hash { to, .. }
            | Instruction::Random { to, .. } => (place(to), 0),
            Instruction::Meter {
                index, color: to, ..
            }
            | Instruction::RegisterRead { to, index, .. } => (place(to), index.eval_amount(env)),
            Instruction::RegisterWrite { index, .. } | Instruction::Count { index, .. } => {
                (None, index.eval_amount(env))
            }
            _ => (None, 0),
        }
    }

    /// The event of a primitive that used a counter, meter or register.
    fn resources(
        &self,
        instruction: &Instruction,
        before: &mut Before,
        index: u64,
    ) -> Option<Event> {
        let cell = Value::from(index);
        let position = usize::try_from(index).ok();
        Some(match instruction {
            Instruction::Count { counter, .. } => {
                let counter = &self.state.counters[*counter];
                let held = position.and_then(|at| counter.cells().get(at));
                Event::Count {
                    counter: counter.name().to_owned(),
                    index: cell,
                    cell: held.map(|held| Counted {
                        packets: held.packets,
                        bytes: held.bytes,
                    }),
                }
            }
            Instruction::Meter { meter, .. } => {
                let meter = &self.state.meters[*meter];
                let inside = position.is_some_and(|at| at < meter.cells().len());
                let color = before.target.filter(|_| inside);
                Event::Meter {
                    meter: Some(meter.name().to_owned()),
                    index: Some(cell),
                    color: color.map(|slot| slot.load_word(&self.phv.bytes) as u8),
                }
            }
            Instruction::RegisterRead { register, .. } => Event::RegisterRead {
                register: self.state.registers[*register].name().to_owned(),
                index: cell,
                value: before.cell.take(),
            },
            Instruction::RegisterWrite { register, .. } => Event::RegisterWrite {
                register: self.state.registers[*register].name().to_owned(),
                index: cell,
                old: before.cell.take(),
                new: self.register_cell(*register, index),
            },
            Instruction::Advance(_) => Event::Advance {
                bytes: self.parsed.bytes - before.parsed,
            },
            Instruction::Extract(target, _) => {
                let header = match target {
                    Target::Header(header) => *header,
                    Target::Next { stack, member } => {
                        let stack = &self.layout.stacks[*stack];
                        let last = self.phv.next(stack) as u64 - 1;
                        stack.element(last, *member)?
                    }
                };
                Event::Extract {
                    header: self.layout.instances[header].name.clone(),
                    at: before.parsed,
                    bytes: self.parsed.bytes - before.parsed,
                    fields: fields(self.layout, self.phv, header),
                }
            }
            _ => return None,
        })
    }

    fn register_cell(&self, register: usize, index: u64) -> Option<Value> {
        let cell = self.state.registers[register].read(index).ok()?;
        Some(Value::new(&cell))
    }
}

impl Recorder {
    /// Records all changes since the last saved state.
    pub(crate) fn changes(&mut self, layout: &Layout, phv: &Phv) {
        let before = std::mem::take(&mut self.before);
        let source = self.source.take();
        for (header, instance) in layout.instances.iter().enumerate() {
            let valid = phv.is_valid(header);
            if before.phv.is_valid(header) != valid {
                self.source.clone_from(&source);
                self.note(Event::Validity {
                    header: instance.name.clone(),
                    valid,
                });
            }
            let base = instance.base;
            let storage = base..base + layout.shape(header).bytes;
            let inside = |slot: Slot| storage.contains(&(slot.bit() / 8));
            let same = before.phv.bytes[storage.clone()] == phv.bytes[storage.clone()]
                && before.phv.varbit_length(layout, header) == phv.varbit_length(layout, header);
            if same && !before.target.is_some_and(inside) {
                continue;
            }
            for (index, field) in layout.shape(header).fields.iter().enumerate() {
                let old = field_value(layout, &before.phv, header, index);
                let new = field_value(layout, phv, header, index);
                if old != new || before.target == Some(layout.slot(header, index)) {
                    self.source.clone_from(&source);
                    self.note(Event::Write {
                        field: symbols::field_name(&instance.name, &field.name),
                        old,
                        new,
                        invalid: !valid,
                    });
                }
            }
        }
        self.before = before;
    }
}
