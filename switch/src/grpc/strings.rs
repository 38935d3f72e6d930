//! Types with strings in the control plane (`@p4runtime_translation` with `string`, P4Runtime §8.4.6, §18.1).
//!
//! Requests are translated before the rest of the server sees them, responses afterwards. A string gets a number at its first
//! write; types of one URI share strings. The server counts the uses of each number and reuses numbers without uses when they
//! run out. A number in the program's own entries appears as a decimal string.

mod numbers;

use std::collections::HashMap;

use tonic::Code;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::SdnType;
use ultima_p4runtime::config::v1::{P4Info, P4NamedType};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::field_match::FieldMatchType;
use ultima_p4runtime::v1::table_action::Type as ActionType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{self, Action, TableAction, TableEntry};

use super::error::EntityError;
use super::profile::member_entity;
use super::read;
use super::table_entry::{key, message};
use crate::engine::{Engine, FieldMatch};
use crate::pipeline::Pipeline;
use numbers::Numbers;

/// Longest string, in bytes.
const MAX_LENGTH: usize = 256;
/// Largest number of strings of one URI, if the packet's field is wide enough.
const MAX_STRINGS: u64 = 1 << 16;

/// The strings of a program's translated types.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    types: Vec<Type>,
    /// Positions of types by table and match field.
    fields: HashMap<(u32, u32), usize>,
    /// Positions of types by action and parameter.
    params: HashMap<(u32, u32), usize>,
}

/// All types of one URI.
#[derive(Debug)]
struct Type {
    uri: String,
    /// The numbers that fit all fields and parameters of these types.
    numbers: Numbers,
}

/// A number of a type, by its position.
type Use = (usize, u64);

