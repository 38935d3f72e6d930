//! Types that the control plane sees as strings (`@p4runtime_translation` with `string`, P4Runtime
//! §8.4.6, §18.1).
//!
//! Messages are translated before the rest of the server sees them and after it has written them.
//! A string stands for a number that is given out when it first comes in a write; types of one URI
//! share their strings. Numbers that no entry or member has any more are given out again when they
//! run out. What the program's own entries have is shown as the decimal number.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tonic::Code;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::SdnType;
use ultima_p4runtime::config::v1::{P4Info, P4NamedType};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::field_match::FieldMatchType;
use ultima_p4runtime::v1::table_action::Type as ActionType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{self, Action, ActionProfileMember, TableAction, TableEntry};

use super::error::EntityError;
use super::read;
use crate::engine::Engine;
use crate::pipeline::Pipeline;

/// Longest string, in bytes.
const MAX_LENGTH: usize = 256;
/// Strings of one URI, if the packet's field has room for more numbers.
const MAX_STRINGS: u64 = 1 << 16;

/// The strings of a program's translated types.
#[derive(Debug, Clone, Default)]
pub(crate) struct Strings {
    types: Vec<Type>,
    /// Positions of types by table and match field.
    fields: HashMap<(u32, u32), usize>,
    /// Positions of types by action and parameter.
    params: HashMap<(u32, u32), usize>,
}

/// All types of one URI.
#[derive(Debug, Clone)]
struct Type {
    uri: String,
    /// Greatest number that fits all fields and parameters of these types.
    max: u64,
    numbers: HashMap<Vec<u8>, u64>,
    strings: BTreeMap<u64, Vec<u8>>,
}

/// The side that a message is translated for.
enum Side<'a> {
    /// The switch's. New strings get numbers.
    Write(&'a mut Strings),
    /// The switch's, of a request that changes nothing.
    Request(&'a Strings),
    /// The controller's.
    Controller(&'a Strings),
}

impl Strings {
    /// Those of a freshly loaded program.
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

    /// The position of a field's or parameter's type, if it is a string. `bits` are those of the
    /// packet's number; none if the program does not use it.
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
                self.types[at].max = self.types[at].max.min(max);
                at
            }
            None => {
                self.types.push(Type {
                    uri: uri.clone(),
                    max,
                    numbers: HashMap::new(),
                    strings: BTreeMap::new(),
                });
                self.types.len() - 1
            }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.types.is_empty()
    }
}

/// Translates what is to be written.
pub(super) fn write(
    pipeline: &mut Pipeline,
    update: UpdateType,
    entity: &mut Entity,
) -> Result<(), EntityError> {
    if pipeline.strings.is_empty() {
        return Ok(());
    }
    if update == UpdateType::Delete {
        // §9.1, §9.2.1: of what is deleted, only the key is looked at.
        match entity {
            Entity::TableEntry(entry) => entry.action = None,
            Entity::ActionProfileMember(member) => member.action = None,
            _ => {}
        }
        return Side::Request(&pipeline.strings).entity(entity);
    }
    let original = entity.clone();
    match Side::Write(&mut pipeline.strings).entity(entity) {
        Err(error) if error.code == Code::ResourceExhausted => {
            sweep(pipeline)?;
            *entity = original;
            Side::Write(&mut pipeline.strings).entity(entity)
        }
        result => result,
    }
}

/// Translates what a read asks for.
pub(super) fn request(strings: &Strings, entity: &mut Entity) -> Result<(), EntityError> {
    match strings.is_empty() {
        true => Ok(()),
        false => Side::Request(strings).entity(entity),
    }
}

/// Translates what was read.
pub(super) fn answer(strings: &Strings, found: &mut [Entity]) -> Result<(), EntityError> {
    if strings.is_empty() {
        return Ok(());
    }
    let mut side = Side::Controller(strings);
    found.iter_mut().try_for_each(|entity| side.entity(entity))
}

