//! Digests: values that a program sends to the controller (P4Runtime §6.4.9, §9.8).
//!
//! v1model's `digest` takes effect at the call, with the values of that moment. A packet may call it more than once, in
//! ingress and in egress (p4c accepts egress; simple_switch ignores such calls). The interpreter only collects the values. The
//! control plane decides which digests are enabled and which messages are sent.

use std::collections::HashMap;

use ultima_p4runtime::config::v1::p4_bitstring_like_type_spec::TypeSpec as BitType;
use ultima_p4runtime::config::v1::p4_data_type_spec::TypeSpec;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::SdnType;
use ultima_p4runtime::config::v1::{P4DataTypeSpec, P4Info, P4TypeInfo};
use ultima_p4runtime::v1::{P4Data, P4StructLike, p4_data::Data};

use super::bits::{SLACK, Slot};
use super::error::LoadError;
use super::json::{self, Term};
use super::layout::Layout;

/// Levels of structs within structs, and of types that stand for types; a P4Info that is no
/// compiler's may have a loop.
const MAX_DEPTH: usize = 16;
/// Types that a digest's type is made of, and names of constants, counted wherever they are used.
const MAX_TYPES: usize = 1 << 12;
/// Bytes of a message's values.
const MAX_BYTES: u64 = 1 << 13;
/// Messages that a packet leaves behind at most; further calls do nothing.
const MAX_PER_PACKET: usize = 256;

/// A digest that a program may send: how its messages look to a controller.
#[derive(Debug)]
pub struct Digest {
    id: u32,
    name: String,
    shape: Shape,
    /// Where the values stand in a message, in the order of the shape's leaves.
    fields: Vec<Slot>,
    bytes: usize,
}

/// A message of a digest as the data plane leaves it. Messages are duplicates if they are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DigestMessage {
    /// The digest's P4Info id.
    pub digest: u32,
    /// The values, for [`Digest::data`].
    pub values: Box<[u8]>,
}

/// What a controller sees.
#[derive(Debug)]
enum Shape {
    /// Also enumerations with a representation.
    Bits {
        as_enum: bool,
    },
    Bool,
    /// An enumeration without a representation, by its members' names.
    Enum(Vec<String>),
    /// An error, by name and number.
    Error(Vec<(String, u32)>),
    Struct(Vec<Shape>),
    Tuple(Vec<Shape>),
}

/// A `digest` call: which message, and where its values come from.
#[derive(Debug)]
pub(super) struct LearnList {
    /// The digest's P4Info id; 0 for one that P4Info does not have.
    digest: u32,
    fields: Vec<(Slot, Slot)>,
    bytes: usize,
}

impl LearnList {
    /// The digest's P4Info id, and the values that a packet would leave behind, each in canonical
    /// form.
    pub(super) fn values(&self, phv: &[u8]) -> (u32, Vec<Vec<u8>>) {
        let values = self.fields.iter().map(|(from, _)| from.canonical(phv));
        (self.digest, values.collect())
    }

    /// Adds the message that a packet leaves behind.
    pub(super) fn learn(&self, phv: &[u8], learned: &mut Vec<DigestMessage>) {
        if self.digest == 0 || learned.len() >= MAX_PER_PACKET {
            return;
        }
        let mut values = vec![0; self.bytes + SLACK];
        for (from, to) in &self.fields {
            from.copy_to(phv, *to, &mut values);
        }
        values.truncate(self.bytes);
        learned.push(DigestMessage {
            digest: self.digest,
            values: values.into(),
        });
    }
}

impl Digest {
    /// Its P4Info id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its P4Info name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of a message's values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A message's values in the type that P4Info gives the digest.
    pub fn data(&self, values: &[u8]) -> P4Data {
        let mut buffer = values.to_vec();
        buffer.resize(self.bytes + SLACK, 0);
        self.shape.data(&mut self.fields.iter(), &buffer)
    }
}

