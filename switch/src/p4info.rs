//! Translates a P4Info from protobuf to the interpreter's types, and rejects objects that the switch does not support.

use std::collections::HashMap;

use ultima_p4runtime::config::v1::action_profile::SelectorSizeSemantics::SumOfMembers;
use ultima_p4runtime::config::v1::p4_bitstring_like_type_spec::TypeSpec as BitType;
use ultima_p4runtime::config::v1::p4_data_type_spec::TypeSpec;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::SdnType;
use ultima_p4runtime::config::v1::table::IdleTimeoutBehavior;
use ultima_p4runtime::config::v1::{
    ActionProfile, ActionRef, ControllerPacketMetadata, MatchField, P4DataTypeSpec, P4Info,
    P4NamedType, P4TypeInfo, Preamble, Table, action_ref, match_field, meter_spec,
};
use ultima_p4runtime::names::Names;

use ultima_engine::{
    ActionInfo, ActionScope, ArrayInfo, DigestInfo, DigestType, Engine, FieldInfo, Limits,
    LoadError, MatchKind, MetadataInfo, ProfileInfo, TableInfo, ValueSetInfo,
};

/// A type that this switch rejects.
const STRING: &str = "a type that @p4runtime_translation maps to strings";
/// Most levels of types within types: an invalid P4Info may have a loop.
const MAX_DEPTH: usize = 16;
/// Most types in a digest's type, and names of constants, counted wherever they are used.
const MAX_TYPES: usize = 1 << 12;

/// Loads a program: `json` is p4c's BMv2 JSON, `p4info` its P4Info.
///
/// # Errors
/// [`LoadError`]: the program or its P4Info is invalid, not supported, or beyond the limits.
pub fn load(json: &[u8], p4info: &P4Info, limits: Limits) -> Result<Engine, LoadError> {
    Engine::load(json, &translate(p4info)?, limits)
}

/// Translates a P4Info.
///
/// # Errors
/// The P4Info contradicts itself, or has an object that the switch does not support.
pub fn translate(p4info: &P4Info) -> Result<ultima_engine::P4Info, LoadError> {
    // Ids and names are unique.
    Names::new(p4info.clone()).map_err(LoadError::p4info)?;
    let none = P4TypeInfo::default();
    let types = Types(p4info.type_info.as_ref().unwrap_or(&none));
    refuse(p4info)?;
    let mut found = ultima_engine::P4Info::default();
    for action in &p4info.actions {
        let (id, name) = named(&action.preamble);
        let params = action.params.iter().map(|param| {
            if param.bitwidth <= 0 {
                let at = format!("action {name}, parameter {}", param.name);
                return Err(LoadError::unsupported(STRING, at));
            }
            Ok(MetadataInfo {
                id: param.id,
                name: param.name.clone(),
                width: param.bitwidth as u32,
                is_translated: types.translation(&param.type_name).is_some(),
            })
        });
        let params = params.collect::<Result<_, _>>()?;
        found.actions.insert(id, ActionInfo { name, params });
    }
    for table in &p4info.tables {
        let (id, name) = named(&table.preamble);
        found
            .tables
            .insert(name.clone(), types.table(id, &name, table)?);
    }
    found.counters = arrays(p4info.counters.iter().map(|c| (&c.preamble, c.size, false)));
    found.meters = arrays(p4info.meters.iter().map(|m| (&m.preamble, m.size, false)));
    let registers = p4info.registers.iter().map(|register| {
        let signed = types.is_signed(register.type_spec.as_ref());
        (&register.preamble, register.size.into(), signed)
    });
    found.registers = arrays(registers);
    for profile in &p4info.action_profiles {
        let (id, name) = named(&profile.preamble);
        let info = profile_info(id, &name, profile)?;
        found.profiles.insert(name, info);
    }
    for set in &p4info.value_sets {
        let (id, name) = named(&set.preamble);
        let at = format!("value set {name}");
        let fields = set.r#match.iter();
        let fields = fields.map(|field| types.field(&at, field));
        let described = ValueSetInfo {
            id,
            fields: fields.collect::<Result<_, _>>()?,
            size: u64::try_from(set.size).unwrap_or(0),
        };
        found.value_sets.insert(name, described);
    }
    let counters = p4info.direct_counters.iter();
    let counters = counters.map(|c| (&c.preamble, c.direct_table_id));
    let meters = p4info.direct_meters.iter();
    let meters = meters.map(|m| (&m.preamble, m.direct_table_id));
    for (preamble, table) in counters.chain(meters) {
        let (_, name) = named(preamble);
        found.direct.insert(name, table);
    }
    for digest in &p4info.digests {
        let (id, name) = named(&digest.preamble);
        let data = types.digest(digest.type_spec.as_ref(), 0, &mut { MAX_TYPES });
        found.digests.insert(name, DigestInfo { id, data });
    }
    found.packet_in = types.header("packet_in", p4info)?;
    found.packet_out = types.header("packet_out", p4info)?;
    Ok(found)
}