/// The direction of a translation.
enum Side<'a> {
    /// To the switch, for a write. New strings get numbers, and each value counts as a use.
    Write(&'a mut Strings, &'a mut Vec<Use>),
    /// To the switch, for a read.
    Request(&'a Strings),
    /// To the controller.
    Controller(&'a Strings),
}

/// An object whose values are strings.
enum Holder {
    Entry(u32, Vec<FieldMatch>, i32),
    DefaultEntry(u32),
    Member(u32, u32),
}

/// A write in progress.
pub(super) struct Writing {
    holder: Option<Holder>,
    /// Uses of the holder before the write.
    before: Vec<Use>,
    /// Uses of the message, counted until the end of the write.
    held: Vec<Use>,
}

impl Strings {
    /// Returns the strings of a freshly loaded program.
    pub(crate) fn new(p4info: &P4Info, engine: &Engine) -> Strings {
        let mut strings = Strings::default();
        for table in &p4info.tables {
            let id = table.preamble.as_ref().map_or(0, |preamble| preamble.id);
            for field in &table.match_fields {
                let bits = engine.table(id).ok().and_then(|t| t.field_bits(field.id));
                if let Some(at) = strings.add(p4info, field.type_name.as_ref(), bits) {
                    strings.fields.insert((id, field.id), at);
                }
            }
        }
        for action in &p4info.actions {
            let id = action.preamble.as_ref().map_or(0, |preamble| preamble.id);
            for param in &action.params {
                let bits = engine.param_bits(id, param.id);
                if let Some(at) = strings.add(p4info, param.type_name.as_ref(), bits) {
                    strings.params.insert((id, param.id), at);
                }
            }
        }
        strings
    }

    /// Returns the position of a field's or parameter's type, if it is a string. `bits` is the width in the packet, or `None` if
    /// the program does not use it.
    fn add(
        &mut self,
        p4info: &P4Info,
        named: Option<&P4NamedType>,
        bits: Option<u32>,
    ) -> Option<usize> {
        let types = &p4info.type_info.as_ref()?.new_types;
        let spec = types.get(&named?.name)?.representation.as_ref()?;
        let uri = match spec {
            Representation::TranslatedType(translated)
                if matches!(translated.sdn_type, Some(SdnType::SdnString(_))) =>
            {
                &translated.uri
            }
            _ => return None,
        };
        let bits = bits?.min(63);
        let max = ((1u64 << bits) - 1).min(MAX_STRINGS);
        let known = self.types.iter().position(|known| known.uri == *uri);
        Some(match known {
            Some(at) => {
                self.types[at].numbers.limit(max);
                at
            }
            None => {
                self.types.push(Type {
                    uri: uri.clone(),
                    numbers: Numbers::new(max),
                });
                self.types.len() - 1
            }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.types.is_empty()
    }
}

impl Strings {
    /// Starts recording changes for undo.
    pub(super) fn begin(&mut self) {
        self.types.iter_mut().for_each(|one| one.numbers.begin());
    }

    /// Accepts the recorded changes.
    pub(super) fn accept(&mut self) {
        self.types.iter_mut().for_each(|one| one.numbers.accept());
    }

    /// Undoes the recorded changes.
    pub(super) fn undo(&mut self) {
        self.types.iter_mut().for_each(|one| one.numbers.undo());
    }

    fn hold(&mut self, uses: &[Use]) {
        for (at, number) in uses {
            self.types[*at].numbers.hold(*number);
        }
    }

    fn release(&mut self, uses: &[Use]) {
        for (at, number) in uses {
            self.types[*at].numbers.release(*number);
        }
    }
}

/// Translates an entity to write. Returns `None` if the program has no strings.
pub(super) fn write(
    pipeline: &mut Pipeline,
    update: UpdateType,
    entity: &mut Entity,
) -> Result<Option<Writing>, EntityError> {
    if pipeline.strings.is_empty() {
        return Ok(None);
    }
    let mut held = Vec::new();
    let translated = if update == UpdateType::Delete {
        // §9.1, §9.2.1: of what is deleted, only the key is looked at.
        match entity {
            Entity::TableEntry(entry) => entry.action = None,
            Entity::ActionProfileMember(member) => member.action = None,
            _ => {}
        }
        Side::Request(&pipeline.strings).entity(entity)
    } else {
        Side::Write(&mut pipeline.strings, &mut held).entity(entity)
    };
    if let Err(error) = translated {
        pipeline.strings.release(&held);
        return Err(error);
    }
    let holder = Holder::of(entity);
    let before = holder.iter().flat_map(|one| one.uses(pipeline)).collect();
    Ok(Some(Writing {
        holder,
        before,
        held,
    }))
}

impl Writing {
    /// Ends the write, successful or not.
    pub(super) fn end(self, pipeline: &mut Pipeline) {
        let after = self.holder.iter().flat_map(|one| one.uses(pipeline));
        let after: Vec<_> = after.collect();
        pipeline.strings.hold(&after);
        pipeline.strings.release(&self.before);
        pipeline.strings.release(&self.held);
    }
}

impl Holder {
    /// Returns the object that an entity writes to. An entity with an invalid key has none.
    fn of(entity: &Entity) -> Option<Holder> {
        match entity {
            Entity::TableEntry(entry) if entry.is_default_action => {
                Some(Holder::DefaultEntry(entry.table_id))
            }
            Entity::TableEntry(entry) => {
                let key = key(entry).ok()?;
                Some(Holder::Entry(entry.table_id, key, entry.priority))
            }
            Entity::ActionProfileMember(member) => {
                Some(Holder::Member(member.action_profile_id, member.member_id))
            }
            _ => None,
        }
    }

    /// Returns the object's numbers, each once per use; none if the object does not exist.
    fn uses(&self, pipeline: &Pipeline) -> Vec<Use> {
        let engine = &pipeline.engine;
        let entity = match self {
            Holder::Entry(table, key, priority) => engine.table(*table).and_then(|table| {
                let view = table.get(key, *priority)?;
                Ok(Entity::TableEntry(message(table, &view, false)))
            }),
            Holder::DefaultEntry(table) => engine.table(*table).map(|table| {
                let view = table.default_entry();
                Entity::TableEntry(message(table, &view, true))
            }),
            Holder::Member(profile, id) => engine.profile(*profile).and_then(|profile| {
                let call = profile.member(*id)?;
                Ok(member_entity(profile, *id, &call))
            }),
        };
        entity.map_or_else(|_| Vec::new(), |entity| uses(&pipeline.strings, entity))
    }
}

/// Returns the numbers in an entity of the switch.
fn uses(strings: &Strings, mut entity: Entity) -> Vec<Use> {
    let mut found = Vec::new();
    let all = values(strings, &mut entity, &mut |at, value| {
        found.push((at, number(value)));
        Ok(())
    });
    debug_assert!(all.is_ok(), "nothing fails here");
    found
}

/// Translates a read request.
pub(super) fn request(strings: &Strings, entity: &mut Entity) -> Result<(), EntityError> {
    match strings.is_empty() {
        true => Ok(()),
        false => Side::Request(strings).entity(entity),
    }
}

/// Translates the entities of a response.
pub(super) fn answer(strings: &Strings, found: &mut [Entity]) -> Result<(), EntityError> {
    if strings.is_empty() {
        return Ok(());
    }
    let mut side = Side::Controller(strings);
    found.iter_mut().try_for_each(|entity| side.entity(entity))
}

/// Translates entries for the controller, without those that have no translation.
pub(crate) fn with_strings(strings: &Strings, entries: Vec<TableEntry>) -> Vec<TableEntry> {
    let entries = entries.into_iter().filter_map(|entry| {
        let mut entity = [Entity::TableEntry(entry)];
        answer(strings, &mut entity).ok()?;
        match entity {
            [Entity::TableEntry(entry)] => Some(entry),
            _ => None,
        }
    });
    entries.collect()
}

/// Assigns strings to the numbers in the program's own entries.
pub(crate) fn adopt(pipeline: &mut Pipeline) {
    if pipeline.strings.is_empty() {
        return;
    }
    let requests = [
        Entity::TableEntry(TableEntry::default()),
        Entity::TableEntry(TableEntry {
            is_default_action: true,
            ..TableEntry::default()
        }),
    ];
    let mut found = Vec::new();
    for request in requests {
        let read = read::read_raw(pipeline, &request, &mut found);
        debug_assert!(read.is_ok(), "a wildcard finds what there is");
    }
    for entity in found {
        let uses = uses(&pipeline.strings, entity);
        pipeline.strings.hold(&uses);
    }
}

impl Side<'_> {
    fn entity(&mut self, entity: &mut Entity) -> Result<(), EntityError> {
        match self {
            Side::Write(strings, held) => {
                // The types' numbers change while the positions of their values are looked up.
                let mut types = std::mem::take(&mut strings.types);
                let result = values(strings, entity, &mut |at, value| {
                    let number = types[at].hold(value)?;
                    held.push((at, number));
                    *value = number.to_be_bytes().to_vec();
                    Ok(())
                });
                strings.types = types;
                result
            }
            Side::Request(strings) => values(strings, entity, &mut |at, value| {
                let known = strings.types[at].numbers.number(value);
                let missing = || {
                    let text = String::from_utf8_lossy(value);
                    let message = format!("nothing that was written has {text:?}");
                    EntityError::new(Code::NotFound, message)
                };
                *value = known.ok_or_else(missing)?.to_be_bytes().to_vec();
                Ok(())
            }),
            Side::Controller(strings) => values(strings, entity, &mut |at, value| {
                let number = number(value);
                let known = strings.types[at].numbers.string(number);
                *value = known.map_or_else(|| number.to_string().into_bytes(), <[_]>::to_vec);
                Ok(())
            }),
        }
    }
}

impl Type {
    /// Returns the number of a string, a new one if it has none, and counts one more use.
    fn hold(&mut self, string: &[u8]) -> Result<u64, EntityError> {
        let length = string.len();
        if length == 0 || length > MAX_LENGTH {
            let uri = &self.uri;
            return Err(EntityError::invalid(format!(
                "a string of {uri} has {length} bytes, expected 1 to {MAX_LENGTH}"
            )));
        }
        self.numbers.hold_string(string).map_err(|_| {
            let (uri, max) = (&self.uri, self.numbers.max());
            let what = format!(
                "there are {max} strings of {uri} already, all that the program has room for"
            );
            EntityError::new(Code::ResourceExhausted, what)
        })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Passes on every translated value of a message, with the position of its type.
fn values(
    strings: &Strings,
    entity: &mut Entity,
    each: &mut impl FnMut(usize, &mut Vec<u8>) -> Result<(), EntityError>,
) -> Result<(), EntityError> {
    let of_action = |action: &mut Action, each: &mut dyn FnMut(usize, &mut Vec<u8>) -> _| {
        for param in &mut action.params {
            if let Some(at) = strings.params.get(&(action.action_id, param.param_id)) {
                each(*at, &mut param.value)?;
            }
        }
        Ok::<(), EntityError>(())
    };
    let of_entry = |entry: &mut TableEntry, each: &mut dyn FnMut(usize, &mut Vec<u8>) -> _| {
        for field in &mut entry.r#match {
            let Some(at) = strings.fields.get(&(entry.table_id, field.field_id)) else {
                continue;
            };
            match &mut field.field_match_type {
                Some(FieldMatchType::Exact(exact)) => each(*at, &mut exact.value)?,
                Some(FieldMatchType::Optional(optional)) => each(*at, &mut optional.value)?,
                // The table refuses any other match of the field.
                _ => {}
            }
        }
        match entry.action.as_mut() {
            Some(TableAction {
                r#type: Some(ActionType::Action(action)),
            }) => of_action(action, each),
            Some(TableAction {
                r#type: Some(ActionType::ActionProfileActionSet(set)),
            }) => {
                let actions = set.action_profile_actions.iter_mut();
                let mut actions = actions.filter_map(|one| one.action.as_mut());
                actions.try_for_each(|action| of_action(action, each))
            }
            _ => Ok(()),
        }
    };
    match entity {
        Entity::TableEntry(entry) => of_entry(entry, each),
        Entity::DirectCounterEntry(v1::DirectCounterEntry {
            table_entry: Some(entry),
            ..
        })
        | Entity::DirectMeterEntry(v1::DirectMeterEntry {
            table_entry: Some(entry),
            ..
        }) => of_entry(entry, each),
        Entity::ActionProfileMember(member) => match &mut member.action {
            Some(action) => of_action(action, each),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}
