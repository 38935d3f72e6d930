//! Compiles nodes and actions to code.
//!
//! Every distinct operation is computed once along a path, until one of its fields may have changed.

use std::collections::HashMap;

use super::super::action::{Action, Instruction};
use super::super::bits::{Place, Slot};
use super::super::compile::{self, Value};
use super::super::expression::Comparison::{self, Equal, Less, NotEqual};
use super::super::expression::{Num, Test};
use super::super::layout::{Layout, validity};
use super::super::parser::{self, Parser, State};
use super::super::phv::WORK;
use super::super::pipeline::{Flow, Node};
use super::super::register::Register;
use super::super::table::Table;
use super::super::word::{self, At, Form, MAX_OPS, Word};
use super::{Address, Code, Op, Site};

/// Stands for an address until all code is there.
type Label = Address;

/// The bits of a meter's colour.
const COLOR_BITS: u32 = 2;
/// The bytes of a word.
const WORD: u16 = 8;

impl Code {
    /// Compiles the nodes of a flow and the actions of the program.
    pub fn new(
        flow: &Flow,
        tables: &[Table],
        actions: &[Action],
        registers: &[Register],
        parser: &Parser,
        layout: &Layout,
    ) -> Code {
        let mut compiler = Compiler {
            actions,
            registers,
            ops: Vec::new(),
            sites: Vec::new(),
            labels: vec![None],
            end: 0,
            jumps: Vec::new(),
            known: Known::default(),
            restarts: 0,
            fresh: None,
            paths: HashMap::new(),
        };
        let nodes: Vec<_> = flow.nodes.iter().map(|_| compiler.label()).collect();
        let starts: Vec<_> = actions.iter().map(|_| compiler.label()).collect();
        let mut ways = flow.ways(tables);
        let mut waiting: Vec<usize> = flow.ingress.into_iter().chain(flow.egress).collect();
        for first in &waiting {
            ways[*first] += 1;
        }
        let mut emitted = vec![false; nodes.len()];
        while let Some(node) = waiting.pop() {
            compiler.chain(
                node,
                flow,
                tables,
                &nodes,
                &ways,
                &mut emitted,
                &mut waiting,
            );
        }
        let states: Vec<_> = parser.states.iter().map(|_| compiler.label()).collect();
        for (at, state) in parser.states.iter().enumerate() {
            compiler.state(at, state, layout, &states);
        }
        for (at, action) in actions.iter().enumerate() {
            compiler.bind(starts[at]);
            compiler.action(at, action);
            compiler.ops.push(Op::End);
        }
        compiler.finish(&nodes, &states, &starts)
    }
}

struct Compiler<'a> {
    actions: &'a [Action],
    registers: &'a [Register],
    ops: Vec<Op>,
    sites: Vec<(Address, Site)>,
    /// Addresses of labels; nodes that no packet can reach never get one.
    labels: Vec<Option<Address>>,
    /// The end of every pipeline.
    end: Label,
    /// Jumps that are counted, and where they go.
    jumps: Vec<(Label, Label)>,
    known: Known,
    /// How often the working memory was full.
    restarts: usize,
    /// The last operation, if no operation has used its result in the working memory yet.
    fresh: Option<word::Op>,
    /// What is known at the first jump to a label, for labels that packets reach from one condition only.
    paths: HashMap<Label, Option<(Known, usize)>>,
}

/// What words hold at a point of a path.
#[derive(Clone, Default)]
struct Known {
    results: HashMap<word::Op, At>,
    /// How many bits each word's number has at most.
    bits: HashMap<At, u32>,
    /// The next word of the working memory.
    next: At,
}