impl Shape {
    fn data(&self, fields: &mut std::slice::Iter<'_, Slot>, values: &[u8]) -> P4Data {
        let mut members = |shapes: &[Shape]| P4StructLike {
            members: shapes
                .iter()
                .map(|shape| shape.data(fields, values))
                .collect(),
        };
        let data = match self {
            Shape::Struct(shapes) => Data::Struct(members(shapes)),
            Shape::Tuple(shapes) => Data::Tuple(members(shapes)),
            leaf => {
                let slot = fields.next().expect("as many fields as leaves");
                match leaf {
                    Shape::Bool => Data::Bool(slot.load(values) != 0),
                    Shape::Enum(names) => {
                        let name = names.get(slot.load(values) as usize);
                        Data::Enum(name.cloned().unwrap_or_default())
                    }
                    Shape::Error(errors) => {
                        let number = slot.load(values);
                        let known = errors.iter().find(|(_, of)| u128::from(*of) == number);
                        Data::Error(known.map_or_else(String::new, |(name, _)| name.clone()))
                    }
                    Shape::Bits { as_enum: true } => Data::EnumValue(slot.canonical(values)),
                    // §8.3: of a signed number the two's complement, as short as it can be.
                    _ if slot.signed => Data::Bitstring(slot.load_big(values).to_signed_bytes_be()),
                    _ => Data::Bitstring(slot.canonical(values)),
                }
            }
        };
        P4Data { data: Some(data) }
    }

    fn leaves(&self) -> usize {
        match self {
            Shape::Struct(members) | Shape::Tuple(members) => {
                members.iter().map(Shape::leaves).sum()
            }
            Shape::Bits { .. } | Shape::Bool | Shape::Enum(_) | Shape::Error(_) => 1,
        }
    }

    /// `left` is how many types within types, and names of constants, may still be looked at: a few
    /// structs that name each other can stand for any number.
    fn new(
        spec: Option<&P4DataTypeSpec>,
        types: &Types,
        depth: usize,
        left: &mut usize,
    ) -> Option<Shape> {
        let spec = spec?.type_spec.as_ref().filter(|_| depth < MAX_DEPTH)?;
        *left = left.checked_sub(1)?;
        let bits = Some(Shape::Bits { as_enum: false });
        match spec {
            TypeSpec::Bitstring(like) => match like.type_spec.as_ref()? {
                BitType::Bit(_) | BitType::Int(_) => bits,
                BitType::Varbit(_) => None,
            },
            TypeSpec::Bool(_) => Some(Shape::Bool),
            TypeSpec::Struct(named) => {
                let members = &types.info.structs.get(&named.name)?.members;
                let shapes = members
                    .iter()
                    .map(|m| Shape::new(m.type_spec.as_ref(), types, depth + 1, left));
                Some(Shape::Struct(shapes.collect::<Option<_>>()?))
            }
            TypeSpec::Tuple(tuple) => {
                let shapes = tuple
                    .members
                    .iter()
                    .map(|m| Shape::new(Some(m), types, depth + 1, left));
                Some(Shape::Tuple(shapes.collect::<Option<_>>()?))
            }
            TypeSpec::SerializableEnum(_) => Some(Shape::Bits { as_enum: true }),
            // p4c numbers the members in their order.
            TypeSpec::Enum(named) => {
                let members = &types.info.enums.get(&named.name)?.members;
                *left = left.checked_sub(members.len())?;
                Some(Shape::Enum(
                    members.iter().map(|m| m.name.clone()).collect(),
                ))
            }
            TypeSpec::Error(_) => {
                *left = left.checked_sub(types.errors.len())?;
                Some(Shape::Error(types.errors.to_vec()))
            }
            TypeSpec::NewType(named) => {
                match types
                    .info
                    .new_types
                    .get(&named.name)?
                    .representation
                    .as_ref()?
                {
                    Representation::OriginalType(original) => {
                        Shape::new(Some(original), types, depth + 1, left)
                    }
                    Representation::TranslatedType(to) => match to.sdn_type {
                        Some(SdnType::SdnBitwidth(_)) => bits,
                        _ => None,
                    },
                }
            }
            _ => None,
        }
    }
}

/// The types that a digest's fields may be of.
struct Types<'a> {
    info: &'a P4TypeInfo,
    errors: &'a [(String, u32)],
}

/// The digests of a program, and its calls by the ids that primitives give.
pub(super) type Digests = (Vec<Digest>, Vec<LearnList>, HashMap<u32, usize>);

