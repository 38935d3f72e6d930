//! What commands print as JSON or YAML: one place for each shape. docs/guide.md tells users what the fields are; names of fields stay,
//! others may come.

mod applied;
mod check;
mod fabric;
mod job;
mod membership;
mod plan;
mod telemetry;

use serde::Serialize;

pub use applied::{Action, Applied};
pub use check::Report as Check;
pub use fabric::{Checked, Diff, Drained, Switch, held_back_text};
pub use job::{Deleted, Job, state};
pub use membership::{Event, Now};
pub use plan::Plan;
pub use telemetry::telemetry;

/// One thing as it is, several as a list: a job, or all those of a grid.
#[derive(Serialize)]
#[serde(untagged)]
pub enum OneOrAll<T> {
    /// One.
    One(T),
    /// Any other number.
    All(Vec<T>),
}

impl<T> OneOrAll<T> {
    /// As many as there are.
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
    fn one_is_no_list() {
        let text = |all| serde_json::to_string(&OneOrAll::of(all)).expect("JSON");
        assert_eq!(text(vec![1]), "1");
        assert_eq!(text(vec![1, 2]), "[1,2]");
        assert_eq!(text(vec![]), "[]");
    }
}
