//! Liveness of metadata: the fields whose values ingress and egress may read before they write them.
//!
//! The layout puts these fields first, so that a packet starts ingress with few zeros to write, and keeps few bytes for egress.
//! A primitive that the analysis does not understand counts as a read.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value as Json;

use super::json::{Pipeline, Primitive, Program, Table};

/// The most work for an analysis: nodes, their actions and next nodes, times words of a set of fields, in each round. If more is
/// needed, all metadata is live.
const MAX_WORK: usize = 1 << 20;

/// The use of a metadata field, the most demanding last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Live {
    /// Written before it is read, in ingress and in egress.
    Never,
    /// Parser or ingress may read it first: it starts as zero.
    Ingress,
    /// Egress may read what ingress left there.
    Egress,
}

pub(super) struct Liveness<'a> {
    fields: Fields<'a>,
    /// At the start of ingress, with all that the parser reads, and of egress; `None` if everything is live.
    live: Option<(Set, Set)>,
}

impl<'a> Liveness<'a> {
    pub fn new(program: &'a Program) -> Liveness<'a> {
        let fields = Fields::new(program);
        let live = analyse(program, &fields);
        Liveness { fields, live }
    }

    /// The use of a metadata field.
    pub fn of(&self, header: &str, field: &str) -> Live {
        let (Some((ingress, egress)), Some(at)) = (&self.live, self.fields.find(header, field))
        else {
            return Live::Egress;
        };
        match (egress.has(at), ingress.has(at)) {
            (true, _) => Live::Egress,
            (_, true) => Live::Ingress,
            _ => Live::Never,
        }
    }
}

/// A set of metadata fields, by their numbers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn add(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn join(&mut self, other: &Set) {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(to, from)| *to |= from);
    }

    fn without(mut self, other: &Set) -> Set {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(to, from)| *to &= !from);
        self
    }
}

/// The numbers of metadata fields.
struct Fields<'a> {
    numbers: HashMap<(&'a str, &'a str), usize>,
    /// Those of all fields of a header.
    headers: HashMap<&'a str, Range<usize>>,
}