/// What calls and P4Info say of the digests of a program.
pub(super) fn load(
    file: &json::Program,
    p4info: &P4Info,
    layout: &Layout,
) -> Result<Digests, LoadError> {
    let none = P4TypeInfo::default();
    let types = Types {
        info: p4info.type_info.as_ref().unwrap_or(&none),
        errors: &file.errors,
    };
    let (mut digests, mut lists, mut by_id) = (Vec::<Digest>::new(), Vec::new(), HashMap::new());
    for list in &file.learn_lists {
        let at = format!("learn list {}", list.name);
        let elements = list
            .elements
            .iter()
            .map(|element| match Term::parse(element, &at)? {
                Term::Field(header, field) => layout.field(&header, &field, &at),
                other => Err(LoadError::unsupported(format!("{other:?}"), &at)),
            });
        let from: Vec<Slot> = elements.collect::<Result<_, _>>()?;
        let size = from.iter().map(|slot| slot.bytes() as u64).sum();
        LoadError::check("size in bytes", size, MAX_BYTES, &at)?;
        let mut bytes = 0;
        let place = |slot: &Slot| {
            // Each value right-aligned in bytes of its own.
            let end = bytes + slot.bytes();
            let to = Slot::new(end * 8 - slot.width as usize, slot.width, slot.signed);
            bytes = end;
            to
        };
        let to: Vec<Slot> = from.iter().map(place).collect();

        // p4c names a list as P4Info names the digest. One that P4Info does not have cannot be
        // enabled by anybody.
        let described = p4info.digests.iter().find_map(|digest| {
            let preamble = digest.preamble.as_ref()?;
            (preamble.name == list.name).then_some((preamble.id, digest))
        });
        let digest = match described {
            None => 0,
            Some((id, described)) => {
                let shape = Shape::new(described.type_spec.as_ref(), &types, 0, &mut { MAX_TYPES });
                let shape = shape.filter(|shape| shape.leaves() == to.len());
                let shape = shape.ok_or_else(|| {
                    LoadError::unsupported(
                        "a digest of this type",
                        format!("P4Info, {}", list.name),
                    )
                })?;
                let known = digests.iter().find(|digest| digest.id == id);
                if known.is_some_and(|known| known.fields != to) {
                    let what = "two calls of one digest differ in their types";
                    return Err(LoadError::malformed(what, at));
                }
                if known.is_none() {
                    let (name, fields) = (list.name.clone(), to.clone());
                    digests.push(Digest {
                        id,
                        name,
                        shape,
                        fields,
                        bytes,
                    });
                }
                id
            }
        };
        if by_id.insert(list.id, lists.len()).is_some() {
            return Err(LoadError::malformed(format!("id {} is taken", list.id), at));
        }
        let fields = from.into_iter().zip(to).collect();
        lists.push(LearnList {
            digest,
            fields,
            bytes,
        });
    }
    Ok((digests, lists, by_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_p4runtime::config::v1::{
        P4EnumTypeSpec, P4ErrorType, P4NamedType, p4_enum_type_spec::Member,
    };

    #[test]
    fn enumerations_and_errors_are_sent_by_name() {
        let member = |name: &str| Member {
            name: name.into(),
            ..Member::default()
        };
        let members = vec![member("Request"), member("Reply")];
        let mut info = P4TypeInfo::default();
        let described = P4EnumTypeSpec {
            members,
            ..P4EnumTypeSpec::default()
        };
        info.enums.insert("Kind".into(), described);
        let types = Types {
            info: &info,
            errors: &[("NoError".into(), 0), ("TooMany".into(), 7)],
        };
        let data = |spec, value: u8| {
            let spec = P4DataTypeSpec {
                type_spec: Some(spec),
            };
            let shape = Shape::new(Some(&spec), &types, 0, &mut { MAX_TYPES })
                .expect("a type that can be sent");
            let mut values = vec![value];
            values.resize(1 + SLACK, 0);
            let slot = Slot::new(0, 8, false);
            shape.data(&mut [slot].iter(), &values).data.expect("data")
        };
        let kind = || {
            TypeSpec::Enum(P4NamedType {
                name: "Kind".into(),
            })
        };
        assert_eq!(data(kind(), 1), Data::Enum("Reply".into()));
        assert_eq!(data(kind(), 2), Data::Enum(String::new()));
        let error = || TypeSpec::Error(P4ErrorType {});
        assert_eq!(data(error(), 7), Data::Error("TooMany".into()));
        assert_eq!(data(error(), 1), Data::Error(String::new()));
    }
}
