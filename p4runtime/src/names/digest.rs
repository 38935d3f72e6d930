//! Digests: messages of a struct type from the data plane (§6.4.9, §9.8).

use super::{Field, FieldList, P4InfoError, ReadError};
use crate::bytestring::Bytestring;
use crate::config::v1::{self as p4info, P4DataTypeSpec, P4TypeInfo};
use crate::v1::{self, p4_data};
use p4info::p4_bitstring_like_type_spec::TypeSpec as BitType;
use p4info::p4_data_type_spec::TypeSpec;
use p4info::p4_new_type_spec::Representation;
use p4info::p4_new_type_translation::SdnType;

/// Longest chain of `type A = B` to follow. A P4Info that no compiler wrote may have a loop.
const MAX_ALIASES: usize = 16;

/// A digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Members of its struct type; empty for any other type. Their ids count from 1.
    pub members: FieldList,
}

impl Digest {
    pub(super) fn new(
        id: u32,
        name: &str,
        digest: &p4info::Digest,
        types: &P4TypeInfo,
    ) -> Result<Self, P4InfoError> {
        let place = format!("digest \"{name}\"");
        let spec = digest
            .type_spec
            .as_ref()
            .and_then(|spec| spec.type_spec.as_ref());
        let members = match spec {
            Some(TypeSpec::Struct(named)) => match types.structs.get(&named.name) {
                Some(spec) => &spec.members[..],
                None => {
                    return Err(P4InfoError::NoType {
                        place,
                        name: named.name.clone(),
                    });
                }
            },
            _ => &[],
        };
        let members = members.iter().zip(1..).map(|(member, id)| {
            let bits = member
                .type_spec
                .as_ref()
                .map_or(0, |spec| bitwidth(spec, types));
            Field::new(&place, id, &member.name, bits)
        });
        let members = FieldList::new(place.clone(), "member", members)?;
        Ok(Digest {
            id,
            name: name.into(),
            members,
        })
    }

    /// Returns the subscription to the digest: insert it to start, delete it to end.
    pub fn entry(&self, config: v1::digest_entry::Config) -> v1::DigestEntry {
        v1::DigestEntry {
            digest_id: self.id,
            config: Some(config),
        }
    }

    /// Returns one member of a message.
    ///
    /// # Errors
    /// [`ReadError`] when the member is unknown, not a bit string, missing or out of range.
    pub fn read(&self, message: &v1::P4Data, name: &str) -> Result<Bytestring, ReadError> {
        let field = self.members.get(name)?;
        let value = match &message.data {
            Some(p4_data::Data::Struct(data)) => data.members.get(field.id as usize - 1),
            _ => None,
        };
        let bytes = match value.and_then(|value| value.data.as_ref()) {
            Some(p4_data::Data::Bitstring(bytes) | p4_data::Data::EnumValue(bytes)) => Some(bytes),
            _ => None,
        };
        field.read(&self.members.place, bytes.map(Vec::as_slice))
    }
}

/// Returns the width of a type's values in bits, or 0 if they are not bit strings.
fn bitwidth(spec: &P4DataTypeSpec, types: &P4TypeInfo) -> i32 {
    let mut spec = Some(spec);
    for _ in 0..MAX_ALIASES {
        let Some(known) = spec.and_then(|spec| spec.type_spec.as_ref()) else {
            return 0;
        };
        let named = match known {
            TypeSpec::Bitstring(bits) => {
                return match &bits.type_spec {
                    Some(BitType::Bit(bit)) => bit.bitwidth,
                    // Signed and variable-length values don't follow the rules of `Bytestring`.
                    Some(BitType::Int(_) | BitType::Varbit(_)) | None => 0,
                };
            }
            TypeSpec::SerializableEnum(named) => {
                let declared = types.serializable_enums.get(&named.name);
                return declared
                    .and_then(|e| e.underlying_type)
                    .map_or(0, |bit| bit.bitwidth);
            }
            TypeSpec::NewType(named) => named,
            _ => return 0,
        };
        spec = match types
            .new_types
            .get(&named.name)
            .and_then(|new| new.representation.as_ref())
        {
            Some(Representation::OriginalType(original)) => Some(original),
            Some(Representation::TranslatedType(translated)) => {
                return match translated.sdn_type {
                    Some(SdnType::SdnBitwidth(bits)) => bits,
                    _ => 0,
                };
            }
            None => None,
        };
    }
    0
}
