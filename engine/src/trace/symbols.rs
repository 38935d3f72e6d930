//! Names and source positions of a program, for traces only.

use serde_json::Value as Json;

use super::super::json;
use super::packet::Source;

/// Names and source positions, by positions in the engine.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Parser states.
    pub states: Vec<StateSymbol>,
    /// Tables, conditions and calls.
    pub nodes: Vec<NodeSymbol>,
    /// The primitives of each action, the operations of each parser state, and the primitives of the deparser.
    pub actions: Vec<Vec<Option<Source>>>,
    /// Checksums.
    pub checksums: Vec<Option<Source>>,
    /// Parser errors and their numbers.
    errors: Vec<(String, u32)>,
}

#[derive(Debug)]
pub(crate) struct StateSymbol {
    pub name: String,
    pub source: Option<Source>,
    /// The parts of the transition key.
    pub key: Vec<String>,
    /// The cases of the transitions before the default one.
    pub cases: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct NodeSymbol {
    pub name: String,
    pub source: Option<Source>,
}

impl Symbols {
    /// Collects them in the engine's order.
    pub fn new(file: &json::Program) -> Symbols {
        let states = || file.parsers.iter().flat_map(|parser| &parser.parse_states);
        let nodes = file.pipelines.iter().flat_map(|pipeline| {
            let tables = pipeline
                .tables
                .iter()
                .map(|table| (&table.name, &table.source_info));
            let conditions = pipeline
                .conditionals
                .iter()
                .map(|condition| (&condition.name, &condition.source_info));
            let calls = pipeline
                .action_calls
                .iter()
                .map(|call| (&call.name, &call.source_info));
            tables.chain(conditions).chain(calls)
        });
        let deparsers = file.deparsers.iter().map(|it| &it.primitives);
        let primitives = file.actions.iter().map(|it| &it.primitives);
        let of = |primitives: &Vec<json::Primitive>| {
            let sources = primitives.iter().map(|it| source(&it.source_info));
            sources.collect()
        };
        let parser = states().map(|state| {
            let sources = state.parser_ops.iter().map(|op| source(&op.source_info));
            sources.collect()
        });
        let actions = primitives.map(of).chain(parser).chain(deparsers.map(of));
        Symbols {
            states: states().map(StateSymbol::new).collect(),
            nodes: nodes
                .map(|(name, info)| NodeSymbol {
                    name: name.clone(),
                    source: source(info),
                })
                .collect(),
            actions: actions.collect(),
            checksums: file
                .checksums
                .iter()
                .map(|checksum| source(&checksum.source_info))
                .collect(),
            errors: file.errors.clone(),
        }
    }

    /// The program's name for a parser error; its number if it has none.
    pub fn error(&self, number: u32) -> String {
        let known = self.errors.iter().find(|(_, known)| *known == number);
        known.map_or_else(|| number.to_string(), |(name, _)| name.clone())
    }
}

impl StateSymbol {
    fn new(state: &json::ParseState) -> StateSymbol {
        let cases = state
            .transitions
            .iter()
            .take_while(|transition| transition.kind != "default");
        let case = |transition: &json::Transition| {
            let value = transition.value.as_deref().unwrap_or_default();
            match &transition.mask {
                _ if transition.kind == "parse_vset" => format!("value set {value}"),
                Some(mask) => format!("{value} &&& {mask}"),
                None => value.to_owned(),
            }
        };
        StateSymbol {
            name: state.name.clone(),
            source: source(&state.source_info),
            key: state.transition_key.iter().map(key_name).collect(),
            cases: cases.map(case).collect(),
        }
    }
}

/// A part of a transition key: a field, or bits ahead.
fn key_name(part: &Json) -> String {
    match json::Term::parse(part, "") {
        Ok(json::Term::Field(header, field)) => field_name(&header, &field),
        Ok(json::Term::StackField(stack, field)) => format!("{stack}.last.{field}"),
        Ok(json::Term::UnionStackField(stack, member, field)) => {
            format!("{stack}.last.{member}.{field}")
        }
        Ok(json::Term::Lookahead(offset, width)) => format!("lookahead({offset}, {width})"),
        _ => String::new(),
    }
}

/// Returns a field's full name. p4c moves the program's metadata and local variables to a header that the source does not
/// have.
pub(super) fn field_name(header: &str, field: &str) -> String {
    match header {
        "scalars" => field.to_owned(),
        header => format!("{header}.{field}"),
    }
}

fn source(info: &json::SourceInfo) -> Option<Source> {
    Some(Source {
        file: info.filename.clone()?,
        line: info.line?,
        text: info.fragment.clone().unwrap_or_default(),
    })
}
