//! Control flow of a pipeline: tables and conditions.

use std::collections::HashMap;

use super::action::Action;
use super::error::LoadError;
use super::expression::Test;
use super::json;
use super::primitive::Names;
use super::table::{Next, Table};

#[derive(Debug)]
pub(super) enum Node {
    Table(usize),
    Condition {
        test: Test,
        yes: Next,
        no: Next,
    },
    /// An action, by its position, and its arguments.
    Action {
        action: usize,
        args: Box<[u8]>,
        next: Next,
    },
}

/// The nodes of all pipelines and how to reach them.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub nodes: Vec<Node>,
    pub ingress: Next,
    pub egress: Next,
}

pub(super) struct NodeNames<'a> {
    at: String,
    names: HashMap<&'a str, usize>,
}

impl<'a> NodeNames<'a> {
    /// Numbers the nodes of a pipeline from `first`: tables, then conditions, then calls.
    pub fn new(pipeline: &'a json::Pipeline, first: usize) -> Result<NodeNames<'a>, LoadError> {
        let at = format!("pipeline {}", pipeline.name);
        let tables = pipeline.tables.iter().map(|table| &table.name);
        let conditions = pipeline
            .conditionals
            .iter()
            .map(|condition| &condition.name);
        let calls = pipeline.action_calls.iter().map(|call| &call.name);
        let mut names = HashMap::new();
        for (index, name) in tables.chain(conditions).chain(calls).enumerate() {
            if names.insert(name.as_str(), first + index).is_some() {
                return Err(LoadError::malformed(format!("{name} is there twice"), at));
            }
        }
        Ok(NodeNames { at, names })
    }

    pub fn find(&self, name: Option<&str>) -> Result<Next, LoadError> {
        let Some(name) = name else { return Ok(None) };
        let found = self.names.get(name).copied();
        LoadError::found(found, "node", name, &self.at).map(Some)
    }
}

impl Flow {
    /// Adds the conditions and calls of a pipeline, whose tables are there already.
    pub fn add_branches(
        &mut self,
        pipeline: &json::Pipeline,
        nodes: &NodeNames,
        names: &Names,
        actions: &[Action],
    ) -> Result<(), LoadError> {
        for condition in &pipeline.conditionals {
            let at = format!("{}, condition {}", nodes.at, condition.name);
            let expression = json::Term::parse(&condition.expression, &at)?;
            self.nodes.push(Node::Condition {
                test: names.scope(&[], &at).test_or_data(&expression)?,
                yes: nodes.find(condition.true_next.as_deref())?,
                no: nodes.find(condition.false_next.as_deref())?,
            });
        }
        for call in &pipeline.action_calls {
            let at = format!("{}, call {}", nodes.at, call.name);
            let found = actions
                .iter()
                .position(|action| action.id == call.action_id);
            let action = found.filter(|action| actions[*action].params.is_empty());
            let action = action.ok_or_else(|| {
                let what = format!("there is no action {} without parameters", call.action_id);
                LoadError::malformed(what, at)
            })?;
            self.nodes.push(Node::Action {
                action,
                args: Box::default(),
                next: nodes.find(call.next_node.as_deref())?,
            });
        }
        Ok(())
    }

    /// Checks that no packet can meet a node twice in one pass.
    pub fn check_acyclic(&self, tables: &[Table]) -> Result<(), LoadError> {
        let mut state = vec![Visit::New; self.nodes.len()];
        for root in [self.ingress, self.egress].into_iter().flatten() {
            // Depth first, without recursion: a pipeline may be long.
            let mut path = vec![(root, 0)];
            while let Some((node, branch)) = path.pop() {
                state[node] = Visit::OnPath;
                match self.branches(node, tables).get(branch) {
                    None => state[node] = Visit::Done,
                    Some(next) => {
                        path.push((node, branch + 1));
                        match next.map(|next| (next, state[next])) {
                            Some((_, Visit::OnPath)) => {
                                let what = "a packet could run in circles";
                                return Err(LoadError::malformed(what, "pipelines"));
                            }
                            Some((next, Visit::New)) => path.push((next, 0)),
                            Some((_, Visit::Done)) | None => {}
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of edges to each node.
    pub fn ways(&self, tables: &[Table]) -> Vec<usize> {
        let mut ways = vec![0; self.nodes.len()];
        for node in 0..self.nodes.len() {
            for next in self.branches(node, tables).into_iter().flatten() {
                ways[next] += 1;
            }
        }
        ways
    }

    fn branches(&self, node: usize, tables: &[Table]) -> Vec<Next> {
        match &self.nodes[node] {
            Node::Table(table) => tables[*table].branches(),
            Node::Condition { yes, no, .. } => vec![*yes, *no],
            Node::Action { next, .. } => vec![*next],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    OnPath,
    Done,
}
