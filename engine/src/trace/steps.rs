//! Traces of primitives, before and after execution.

use super::super::action::{Instruction, Machine};
use super::super::bits::Slot;
use super::super::compile::Value as Expression;
use super::super::layout::Layout;
use super::super::phv::Phv;
use super::event::{Counted, Event};
use super::value::Value;
use super::{Recorder, field_value, symbols};

/// The packet's state before a primitive.
#[derive(Debug, Default)]
pub(super) struct Before {
    phv: Phv,
    /// The primitive's target field, whose write is recorded even if its value stays.
    target: Option<Slot>,
    /// The cell of a counter, meter or register.
    index: i128,
    /// The cell's value.
    cell: Option<Value>,
}

impl Machine<'_> {
    /// Records a primitive that is about to run: the `at`th of its action.
    #[cold]
    pub(crate) fn before(&mut self, at: usize, code: &[Instruction], args: &[u8]) {
        match &mut self.state.trace {
            // Nothing more can be recorded, so nothing is looked at.
            Some(recorder) if recorder.is_full() => return recorder.omitted += 1,
            _ => {}
        }
        let instruction = &code[at];
        let event = self.announced(instruction, args);
        let (target, index) = self.aims(instruction, args);
        let cell = match instruction {
            Instruction::RegisterRead { register, .. }
            | Instruction::RegisterWrite { register, .. } => self.register_cell(*register, index),
            _ => None,
        };
        let Some(recorder) = self.state.trace.as_deref_mut() else {
            return;
        };
        recorder.source = recorder.source_of(at);
        if let Some(event) = event {
            recorder.note(event);
            recorder.source = recorder.source_of(at);
        }
        let before = &mut recorder.before;
        self.phv.save(self.layout, &mut before.phv);
        (before.target, before.index, before.cell) = (target, index, cell);
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
        recorder.changes(self.layout, self.phv);
        recorder.source = None;
        self.state.trace = Some(recorder);
    }

    /// Returns the event of a primitive if it does not depend on the result.
    fn announced(&self, instruction: &Instruction, args: &[u8]) -> Option<Event> {
        let env = self.env(args);
        let primitive = |name: &str, argument: Option<i128>| {
            Some(Event::Primitive {
                name: name.to_owned(),
                argument: argument.map(|number| Value::new(&(number as u128).to_be_bytes())),
            })
        };
        match instruction {
            Instruction::MarkToDrop { .. } => primitive("mark_to_drop", None),
            Instruction::Random { .. } => primitive("random", None),
            Instruction::Clone { session, .. } => primitive("clone", Some(session.eval(env))),
            Instruction::Resubmit { .. } => primitive("resubmit", None),
            Instruction::Recirculate { .. } => primitive("recirculate", None),
            Instruction::Truncate(length) => primitive("truncate", Some(length.eval(env))),
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
                text: self.log_text(format, values, args),
            }),
            _ => None,
        }
    }

    /// The field that a primitive writes, and the cell that it uses.
    fn aims(&self, instruction: &Instruction, args: &[u8]) -> (Option<Slot>, i128) {
        let env = self.env(args);
        match instruction {
            Instruction::Assign(slot, _) | Instruction::AssignWord(slot, _) => (Some(*slot), 0),
            Instruction::AssignPlace(to, _)
            | Instruction::Hash { to, .. }
            | Instruction::Random { to, .. } => (to.resolve(env), 0),
            Instruction::Meter { index, color, .. } => (color.resolve(env), index.eval(env)),
            Instruction::RegisterRead { to, index, .. } => (to.resolve(env), index.eval(env)),
            Instruction::RegisterWrite { index, .. } | Instruction::Count { index, .. } => {
                (None, index.eval(env))
            }
            _ => (None, 0),
        }
    }

    /// The event of a primitive that used a counter, meter or register.
    fn resources(
        &self,
        instruction: &Instruction,
        before: &mut Before,
        index: i128,
    ) -> Option<Event> {
        let cell = Value::new(&(index as u128).to_be_bytes());
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
                    color: color.map(|slot| slot.load(&self.phv.bytes) as u8),
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
            _ => return None,
        })
    }

    fn register_cell(&self, register: usize, index: i128) -> Option<Value> {
        let index = u64::try_from(index).ok()?;
        let cell = self.state.registers[register].read(index).ok()?;
        Some(Value::new(&cell))
    }

    fn log_text(&self, format: &str, values: &[Expression], args: &[u8]) -> String {
        let env = self.env(args);
        super::super::action::log_text(format, values.iter().map(|value| value.eval_big(env)))
    }
}

impl Recorder {
    /// Saves the packet's state, to find changes.
    pub(crate) fn watch(&mut self, layout: &Layout, phv: &Phv) {
        let before = &mut self.before;
        phv.save(layout, &mut before.phv);
        before.target = None;
    }

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
