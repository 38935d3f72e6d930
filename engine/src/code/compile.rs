//! Compiles nodes and actions to code.
//!
//! Every number is computed where it is used, each of its operations once.

use std::collections::HashMap;

use super::super::action::{Action, Instruction};
use super::super::checksum::Checksum;
use super::super::counter::Counter;
use super::super::deparser::Deparser;
use super::super::expression::{Comparison, EXACT, HeaderRef, Num};
use super::super::layout::Layout;
use super::super::parser::Parser;
use super::super::pipeline::{Flow, Node};
use super::super::register::Register;
use super::super::table::{Next, Table};
use super::super::word::{self, At};
use super::{Address, Arrays, Code, Native, Op, Site, Starts};

const WORD: u16 = 8;

/// Stands for an address until all code is there.
pub(super) type Label = Address;

/// Jumps to jumps that are followed when a program is loaded.
const MAX_GOTOS: usize = 4;
/// The operations from which on actions are called, not repeated.
const MAX_OPERATIONS: usize = 1 << 14;

/// The input of the compiler.
#[derive(Clone, Copy)]
pub(in super::super) struct Source<'a> {
    pub flow: &'a Flow,
    pub tables: &'a [Table],
    pub actions: &'a [Action],
    pub registers: &'a [Register],
    pub counters: &'a [Counter],
    pub parser: &'a Parser,
    pub deparser: &'a Deparser,
    pub checksums: &'a [Checksum],
    pub layout: &'a Layout,
    /// Parser states that a packet may visit.
    pub max_states: u32,
}

impl Code {
    /// Compiles a program.
    pub fn new(source: Source) -> Code {
        let flow = source.flow;
        let mut ways = flow.ways(source.tables);
        let roots = [flow.ingress, flow.egress];
        roots.iter().flatten().for_each(|root| ways[*root] += 1);
        let mut compiler = Compiler {
            source,
            ways,
            nodes: vec![None; flow.nodes.len()],
            waiting: Vec::new(),
            ops: Vec::new(),
            sites: Vec::new(),
            labels: vec![None],
            aliases: HashMap::new(),
            end: 0,
            jumps: Vec::new(),
            used: 0,
            bits: HashMap::new(),
            arrivals: HashMap::new(),
            dead: true,
            fresh: false,
        };
        let [ingress, egress] = roots.map(|root| match root {
            Some(root) => compiler.general(root),
            None => compiler.end,
        });
        while let Some((node, label)) = compiler.waiting.pop() {
            compiler.chain(node, label);
        }
        let (parser, accept) = compiler.parser();
        let actions: Vec<_> = (0..source.actions.len())
            .map(|at| {
                let start = compiler.open();
                compiler.action(at);
                compiler.push(Op::End);
                start
            })
            .collect();
        let deparser = compiler.open();
        compiler.checksums(false);
        source
            .deparser
            .block
            .into_iter()
            .for_each(|block| compiler.action(block));
        compiler.push(Op::End);
        let starts = Starts {
            parser,
            ingress,
            egress,
            deparser,
        };
        compiler.finish(starts, accept, &actions)
    }
}

pub(super) struct Compiler<'a> {
    pub source: Source<'a>,
    /// The number of edges to each node.
    ways: Vec<usize>,
    /// The labels of nodes to which packets come from several others, or from a table.
    nodes: Vec<Option<Label>>,
    waiting: Vec<(usize, Label)>,
    pub ops: Vec<Op>,
    sites: Vec<(Address, Site)>,
    /// Addresses of labels; those that no packet can reach never get one.
    labels: Vec<Option<Address>>,
    aliases: HashMap<Label, Label>,
    /// The end of every pipeline.
    pub end: Label,
    /// Jumps that are counted, and where they go.
    jumps: Vec<(Label, Label)>,
    /// Words of the working memory that hold results.
    pub used: usize,
    /// The maximum widths of numbers in words, in bits.
    pub bits: HashMap<At, u32>,
    /// The number of jumps to each label.
    pub arrivals: HashMap<Label, usize>,
    /// True if no packet comes here.
    pub dead: bool,
    /// True if no operation has used the result of the last one yet.
    pub fresh: bool,
}

