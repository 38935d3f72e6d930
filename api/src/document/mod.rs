//! Documents: jobs, fabrics, events and results of calls as JSON or YAML. docs/guide.md describes the fields for users. Released fields
//! keep their names; new ones may be added.

#![allow(missing_docs)] // docs/guide.md has them.

mod apply;
mod check;
mod fabric;
mod job;
mod membership;
mod plan;
mod telemetry;

use serde::Serialize;

pub use apply::{Action, Applied};
pub use check::{Check, Path, TestedPath};
pub use fabric::{
    Diff, Difference, Drained, Host, Link, NotRerouted, RecentEvent, Switch, Unreachable,
    not_rerouted, port_state,
};
pub use job::{Deleted, Job, kind, ready, state, status, uid};
pub use membership::{Current, Event};
pub use plan::{Plan, PlannedJob, PlannedSwitch};
pub use telemetry::telemetry;

/// One document as it is, several as a list: a job, or all jobs of a grid.
#[derive(Serialize)]
#[serde(untagged)]
pub enum OneOrAll<T> {
    /// Exactly one.
    One(T),
    /// Any other number.
    All(Vec<T>),
}

impl<T> OneOrAll<T> {
    /// `One` if there is exactly one, else `All`.
    pub fn of(mut all: Vec<T>) -> Self {
        match (all.pop(), all.is_empty()) {
            (Some(one), true) => OneOrAll::One(one),
            (last, _) => {
                all.extend(last);
                OneOrAll::All(all)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_document_is_not_a_list() {
        let text = |all| serde_json::to_string(&OneOrAll::of(all)).expect("JSON");
        assert_eq!(text(vec![1]), "1");
        assert_eq!(text(vec![1, 2]), "[1,2]");
        assert_eq!(text(vec![]), "[]");
    }
}