impl<'a> Fields<'a> {
    fn new(program: &'a Program) -> Fields<'a> {
        let (mut numbers, mut headers) = (HashMap::new(), HashMap::new());
        let mut end = 0;
        for header in program.headers.iter().filter(|header| header.metadata) {
            let mut types = program.header_types.iter();
            let fields = types
                .find(|it| it.name == header.header_type)
                .map_or(&[][..], |it| &it.fields);
            let names = fields
                .iter()
                .map(|field| (header.name.as_str(), field.name.as_str()));
            numbers.extend(names.zip(end..));
            headers.insert(header.name.as_str(), end..end + fields.len());
            end += fields.len();
        }
        Fields { numbers, headers }
    }

    fn none(&self) -> Set {
        Set(vec![0; self.numbers.len().div_ceil(64) + 1])
    }

    fn find(&self, header: &str, field: &str) -> Option<usize> {
        self.numbers.get(&(header, field)).copied()
    }

    fn add(&self, (header, field): (&str, &str), to: &mut Set) {
        self.find(header, field)
            .into_iter()
            .for_each(|at| to.add(at));
    }

    fn field(&self, json: &Json) -> Option<usize> {
        match (
            json.get("type")?.as_str()?,
            json.get("value")?.as_array()?.as_slice(),
        ) {
            ("field", [header, field]) => self.find(header.as_str()?, field.as_str()?),
            _ => None,
        }
    }

    /// Adds all fields and headers that an expression names anywhere.
    fn mentioned(&self, json: &Json, to: &mut Set) {
        if let Some(at) = self.field(json) {
            return to.add(at);
        }
        match json {
            Json::Object(members) => {
                let header = members.get("value").and_then(Json::as_str);
                let all = header.and_then(|header| self.headers.get(header));
                all.into_iter().cloned().flatten().for_each(|at| to.add(at));
                members.values().for_each(|it| self.mentioned(it, to));
            }
            Json::Array(values) => values.iter().for_each(|it| self.mentioned(it, to)),
            _ => {}
        }
    }
}

/// The fields that an action reads before it writes them, and those that it writes in any case.
struct Effect {
    reads: Set,
    writes: Set,
}

impl Effect {
    fn new(primitives: &[Primitive], fields: &Fields) -> Effect {
        let (mut reads, mut writes) = (fields.none(), fields.none());
        let straight = primitives.iter().all(|it| !it.op.starts_with("_jump"));
        for primitive in primitives {
            let (target, sources) = match primitive.parameters.as_slice() {
                [target, source] if straight && primitive.op == "assign" => {
                    (fields.field(target), std::slice::from_ref(source))
                }
                all => (None, all),
            };
            let mut read = fields.none();
            sources
                .iter()
                .for_each(|it| fields.mentioned(it, &mut read));
            reads.join(&read.without(&writes));
            target.into_iter().for_each(|at| writes.add(at));
        }
        Effect { reads, writes }
    }
}

fn analyse(program: &Program, fields: &Fields) -> Option<(Set, Set)> {
    let tables = program.pipelines.iter().flat_map(|it| &it.tables);
    let edges = tables.map(|it| 1 + it.action_ids.len() + it.next_tables.len());
    let others = program.pipelines.iter().map(|it| it.conditionals.len());
    let nodes = edges.chain(others).sum::<usize>() + program.actions.len();
    let exits = |primitive: &Primitive| primitive.op == "exit";
    let mut primitives = program.actions.iter().flat_map(|action| &action.primitives);
    let rounds = MAX_WORK / (nodes * fields.none().0.len()).max(1);
    if primitives.any(exits) {
        return None;
    }
    let effects = program
        .actions
        .iter()
        .map(|it| (it.id, Effect::new(&it.primitives, fields)));
    let effects = effects.collect();
    // Checksums, digests and the switch may read these at any time.
    let mut always = fields.none();
    for (header, all) in &fields.headers {
        let standard = [
            "standard_metadata",
            "intrinsic_metadata",
            "queueing_metadata",
        ];
        let standard = standard.contains(header);
        all.clone()
            .filter(|_| standard)
            .for_each(|at| always.add(at));
    }
    for (_, (header, field)) in &program.field_aliases {
        fields.add((header, field), &mut always);
    }
    let lists = program.field_lists.iter().chain(&program.learn_lists);
    let inputs = program.calculations.iter().map(|it| &it.input);
    let profiles = program.pipelines.iter().flat_map(|it| &it.action_profiles);
    let selectors = profiles.filter_map(|it| Some(&it.selector.as_ref()?.input));
    let conditions = program
        .checksums
        .iter()
        .filter_map(|it| it.if_cond.as_ref());
    let deparsers = program.deparsers.iter().flat_map(|it| &it.primitives);
    (lists
        .map(|list| &list.elements)
        .chain(inputs)
        .chain(selectors)
        .flatten())
    .chain(conditions)
    .chain(deparsers.flat_map(|primitive| &primitive.parameters))
    .for_each(|json| fields.mentioned(json, &mut always));
    for checksum in &program.checksums {
        let (header, field) = &checksum.target;
        fields.add((header, field), &mut always);
    }
    let pipeline = |name: &str| program.pipelines.iter().find(|it| it.name == name);
    let egress = before(pipeline("egress")?, &always, &effects, fields, rounds)?;
    let mut ingress = before(pipeline("ingress")?, &egress, &effects, fields, rounds)?;
    for state in program.parsers.iter().flat_map(|it| &it.parse_states) {
        let ops = state.parser_ops.iter().flat_map(|op| &op.parameters);
        ops.chain(&state.transition_key)
            .for_each(|it| fields.mentioned(it, &mut ingress));
    }
    ingress.join(&egress);
    Some((ingress, egress))
}

/// The fields that are live at the start of a pipeline, from those at its end; `None` if more than so many rounds over all nodes
/// change something.
fn before(
    pipeline: &Pipeline,
    end: &Set,
    effects: &HashMap<u32, Effect>,
    fields: &Fields,
    rounds: usize,
) -> Option<Set> {
    let through = |action: u32, after: &Set| match effects.get(&action) {
        Some(effect) => {
            let mut fields = after.clone().without(&effect.writes);
            fields.join(&effect.reads);
            fields
        }
        None => after.clone(),
    };
    let mut live: HashMap<&str, Set> = HashMap::new();
    for _ in 0..rounds {
        let old = live.clone();
        let at = |next: Option<&str>, live: &HashMap<&str, Set>| match next {
            Some(next) => live.get(next).cloned().unwrap_or_else(|| fields.none()),
            None => end.clone(),
        };
        for call in pipeline.action_calls.iter().rev() {
            let after = at(call.next_node.as_deref(), &live);
            live.insert(&call.name, through(call.action_id, &after));
        }
        for condition in pipeline.conditionals.iter().rev() {
            let mut set = at(condition.true_next.as_deref(), &live);
            set.join(&at(condition.false_next.as_deref(), &live));
            fields.mentioned(&condition.expression, &mut set);
            live.insert(&condition.name, set);
        }
        for table in pipeline.tables.iter().rev() {
            let mut after = fields.none();
            nexts(table).for_each(|next| after.join(&at(next, &live)));
            let default = table.default_entry.as_ref().map(|it| it.action_id);
            // A miss may run no action.
            let runs_any = default.is_some() && table.action_profile.is_none();
            let mut set = if runs_any {
                fields.none()
            } else {
                after.clone()
            };
            for action in table.action_ids.iter().copied().chain(default) {
                set.join(&through(action, &after));
            }
            for key in &table.key {
                fields.add((&key.target.0, &key.target.1), &mut set);
            }
            live.insert(&table.name, set);
        }
        if live == old {
            return Some(at(pipeline.init_table.as_deref(), &live));
        }
    }
    None
}

/// The nodes that may follow a table.
fn nexts(table: &Table) -> impl Iterator<Item = Option<&str>> {
    let nexts = table.next_tables.values().map(Json::as_str);
    nexts.chain([table.base_default_next.as_deref()])
}