impl Compiler<'_> {
    fn label(&mut self) -> Label {
        self.labels.push(None);
        self.labels.len() as Label - 1
    }

    /// The label's address is here, where packets may come from anywhere.
    fn bind(&mut self, label: Label) {
        self.labels[label as usize] = Some(self.ops.len() as Address);
        self.known = Known::default();
    }

    /// A label that packets reach only by jumps of one condition, or behind it.
    fn path(&mut self) -> Label {
        let label = self.label();
        self.paths.insert(label, None);
        label
    }

    /// Binds a label of [`Compiler::path`].
    fn bind_path(&mut self, label: Label) {
        self.bind(label);
        if let Some(Some((known, restarts))) = self.paths.remove(&label)
            && restarts == self.restarts
        {
            self.known = known;
        }
    }

    /// Notes a jump: nothing is stored between it and other jumps to the label.
    fn jumps_to(&mut self, label: Label) -> Label {
        if let Some(path @ None) = self.paths.get_mut(&label) {
            *path = Some((self.known.clone(), self.restarts));
        }
        label
    }

    /// Notes that a node or primitive starts here.
    fn site(&mut self, site: Site) {
        self.sites.push((self.ops.len() as Address, site));
    }

    /// Compiles a node and what follows it, as far as it is not there yet. What a condition leads
    /// to when it does not hold is left `waiting`.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk")]
    fn chain(
        &mut self,
        first: usize,
        flow: &Flow,
        tables: &[Table],
        labels: &[Label],
        ways: &[usize],
        emitted: &mut [bool],
        waiting: &mut Vec<usize>,
    ) {
        let mut next = Some(first);
        while let Some(node) = next {
            if std::mem::replace(&mut emitted[node], true) {
                if node != first {
                    self.ops.push(Op::Goto(labels[node]));
                }
                return;
            }
            if node == first {
                self.bind_path(labels[node]);
            } else if ways[node] == 1 {
                self.labels[labels[node] as usize] = Some(self.ops.len() as Address);
            } else {
                self.bind(labels[node]);
            }
            match &flow.nodes[node] {
                Node::Table(table) => {
                    let table = *table;
                    self.site(Site::Table { node, table });
                    self.ops.push(Op::Apply(table));
                    waiting.extend(tables[table].branches().into_iter().flatten());
                    return;
                }
                Node::Condition { test, yes, no } => {
                    let condition = Box::new(test.clone());
                    self.site(Site::Condition {
                        node,
                        test: condition,
                    });
                    let otherwise = no.map_or(self.end, |no| labels[no]);
                    if no.is_some_and(|no| ways[no] == 1) {
                        self.paths.insert(otherwise, None);
                    }
                    self.jump(test, false, otherwise);
                    waiting.extend(*no);
                    next = *yes;
                }
                Node::Action {
                    action,
                    args,
                    next: to,
                } => {
                    let called = &self.actions[*action];
                    let action = *action;
                    self.site(Site::Call { node, action });
                    if called.params.is_empty() {
                        self.action(action, called);
                    } else {
                        let args = args.clone();
                        self.ops.push(Op::Call { action, args });
                        self.known = Known::default();
                    }
                    next = *to;
                }
            }
        }
        self.ops.push(Op::End);
    }

    /// Compiles a state of the parser.
    fn state(&mut self, at: usize, state: &State, layout: &Layout, labels: &[Label]) {
        self.bind(labels[at]);
        self.ops.push(Op::Enter);
        self.site(Site::State(at));
        for (index, op) in state.ops.iter().enumerate() {
            self.site(Site::Operation(at, index));
            match op {
                parser::Op::Primitive(block) => self.action(*block, &self.actions[*block]),
                // p4c removes every header of an `out` parameter first, before any is valid.
                parser::Op::Remove { header, block } => {
                    let done = self.label();
                    self.reserve_words(1);
                    self.compare(Equal, word::Op::Valid(*header), 0, true, done);
                    self.action(*block, &self.actions[*block]);
                    self.bind(done);
                }
                op => {
                    let plain = match op {
                        parser::Op::Extract(header) => extraction(*header, layout),
                        _ => None,
                    };
                    let general = Op::Parse { state: at, index };
                    self.ops.push(plain.unwrap_or(general));
                    self.known = Known::default();
                }
            }
        }
        self.site(Site::Select(at));
        let next = |state: Option<usize>, end| state.map_or(end, |state| labels[state]);
        let most = WORK / usize::from(WORD);
        match state.cases() {
            Some((fields, cases)) if fields.len() * (cases.len() + 1) <= most => {
                self.reserve_words(fields.len() * (cases.len() + 1));
                let fields = fields
                    .into_iter()
                    .map(|field| self.value(word::Op::Field(field)));
                let fields: Vec<At> = fields.collect();
                for (values, masks, to) in cases {
                    let other = self.path();
                    for ((field, value), mask) in fields.iter().zip(values).zip(masks) {
                        // A mask has no bits that the field does not have.
                        let part = match mask.count_ones() == self.known.bits(*field) {
                            true => *field,
                            false => self.value(word::Op::AndConst(*field, *mask)),
                        };
                        self.compare_word(Equal, part, *value, false, other);
                    }
                    self.ops.push(Op::Goto(next(to, self.end)));
                    self.bind_path(other);
                }
            }
            _ => self.ops.push(Op::Select(at)),
        }
        self.ops.push(Op::Goto(next(state.default, self.end)));
    }

    fn action(&mut self, number: usize, action: &Action) {
        let mut targets = HashMap::new();
        for instruction in &action.code {
            if let Instruction::Jump(to) | Instruction::JumpUnless(_, to) = instruction {
                let label = self.label();
                targets.entry(*to).or_insert(label);
            }
        }
        for (index, instruction) in action.code.iter().enumerate() {
            if let Some(label) = targets.get(&index) {
                self.bind(*label);
            }
            let action = number;
            self.site(Site::Primitive { action, index });
            match instruction {
                Instruction::Jump(to) => self.ops.push(Op::Jump(targets[to])),
                Instruction::JumpUnless(test, to) => {
                    let counted = self.label();
                    self.jump(test, false, counted);
                    self.jumps.push((counted, targets[to]));
                }
                Instruction::Exit => self.ops.push(Op::Exit),
                Instruction::Assert(test) => {
                    let holds = self.path();
                    self.jump(test, true, holds);
                    self.ops.push(Op::Fail);
                    self.bind_path(holds);
                }
                instruction => {
                    if self.primitive(instruction).is_none() {
                        self.ops.push(Op::Primitive { action, index });
                        self.known = Known::default();
                    }
                }
            }
        }
        if let Some(label) = targets.get(&action.code.len()) {
            self.bind(*label);
        }
    }

    /// Compiles a primitive whose numbers are words; `None`, and no code, if one is not.
    fn primitive(&mut self, instruction: &Instruction) -> Option<()> {
        match instruction {
            Instruction::AssignWord(slot, word) => {
                let to = slot.place().filter(|to| !matches!(to, Place::Part(..)))?;
                self.reserve(&[word]);
                let from = self.word(word);
                self.store(*slot, to, from);
            }
            Instruction::Count {
                counter,
                index: Num::Word(index),
            } => {
                self.reserve(&[index]);
                let index = self.word(index);
                let counter = *counter as u32;
                self.ops.push(Op::Count { counter, index });
            }
            Instruction::Meter {
                meter,
                index: Num::Word(index),
                color: compile::Place::Fixed(slot),
            } if slot.width >= COLOR_BITS => {
                let Place::Word(to) = slot.place()? else {
                    return None;
                };
                self.reserve(&[index]);
                let index = self.word(index);
                let meter = *meter as u32;
                self.ops.push(Op::Meter { to, meter, index });
                self.known.stored(*slot);
            }
            Instruction::RegisterRead {
                to: compile::Place::Fixed(slot),
                register,
                index: Num::Word(index),
            } if self.registers[*register].width() <= slot.width.min(64) => {
                let Place::Word(to) = slot.place()? else {
                    return None;
                };
                self.reserve(&[index]);
                let index = self.word(index);
                let register = *register as u32;
                self.ops.push(Op::ReadRegister {
                    to,
                    register,
                    index,
                });
                self.known.stored(*slot);
            }
            Instruction::RegisterWrite {
                register,
                index: Num::Word(index),
                value: Value::Num(Num::Word(value)),
            } if self.registers[*register].width() <= 64 => {
                self.reserve(&[index, value]);
                let (index, from) = (self.word(index), self.word(value));
                self.ops.push(Op::WriteRegister {
                    register: *register as u32,
                    index,
                    from,
                });
                (self.known.results).retain(|op, _| !matches!(op, word::Op::Register(..)));
            }
            _ => return None,
        }
        Some(())
    }

    /// Stores a word in a field.
    fn store(&mut self, slot: Slot, place: Place, from: At) {
        let fits = self.known.bits(from) <= slot.width;
        let fresh = self.fresh.take();
        self.known.stored(slot);
        let Place::Word(to) = place else {
            if let Place::Wire(wire) = place {
                self.ops.push(Op::Store(wire, from));
            }
            if fits && !slot.signed {
                self.known.results.insert(word::Op::Field(slot), from);
            }
            return;
        };
        let field = u64::MAX >> (64 - slot.width);
        match (fresh, self.ops.last_mut().and_then(Op::result)) {
            // The last operation has its result there.
            (Some(op), Some((result, mask))) if fits || mask.is_some() => {
                *result = to;
                self.known.results.remove(&op);
                match mask {
                    Some(mask) if !fits => *mask &= field,
                    _ if op.uses(to) => {}
                    _ => _ = self.known.results.insert(op, to),
                }
            }
            _ => self.ops.push(Op::AndConst(to, from, field)),
        }
    }

    /// Makes room in the working memory for the operations of some numbers, which are then computed.
    fn reserve(&mut self, words: &[&Word]) {
        let ops = |word: &&Word| match word.form() {
            Form::Ops(ops) => ops.len(),
            _ => 1,
        };
        self.reserve_words(words.iter().map(ops).sum());
    }

    fn reserve_words(&mut self, count: usize) {
        if usize::from(self.known.next) + count * usize::from(WORD) > WORK {
            self.known = Known::default();
            self.restarts += 1;
        }
    }

    /// The word that holds a number.
    fn word(&mut self, word: &Word) -> At {
        match word.form() {
            Form::Const(value) => self.value(word::Op::Const(*value)),
            Form::Field(slot) => self.value(word::Op::Field(*slot)),
            Form::Arg(slot) => self.value(word::Op::Arg(*slot)),
            Form::Ops(ops) => self.part(ops, ops.len() - 1, &mut [None; MAX_OPS]),
        }
    }

    /// The word that holds the result of one of a number's operations.
    fn part(&mut self, ops: &[word::Op], at: usize, results: &mut [Option<At>; MAX_OPS]) -> At {
        if let Some(result) = results[at] {
            return result;
        }
        let op = self.operands(ops, at, results);
        let result = self.value(op);
        results[at] = Some(result);
        result
    }

    /// The word that holds the result of an operation on words.
    fn value(&mut self, op: word::Op) -> At {
        self.fresh = None;
        let place = match op {
            word::Op::Field(slot) if !slot.signed => slot.place(),
            word::Op::Valid(header) => validity(header).place(),
            _ => None,
        };
        if let (word::Op::Field(slot), Some(Place::Word(at))) = (op, place) {
            self.known.bits.insert(at, slot.width);
            return at;
        }
        if let Some(at) = self.known.results.get(&op) {
            return *at;
        }
        let bits = op.bits(|at| self.known.bits(at));
        let (to, mask) = (self.known.add(op, bits), u64::MAX);
        self.ops.push(match (op, place) {
            (_, Some(Place::Wire(wire))) => Op::Load(to, wire),
            (_, Some(Place::Part(a, by))) => {
                let mask = mask >> (64 - bits);
                Op::ShrConst { to, a, by, mask }
            }
            (word::Op::Const(value), _) => Op::Set(to, value),
            (word::Op::Arg(slot), _) => Op::LoadArg(to, slot),
            (word::Op::Add(a, b), _) => Op::Add { to, a, b, mask },
            (word::Op::AddConst(a, value), _) => Op::AddConst { to, a, value, mask },
            (word::Op::Sub(a, b), _) => Op::Sub { to, a, b, mask },
            (word::Op::Or(a, b), _) => Op::Or(to, a, b),
            (word::Op::AndConst(a, bits), _) => Op::AndConst(to, a, bits),
            (word::Op::XorConst(a, bits), _) => Op::XorConst(to, a, bits),
            (word::Op::ShlConst(a, by), _) => Op::ShlConst { to, a, by, mask },
            (word::Op::ShrConst(a, by), _) => Op::ShrConst { to, a, by, mask },
            (word::Op::Field(_) | word::Op::Valid(_), _) => Op::Find(to, op),
            (word::Op::Register(..) | word::Op::Fill(..), _) => Op::Find(to, op),
            (op, _) => Op::Compute(to, op),
        });
        self.fresh = Some(op);
        to
    }

    /// Goes to a label if the condition is `holds`, else on.
    fn jump(&mut self, test: &Test, holds: bool, to: Label) {
        match test {
            // All hold, or one does not: the first of the latter decides.
            Test::All(tests) if holds => self.unless_any(tests, false, to),
            Test::Any(tests) if !holds => self.unless_any(tests, true, to),
            Test::All(tests) | Test::Any(tests) => {
                for test in tests {
                    self.jump(test, holds, to);
                }
            }
            Test::Not(test) => self.jump(test, !holds, to),
            Test::Const(value) => self.jump_always(*value == holds, to),
            Test::Field(how, slot, value) => {
                self.reserve_words(1);
                self.compare(*how, word::Op::Field(*slot), *value, holds, to);
            }
            Test::Fields(how, left, right) => {
                self.reserve_words(2);
                let [a, b] = [left, right].map(|slot| self.value(word::Op::Field(*slot)));
                let how = if holds { *how } else { how.negated() };
                let to = self.jumps_to(to);
                self.ops.push(Op::IfWords { how, a, b, to });
            }
            Test::Word(word) => {
                self.reserve(&[word]);
                match word.form() {
                    Form::Const(value) => self.jump_always((*value != 0) == holds, to),
                    Form::Field(slot) => {
                        self.compare(NotEqual, word::Op::Field(*slot), 0, holds, to)
                    }
                    Form::Arg(slot) => self.compare(NotEqual, word::Op::Arg(*slot), 0, holds, to),
                    Form::Ops(ops) => self.jump_by(ops, holds, to),
                }
            }
            test => {
                let (test, to) = (Box::new(test.clone()), self.jumps_to(to));
                self.ops.push(Op::IfTest { test, holds, to });
            }
        }
    }

    fn jump_always(&mut self, jumps: bool, to: Label) {
        if jumps {
            let to = self.jumps_to(to);
            self.ops.push(Op::Goto(to));
        }
    }

    /// Goes to a label if the last of some operations, a condition, is `holds`.
    fn jump_by(&mut self, ops: &[word::Op], mut holds: bool, to: Label) {
        let mut last = ops.len() - 1;
        while let word::Op::Negate(at) = ops[last] {
            (last, holds) = (at.into(), !holds);
        }
        let results = &mut [None; MAX_OPS];
        let (how, a, b) = match ops[last] {
            word::Op::Equal(a, b) => (Equal, a, b),
            word::Op::Less(a, b) | word::Op::LessUnsigned(a, b) => (Less, a, b),
            word::Op::EqualConst(a, value) => {
                let op = self.operands(ops, a.into(), results);
                return self.compare(Equal, op, value, holds, to);
            }
            word::Op::NotZero(a) => {
                let op = self.operands(ops, a.into(), results);
                return self.compare(NotEqual, op, 0, holds, to);
            }
            _ => {
                let op = self.operands(ops, last, results);
                return self.compare(NotEqual, op, 0, holds, to);
            }
        };
        let signed = matches!(ops[last], word::Op::Less(..));
        let b = match ops[usize::from(b)] {
            word::Op::Const(value) if !signed => {
                let op = self.operands(ops, a.into(), results);
                return self.compare(how, op, value, holds, to);
            }
            _ => self.part(ops, b.into(), results),
        };
        let a = self.part(ops, a.into(), results);
        if signed && self.known.bits(a).max(self.known.bits(b)) > 63 {
            let less = self.value(word::Op::Less(a, b));
            return self.compare_word(NotEqual, less, 0, holds, to);
        }
        let how = if holds { how } else { how.negated() };
        let to = self.jumps_to(to);
        self.ops.push(Op::IfWords { how, a, b, to });
    }

    /// One of a number's operations, on words.
    fn operands(
        &mut self,
        ops: &[word::Op],
        at: usize,
        results: &mut [Option<At>; MAX_OPS],
    ) -> word::Op {
        for operand in ops[at].operands() {
            self.part(ops, operand.into(), results);
        }
        ops[at].moved(|at| results[usize::from(at)].unwrap_or_default())
    }

    /// Goes to a label if it `holds`, or not, how the result of an operation compares.
    fn compare(&mut self, how: Comparison, op: word::Op, value: u64, holds: bool, to: Label) {
        let place = match op {
            word::Op::Field(slot) if !slot.signed => slot.place(),
            word::Op::Valid(header) => validity(header).place(),
            _ => None,
        };
        // A field that is in no word yet is compared where it is.
        match (place, if holds { how } else { how.negated() }) {
            (Some(Place::Wire(wire)), how @ (Equal | NotEqual))
                if !self.known.results.contains_key(&op) =>
            {
                let to = self.jumps_to(to);
                self.ops.push(match how {
                    Equal => Op::IfWireEqual { wire, value, to },
                    _ => Op::IfWireDifferent { wire, value, to },
                });
            }
            _ => {
                let at = self.value(op);
                self.compare_word(how, at, value, holds, to);
            }
        }
    }

    fn compare_word(&mut self, how: Comparison, at: At, value: u64, holds: bool, to: Label) {
        let to = self.jumps_to(to);
        self.ops
            .push(match if holds { how } else { how.negated() } {
                Equal => Op::IfEqual { at, value, to },
                NotEqual => Op::IfDifferent { at, value, to },
                how => Op::If { how, at, value, to },
            });
    }

    /// Goes to a label unless one of the conditions is `stops`.
    fn unless_any(&mut self, tests: &[Test], stops: bool, to: Label) {
        let Some((last, others)) = tests.split_last() else {
            return self.jump_always(true, to);
        };
        let on = self.path();
        for test in others {
            self.jump(test, stops, on);
        }
        self.jump(last, !stops, to);
        self.bind_path(on);
    }

    fn finish(mut self, nodes: &[Label], states: &[Label], actions: &[Label]) -> Code {
        self.bind(self.end);
        self.ops.push(Op::End);
        for (label, to) in std::mem::take(&mut self.jumps) {
            self.bind(label);
            self.ops.push(Op::Jump(to));
        }
        let labels = &self.labels;
        // What has no address is never gone to.
        let address = |label: Label| labels[label as usize].unwrap_or_default();
        for op in &mut self.ops {
            match op {
                Op::Goto(to)
                | Op::Jump(to)
                | Op::If { to, .. }
                | Op::IfEqual { to, .. }
                | Op::IfDifferent { to, .. }
                | Op::IfWords { to, .. }
                | Op::IfWireEqual { to, .. }
                | Op::IfWireDifferent { to, .. }
                | Op::IfTest { to, .. } => *to = address(*to),
                _ => {}
            }
        }
        Code {
            nodes: nodes.iter().map(|label| address(*label)).collect(),
            states: states.iter().map(|label| address(*label)).collect(),
            actions: actions.iter().map(|label| address(*label)).collect(),
            accept: address(self.end),
            ops: self.ops,
            sites: self.sites,
        }
    }
}

