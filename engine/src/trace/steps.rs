//! Traces of primitives, before and after execution.

use super::super::action::{Instruction, Machine, Target};
use super::super::bits::Slot;
use super::super::compile::Place;
use super::super::counter::CounterCell;
use super::super::expression::Num;
use super::super::layout::Layout;
use super::super::meter::Color;
use super::super::octets::{hex, plural};
use super::super::phv::Phv;
use super::{Before, Recorder, Source, field_value, fields, symbols};

impl Machine<'_> {
    /// Records a primitive that is about to run, by its action and its position there.
    #[cold]
    pub(crate) fn before(&mut self, (action, at): (usize, usize), instruction: &Instruction) {
        let source = match &mut self.state.trace {
            // Nothing more can be recorded, so nothing is looked at.
            Some(recorder) if recorder.is_full() => return recorder.omitted += 1,
            Some(recorder) => recorder.source_of(action, at),
            None => return,
        };
        let announced = self.announced(instruction, source.as_ref());
        let (target, index) = self.aims(instruction);
        let cell = match instruction {
            Instruction::RegisterRead { register, .. }
            | Instruction::RegisterWrite { register, .. } => self.register_cell(*register, index),
            _ => None,
        };
        let Some(recorder) = self.state.trace.as_deref_mut() else {
            return;
        };
        if let Some((depth, text)) = announced {
            recorder.source.clone_from(&source);
            recorder.note(depth, format_args!("{text}"));
        }
        recorder.source = source;
        let before = &mut recorder.before;
        self.phv.save(self.layout, &mut before.phv);
        (before.target, before.index, before.cell) = (target, index, cell);
        before.parsed = self.context.parsed;
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
        if let Some(text) = self.resources(instruction, &mut recorder.before, index) {
            let source = recorder.source.clone();
            recorder.note(3, format_args!("{text}"));
            recorder.source = source;
        }
        if !matches!(instruction, Instruction::Extract(..)) {
            recorder.changes(self.layout, self.phv);
        }
        recorder.source = None;
        self.state.trace = Some(recorder);
    }

    /// Describes a primitive if that does not depend on its result, with the depth of the text.
    fn announced(
        &self,
        instruction: &Instruction,
        source: Option<&Source>,
    ) -> Option<(u8, String)> {
        let env = self.env();
        let with = |name: &str, num: &Num| format!("{name}({:#x})", num.eval_amount(env));
        let text = match instruction {
            Instruction::JumpUnless(test, _) => {
                let condition = source.map_or("if", |source| &source.text);
                return Some((2, format!("if {condition}: {}", test.eval(env))));
            }
            Instruction::MarkToDrop { .. } => "mark_to_drop()".to_owned(),
            Instruction::Random { .. } => "random()".to_owned(),
            Instruction::Clone { session, .. } => with("clone", session),
            Instruction::Resubmit { .. } => "resubmit()".to_owned(),
            Instruction::Recirculate { .. } => "recirculate()".to_owned(),
            Instruction::Truncate(length) => with("truncate", length),
            Instruction::Exit => "exit()".to_owned(),
            Instruction::Assert(test) => format!("assert: {}", test.eval(env)),
            Instruction::Hash { calculation, .. } => {
                format!("hash {}", self.calculations[*calculation].name)
            }
            Instruction::Digest(list) => {
                let (digest, values) = self.learn_lists[*list].values(&self.phv.bytes);
                let values: Vec<_> = values.iter().map(|value| hex(value)).collect();
                format!("digest {digest}: {}", values.join(" "))
            }
            Instruction::Log { format, values } => {
                format!("log: {}", self.log_text(format, values))
            }
            _ => return None,
        };
        Some((3, text))
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

    /// Describes a primitive that used a counter, meter or register, or parsed a part of the packet.
    fn resources(
        &self,
        instruction: &Instruction,
        before: &mut Before,
        index: u64,
    ) -> Option<String> {
        let held = |cell: Option<String>| cell.unwrap_or_else(|| "no such cell".to_owned());
        let position = usize::try_from(index).ok();
        Some(match instruction {
            Instruction::Count { counter, .. } => {
                let counter = &self.state.counters[*counter];
                let cell = position.and_then(|at| counter.cells().get(at));
                let cell = held(cell.map(CounterCell::to_string));
                format!("count {}[{index:#x}]: {cell}", counter.name())
            }
            Instruction::Meter { meter, .. } => {
                let meter = &self.state.meters[*meter];
                let inside = position.is_some_and(|at| at < meter.cells().len());
                let color = before.target.filter(|_| inside);
                let color = color.map(|slot| Color::name(slot.load_word(&self.phv.bytes)));
                let color = held(color.map(str::to_owned));
                format!("meter {}[{index:#x}]: {color}", meter.name())
            }
            Instruction::RegisterRead { register, .. } => {
                let name = self.state.registers[*register].name();
                format!("read {name}[{index:#x}]: {}", held(before.cell.take()))
            }
            Instruction::RegisterWrite { register, .. } => {
                let name = self.state.registers[*register].name();
                let [old, new] = [before.cell.take(), self.register_cell(*register, index)];
                format!("write {name}[{index:#x}]: {} -> {}", held(old), held(new))
            }
            Instruction::Advance(_) => {
                format!("advance {}", self.parsed_since(before))
            }
            Instruction::Extract(target, _) => {
                let header = match target {
                    Target::Header(header) => *header,
                    Target::Next { stack, member } => {
                        let stack = &self.layout.stacks[*stack];
                        let last = self.phv.next(stack) as u64 - 1;
                        stack.element(last, *member)?
                    }
                };
                let name = &self.layout.instances[header].name;
                let fields = fields(self.layout, self.phv, header);
                format!("extract {name}, {}: {fields}", self.parsed_since(before))
            }
            _ => return None,
        })
    }

    fn parsed_since(&self, before: &Before) -> String {
        plural((self.context.parsed - before.parsed) as u64, "byte")
    }

    fn register_cell(&self, register: usize, index: u64) -> Option<String> {
        let cell = self.state.registers[register].read(index).ok()?;
        Some(hex(&cell))
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
                let valid = if valid { "valid" } else { "invalid" };
                self.note(3, format_args!("{} becomes {valid}", instance.name));
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
                    let name = symbols::field_name(&instance.name, &field.name);
                    let lost = if valid { "" } else { ", in an invalid header" };
                    self.note(3, format_args!("{name}: {old} -> {new}{lost}"));
                }
            }
        }
        self.before = before;
    }
}
