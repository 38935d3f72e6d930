//! Compiles nodes and actions to code.

use std::collections::HashMap;

use super::super::action::{Action, Instruction};
use super::super::bits::Slot;
use super::super::expression::{Comparison, Num, Test};
use super::super::pipeline::{Flow, Node};
use super::super::table::Table;
use super::super::word::{self, Form, MAX_OPS, Word};
use super::{Address, Code, Op, REGISTERS, Register, Site};

/// Stands for an address until all code is there.
type Label = Address;

impl Code {
    /// Compiles the nodes of a flow and the actions of the program.
    pub fn new(flow: &Flow, tables: &[Table], actions: &[Action]) -> Code {
        let mut compiler = Compiler {
            actions,
            ops: Vec::new(),
            sites: Vec::new(),
            labels: vec![None],
            end: 0,
            jumps: Vec::new(),
            known: Known::default(),
        };
        let nodes: Vec<_> = flow.nodes.iter().map(|_| compiler.label()).collect();
        let starts: Vec<_> = actions.iter().map(|_| compiler.label()).collect();
        let mut emitted = vec![false; nodes.len()];
        let mut waiting: Vec<usize> = flow.ingress.into_iter().chain(flow.egress).collect();
        while let Some(node) = waiting.pop() {
            compiler.chain(node, flow, tables, &nodes, &mut emitted, &mut waiting);
        }
        for (at, action) in actions.iter().enumerate() {
            compiler.bind(starts[at]);
            compiler.action(at, action);
            compiler.ops.push(Op::End);
        }
        compiler.finish(&nodes, &starts)
    }
}

struct Compiler<'a> {
    actions: &'a [Action],
    ops: Vec<Op>,
    sites: Vec<(Address, Site)>,
    /// Addresses of labels; nodes that no packet can reach never get one.
    labels: Vec<Option<Address>>,
    /// The end of every pipeline.
    end: Label,
    /// Jumps that are counted, and where they go.
    jumps: Vec<(Label, Label)>,
    known: Known,
}

/// What registers hold at a point that is reached in one way only.
#[derive(Default)]
struct Known {
    results: HashMap<word::Op, Register>,
    /// How many bits each register's number has at most.
    bits: Vec<u32>,
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

    /// Notes that a node or primitive starts here.
    fn site(&mut self, site: Site) {
        self.sites.push((self.ops.len() as Address, site));
    }

