//! Records traced packets while the code processes them.

use super::super::action::Machine;
use super::super::expression::Test;
use super::super::table::Table;
use super::{Code, Shared};

/// A node or primitive of the program whose code starts at an address.
#[derive(Debug)]
pub(super) enum Site {
    /// A table: its node and its position.
    Table { node: usize, table: usize },
    /// A condition between tables.
    Condition { node: usize, test: Box<Test> },
    /// A call of an action outside tables.
    Call { node: usize, action: usize },
    /// A state of the parser.
    State(usize),
    /// An operation of the parser: its state and its position.
    Operation(usize, usize),
    /// The transitions of a state.
    Select(usize),
    /// The primitive at this position of an action.
    Primitive { action: usize, index: usize },
}

/// A step of a packet that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begun {
    /// A primitive: its action and position.
    Primitive(usize, usize),
    /// An operation of the parser: its state and position, and where it began in the frame.
    Operation(usize, usize, usize),
}

/// The step that has begun and not ended.
pub(super) type Unfinished = Option<Begun>;

impl Code {
    /// Records the nodes and primitives that start at an address, before they run, and the end of the primitive before them.
    #[cold]
    pub(super) fn record(
        &self,
        at: usize,
        args: &[u8],
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
                    let holds = test.eval(machine.env(args));
                    machine.tested(*node, holds);
                }
                Site::Call { node, action } => {
                    machine.called(*node, *action, &actions[*action].name);
                }
                Site::Primitive { action, index } => {
                    machine.before(*index, &actions[*action].code, args);
                    *unfinished = Some(Begun::Primitive(*action, *index));
                }
                Site::State(state) => shared.parser.entered(machine, *state),
                Site::Operation(state, index) => {
                    shared.parser.before_op(machine, *state, *index);
                    let start = machine.parsed.bytes;
                    *unfinished = Some(Begun::Operation(*state, *index, start));
                }
                Site::Select(state) => shared.parser.selected(machine, *state),
            }
        }
    }
}

/// Records the end of a step.
pub(super) fn finish(unfinished: &mut Unfinished, shared: Shared, machine: &mut Machine) {
    match unfinished.take() {
        Some(Begun::Primitive(action, index)) => {
            machine.after(&shared.actions[action].code[index]);
        }
        Some(Begun::Operation(state, index, start)) => {
            shared.parser.after_op(machine, (state, index), start);
        }
        None => {}
    }
}
