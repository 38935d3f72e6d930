//! Parser value sets (P4Runtime §9.6).

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::{ValueSetEntry, ValueSetMember};

use super::scan::{Scan, cost_of};
use super::table_entry::{key, match_message};
use super::write::Edit;
use crate::engine::{Engine, ValueSet};
use crate::target::Refusal;

/// Replaces all members.
pub(super) fn write(entry: ValueSetEntry) -> Result<Edit, Refusal> {
    let id = entry.value_set_id;
    let members = entry.members.into_iter().map(|member| key(member.r#match));
    let members = members.collect::<Result<Vec<_>, _>>();
    Edit::new(move |pipeline| Ok(pipeline.engine.value_set_mut(id)?.set(&members?)?))
}

/// Reads one value set, or all of them with id 0. Single members cannot be read.
pub(super) fn read(
    engine: &Engine,
    request: &ValueSetEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let mut push = |set: &ValueSet| {
        let members = set.members().iter().map(|member| ValueSetMember {
            r#match: member.iter().map(match_message).collect(),
        });
        found.push(Entity::ValueSetEntry(ValueSetEntry {
            value_set_id: set.id(),
            members: members.collect(),
        }));
    };
    match request.value_set_id {
        0 => {
            let past = *scan;
            for set in engine.value_sets().filter(|set| !past.is_past(set.id())) {
                if !scan.admits(set.id(), 0, cost_of(set.members().len())) {
                    break;
                }
                push(set);
            }
        }
        id => push(engine.value_set(id)?),
    }
    Ok(())
}