    /// Compiles a node and what follows it, as far as it is not there yet. What a condition leads
    /// to when it does not hold is left `waiting`.
    fn chain(
        &mut self,
        first: usize,
        flow: &Flow,
        tables: &[Table],
        labels: &[Label],
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
            self.bind(labels[node]);
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
                    }
                    next = *to;
                }
            }
        }
        self.ops.push(Op::End);
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
                Instruction::AssignWord(slot, word) if slot.is_short() && is_short(word) => {
                    self.assign(*slot, word);
                }
                Instruction::Count {
                    counter,
                    index: Num::Word(word),
                } if is_short(word) => self.count(*counter, word),
                Instruction::Jump(to) => self.ops.push(Op::Jump(targets[to])),
                Instruction::JumpUnless(test, to) => {
                    let counted = self.label();
                    self.jump(test, false, counted);
                    self.jumps.push((counted, targets[to]));
                }
                Instruction::Exit => self.ops.push(Op::Exit),
                Instruction::Assert(test) => {
                    let holds = self.label();
                    self.jump(test, true, holds);
                    self.ops.push(Op::Fail);
                    self.bind(holds);
                }
                _ => {
                    self.ops.push(Op::Primitive { action, index });
                    self.known = Known::default();
                }
            }
        }
        if let Some(label) = targets.get(&action.code.len()) {
            self.bind(*label);
        }
    }

    fn assign(&mut self, slot: Slot, word: &Word) {
        let register = match word.form() {
            Form::Const(value) => {
                self.ops.push(Op::Set(slot, *value));
                None
            }
            Form::Arg(from) => {
                self.ops.push(Op::MoveArg {
                    to: slot,
                    from: *from,
                });
                None
            }
            Form::Field(from) => match self.known.results.get(&word::Op::Field(*from)) {
                Some(register) => Some(*register),
                None => {
                    self.ops.push(Op::Move {
                        to: slot,
                        from: *from,
                    });
                    None
                }
            },
            Form::Ops(ops) => Some(self.compute(ops)),
        };
        if let Some(register) = register {
            self.ops.push(Op::Store(slot, register));
        }
        self.known.stored(slot, register);
    }

    fn count(&mut self, counter: usize, word: &Word) {
        let index = match word.form() {
            Form::Field(index) if !self.known.results.contains_key(&word::Op::Field(*index)) => {
                let index = *index;
                return self.ops.push(Op::CountAt { counter, index });
            }
            Form::Field(index) => self.compute(&[word::Op::Field(*index)]),
            Form::Const(value) => self.compute(&[word::Op::Const(*value)]),
            Form::Arg(index) => self.compute(&[word::Op::Arg(*index)]),
            Form::Ops(ops) => self.compute(ops),
        };
        self.ops.push(Op::Count { counter, index });
    }

    /// The register that holds the last operation's result.
    fn compute(&mut self, ops: &[word::Op]) -> Register {
        if self.known.bits.len() + ops.len() > REGISTERS {
            self.known = Known::default();
        }
        let mut results = [0; MAX_OPS];
        let mut last = 0;
        for (at, op) in ops.iter().enumerate() {
            let op = op.moved(|at| results[usize::from(at)]);
            last = match self.known.results.get(&op) {
                Some(register) => *register,
                None => {
                    let register = self.known.add(op);
                    self.ops.push(match op {
                        word::Op::Field(slot) if slot.is_short() => Op::Load(register, slot),
                        word::Op::Add(a, b) => Op::Add(register, a, b),
                        word::Op::AndConst(a, bits) => Op::AndConst(register, a, bits),
                        word::Op::XorConst(a, bits) => Op::XorConst(register, a, bits),
                        word::Op::ShrConst(a, by) => Op::ShrConst(register, a, by),
                        op => Op::Compute(register, op),
                    });
                    register
                }
            };
            results[at] = last;
        }
        last
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
            Test::Const(value) if *value == holds => self.ops.push(Op::Goto(to)),
            Test::Const(_) => {}
            Test::Field(how, slot, value) if slot.is_short() => {
                let how = if holds { *how } else { how.negated() };
                let (slot, value) = (*slot, *value);
                self.ops.push(match how {
                    Comparison::Equal => Op::IfEqual { slot, value, to },
                    Comparison::NotEqual => Op::IfDifferent { slot, value, to },
                    how => Op::If {
                        how,
                        slot,
                        value,
                        to,
                    },
                });
            }
            Test::Fields(how, left, right) if left.is_short() && right.is_short() => {
                self.ops.push(Op::IfFields {
                    how: if holds { *how } else { how.negated() },
                    left: *left,
                    right: *right,
                    to,
                })
            }
            Test::Word(word) => match word.form() {
                Form::Ops(ops) => {
                    let register = self.compute(ops);
                    self.ops.push(Op::IfRegister {
                        register,
                        holds,
                        to,
                    });
                }
                Form::Const(value) if (*value != 0) == holds => self.ops.push(Op::Goto(to)),
                Form::Const(_) => {}
                Form::Field(_) | Form::Arg(_) => self.if_test(test, holds, to),
            },
            test => self.if_test(test, holds, to),
        }
    }

    fn if_test(&mut self, test: &Test, holds: bool, to: Label) {
        let test = Box::new(test.clone());
        self.ops.push(Op::IfTest { test, holds, to });
    }

    /// Goes to a label unless one of the conditions is `stops`.
    fn unless_any(&mut self, tests: &[Test], stops: bool, to: Label) {
        let Some((last, others)) = tests.split_last() else {
            return self.ops.push(Op::Goto(to));
        };
        let on = self.label();
        for test in others {
            self.jump(test, stops, on);
        }
        self.jump(last, !stops, to);
        self.bind(on);
    }

    fn finish(mut self, nodes: &[Label], actions: &[Label]) -> Code {
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
                | Op::IfFields { to, .. }
                | Op::IfRegister { to, .. }
                | Op::IfTest { to, .. } => *to = address(*to),
                _ => {}
            }
        }
        Code {
            nodes: nodes.iter().map(|label| address(*label)).collect(),
            actions: actions.iter().map(|label| address(*label)).collect(),
            ops: self.ops,
            sites: self.sites,
        }
    }
}

/// Whether a number that is one field can be read by the code's own operations.
fn is_short(word: &Word) -> bool {
    match word.form() {
        Form::Field(slot) | Form::Arg(slot) => slot.is_short(),
        Form::Const(_) | Form::Ops(_) => true,
    }
}

impl Known {
    /// A register for a new result.
    fn add(&mut self, op: word::Op) -> Register {
        let bits = op.bits(|at| self.bits[usize::from(at)]);
        let register = self.bits.len() as Register;
        self.bits.push(bits);
        self.results.insert(op, register);
        register
    }

    /// A field has been written, with the low bits of a register or with something else.
    fn stored(&mut self, slot: Slot, register: Option<Register>) {
        self.results.retain(|op, _| match op {
            word::Op::Field(other) => !other.overlaps(slot),
            word::Op::Valid(header) => !Slot::new(header * 8, 8, false).overlaps(slot),
            _ => true,
        });
        let reads_as =
            |register: &Register| !slot.signed && self.bits[usize::from(*register)] <= slot.width;
        if let Some(register) = register.filter(reads_as) {
            self.results.insert(word::Op::Field(slot), register);
        }
    }
}
