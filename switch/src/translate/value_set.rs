//! Parser value sets (P4Runtime §9.6).

use ultima_p4runtime::v1::{ValueSetEntry, ValueSetMember};

use super::edit::Edit;
use super::query::{Query, Row, cost_of};
use super::table_entry::{key, match_message};
use crate::target::Refusal;
use ultima_engine::FieldMatch;

/// Replaces all members.
pub(super) fn write(entry: ValueSetEntry) -> Result<Edit, Refusal> {
    let id = entry.value_set_id;
    let members = entry.members.into_iter().map(|member| key(member.r#match));
    let members = members.collect::<Result<Vec<_>, _>>();
    Edit::new(move |pipeline| Ok(pipeline.engine.value_set_mut(id)?.set(&members?)?))
}

pub(super) fn message(value_set_id: u32, members: Vec<Vec<FieldMatch>>) -> ValueSetEntry {
    let members = members.into_iter().map(|member| ValueSetMember {
        r#match: member.into_iter().map(match_message).collect(),
    });
    ValueSetEntry {
        value_set_id,
        members: members.collect(),
    }
}

/// Reads one value set, or all of them with id 0. Single members cannot be read.
pub(super) fn read(id: u32) -> Query {
    Box::new(move |pipeline, scan, found| {
        let past = *scan;
        let sets = pipeline.engine.value_sets_of(id)?.into_iter();
        for set in sets.filter(|set| !past.is_past(set.id())) {
            if !scan.admits(set.id(), 0, cost_of(set.members().len())) {
                break;
            }
            found.push(Row::ValueSet(set.id(), set.members().to_vec()));
        }
        Ok(())
    })
}
