//! Traces of tables and conditions.

use super::super::action::{Action, Machine};
use super::super::meter::Color;
use super::super::profile::Profile;
use super::super::table::Table;

impl Machine<'_> {
    /// Records a table lookup before it happens.
    #[cold]
    pub(crate) fn looked_up(
        &mut self,
        node: usize,
        table: &Table,
        profiles: &[Profile],
        actions: &[Action],
    ) {
        let text = table.explain(profiles, actions, self);
        self.at_node(node, &text);
    }

    #[cold]
    pub(crate) fn tested(&mut self, node: usize, holds: bool) {
        if let Some(recorder) = &mut self.state.trace {
            let symbols = recorder.symbols();
            let symbol = &symbols.nodes[node];
            let source = symbol.source.as_ref();
            let condition = source.map_or(&symbol.name, |source| &source.text);
            let text = format!("if {condition}: {holds}");
            self.at_node(node, &text);
        }
    }

    /// Records a call of an action outside tables.
    #[cold]
    pub(crate) fn called(&mut self, node: usize) {
        self.at_node(node, "statements");
    }

    /// Records the colour of a table's direct meter.
    #[cold]
    pub(crate) fn metered(&mut self, color: Color) {
        if let Some(recorder) = &mut self.state.trace {
            let color = Color::name(color as u64);
            recorder.note(3, format_args!("meter of the table: {color}"));
        }
    }

    fn at_node(&mut self, node: usize, text: &str) {
        if let Some(recorder) = &mut self.state.trace {
            let symbols = recorder.symbols();
            recorder.source.clone_from(&symbols.nodes[node].source);
            recorder.note(2, format_args!("{text}"));
        }
    }
}