/// Entries as the controller sees them. One that cannot be translated is left out.
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

/// Gives the numbers of the program's own entries their strings.
pub(crate) fn adopt(pipeline: &mut Pipeline) {
    let used = match pipeline.strings.is_empty() {
        true => Vec::new(),
        false => used(pipeline).unwrap_or_default(),
    };
    for (known, used) in pipeline.strings.types.iter_mut().zip(used) {
        for number in used {
            let string = number.to_string().into_bytes();
            known.numbers.insert(string.clone(), number);
            known.strings.insert(number, string);
        }
    }
}

/// Forgets the strings that no entry and no member has any more.
fn sweep(pipeline: &mut Pipeline) -> Result<(), EntityError> {
    let used = used(pipeline)?;
    for (known, used) in pipeline.strings.types.iter_mut().zip(used) {
        known.strings.retain(|number, _| used.contains(number));
        known.numbers.retain(|_, number| used.contains(number));
    }
    Ok(())
}

/// The numbers that entries and members have, by the positions of their types.
fn used(pipeline: &Pipeline) -> Result<Vec<BTreeSet<u64>>, EntityError> {
    let requests = [
        Entity::TableEntry(TableEntry::default()),
        Entity::TableEntry(TableEntry {
            is_default_action: true,
            ..TableEntry::default()
        }),
        Entity::ActionProfileMember(ActionProfileMember::default()),
    ];
    let mut found = Vec::new();
    for request in requests {
        read::read_raw(pipeline, &request, &mut found)?;
    }
    let mut used = vec![BTreeSet::new(); pipeline.strings.types.len()];
    for entity in &mut found {
        values(&pipeline.strings, entity, &mut |at, value| {
            used[at].insert(number(value));
            Ok(())
        })?;
    }
    Ok(used)
}

impl Side<'_> {
    fn entity(&mut self, entity: &mut Entity) -> Result<(), EntityError> {
        match self {
            Side::Write(strings) => {
                // The types' numbers change while the positions of their values are looked up.
                let mut types = std::mem::take(&mut strings.types);
                let result = values(strings, entity, &mut |at, value| {
                    *value = types[at].number(value)?.to_be_bytes().to_vec();
                    Ok(())
                });
                strings.types = types;
                result
            }
            Side::Request(strings) => values(strings, entity, &mut |at, value| {
                let known = strings.types[at].numbers.get(value);
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
                let known = strings.types[at].strings.get(&number);
                *value = known.map_or_else(|| number.to_string().into_bytes(), Vec::clone);
                Ok(())
            }),
        }
    }
}

impl Type {
    /// The number of a string; a new one if it has none.
    fn number(&mut self, string: &[u8]) -> Result<u64, EntityError> {
        if let Some(number) = self.numbers.get(string) {
            return Ok(*number);
        }
        if string.is_empty() || string.len() > MAX_LENGTH {
            let (uri, length) = (&self.uri, string.len());
            return Err(EntityError::invalid(format!(
                "a string of {uri} has {length} bytes, expected 1 to {MAX_LENGTH}"
            )));
        }
        // A number as the answer shows those of the program's own.
        let shown = std::str::from_utf8(string)
            .ok()
            .and_then(|s| s.parse().ok());
        let own = shown.filter(|number: &u64| {
            *number <= self.max
                && number.to_string().as_bytes() == string
                && !self.strings.contains_key(number)
        });
        let free = || (1..=self.max).find(|number| !self.strings.contains_key(number));
        let number = own.or_else(free).ok_or_else(|| {
            let (uri, max) = (&self.uri, self.max);
            EntityError::new(
                Code::ResourceExhausted,
                format!(
                    "there are {max} strings of {uri} already, all that the program has room for"
                ),
            )
        })?;
        self.numbers.insert(string.to_vec(), number);
        self.strings.insert(number, string.to_vec());
        Ok(number)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Hands over every value of a message that is a string to the control plane, with the position of
/// its type.
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
