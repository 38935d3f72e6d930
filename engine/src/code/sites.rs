//! Records traced packets while the code processes them.

use super::super::action::Machine;
use super::super::expression::Test;
use super::super::table::Table;
use super::{Code, Shared};

/// A node or primitive of the program whose code starts at an address.
#[derive(Debug)]
pub(super) enum Site {
    /// A table: its node and its position.
    Table {
        node: usize,
        table: usize,
    },
    Condition {
        node: usize,
        test: Box<Test>,
    },
    /// A call of an action outside tables.
    Call(usize),
    State(usize),
    /// The transitions of a state.
    Select(usize),
    Accept,
    /// The primitive at this position of an action, or the operation of a parser's state.
    Primitive {
        action: usize,
        index: usize,
    },
}

/// The primitive that has begun and not ended: its action and position.
pub(super) type Unfinished = Option<(usize, usize)>;

impl Code {
    /// Records the nodes and primitives that start at an address, before they run, and the end of the primitive before them.
    #[cold]
    pub(super) fn record(
        &self,
        at: usize,
        tables: &[Table],
        shared: Shared,
        machine: &mut Machine,
        unfinished: &mut Unfinished,
    ) {
        let first = self
            .sites
            .partition_point(|(site, _)| (*site as usize) < at);
        let here = self.sites[first..].iter();
        for (_, site) in here.take_while(|(site, _)| *site as usize == at) {
            finish(unfinished, shared, machine);
            let actions = shared.actions;
            match site {
                Site::Table { node, table } => {
                    machine.looked_up(*node, &tables[*table], shared.profiles, actions);
                }
                Site::Condition { node, test } => {
                    let holds = test.eval(machine.env());
                    machine.tested(*node, holds);
                }
                Site::Call(node) => machine.called(*node),
                Site::Primitive { action, index } => {
                    machine.before((*action, *index), &actions[*action].code[*index]);
                    *unfinished = Some((*action, *index));
                }
                Site::State(state) => shared.parser.entered(machine, *state),
                Site::Accept => shared.parser.ended(machine),
                Site::Select(state) => shared.parser.selected(machine, *state),
            }
        }
    }
}

/// Records the end of a primitive.
pub(super) fn finish(unfinished: &mut Unfinished, shared: Shared, machine: &mut Machine) {
    if let Some((action, index)) = unfinished.take() {
        machine.after(&shared.actions[action].code[index]);
    }
}