/// The extraction of a header of fixed length that is in no union.
fn extraction(header: usize, layout: &Layout) -> Option<Op> {
    let (instance, shape) = (&layout.instances[header], layout.shape(header));
    let plain = shape.varbit.is_none() && instance.siblings.is_empty();
    let bytes = u16::try_from(shape.bytes).ok().filter(|_| plain)?;
    let base = u16::try_from(instance.base).ok()?;
    base.checked_add(bytes)?;
    let valid = u16::try_from(WORK + header).ok()?;
    Some(Op::Extract { base, valid, bytes })
}

impl Known {
    /// A new word for a result.
    fn add(&mut self, op: word::Op, bits: u32) -> At {
        let at = self.next;
        self.next += WORD;
        self.bits.insert(at, bits);
        self.results.insert(op, at);
        at
    }

    /// How many bits a word's number has at most.
    fn bits(&self, at: At) -> u32 {
        self.bits.get(&at).copied().unwrap_or(64)
    }

    /// A field is about to be written.
    fn stored(&mut self, slot: Slot) {
        let word = match slot.place() {
            Some(Place::Word(at)) => Some(at),
            _ => None,
        };
        self.results.retain(|op, result| match op {
            word::Op::Field(other) if other.overlaps(slot) => false,
            word::Op::Valid(header) if validity(*header).overlaps(slot) => false,
            op => word.is_none_or(|word| *result != word && !op.uses(word)),
        });
        if let Some(word) = word {
            self.bits.insert(word, slot.width);
        }
    }
}
