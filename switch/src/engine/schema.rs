//! The P4Info of a program: ids, names, and what the control plane may access.

use std::collections::HashMap;

use ultima_p4runtime::config::v1::action_profile::SelectorSizeSemantics;
use ultima_p4runtime::config::v1::p4_bitstring_like_type_spec::TypeSpec as BitType;
use ultima_p4runtime::config::v1::p4_data_type_spec::TypeSpec;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::SdnType;
use ultima_p4runtime::config::v1::table::IdleTimeoutBehavior;
use ultima_p4runtime::config::v1::{
    ActionProfile, ActionRef, MatchField, P4DataTypeSpec, P4Info, P4NamedType, Preamble,
    action_ref, match_field, meter_spec,
};

use super::error::LoadError;
use super::profile::SizeSemantics;
use super::table::{MatchKind, Scope};

/// A P4Info by the program's names.
#[derive(Debug, Default)]
pub(super) struct Schema {
    pub tables: HashMap<String, TableSchema>,
    /// Actions by id.
    pub actions: HashMap<u32, ActionSchema>,
    pub counters: HashMap<String, ArraySchema>,
    pub meters: HashMap<String, ArraySchema>,
    pub registers: HashMap<String, ArraySchema>,
    pub profiles: HashMap<String, ProfileSchema>,
    pub value_sets: HashMap<String, ValueSetSchema>,
    /// Names of direct counters and meters, with the ids of their tables.
    pub direct: HashMap<String, u32>,
}

#[derive(Debug)]
pub(super) struct TableSchema {
    pub id: u32,
    pub fields: Vec<FieldSchema>,
    pub actions: Vec<(u32, Scope)>,
    pub size: u64,
    pub is_const: bool,
    pub default_is_const: bool,
    pub idle_timeouts: bool,
    /// The id of its action profile.
    pub profile: Option<u32>,
}

/// An action profile.
#[derive(Debug)]
pub(super) struct ProfileSchema {
    pub id: u32,
    pub with_selector: bool,
    pub size: u64,
    pub max_group_size: u32,
    pub semantics: SizeSemantics,
    pub weights_disallowed: bool,
}

#[derive(Debug)]
pub(super) struct FieldSchema {
    pub id: u32,
    pub name: String,
    pub kind: MatchKind,
    /// Width in the control plane, in bits; 0 if values are not numbers there.
    pub width: u32,
}

#[derive(Debug)]
pub(super) struct ValueSetSchema {
    pub id: u32,
    pub fields: Vec<FieldSchema>,
    pub size: u64,
}

#[derive(Debug)]
pub(super) struct ActionSchema {
    pub name: String,
    /// Ids and names of the parameters.
    pub params: Vec<(u32, String)>,
}

/// A counter, meter or register array.
#[derive(Debug)]
pub(super) struct ArraySchema {
    pub id: u32,
    pub size: u64,
    /// True for a register of signed cells.
    pub signed: bool,
}

