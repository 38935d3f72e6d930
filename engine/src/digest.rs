//! Digests: values that a program sends to the controller (P4Runtime §6.4.9, §9.8).
//!
//! v1model's `digest` takes effect at the call, with the values of that moment. A packet may call it more than once, in
//! ingress and in egress (p4c accepts egress; simple_switch ignores such calls). The interpreter only collects the values. The
//! control plane decides which digests are enabled and which messages are sent.

use std::collections::HashMap;
use std::sync::Arc;

use super::bits::{SLACK, Slot};
use super::error::LoadError;
use super::json;
use super::layout::Layout;
use super::p4info::{DigestType, P4Info};

/// Bytes of a message's values.
const MAX_BYTES: u64 = 1 << 13;
/// Messages that a packet leaves behind at most; further calls do nothing.
const MAX_PER_PACKET: usize = 256;

/// A digest that a program may send: how its messages look to a controller.
#[derive(Debug)]
pub struct Digest {
    pub(super) id: u32,
    pub(super) name: String,
    data: DigestType,
    /// The values' places in a message, in the order of the type's leaves.
    fields: Vec<Slot>,
    bytes: usize,
    /// Names and numbers of the program's errors.
    errors: Arc<[(String, u32)]>,
}

/// A message of a digest as the data plane leaves it. Messages are duplicates if they are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DigestMessage {
    /// The digest's P4Info id.
    pub digest: u32,
    /// The values, for [`Digest::value`].
    pub values: Box<[u8]>,
}

/// A digest's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DigestValue {
    /// The shortest big-endian bytes, in two's complement if the type is signed (P4Runtime §8.3).
    Bits(Vec<u8>),
    /// A boolean.
    Bool(bool),
    /// A member of an enumeration with a representation, as [`DigestValue::Bits`].
    EnumValue(Vec<u8>),
    /// The name of a member of an enumeration; empty if there is none of this number.
    Enum(String),
    /// The name of an error; empty if there is none of this number.
    Error(String),
    /// The members of a struct.
    Struct(Vec<DigestValue>),
    /// The members of a tuple.
    Tuple(Vec<DigestValue>),
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
    /// Bytes of a message's values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the value of a message ([`DigestMessage::values`]).
    pub fn value(&self, values: &[u8]) -> DigestValue {
        let mut buffer = values.to_vec();
        buffer.resize(self.bytes + SLACK, 0);
        self.data
            .value(&mut self.fields.iter(), &buffer, &self.errors)
    }
}

impl DigestType {
    fn value(
        &self,
        fields: &mut std::slice::Iter<'_, Slot>,
        values: &[u8],
        errors: &[(String, u32)],
    ) -> DigestValue {
        let mut all = |members: &[DigestType]| {
            let members = members.iter();
            members
                .map(|one| one.value(fields, values, errors))
                .collect()
        };
        let leaf = match self {
            DigestType::Struct(members) => return DigestValue::Struct(all(members)),
            DigestType::Tuple(members) => return DigestValue::Tuple(all(members)),
            leaf => leaf,
        };
        let slot = fields.next().expect("as many fields as leaves");
        match leaf {
            DigestType::Bool => DigestValue::Bool(slot.load_word(values) != 0),
            DigestType::Enum(names) => {
                let name = names.get(slot.load_word(values) as usize);
                DigestValue::Enum(name.cloned().unwrap_or_default())
            }
            DigestType::Error => {
                let number = slot.load_word(values);
                let known = errors.iter().find(|(_, of)| u64::from(*of) == number);
                DigestValue::Error(known.map_or_else(String::new, |(name, _)| name.clone()))
            }
            DigestType::EnumValue => DigestValue::EnumValue(slot.canonical(values)),
            _ if slot.signed => DigestValue::Bits(slot.load_big(values).to_signed_bytes_be()),
            _ => DigestValue::Bits(slot.canonical(values)),
        }
    }

    fn leaves(&self) -> usize {
        match self {
            DigestType::Struct(members) | DigestType::Tuple(members) => {
                members.iter().map(DigestType::leaves).sum()
            }
            _ => 1,
        }
    }
}

/// The digests of a program, and its calls by the ids that primitives give.
pub(super) type Digests = (Vec<Digest>, Vec<LearnList>, HashMap<u32, usize>);

/// Loads the digests of a program from its calls and its P4Info.
pub(super) fn load(
    file: &json::Program,
    p4info: &P4Info,
    layout: &Layout,
) -> Result<Digests, LoadError> {
    let errors: Arc<[_]> = file.errors.as_slice().into();
    let (mut digests, mut lists, mut by_id) = (Vec::<Digest>::new(), Vec::new(), HashMap::new());
    for list in &file.learn_lists {
        let at = format!("learn list {}", list.name);
        let from = layout.slots(list, &at)?;
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
        // enabled.
        let digest = match p4info.digests.get(&list.name) {
            None => 0,
            Some(described) => {
                let id = described.id;
                let at = format!("digest {}", list.name);
                let data = described.data.as_ref();
                let data = data.map_err(|part| LoadError::unsupported(part, &at))?;
                if data.leaves() != to.len() {
                    let (have, want) = (to.len(), data.leaves());
                    let what = format!("{at} has {have} values, its P4Info {want}");
                    return Err(LoadError::p4info(what));
                }
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
                        data: data.clone(),
                        fields,
                        bytes,
                        errors: errors.clone(),
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

    #[test]
    fn enumerations_and_errors_are_sent_by_name() {
        let errors = [("NoError".into(), 0), ("TooMany".into(), 7)];
        let value = |data: DigestType, value: u8| {
            let mut values = vec![value];
            values.resize(1 + SLACK, 0);
            let slot = Slot::new(0, 8, false);
            data.value(&mut [slot].iter(), &values, &errors)
        };
        let kind = || DigestType::Enum(vec!["Request".into(), "Reply".into()]);
        assert_eq!(value(kind(), 1), DigestValue::Enum("Reply".into()));
        assert_eq!(value(kind(), 2), DigestValue::Enum(String::new()));
        let error = |number| value(DigestType::Error, number);
        assert_eq!(error(7), DigestValue::Error("TooMany".into()));
        assert_eq!(error(1), DigestValue::Error(String::new()));
    }
}
