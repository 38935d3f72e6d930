//! Types with strings in the control plane (`@p4runtime_translation` with `string`, P4Runtime §8.4.6, §18.1).
//!
//! Requests are translated before the rest of the server sees them, responses afterwards. A string gets a number at its first
//! write; types of one URI share strings. When no number is left, the server looks up which ones the program's entries and
//! members have, and frees the others. A number in the program's own entries appears as a decimal string.

use std::collections::{HashMap, HashSet};

use tonic::Code;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::SdnType;
use ultima_p4runtime::config::v1::{P4Info, P4NamedType};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::field_match::FieldMatchType;
use ultima_p4runtime::v1::table_action::Type as ActionType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{self, Action, ActionProfileMember, TableAction, TableEntry};

use super::read;
use crate::engine::Engine;
use crate::pipeline::Pipeline;
use crate::target::Refusal;

/// Longest string, in bytes.
const MAX_LENGTH: usize = 256;
/// Largest number of strings of one URI, if the packet's field is wide enough.
const MAX_STRINGS: u64 = 1 << 16;

/// The strings of a program's translated types.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    pub(super) types: Vec<Type>,
    places: Places,
}

/// The positions of types in messages.
#[derive(Debug, Default)]
struct Places {
    /// By table and match field.
    fields: HashMap<(u32, u32), usize>,
    /// By action and parameter.
    params: HashMap<(u32, u32), usize>,
}

/// All types of one URI. Strings have numbers from 1 to `max`.
#[derive(Debug, Clone)]
pub(super) struct Type {
    uri: String,
    /// The greatest number that fits all fields and parameters of these types.
    max: u64,
    numbers: HashMap<Vec<u8>, u64>,
    strings: HashMap<u64, Vec<u8>>,
    /// Numbers in the program's own entries, which it may return to.
    own: HashSet<u64>,
    /// The next number to try.
    next: u64,
}

/// A number of a type, by the type's position.
type Number = (usize, u64);