impl Schema {
    pub fn new(p4info: &P4Info) -> Result<Schema, LoadError> {
        refuse(p4info)?;
        let mut schema = Schema::default();
        for action in &p4info.actions {
            let (id, name) = name_of("an action", &action.preamble)?;
            let params = action.params.iter().map(|param| {
                if param.bitwidth <= 0 && !is_string(p4info, &param.type_name) {
                    let at = format!("action {name}, parameter {}", param.name);
                    return Err(LoadError::unsupported("a translated type", at));
                }
                Ok((param.id, param.name.clone()))
            });
            let params = params.collect::<Result<_, _>>()?;
            schema.actions.insert(id, ActionSchema { name, params });
        }
        for table in &p4info.tables {
            let (id, name) = name_of("a table", &table.preamble)?;
            let fields = table
                .match_fields
                .iter()
                .map(|field| FieldSchema::new(&format!("table {name}"), field, p4info));
            let actions = table
                .action_refs
                .iter()
                .map(|action| scope_of(&name, action));
            let described = TableSchema {
                id,
                fields: fields.collect::<Result<_, _>>()?,
                actions: actions.collect::<Result<_, _>>()?,
                size: u64::try_from(table.size).unwrap_or(0),
                is_const: table.is_const_table,
                default_is_const: table.const_default_action_id != 0,
                idle_timeouts: table.idle_timeout_behavior() == IdleTimeoutBehavior::NotifyControl,
                profile: Some(table.implementation_id).filter(|id| *id != 0),
            };
            schema.tables.insert(name, described);
        }
        schema.counters = arrays(p4info.counters.iter().map(|c| (&c.preamble, c.size)))?;
        schema.meters = arrays(p4info.meters.iter().map(|m| (&m.preamble, m.size)))?;
        let registers = p4info
            .registers
            .iter()
            .map(|r| (&r.preamble, i64::from(r.size)));
        schema.registers = arrays(registers)?;
        for register in &p4info.registers {
            let (_, name) = name_of("a register", &register.preamble)?;
            if let Some(array) = schema.registers.get_mut(&name) {
                array.signed = is_signed(p4info, register.type_spec.as_ref());
            }
        }
        for profile in &p4info.action_profiles {
            let (id, name) = name_of("an action profile", &profile.preamble)?;
            schema
                .profiles
                .insert(name, ProfileSchema::new(id, profile));
        }
        for set in &p4info.value_sets {
            let (id, name) = name_of("a value set", &set.preamble)?;
            let at = format!("value set {name}");
            let fields = set.r#match.iter();
            let fields = fields.map(|field| match is_string(p4info, &field.type_name) {
                true => Err(LoadError::unsupported("a string in a value set", &at)),
                false => FieldSchema::new(&at, field, p4info),
            });
            let described = ValueSetSchema {
                id,
                fields: fields.collect::<Result<_, _>>()?,
                size: u64::try_from(set.size).unwrap_or(0),
            };
            schema.value_sets.insert(name, described);
        }
        let counters = p4info
            .direct_counters
            .iter()
            .map(|c| (&c.preamble, c.direct_table_id));
        let meters = p4info
            .direct_meters
            .iter()
            .map(|m| (&m.preamble, m.direct_table_id));
        for (preamble, table) in counters.chain(meters) {
            let (_, name) = name_of("a direct resource", preamble)?;
            schema.direct.insert(name, table);
        }
        Ok(schema)
    }
}