/// Rejects objects that this switch does not support.
fn refuse(p4info: &P4Info) -> Result<(), LoadError> {
    let meters = p4info.meters.iter().map(|m| (&m.preamble, &m.spec));
    let direct = p4info.direct_meters.iter().map(|m| (&m.preamble, &m.spec));
    for (preamble, spec) in meters.chain(direct) {
        let kind = spec.as_ref().map_or(0, |spec| spec.r#type);
        if kind != i32::from(meter_spec::Type::TwoRateThreeColor) {
            let (_, name) = named(preamble);
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

/// Id and name of an object, which `Names` has checked.
fn named(preamble: &Option<Preamble>) -> (u32, String) {
    let preamble = preamble.as_ref();
    preamble.map_or_else(Default::default, |it| (it.id, it.name.clone()))
}

fn arrays<'a>(
    arrays: impl Iterator<Item = (&'a Option<Preamble>, i64, bool)>,
) -> HashMap<String, ArrayInfo> {
    let named = arrays.map(|(preamble, size, signed)| {
        let (id, name) = named(preamble);
        let size = u64::try_from(size).unwrap_or(0);
        (name, ArrayInfo { id, size, signed })
    });
    named.collect()
}

fn profile_info(id: u32, name: &str, profile: &ActionProfile) -> Result<ProfileInfo, LoadError> {
    let at = || format!("action profile {name}");
    if let Some(SumOfMembers(_)) = profile.selector_size_semantics {
        let what = "@selector_size_semantics(\"sum_of_members\")";
        return Err(LoadError::unsupported(what, at()));
    }
    if profile.weights_disallowed {
        return Err(LoadError::unsupported("a selector without weights", at()));
    }
    Ok(ProfileInfo {
        id,
        with_selector: profile.with_selector,
        size: u64::try_from(profile.size).unwrap_or(0),
        max_group_size: u32::try_from(profile.max_group_size).unwrap_or(0),
    })
}

fn scope_of(table: &str, action: &ActionRef) -> Result<(u32, ActionScope), LoadError> {
    use action_ref::Scope;
    let scope = match Scope::try_from(action.scope) {
        Ok(Scope::TableAndDefault) => ActionScope::Everywhere,
        Ok(Scope::TableOnly) => ActionScope::EntriesOnly,
        Ok(Scope::DefaultOnly) => ActionScope::DefaultOnly,
        other => {
            let what = format!("action scope {other:?}");
            return Err(LoadError::unsupported(what, format!("table {table}")));
        }
    };
    Ok((action.id, scope))
}

/// The types that a P4Info names.
struct Types<'a>(&'a P4TypeInfo);

impl<'a> Types<'a> {
    fn new_type(&self, named: &P4NamedType) -> Option<&'a Representation> {
        self.0.new_types.get(&named.name)?.representation.as_ref()
    }

    /// Returns the translation of a type with `@p4runtime_translation` (§18.1).
    fn translation(&self, named: &Option<P4NamedType>) -> Option<&'a Option<SdnType>> {
        match self.new_type(named.as_ref()?)? {
            Representation::TranslatedType(to) => Some(&to.sdn_type),
            Representation::OriginalType(_) => None,
        }
    }

    /// True if values of a type are signed numbers (`int<W>`).
    fn is_signed(&self, spec: Option<&P4DataTypeSpec>) -> bool {
        let mut spec = spec;
        for _ in 0..MAX_DEPTH {
            match spec.and_then(|spec| spec.type_spec.as_ref()) {
                Some(TypeSpec::Bitstring(bits)) => {
                    return matches!(bits.type_spec, Some(BitType::Int(_)));
                }
                Some(TypeSpec::NewType(named)) => match self.new_type(named) {
                    Some(Representation::OriginalType(original)) => spec = Some(original),
                    _ => return false,
                },
                _ => return false,
            }
        }
        false
    }

    fn table(&self, id: u32, name: &str, table: &Table) -> Result<TableInfo, LoadError> {
        let owner = format!("table {name}");
        let fields = table.match_fields.iter();
        let actions = table.action_refs.iter();
        Ok(TableInfo {
            id,
            fields: fields
                .map(|field| self.field(&owner, field))
                .collect::<Result<_, _>>()?,
            actions: actions
                .map(|action| scope_of(name, action))
                .collect::<Result<_, _>>()?,
            size: u64::try_from(table.size).unwrap_or(0),
            is_const: table.is_const_table,
            default_is_const: table.const_default_action_id != 0,
            idle_timeouts: table.idle_timeout_behavior() == IdleTimeoutBehavior::NotifyControl,
            profile: Some(table.implementation_id).filter(|id| *id != 0),
        })
    }

    fn field(&self, owner: &str, field: &MatchField) -> Result<FieldInfo, LoadError> {
        use match_field::MatchType;
        let at = || format!("{owner}, match field {}", field.name);
        // A field without a width and without a named type has the type `error`, which is a number.
        if field.bitwidth <= 0 && field.type_name.is_some() {
            return Err(LoadError::unsupported(STRING, at()));
        }
        let unsupported = |kind: &dyn std::fmt::Debug| {
            LoadError::unsupported(format!("a match by {kind:?}"), at())
        };
        let kind = match &field.r#match {
            Some(match_field::Match::MatchType(kind)) => MatchType::try_from(*kind),
            other => return Err(unsupported(other)),
        };
        let kind = match kind {
            Ok(MatchType::Exact) => MatchKind::Exact,
            Ok(MatchType::Lpm) => MatchKind::Lpm,
            Ok(MatchType::Ternary) => MatchKind::Ternary,
            Ok(MatchType::Range) => MatchKind::Range,
            Ok(MatchType::Optional) => MatchKind::Optional,
            other => return Err(unsupported(&other)),
        };
        Ok(FieldInfo {
            id: field.id,
            name: field.name.clone(),
            kind,
            width: u32::try_from(field.bitwidth).unwrap_or(0),
            is_translated: self.translation(&field.type_name).is_some(),
        })
    }

    /// Returns the fields of a controller header; none if the program does not have it.
    fn header(&self, name: &str, p4info: &P4Info) -> Result<Vec<MetadataInfo>, LoadError> {
        let is_it = |header: &&ControllerPacketMetadata| {
            let preamble = header.preamble.as_ref();
            preamble.is_some_and(|preamble| preamble.name == name)
        };
        let header = p4info.controller_packet_metadata.iter().find(is_it);
        let fields = header.map_or(&[][..], |header| &header.metadata);
        let fields = fields.iter().map(|field| {
            let translation = self.translation(&field.type_name);
            if let Some(Some(SdnType::SdnString(_))) = translation {
                let at = format!("controller header field {}", field.name);
                return Err(LoadError::unsupported(STRING, at));
            }
            Ok(MetadataInfo {
                id: field.id,
                name: field.name.clone(),
                width: u32::try_from(field.bitwidth).unwrap_or(0),
                is_translated: translation.is_some(),
            })
        });
        fields.collect()
    }

    /// Returns the type of a digest, or of a part of it. An error names the part that is not supported. `left` bounds the
    /// types and constants that may still follow, because a few structs that name each other can describe any number of them.
    fn digest(
        &self,
        spec: Option<&P4DataTypeSpec>,
        depth: usize,
        left: &mut usize,
    ) -> Result<DigestType, String> {
        let other = || "a type other than bit<W>, int<W>, bool, enum, error, struct and tuple";
        let large = || format!("a type of more than {MAX_TYPES} parts or {MAX_DEPTH} levels");
        let spec = spec.and_then(|spec| spec.type_spec.as_ref());
        let spec = spec.ok_or_else(other)?;
        let mut count = |more: usize| {
            let fewer = left.checked_sub(more).filter(|_| depth < MAX_DEPTH);
            *left = fewer.ok_or_else(large)?;
            Ok::<_, String>(())
        };
        count(1)?;
        let unknown = |named: &P4NamedType| format!("type {}, which P4Info lacks,", named.name);
        match spec {
            TypeSpec::Bitstring(like) => match like.type_spec {
                Some(BitType::Bit(_) | BitType::Int(_)) => Ok(DigestType::Bits),
                _ => Err(other().to_owned()),
            },
            TypeSpec::Bool(_) => Ok(DigestType::Bool),
            TypeSpec::Struct(named) => {
                let found = self.0.structs.get(&named.name);
                let members = &found.ok_or_else(|| unknown(named))?.members;
                let members = members.iter().map(|member| member.type_spec.as_ref());
                let types = members.map(|member| self.digest(member, depth + 1, left));
                Ok(DigestType::Struct(types.collect::<Result<_, _>>()?))
            }
            TypeSpec::Tuple(tuple) => {
                let members = tuple.members.iter();
                let types = members.map(|member| self.digest(Some(member), depth + 1, left));
                Ok(DigestType::Tuple(types.collect::<Result<_, _>>()?))
            }
            TypeSpec::SerializableEnum(_) => Ok(DigestType::EnumValue),
            // p4c numbers the members in their order.
            TypeSpec::Enum(named) => {
                let found = self.0.enums.get(&named.name);
                let members = &found.ok_or_else(|| unknown(named))?.members;
                count(members.len())?;
                let names = members.iter().map(|member| member.name.clone());
                Ok(DigestType::Enum(names.collect()))
            }
            TypeSpec::Error(_) => Ok(DigestType::Error),
            TypeSpec::NewType(named) => match self.new_type(named) {
                Some(Representation::OriginalType(original)) => {
                    self.digest(Some(original), depth + 1, left)
                }
                Some(Representation::TranslatedType(to)) => match to.sdn_type {
                    Some(SdnType::SdnBitwidth(_)) => Ok(DigestType::Bits),
                    _ => Err(format!(
                        "type {}, which @p4runtime_translation maps to strings (expected a width in bits),",
                        named.name
                    )),
                },
                None => Err(unknown(named)),
            },
            _ => Err(other().to_owned()),
        }
    }
}