impl Strings {
    /// Returns the strings of a freshly loaded program.
    pub(crate) fn new(p4info: &P4Info, engine: &Engine) -> Strings {
        let mut strings = Strings::default();
        for table in &p4info.tables {
            let id = table.preamble.as_ref().map_or(0, |preamble| preamble.id);
            for field in &table.match_fields {
                let bits = engine.table(id).ok().and_then(|t| t.field_bits(field.id));
                if let Some(at) = strings.add(p4info, field.type_name.as_ref(), bits) {
                    strings.places.fields.insert((id, field.id), at);
                }
            }
        }
        for action in &p4info.actions {
            let id = action.preamble.as_ref().map_or(0, |preamble| preamble.id);
            for param in &action.params {
                let bits = engine.param_bits(id, param.id);
                if let Some(at) = strings.add(p4info, param.type_name.as_ref(), bits) {
                    strings.places.params.insert((id, param.id), at);
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
        if let Some(at) = self.types.iter().position(|known| known.uri == *uri) {
            self.types[at].max = self.types[at].max.min(max);
            return Some(at);
        }
        self.types.push(Type {
            uri: uri.clone(),
            max,
            numbers: HashMap::new(),
            strings: HashMap::new(),
            own: HashSet::new(),
            next: 1,
        });
        Some(self.types.len() - 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.types.is_empty()
    }
}

/// Translates an entity to write.
pub(super) fn write(
    pipeline: &mut Pipeline,
    update: UpdateType,
    entity: &mut Entity,
) -> Result<(), Refusal> {
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
        return request(&pipeline.strings, entity);
    }
    make_room(pipeline, entity)?;
    let Strings { types, places } = &mut pipeline.strings;
    places.values(entity, &mut |at, value| {
        *value = types[at].give(value).to_be_bytes().to_vec();
        Ok(())
    })
}

/// Makes room for an entity's new strings: frees numbers without uses if there are too few.
fn make_room(pipeline: &mut Pipeline, entity: &mut Entity) -> Result<(), Refusal> {
    let Strings { types, places } = &pipeline.strings;
    let (mut known, mut new) = (Vec::new(), HashSet::new());
    places.values(entity, &mut |at, value| {
        types[at].check(value)?;
        match types[at].numbers.get(value) {
            Some(number) => known.push((at, *number)),
            None => {
                new.insert((at, value.clone()));
            }
        }
        Ok(())
    })?;
    let full = |types: &[Type]| {
        let lacks = |at: usize| new.iter().filter(|(of, _)| *of == at).count() > types[at].room();
        (0..types.len()).find(|at| lacks(*at))
    };
    if full(types).is_none() {
        return Ok(());
    }
    let mut used = used(pipeline);
    used.extend(known);
    let types = &mut pipeline.strings.types;
    for (at, one) in types.iter_mut().enumerate() {
        one.retain(|number| used.contains(&(at, number)));
    }
    full(types).map_or(Ok(()), |at| {
        let Type { uri, max, .. } = &types[at];
        let what =
            format!("there are {max} strings of {uri} already, all that the program has room for");
        Err(Refusal::new(Code::ResourceExhausted, what))
    })
}

/// Returns the numbers in all entries and members.
fn used(pipeline: &Pipeline) -> HashSet<Number> {
    let tables = pipeline.engine.tables().map(|table| table.id());
    let entries = tables.flat_map(|table_id| {
        [false, true].map(|is_default_action| {
            Entity::TableEntry(TableEntry {
                table_id,
                is_default_action,
                ..TableEntry::default()
            })
        })
    });
    let members = Entity::ActionProfileMember(ActionProfileMember::default());
    let mut used = HashSet::new();
    for request in entries.chain([members]) {
        let mut found = Vec::new();
        let read = read::read_raw(pipeline, &request, &mut found);
        debug_assert!(read.is_ok(), "a wildcard finds what there is");
        for mut entity in found {
            let all = (pipeline.strings.places).values(&mut entity, &mut |at, value| {
                used.insert((at, number(value)));
                Ok(())
            });
            debug_assert!(all.is_ok(), "nothing fails here");
        }
    }
    used
}

/// Translates a read request.
pub(super) fn request(strings: &Strings, entity: &mut Entity) -> Result<(), Refusal> {
    strings.places.values(entity, &mut |at, value| {
        let known = strings.types[at].numbers.get(value);
        let missing = || {
            let text = String::from_utf8_lossy(value);
            let message = format!("nothing that was written has {text:?}");
            Refusal::new(Code::NotFound, message)
        };
        *value = known.ok_or_else(missing)?.to_be_bytes().to_vec();
        Ok(())
    })
}

/// Translates the entities of a response.
pub(super) fn answer(strings: &Strings, found: &mut [Entity]) -> Result<(), Refusal> {
    if strings.is_empty() {
        return Ok(());
    }
    let each = &mut |at: usize, value: &mut Vec<u8>| {
        let number = number(value);
        let known = strings.types[at].strings.get(&number);
        *value = known.map_or_else(|| number.to_string().into_bytes(), Clone::clone);
        Ok(())
    };
    found
        .iter_mut()
        .try_for_each(|entity| strings.places.values(entity, each))
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
    for (at, number) in used(pipeline) {
        let one = &mut pipeline.strings.types[at];
        one.own.insert(number);
        one.name(number, number.to_string().into_bytes());
    }
}

impl Type {
    fn check(&self, string: &[u8]) -> Result<(), Refusal> {
        let length = string.len();
        if (1..=MAX_LENGTH).contains(&length) {
            return Ok(());
        }
        Err(Refusal::invalid(format!(
            "a string of {} has {length} bytes, expected 1 to {MAX_LENGTH}",
            self.uri
        )))
    }

    /// Returns how many strings can get a number.
    fn room(&self) -> usize {
        let outside = self.own.iter().filter(|own| !(1..=self.max).contains(own));
        self.max as usize + outside.count() - self.strings.len()
    }

    /// Returns the number of a string, a new one if it has none. There must be room.
    fn give(&mut self, string: &[u8]) -> u64 {
        if let Some(number) = self.numbers.get(string) {
            return *number;
        }
        while self.strings.contains_key(&self.next) {
            self.next = self.next % self.max + 1;
        }
        self.name(self.next, string.to_vec());
        self.next
    }

    fn name(&mut self, number: u64, string: Vec<u8>) {
        self.numbers.insert(string.clone(), number);
        self.strings.insert(number, string);
    }

    /// Frees the numbers that are not used.
    fn retain(&mut self, is_used: impl Fn(u64) -> bool) {
        let Type {
            numbers,
            strings,
            own,
            ..
        } = self;
        strings.retain(|number, _| own.contains(number) || is_used(*number));
        numbers.retain(|_, number| strings.contains_key(number));
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Places {
    /// Passes on every translated value of a message, with the position of its type.
    fn values(
        &self,
        entity: &mut Entity,
        each: &mut impl FnMut(usize, &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        match entity {
            Entity::TableEntry(entry)
            | Entity::DirectCounterEntry(v1::DirectCounterEntry {
                table_entry: Some(entry),
                ..
            })
            | Entity::DirectMeterEntry(v1::DirectMeterEntry {
                table_entry: Some(entry),
                ..
            }) => self.of_entry(entry, each),
            Entity::ActionProfileMember(member) => {
                let mut actions = member.action.iter_mut();
                actions.try_for_each(|action| self.of_action(action, each))
            }
            _ => Ok(()),
        }
    }

    fn of_action(
        &self,
        action: &mut Action,
        each: &mut impl FnMut(usize, &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        for param in &mut action.params {
            if let Some(at) = self.params.get(&(action.action_id, param.param_id)) {
                each(*at, &mut param.value)?;
            }
        }
        Ok(())
    }

    fn of_entry(
        &self,
        entry: &mut TableEntry,
        each: &mut impl FnMut(usize, &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        for field in &mut entry.r#match {
            let Some(at) = self.fields.get(&(entry.table_id, field.field_id)) else {
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
            }) => self.of_action(action, each),
            Some(TableAction {
                r#type: Some(ActionType::ActionProfileActionSet(set)),
            }) => {
                let actions = set.action_profile_actions.iter_mut();
                let mut actions = actions.filter_map(|one| one.action.as_mut());
                actions.try_for_each(|action| self.of_action(action, each))
            }
            _ => Ok(()),
        }
    }
}
