//! Compiles nodes and actions to code.
//!
//! Every distinct operation is computed once along a path, until one of its fields may have changed. What a condition says of a
//! field decides later conditions on it: a node that packets reach with different knowledge is compiled for each, up to a limit
//! (basic block versioning: Chevalier-Boisvert and Feeley, ECOOP 2015).

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
use super::super::table::{Next, Table};
use super::super::word::{self, At, Form, MAX_OPS, Word};
use super::known::{Fact, Facts, Known};
use super::{Address, Code, Op, Site};

/// Stands for an address until all code is there.
type Label = Address;

/// The bits of a meter's colour.
const COLOR_BITS: u32 = 2;
/// The bytes of a word.
const WORD: u16 = 8;
/// How often one node is compiled with knowledge.
const MAX_VERSIONS: usize = 32;
/// The operations from which on no node is compiled with knowledge.
const MAX_OPERATIONS: usize = 1 << 14;

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
        let mut ways = flow.ways(tables);
        let roots = flow.ingress.into_iter().chain(flow.egress);
        roots.clone().for_each(|root| ways[root] += 1);
        let mut compiler = Compiler {
            flow,
            tables,
            actions,
            registers,
            ways,
            relevant: flow.relevant(tables),
            versions: flow.nodes.iter().map(|_| Versions::default()).collect(),
            waiting: Vec::new(),
            ops: Vec::new(),
            sites: Vec::new(),
            labels: vec![None],
            aliases: HashMap::new(),
            end: 0,
            jumps: Vec::new(),
            known: Known::default(),
            arrivals: HashMap::new(),
            dead: true,
            fresh: None,
            last_once: false,
        };
        for root in roots {
            compiler.general(root);
        }
        while let Some((next, label, known)) = compiler.waiting.pop() {
            compiler.resume(next, label, known);
        }
        let states: Vec<_> = parser.states.iter().map(|_| compiler.label()).collect();
        for (at, state) in parser.states.iter().enumerate() {
            compiler.bind_open(states[at]);
            if parser.starts_once_at(at) {
                // No header is valid yet.
                let headers = layout.instances.iter().enumerate();
                let headers = headers.filter(|(_, it)| !it.metadata);
                let facts = headers.map(|(header, _)| (word::Op::Valid(header), Fact::Is(0)));
                compiler.known.facts.extend(facts);
            }
            compiler.state(at, state, layout, &states);
        }
        let starts = actions.iter().enumerate().map(|(at, action)| {
            let start = compiler.label();
            compiler.bind_open(start);
            compiler.action(at, action);
            compiler.push(Op::End);
            start
        });
        let starts: Vec<_> = starts.collect();
        compiler.finish(&states, &starts)
    }
}

struct Compiler<'a> {
    flow: &'a Flow,
    tables: &'a [Table],
    actions: &'a [Action],
    registers: &'a [Register],
    /// How many ways lead to each node.
    ways: Vec<usize>,
    /// What conditions at and behind each node ask for.
    relevant: (Vec<word::Op>, Vec<u128>),
    versions: Vec<Versions>,
    /// Nodes, or the end, to compile at a label with what is known there.
    waiting: Vec<(Next, Label, Known)>,
    ops: Vec<Op>,
    sites: Vec<(Address, Site)>,
    /// Addresses of labels; those that no packet can reach never get one.
    labels: Vec<Option<Address>>,
    /// Labels that are other labels.
    aliases: HashMap<Label, Label>,
    /// The end of every pipeline.
    end: Label,
    /// Jumps that are counted, and where they go.
    jumps: Vec<(Label, Label)>,
    known: Known,
    /// What all jumps to a label know, and how many there are.
    arrivals: HashMap<Label, (Known, usize)>,
    /// True if no packet comes here.
    dead: bool,
    /// The last operation, if no operation has used its result in the working memory yet.
    fresh: Option<word::Op>,
    /// Whether the operation at hand is the only one of its number that uses its second operand.
    last_once: bool,
}