/// Rejects objects that this switch does not support.
fn refuse(p4info: &P4Info) -> Result<(), LoadError> {
    // Strings are translated in entries and members only.
    for header in &p4info.controller_packet_metadata {
        for field in &header.metadata {
            if is_string(p4info, &field.type_name) {
                let at = format!("controller header field {}", field.name);
                return Err(LoadError::unsupported("a string", at));
            }
        }
    }
    let meters = p4info.meters.iter().map(|m| (&m.preamble, &m.spec));
    let direct = p4info.direct_meters.iter().map(|m| (&m.preamble, &m.spec));
    for (preamble, spec) in meters.chain(direct) {
        let kind = spec.as_ref().map_or(0, |spec| spec.r#type);
        if kind != i32::from(meter_spec::Type::TwoRateThreeColor) {
            let (_, name) = name_of("a meter", preamble)?;
            return Err(LoadError::unsupported(
                "a single rate",
                format!("meter {name}"),
            ));
        }
    }
    match p4info.externs.first() {
        Some(other) => {
            let at = format!("P4Info, {}", other.extern_type_name);
            Err(LoadError::unsupported("an extern", at))
        }
        None => Ok(()),
    }
}

/// True if values of a type are strings in the control plane.
fn is_string(p4info: &P4Info, named: &Option<P4NamedType>) -> bool {
    let types = p4info.type_info.as_ref().map(|types| &types.new_types);
    let found = types.zip(named.as_ref());
    let found = found.and_then(|(types, named)| types.get(&named.name)?.representation.as_ref());
    match found {
        Some(Representation::TranslatedType(translated)) => {
            matches!(translated.sdn_type, Some(SdnType::SdnString(_)))
        }
        _ => false,
    }
}

/// Most types that one type may stand for, each for the next: an invalid P4Info may have a loop.
const MAX_ALIASES: usize = 16;

/// True if values of a type are signed numbers (`int<W>`).
fn is_signed(p4info: &P4Info, spec: Option<&P4DataTypeSpec>) -> bool {
    let mut spec = spec;
    for _ in 0..MAX_ALIASES {
        let named = match spec.and_then(|spec| spec.type_spec.as_ref()) {
            Some(TypeSpec::Bitstring(bits)) => {
                return matches!(bits.type_spec, Some(BitType::Int(_)));
            }
            Some(TypeSpec::NewType(named)) => named,
            _ => return false,
        };
        let types = p4info.type_info.as_ref().map(|types| &types.new_types);
        let found = types.and_then(|types| types.get(&named.name)?.representation.as_ref());
        spec = match found {
            Some(Representation::OriginalType(original)) => Some(original),
            _ => return false,
        };
    }
    false
}

fn name_of(what: &str, preamble: &Option<Preamble>) -> Result<(u32, String), LoadError> {
    match preamble {
        Some(preamble) => Ok((preamble.id, preamble.name.clone())),
        None => Err(LoadError::p4info(format!(
            "{what} of the P4Info has no name"
        ))),
    }
}

fn arrays<'a>(
    arrays: impl Iterator<Item = (&'a Option<Preamble>, i64)>,
) -> Result<HashMap<String, ArraySchema>, LoadError> {
    let named = arrays.map(|(preamble, size)| {
        let (id, name) = name_of("an array", preamble)?;
        Ok((
            name,
            ArraySchema {
                id,
                size: u64::try_from(size).unwrap_or(0),
                signed: false,
            },
        ))
    });
    named.collect()
}

impl ProfileSchema {
    fn new(id: u32, profile: &ActionProfile) -> ProfileSchema {
        let semantics = match &profile.selector_size_semantics {
            Some(SelectorSizeSemantics::SumOfMembers(members)) => {
                let max_weight = u32::try_from(members.max_member_weight);
                SizeSemantics::SumOfMembers {
                    max_weight: max_weight.unwrap_or(0),
                }
            }
            _ => SizeSemantics::SumOfWeights,
        };
        ProfileSchema {
            id,
            with_selector: profile.with_selector,
            size: u64::try_from(profile.size).unwrap_or(0),
            max_group_size: u32::try_from(profile.max_group_size).unwrap_or(0),
            semantics,
            weights_disallowed: profile.weights_disallowed,
        }
    }
}

impl FieldSchema {
    fn new(owner: &str, field: &MatchField, p4info: &P4Info) -> Result<FieldSchema, LoadError> {
        let at = || format!("{owner}, match field {}", field.name);
        let is_string = is_string(p4info, &field.type_name);
        // A field without a width that has no named type is of type `error`: a number for all
        // concerned.
        if field.bitwidth <= 0 && field.type_name.is_some() && !is_string {
            return Err(LoadError::unsupported("a translated type", at()));
        }
        let kind = match &field.r#match {
            Some(match_field::Match::MatchType(kind)) => match_field::MatchType::try_from(*kind),
            other => {
                return Err(LoadError::unsupported(
                    format!("a match by {other:?}"),
                    at(),
                ));
            }
        };
        let kind = match kind {
            Ok(match_field::MatchType::Exact) => MatchKind::Exact,
            Ok(match_field::MatchType::Lpm) => MatchKind::Lpm,
            Ok(match_field::MatchType::Ternary) => MatchKind::Ternary,
            Ok(match_field::MatchType::Range) => MatchKind::Range,
            Ok(match_field::MatchType::Optional) => MatchKind::Optional,
            other => {
                return Err(LoadError::unsupported(
                    format!("a match by {other:?}"),
                    at(),
                ));
            }
        };
        if is_string && !matches!(kind, MatchKind::Exact | MatchKind::Optional) {
            let what = format!("a string matched by {kind:?}").to_lowercase();
            return Err(LoadError::unsupported(what, at()));
        }
        Ok(FieldSchema {
            id: field.id,
            name: field.name.clone(),
            kind,
            width: u32::try_from(field.bitwidth).unwrap_or(0),
        })
    }
}

fn scope_of(table: &str, action: &ActionRef) -> Result<(u32, Scope), LoadError> {
    use action_ref::Scope as Wire;
    let scope = match Wire::try_from(action.scope) {
        Ok(Wire::TableAndDefault) => Scope::Everywhere,
        Ok(Wire::TableOnly) => Scope::EntriesOnly,
        Ok(Wire::DefaultOnly) => Scope::DefaultOnly,
        other => {
            let what = format!("action scope {other:?}");
            return Err(LoadError::unsupported(what, format!("table {table}")));
        }
    };
    Ok((action.id, scope))
}