impl Compiler<'_> {
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        self.labels.len() as Label - 1
    }

    pub fn push(&mut self, op: Op) {
        if !self.dead {
            self.dead = op.leaves();
            self.ops.push(op);
        }
    }

    /// A new label here, where packets may come from anywhere.
    pub fn open(&mut self) -> Label {
        let label = self.label();
        self.place(label);
        label
    }

    /// The label's address is here. All jumps to it stand above.
    pub fn bind(&mut self, label: Label) {
        let Some(jumps) = self.arrivals.remove(&label) else {
            return;
        };
        let needless = |op: &mut Op| matches!(op, Op::Goto(to) if *to == label);
        if self.dead && self.ops.pop_if(needless).is_some() && jumps == 1 {
            (self.dead, self.fresh) = (false, false);
        } else {
            self.place(label);
        }
    }

    /// The label's address is here, where packets may come from anywhere.
    pub fn place(&mut self, label: Label) {
        (self.dead, self.fresh) = (false, false);
        if self.has_site() {
            // Jumps to the label must not meet what begins here before it.
            let behind = self.ops.len() as Address + 1;
            self.labels.push(Some(behind));
            self.ops.push(Op::Goto(self.labels.len() as Label - 1));
        }
        self.labels[label as usize] = Some(self.ops.len() as Address);
    }

    /// Notes a jump.
    pub fn jumps_to(&mut self, label: Label) -> Label {
        if !self.dead {
            self.arrive(label);
        }
        label
    }

    fn arrive(&mut self, label: Label) {
        *self.arrivals.entry(label).or_default() += 1;
    }

    /// Notes that a node or primitive starts here.
    pub fn site(&mut self, site: Site) {
        if !self.dead {
            self.sites.push((self.ops.len() as Address, site));
        }
    }

    /// True if a node or primitive starts here.
    fn has_site(&self) -> bool {
        let last = self.sites.last();
        last.is_some_and(|(at, _)| *at as usize == self.ops.len())
    }

    /// The label of a node's code, to which packets may come from anywhere.
    fn general(&mut self, node: usize) -> Label {
        if let Some(label) = self.nodes[node] {
            return label;
        }
        let label = self.label();
        self.nodes[node] = Some(label);
        self.waiting.push((node, label));
        label
    }

    /// Compiles a node at a label, and what follows it up to a node with several ways to it.
    fn chain(&mut self, mut node: usize, label: Label) {
        self.place(label);
        while let Some(next) = self.node(node) {
            if self.dead {
                return;
            }
            let Some(next) = next else {
                return self.push(Op::End);
            };
            if self.ways[next] > 1 {
                let label = self.general(next);
                return self.push(Op::Goto(label));
            }
            node = next;
        }
    }

    /// Compiles a node; `None` if what follows is known only when the packet is there.
    fn node(&mut self, node: usize) -> Option<Next> {
        let flow = self.source.flow;
        match &flow.nodes[node] {
            Node::Table(table) => {
                let table = *table;
                self.site(Site::Table { node, table });
                self.key_of(table);
                let nexts = self.source.tables[table].branches();
                let first = nexts.first().copied();
                if let Some(next) = first.filter(|first| nexts.iter().all(|next| next == first)) {
                    self.push(Op::Apply(table as u32));
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
                if self.arrivals.remove(&otherwise).is_some() {
                    match *no {
                        None => _ = self.aliases.insert(otherwise, self.end),
                        Some(no) if self.ways[no] > 1 => {
                            let label = self.general(no);
                            self.aliases.insert(otherwise, label);
                        }
                        Some(no) => self.waiting.push((no, otherwise)),
                    }
                }
                Some(*yes)
            }
            Node::Action { action, args, next } => {
                let called = &self.source.actions[*action];
                let action = *action;
                self.site(Site::Call(node));
                // A long program may call long actions at many nodes.
                if called.params.is_empty() && self.ops.len() < MAX_OPERATIONS {
                    self.action(action);
                } else {
                    self.push(Op::Call(Box::new((action, args.clone()))));
                }
                Some(*next)
            }
        }
    }

    /// Computes the key of a lookup, filled up with zeros to the size of a hash table's keys.
    fn key_of(&mut self, table: usize) {
        let parts = self.source.tables[table].key_parts();
        for (at, part) in parts.iter().enumerate() {
            let to = at as At * WORD;
            let (zero, done) = (self.label(), self.label());
            if let Some(header) = part.header {
                self.restart();
                self.compare(Comparison::Equal, word::Op::Valid(header), 0, zero);
            }
            let from = self.number(&Num::Field(part.slot), 64);
            self.copy(to, from, part.mask);
            self.jump_always(true, done);
            self.bind(zero);
            self.clear(to);
            self.bind(done);
        }
        for at in parts.len()..parts.len().next_power_of_two() {
            self.clear(at as At * WORD);
        }
    }

    fn clear(&mut self, to: At) {
        let (mask, op) = (u64::MAX, word::Op::Const(0));
        self.push(Op::Compute { to, mask, op });
        self.fresh = false;
    }

    /// Compiles the instructions of an action, or of a state of the parser.
    pub fn action(&mut self, number: usize) {
        let action = &self.source.actions[number];
        // Targets of jumps, and whether a jump goes back.
        let mut targets = HashMap::new();
        for (index, instruction) in action.code.iter().enumerate() {
            if let Instruction::Jump(to) | Instruction::JumpUnless(_, to) = instruction {
                let label = self.label();
                targets.entry(*to).or_insert((label, false)).1 |= *to <= index;
            }
        }
        for (index, instruction) in action.code.iter().enumerate() {
            match targets.get(&index) {
                Some((label, true)) => self.place(*label),
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
                    if self.arrivals.remove(&counted).is_some() {
                        let to = targets[to].0;
                        self.jumps.push((counted, to));
                        self.arrive(to);
                    }
                }
                Instruction::Exit => self.push(Op::Exit),
                Instruction::Assert(test) => {
                    let holds = self.label();
                    self.jump(test, true, holds);
                    self.push(Op::Fail);
                    self.bind(holds);
                }
                Instruction::Verify { test, error } => {
                    let holds = self.label();
                    self.jump(test, true, holds);
                    let error = self.number(error, EXACT);
                    self.push(Op::Stop(error));
                    self.bind(holds);
                }
                // p4c removes every header of an `out` parameter of the parser first, before any is valid.
                Instruction::RemoveHeader(HeaderRef::Fixed(header)) => {
                    let done = self.label();
                    self.restart();
                    self.compare(Comparison::Equal, word::Op::Valid(*header), 0, done);
                    self.step(action, index, instruction);
                    self.bind(done);
                }
                instruction => {
                    if let Instruction::Assign(_, Num::Ahead(offset, width)) = instruction {
                        self.push(Op::Need((offset + width).div_ceil(8)));
                    }
                    if self.primitive(instruction).is_none() {
                        self.step(action, index, instruction);
                    }
                }
            }
        }
        if let Some((label, _)) = targets.get(&action.code.len()) {
            self.bind(*label);
        }
    }

    /// Leaves an instruction to [`Machine::step`](super::super::action::Machine::step).
    fn step(&mut self, action: usize, index: usize, instruction: &Instruction) {
        for (at, (num, need)) in instruction.operands().into_iter().enumerate() {
            let from = self.number(num, need);
            self.copy(at as At * WORD, from, u64::MAX);
        }
        let (action, index) = (action as u32, index as u32);
        self.push(Op::Step { action, index });
    }

    fn finish(mut self, starts: Starts, accept: Label, actions: &[Label]) -> Code {
        self.labels[self.end as usize] = Some(self.ops.len() as Address);
        self.ops.push(Op::End);
        for (label, to) in self.jumps {
            self.labels[label as usize] = Some(self.ops.len() as Address);
            self.ops.push(Op::Jump(to));
        }
        // No jump leads to a label without an address.
        let address = |label: Label| {
            let label = self.aliases.get(&label).copied().unwrap_or(label);
            self.labels[label as usize].unwrap_or_default()
        };
        for to in self.ops.iter_mut().filter_map(Op::target) {
            *to = address(*to);
        }
        // Jumps to a jump go where that goes, unless a trace notes its place.
        let (ops, sites) = (&self.ops, &self.sites);
        let goes = |from: Address| match ops[from as usize] {
            Op::Goto(to) if sites.binary_search_by_key(&from, |site| site.0).is_err() => to,
            _ => from,
        };
        let goes: Vec<_> = (0..ops.len() as Address).map(goes).collect();
        for to in self.ops.iter_mut().filter_map(Op::target) {
            // A label may stand at the end of the code if no packet comes there.
            *to = (0..MAX_GOTOS).fold(*to, |to, _| goes.get(to as usize).copied().unwrap_or(to));
        }
        let general = |node: &Option<Label>| node.map(&address).unwrap_or_default();
        let mut code = Code {
            nodes: self.nodes.iter().map(general).collect(),
            starts: Starts {
                parser: address(starts.parser),
                ingress: address(starts.ingress),
                egress: address(starts.egress),
                deparser: address(starts.deparser),
            },
            actions: actions.iter().map(|label| address(*label)).collect(),
            accept: address(accept),
            end: address(self.end),
            ops: self.ops,
            sites: self.sites,
            native: None,
        };
        code.native = Native::new(
            &mut code,
            Arrays {
                registers: self.source.registers,
                counters: self.source.counters,
                checksums: self.source.checksums,
            },
        );
        code
    }
}
