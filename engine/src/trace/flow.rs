//! Traces of tables and conditions.

use super::super::action::{Action, Machine};
use super::super::meter::Color;
use super::super::profile::Profile;
use super::super::table::Table;
use super::event::{Call, Counted, Event, Named};
use super::value::Value;

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
        let found = table.explain(profiles, self);
        let length = self.verdict.ingress_length;
        let Some(recorder) = &mut self.state.trace else {
            return;
        };
        let action = found.action.map(|action| &actions[action.action]);
        let symbols = recorder.symbols();
        recorder.source.clone_from(&symbols.nodes[node].source);
        let call = action.map(|action| {
            let params = action.params.iter().map(|param| Named {
                name: param.name.clone(),
                value: Value::new(&param.slot.canonical(found.args)),
            });
            Call {
                name: action.name.clone(),
                params: params.collect(),
            }
        });
        recorder.note(Event::Table {
            name: table.name().to_owned(),
            key: found.key,
            hit: found.hit,
            priority: found.priority,
            via: found.via,
            action: call,
            counter: found.counter.map(|before| Counted {
                packets: before.packets.wrapping_add(1),
                bytes: before.bytes.wrapping_add(u64::from(length)),
            }),
        });
    }

    /// Records the result of a condition.
    #[cold]
    pub(crate) fn tested(&mut self, node: usize, holds: bool) {
        if let Some(recorder) = &mut self.state.trace {
            let symbols = recorder.symbols();
            let symbol = &symbols.nodes[node];
            recorder.source.clone_from(&symbol.source);
            let name = symbol.name.clone();
            recorder.note(Event::Condition { name, holds });
        }
    }

    /// Records a call of an action outside tables.
    #[cold]
    pub(crate) fn called(&mut self, node: usize, name: &str) {
        if let Some(recorder) = &mut self.state.trace {
            let symbols = recorder.symbols();
            let symbol = &symbols.nodes[node];
            recorder.source.clone_from(&symbol.source);
            let name = name.to_owned();
            recorder.note(Event::Statements { name });
        }
    }

    /// Records the colour of a table's direct meter.
    #[cold]
    pub(crate) fn metered(&mut self, color: Color) {
        if let Some(recorder) = &mut self.state.trace {
            recorder.note(Event::Meter {
                meter: None,
                index: None,
                color: Some(color as u8),
            });
        }
    }
}