/// The compiled forms of a node.
#[derive(Default)]
struct Versions {
    count: usize,
    /// What each needs to be known, and where it is.
    shared: Vec<(Facts, Label)>,
    /// The one that needs nothing.
    general: Option<Label>,
}

impl Compiler<'_> {
    fn label(&mut self) -> Label {
        self.labels.push(None);
        self.labels.len() as Label - 1
    }

    fn push(&mut self, op: Op) {
        if !self.dead {
            self.dead = op.leaves();
            self.ops.push(op);
        }
    }

    /// The label's address is here, where packets may come from anywhere.
    fn bind_open(&mut self, label: Label) {
        self.known = Known::default();
        self.place(label);
    }

    /// The label's address is here. All jumps to it stand above.
    fn bind(&mut self, label: Label) {
        let Some((arrived, jumps)) = self.arrivals.remove(&label) else {
            return;
        };
        match self.dead {
            true => self.known = arrived,
            false => self.known.meet(&arrived),
        }
        let needless = |op: &mut Op| matches!(op, Op::Goto(to) if *to == label);
        if self.dead && self.ops.pop_if(needless).is_some() && jumps == 1 {
            (self.dead, self.fresh) = (false, None);
        } else {
            self.place(label);
        }
    }

    fn place(&mut self, label: Label) {
        (self.dead, self.fresh) = (false, None);
        if self.has_site() {
            // Jumps to the label must not meet what begins here before it.
            let behind = self.ops.len() as Address + 1;
            self.labels.push(Some(behind));
            self.ops.push(Op::Goto(self.labels.len() as Label - 1));
        }
        self.labels[label as usize] = Some(self.ops.len() as Address);
    }

    /// Notes a jump.
    fn jumps_to(&mut self, label: Label) -> Label {
        if !self.dead {
            self.arrive(label, self.known.clone());
        }
        label
    }

    fn arrive(&mut self, label: Label, known: Known) {
        match self.arrivals.get_mut(&label) {
            Some((others, jumps)) => {
                others.meet(&known);
                *jumps += 1;
            }
            None => _ = self.arrivals.insert(label, (known, 1)),
        }
    }

    /// Notes that a node or primitive starts here.
    fn site(&mut self, site: Site) {
        if !self.dead {
            self.sites.push((self.ops.len() as Address, site));
        }
    }

    /// Whether a node or primitive starts here.
    fn has_site(&self) -> bool {
        let last = self.sites.last();
        last.is_some_and(|(at, _)| *at as usize == self.ops.len())
    }

    /// The label of a node's code that needs nothing to be known.
    fn general(&mut self, node: usize) -> Label {
        if let Some(label) = self.versions[node].general {
            return label;
        }
        let label = self.label();
        self.versions[node].general = Some(label);
        self.waiting.push((Some(node), label, Known::default()));
        label
    }

    /// The label of a node's code if it is compiled for what is known here, or often enough; `None` if it is to be compiled here.
    fn compiled(&mut self, node: usize) -> Option<Label> {
        if self.ways[node] == 1 {
            return None;
        }
        if self.ops.len() >= MAX_OPERATIONS {
            return Some(self.general(node));
        }
        let mut facts = Facts::default();
        let (subjects, sets) = &self.relevant;
        for (at, subject) in subjects.iter().enumerate() {
            if let Some(fact) = self.known.facts.get(subject)
                && sets[node] >> at & 1 == 1
            {
                facts.insert(*subject, *fact);
            }
        }
        let versions = &mut self.versions[node];
        let found = versions.shared.iter().find(|(other, _)| *other == facts);
        if let Some((_, label)) = found {
            return Some(*label);
        }
        versions.count += 1;
        if versions.count <= MAX_VERSIONS {
            self.known.facts = facts;
            self.known.forget_words();
            return None;
        }
        let holds = |other: &Facts| other.iter().all(|(op, fact)| facts.get(op) == Some(fact));
        let fit = versions.shared.iter().filter(|(other, _)| holds(other));
        let best = fit.max_by_key(|(other, _)| other.len());
        Some(match best {
            Some((_, label)) => *label,
            None => self.general(node),
        })
    }

    /// Compiles a node at a label, with what is known there, and what follows it.
    fn resume(&mut self, next: Next, label: Label, known: Known) {
        self.known = known;
        let Some(node) = next else {
            self.aliases.insert(label, self.end);
            return;
        };
        if self.versions[node].general == Some(label) {
            let shared = &mut self.versions[node].shared;
            shared.push((Facts::default(), label));
        } else if let Some(same) = self.compiled(node) {
            self.aliases.insert(label, same);
            return;
        } else {
            self.share(node, label);
        }
        self.place(label);
        self.chain(node);
    }

    /// Lets others jump to the code of a node that begins here.
    fn share(&mut self, node: usize, label: Label) {
        if self.ways[node] > 1 {
            let facts = self.known.facts.clone();
            self.versions[node].shared.push((facts, label));
        }
    }

    /// Compiles a node and what follows it, as far as it is not there yet. What a condition leads to when it does not hold is left
    /// waiting.
    fn chain(&mut self, mut node: usize) {
        while let Some(next) = self.node(node) {
            if self.dead {
                return;
            }
            let Some(next) = next else {
                return self.push(Op::End);
            };
            if let Some(label) = self.compiled(next) {
                return self.push(Op::Goto(label));
            }
            if !self.has_site() {
                let label = self.label();
                self.share(next, label);
                self.place(label);
            }
            node = next;
        }
    }

    /// Compiles a node; `None` if what follows is known only when the packet is there.
    fn node(&mut self, node: usize) -> Option<Next> {
        let flow = self.flow;
        match &flow.nodes[node] {
            Node::Table(table) => {
                let table = *table;
                self.site(Site::Table { node, table });
                let nexts = self.tables[table].branches();
                let first = nexts.first().copied();
                if let Some(next) = first.filter(|first| nexts.iter().all(|next| next == first)) {
                    self.push(Op::Apply(table as u32));
                    self.applied(table);
                    return Some(next);
                }
                self.push(Op::ApplyAndGo(table as u32));
                for next in nexts.into_iter().flatten() {
                    self.general(next);
                }
                None
            }
            Node::Condition { test, yes, no } => {
                let condition = Box::new(test.clone());
                self.site(Site::Condition {
                    node,
                    test: condition,
                });
                let otherwise = self.label();
                self.jump(test, false, otherwise);
                if self.dead && matches!(self.ops.last(), Some(Op::Goto(to)) if *to == otherwise) {
                    self.bind(otherwise);
                    return Some(*no);
                }
                if let Some((known, _)) = self.arrivals.remove(&otherwise) {
                    self.waiting.push((*no, otherwise, known));
                }
                Some(*yes)
            }
            Node::Action { action, args, next } => {
                let called = &self.actions[*action];
                let action = *action;
                self.site(Site::Call { node, action });
                if called.params.is_empty() {
                    self.action(action, called);
                } else {
                    self.push(Op::Call(Box::new((action, args.clone()))));
                    self.called(action);
                }
                Some(*next)
            }
        }
    }

    /// Forgets what a table's actions may change.
    fn applied(&mut self, table: usize) {
        let table = &self.tables[table];
        for action in table.runs() {
            self.called(action);
        }
        if let Some(color) = table.color() {
            self.known.stored(color);
        }
        self.known.forget_words();
    }

    /// Forgets what an action may change.
    fn called(&mut self, action: usize) {
        for instruction in &self.actions[action].code {
            self.executed(instruction);
        }
        self.known.forget_words();
    }

    /// Forgets what a primitive that is not compiled may change.
    fn executed(&mut self, instruction: &Instruction) {
        use Instruction::*;
        match instruction {
            Assign(slot, _)
            | AssignWord(slot, _)
            | AssignPlace(compile::Place::Fixed(slot), _)
            | RegisterRead {
                to: compile::Place::Fixed(slot),
                ..
            }
            | Meter {
                color: compile::Place::Fixed(slot),
                ..
            }
            | Hash {
                to: compile::Place::Fixed(slot),
                ..
            }
            | Random {
                to: compile::Place::Fixed(slot),
                ..
            } => self.known.stored(*slot),
            MarkToDrop {
                egress_spec,
                mcast_grp,
            } => {
                self.known.stored(*egress_spec);
                mcast_grp.iter().for_each(|slot| self.known.stored(*slot));
            }
            Count { .. } | RegisterWrite { .. } | Clone { .. } | Resubmit { .. } => {}
            Recirculate { .. } | Truncate(_) | Digest(_) | Log { .. } => {}
            Jump(_) | JumpUnless(..) | Exit | Assert(_) => {}
            _ => self.known = Known::default(),
        }
    }

    /// Compiles a state of the parser.
    fn state(&mut self, at: usize, state: &State, layout: &Layout, labels: &[Label]) {
        self.push(Op::Enter);
        self.site(Site::State(at));
        for (index, op) in state.ops.iter().enumerate() {
            self.site(Site::Operation(at, index));
            match op {
                parser::Op::Primitive(block) => self.action(*block, &self.actions[*block]),
                // p4c removes every header of an `out` parameter first, before any is valid.
                parser::Op::Remove { header, block } => {
                    let done = self.label();
                    self.reserve_words(1);
                    self.compare(Equal, word::Op::Valid(*header), 0, done);
                    self.action(*block, &self.actions[*block]);
                    self.bind(done);
                }
                op => {
                    let plain = match op {
                        parser::Op::Extract(header) => extraction(*header, layout),
                        _ => None,
                    };
                    let general = Op::Parse {
                        state: at as u32,
                        index: index as u32,
                    };
                    self.push(plain.unwrap_or(general));
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
                    let (other, to) = (self.label(), next(to, self.end));
                    for (at, field) in fields.iter().enumerate() {
                        // A mask has no bits that the field does not have.
                        let part = match masks[at].count_ones() == self.known.bits(*field) {
                            true => *field,
                            false => self.value(word::Op::AndConst(*field, masks[at])),
                        };
                        match at + 1 == fields.len() {
                            true => self.compare_word(Equal, part, values[at], to),
                            false => self.compare_word(NotEqual, part, values[at], other),
                        }
                    }
                    if fields.is_empty() {
                        self.push(Op::Goto(to));
                    }
                    self.bind(other);
                }
            }
            _ => self.push(Op::Select(at as u32)),
        }
        self.push(Op::Goto(next(state.default, self.end)));
    }

    fn action(&mut self, number: usize, action: &Action) {
        // Where jumps go, and whether one of them goes back.
        let mut targets = HashMap::new();
        for (index, instruction) in action.code.iter().enumerate() {
            if let Instruction::Jump(to) | Instruction::JumpUnless(_, to) = instruction {
                let label = self.label();
                targets.entry(*to).or_insert((label, false)).1 |= *to <= index;
            }
        }
        for (index, instruction) in action.code.iter().enumerate() {
            match targets.get(&index) {
                Some((label, true)) => self.bind_open(*label),
                Some((label, false)) => self.bind(*label),
                None => {}
            }
            let action = number;
            self.site(Site::Primitive { action, index });
            match instruction {
                Instruction::Jump(to) => {
                    let to = self.jumps_to(targets[to].0);
                    self.push(Op::Jump(to));
                }
                Instruction::JumpUnless(test, to) => {
                    let counted = self.label();
                    self.jump(test, false, counted);
                    if let Some((known, _)) = self.arrivals.remove(&counted) {
                        let to = targets[to].0;
                        self.jumps.push((counted, to));
                        self.arrive(to, known);
                    }
                }
                Instruction::Exit => self.push(Op::Exit),
                Instruction::Assert(test) => {
                    let holds = self.label();
                    self.jump(test, true, holds);
                    self.push(Op::Fail);
                    self.bind(holds);
                }
                instruction => {
                    if self.primitive(instruction).is_none() {
                        self.push(Op::Primitive {
                            action: action as u32,
                            index: index as u32,
                        });
                        self.known.forget_words();
                        self.executed(instruction);
                    }
                }
            }
        }
        if let Some((label, _)) = targets.get(&action.code.len()) {
            self.bind(*label);
        }
    }

    /// Compiles a primitive whose numbers are words; `None`, and no code, if one is not.
    fn primitive(&mut self, instruction: &Instruction) -> Option<()> {
        match instruction {
            Instruction::AssignWord(slot, word) => {
                let to = slot.place().filter(|to| !matches!(to, Place::Part(..)))?;
                self.reserve(&[word]);
                let fact = self.known.fact(word, *slot);
                let from = self.word(word);
                self.store(*slot, to, from);
                if let Some(fact) = fact {
                    self.known.learn(word::Op::Field(*slot), fact);
                }
            }
            Instruction::Count {
                counter,
                index: Num::Word(index),
            } => {
                self.reserve(&[index]);
                let index = self.word(index);
                let counter = *counter as u32;
                self.push(Op::Count { index, counter });
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
                self.push(Op::Meter { to, index, meter });
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
                self.push(Op::ReadRegister {
                    to,
                    index,
                    register,
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
                self.push(Op::WriteRegister {
                    index,
                    from,
                    register: *register as u32,
                });
                (self.known.results).retain(|op, _| !matches!(op, word::Op::Register(..)));
            }
            _ => return None,
        }
        Some(())
    }

    /// Stores a word in a field.
    fn store(&mut self, slot: Slot, place: Place, from: At) {
        if self.dead {
            return;
        }
        let fits = self.known.bits(from) <= slot.width;
        let fresh = self.fresh.take();
        self.known.stored(slot);
        let Place::Word(to) = place else {
            if let Place::Wire(wire) = place {
                self.push(Op::Store(wire, from));
            }
            if fits && !slot.signed {
                self.known.results.insert(word::Op::Field(slot), from);
            }
            return;
        };
        if let (Some(op), Some(last)) = (fresh, self.ops.last_mut())
            && (fits || last.cut(slot.width))
            && let Some(result) = last.result()
        {
            // The last operation has its result there.
            *result = to;
            self.known.results.remove(&op);
            if fits && !op.uses(to) {
                self.known.results.insert(op, to);
            }
        } else {
            let field = u64::MAX >> (64 - slot.width);
            self.push(Op::AndConst(to, from, field));
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
            self.known.forget_words();
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
        let fresh = self.fresh.take();
        let place = match op {
            word::Op::Field(slot) if !slot.signed => slot.place(),
            word::Op::Valid(header) => validity(header).place(),
            _ => None,
        };
        if let (word::Op::Field(slot), Some(Place::Word(at))) = (op, place) {
            self.known.read(at, slot.width);
            return at;
        }
        if let Some(at) = self.known.results.get(&op) {
            return *at;
        }
        let bits = op.bits(|at| self.known.bits(at));
        let last = self.fused(op, fresh);
        let (to, mask) = (self.known.add(op, bits), u64::MAX);
        let argument = match op {
            word::Op::Arg(slot) if !slot.signed => slot.place(),
            _ => None,
        };
        self.push(match (op, place.or(argument).or(last)) {
            (word::Op::Add(a, _), Some(Place::Wire(wire))) => Op::AddField {
                spare: 0,
                to,
                a,
                wire,
            },
            (word::Op::Or(a, _), Some(Place::Wire(wire))) => Op::OrField(to, a, wire),
            (word::Op::Clamp(a, 0, high @ 0..), _) => Op::Limit(to, a, high as u64),
            (word::Op::Arg(_), Some(Place::Wire(wire))) => Op::LoadArg(to, wire),
            (_, Some(Place::Wire(wire))) => Op::Load(to, wire),
            (_, Some(Place::Part(a, by))) => {
                let mask = mask >> (64 - bits);
                Op::ShrConst { by, to, a, mask }
            }
            (word::Op::Const(value), _) => Op::Set(to, value),
            (word::Op::Add(a, b), _) => Op::Add { to, a, b, mask },
            (word::Op::AddConst(a, value), _) => Op::AddConst {
                spare: 0,
                to,
                a,
                value,
            },
            (word::Op::Sub(a, b), _) => Op::Sub { to, a, b, mask },
            (word::Op::Or(a, b), _) => Op::Or(to, a, b),
            (word::Op::AndConst(a, bits), _) => Op::AndConst(to, a, bits),
            (word::Op::XorConst(a, bits), _) => Op::XorConst(to, a, bits),
            (word::Op::ShlConst(a, by), _) => Op::ShlConst { by, to, a, mask },
            (word::Op::ShrConst(a, by), _) => Op::ShrConst { by, to, a, mask },
            (word::Op::Field(_) | word::Op::Arg(_) | word::Op::Valid(_), _)
            | (word::Op::Register(..) | word::Op::Fill(..), _) => Op::Find(to, Box::new(op)),
            (op, _) => Op::Compute(to, Box::new(op)),
        });
        self.fresh = Some(op);
        to
    }

    /// Takes back the last operation if it loaded a field for this one alone.
    fn fused(&mut self, op: word::Op, fresh: Option<word::Op>) -> Option<Place> {
        let (word::Op::Add(a, b) | word::Op::Or(a, b)) = op else {
            return None;
        };
        let (Some(loaded), Some(Op::Load(to, wire))) = (fresh, self.ops.last()) else {
            return None;
        };
        let wire = *wire;
        if self.dead || !self.last_once || *to != b || a == b {
            return None;
        }
        self.ops.pop();
        self.known.results.remove(&loaded);
        Some(Place::Wire(wire))
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
                self.compare(how.or_not(holds), word::Op::Field(*slot), *value, to);
            }
            Test::Fields(how, left, right) => {
                self.reserve_words(2);
                let [a, b] = [left, right].map(|slot| self.value(word::Op::Field(*slot)));
                let (how, to) = (how.or_not(holds), self.jumps_to(to));
                self.push(Op::IfWords { how, a, b, to });
            }
            Test::Word(word) => {
                self.reserve(&[word]);
                match word.form() {
                    Form::Const(value) => self.jump_always((*value != 0) == holds, to),
                    Form::Field(slot) => {
                        self.compare(NotEqual.or_not(holds), word::Op::Field(*slot), 0, to)
                    }
                    Form::Arg(slot) => {
                        self.compare(NotEqual.or_not(holds), word::Op::Arg(*slot), 0, to)
                    }
                    Form::Ops(ops) => self.jump_by(ops, holds, to),
                }
            }
            test => {
                let (test, to) = (Box::new(test.clone()), self.jumps_to(to));
                self.push(Op::IfTest { holds, to, test });
            }
        }
    }

    fn jump_always(&mut self, jumps: bool, to: Label) {
        if jumps {
            let to = self.jumps_to(to);
            self.push(Op::Goto(to));
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
                return self.compare(Equal.or_not(holds), op, value, to);
            }
            word::Op::NotZero(a) => {
                let op = self.operands(ops, a.into(), results);
                return self.compare(NotEqual.or_not(holds), op, 0, to);
            }
            _ => {
                let op = self.operands(ops, last, results);
                return self.compare(NotEqual.or_not(holds), op, 0, to);
            }
        };
        let signed = matches!(ops[last], word::Op::Less(..));
        let b = match ops[usize::from(b)] {
            word::Op::Const(value) if !signed => {
                let op = self.operands(ops, a.into(), results);
                return self.compare(how.or_not(holds), op, value, to);
            }
            _ => self.part(ops, b.into(), results),
        };
        let a = self.part(ops, a.into(), results);
        if signed && self.known.bits(a).max(self.known.bits(b)) > 63 {
            let less = self.value(word::Op::Less(a, b));
            return self.compare_word(NotEqual.or_not(holds), less, 0, to);
        }
        let (how, to) = (how.or_not(holds), self.jumps_to(to));
        self.push(Op::IfWords { how, a, b, to });
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
        self.last_once = match ops[at] {
            word::Op::Add(_, b) | word::Op::Or(_, b) => {
                ops.iter().filter(|op| op.uses(b)).count() == 1
            }
            _ => false,
        };
        ops[at].moved(|at| results[usize::from(at)].unwrap_or_default())
    }

    /// Goes to a label if the result of an operation compares like this.
    fn compare(&mut self, how: Comparison, op: word::Op, value: u64, to: Label) {
        if let Some(decided) = self.known.decide(how, op, value) {
            return self.jump_always(decided, to);
        }
        let place = match op {
            word::Op::Field(slot) if !slot.signed => slot.place(),
            word::Op::Valid(header) => validity(header).place(),
            _ => None,
        };
        // A field that is in no word yet is compared where it is.
        let wire = match place {
            Some(Place::Wire(wire)) if !self.known.results.contains_key(&op) => Some(wire),
            _ => None,
        };
        let at = match (wire, how, u32::try_from(value)) {
            (Some(_), Equal | NotEqual, Ok(_)) => 0,
            _ => self.value(op),
        };
        let before = self.known.facts.get(&op).copied();
        self.known.learn_compared(op, how, value);
        match (wire, how, u32::try_from(value)) {
            (Some(wire), Equal, Ok(value)) => {
                let to = self.jumps_to(to);
                self.push(Op::IfWireEqual { wire, to, value });
            }
            (Some(wire), NotEqual, Ok(value)) => {
                let to = self.jumps_to(to);
                self.push(Op::IfWireDifferent { wire, to, value });
            }
            _ => self.compare_word(how, at, value, to),
        }
        self.known.facts.remove(&op);
        if let Some(before) = before {
            self.known.learn(op, before);
        }
        self.known.learn_compared(op, how.negated(), value);
    }

    fn compare_word(&mut self, how: Comparison, at: At, value: u64, to: Label) {
        let to = self.jumps_to(to);
        self.push(match how {
            Equal => Op::IfEqual { at, to, value },
            NotEqual => Op::IfDifferent { at, to, value },
            how => Op::If { how, at, to, value },
        });
    }

    /// Goes to a label unless one of the conditions is `stops`.
    fn unless_any(&mut self, tests: &[Test], stops: bool, to: Label) {
        let Some((last, others)) = tests.split_last() else {
            return self.jump_always(true, to);
        };
        let on = self.label();
        for test in others {
            self.jump(test, stops, on);
        }
        self.jump(last, !stops, to);
        self.bind(on);
    }

    fn finish(mut self, states: &[Label], actions: &[Label]) -> Code {
        self.labels[self.end as usize] = Some(self.ops.len() as Address);
        self.ops.push(Op::End);
        for (label, to) in self.jumps {
            self.labels[label as usize] = Some(self.ops.len() as Address);
            self.ops.push(Op::Jump(to));
        }
        // What has no address is never gone to.
        let address = |label: Label| {
            let label = self.aliases.get(&label).copied().unwrap_or(label);
            self.labels[label as usize].unwrap_or_default()
        };
        for to in self.ops.iter_mut().filter_map(Op::target) {
            *to = address(*to);
        }
        let general = |node: &Versions| node.general.map(&address).unwrap_or_default();
        Code {
            nodes: self.versions.iter().map(general).collect(),
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
