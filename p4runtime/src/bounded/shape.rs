//! Sizes of messages in memory, computed from their descriptors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// Size of a vector, string or map without its contents, in bytes.
const HANDLE: usize = 24;
/// Size of a number, or of the discriminant of an optional message, in bytes.
const WORD: usize = 8;
/// Deepest nesting that prost decodes.
const DEPTH: u32 = 100;

/// Why a walk ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The message takes more memory than allowed.
    TooLarge,
    /// The decoder fails at this byte, too.
    Other,
}

/// The shapes of all messages of [`crate::FILE_DESCRIPTOR_SET`].
pub(super) struct Shapes {
    by_name: BTreeMap<String, usize>,
    shapes: Vec<Shape>,
    requests: BTreeSet<usize>,
    densest: usize,
}

/// The memory that a message takes.
struct Shape {
    /// Bytes, with embedded messages and without referenced ones.
    size: usize,
    /// By number.
    fields: Vec<Option<Field>>,
}

/// The memory that each occurrence of a field adds to its message.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// A message of this shape. Its size is part of the outer message's size unless `apart`.
    Message { inner: usize, apart: bool },
    /// A string: bytes without its contents.
    String(usize),
    /// A number, or a packed list of numbers.
    Number(usize),
}

impl Shapes {
    pub(super) fn get() -> &'static Shapes {
        static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
            let files = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET);
            Shapes::new(&files.expect("the build wrote it"))
        });
        &SHAPES
    }

    fn new(files: &FileDescriptorSet) -> Shapes {
        let mut all = Vec::new();
        for file in &files.file {
            let package = file.package();
            for message in &file.message_type {
                collect(package, message, &mut all);
            }
        }
        let names = all.iter().enumerate();
        let by_name: BTreeMap<_, _> = names.map(|(at, (name, _))| (name.clone(), at)).collect();
        let messages = Messages {
            by_name: &by_name,
            all: &all,
        };
        let shapes: Vec<Shape> = (0..all.len()).map(|at| messages.shape(at)).collect();
        let methods = files.file.iter().flat_map(|file| &file.service);
        let methods = methods.flat_map(|service| &service.method);
        let inputs = methods.filter_map(|method| messages.named(method.input_type()));
        let requests = inputs.collect();
        let sizes = shapes.iter().map(|shape| shape.size);
        // A message or string takes two bytes on the wire, its tag and its length. A number in a packed list takes one.
        let densest = sizes.max().unwrap_or(0).max(HANDLE).div_ceil(2).max(WORD);
        Shapes {
            by_name,
            shapes,
            requests,
            densest,
        }
    }

    /// Returns a message's shape by its full name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// True if a call takes this message.
    pub(super) fn is_request(&self, shape: usize) -> bool {
        self.requests.contains(&shape)
    }

    /// Returns the largest number of bytes that an encoded byte adds to a structure.
    pub(super) fn densest(&self) -> usize {
        self.densest
    }

    /// Returns the bytes of an empty message of this shape.
    #[cfg(test)]
    pub(super) fn size(&self, shape: usize) -> usize {
        self.shapes[shape].size
    }

    /// Subtracts the memory of an encoded message from `room`.
    pub(super) fn charge(
        &self,
        shape: usize,
        encoded: &[u8],
        room: &mut usize,
    ) -> Result<(), Malformed> {
        self.walk(&self.shapes[shape], encoded, room, DEPTH)
    }

    fn walk(
        &self,
        shape: &Shape,
        mut encoded: &[u8],
        room: &mut usize,
        depth: u32,
    ) -> Result<(), Malformed> {
        while !encoded.is_empty() {
            let (number, wire) = decode_key(&mut encoded).map_err(|_| Malformed::Other)?;
            let Some(Some(field)) = shape.fields.get(number as usize) else {
                let context = DecodeContext::default();
                skip_field(wire, number, &mut encoded, context).map_err(|_| Malformed::Other)?;
                continue;
            };
            match (*field, wire) {
                (Field::Number(bytes), WireType::LengthDelimited) => {
                    take(room, bytes.saturating_mul(delimited(&mut encoded)?.len()))?;
                }
                (Field::Number(bytes), _) => {
                    take(room, bytes)?;
                    let context = DecodeContext::default();
                    skip_field(wire, number, &mut encoded, context)
                        .map_err(|_| Malformed::Other)?;
                }
                (Field::String(bytes), WireType::LengthDelimited) => {
                    take(room, bytes)?;
                    delimited(&mut encoded)?;
                }
                (Field::Message { inner, apart }, WireType::LengthDelimited) => {
                    let shape = &self.shapes[inner];
                    take(room, if apart { shape.size } else { 0 })?;
                    let depth = depth.checked_sub(1).ok_or(Malformed::Other)?;
                    let inside = delimited(&mut encoded)?;
                    self.walk(shape, inside, room, depth)?;
                }
                _ => return Err(Malformed::Other),
            }
        }
        Ok(())
    }
}

fn take(room: &mut usize, bytes: usize) -> Result<(), Malformed> {
    *room = room.checked_sub(bytes).ok_or(Malformed::TooLarge)?;
    Ok(())
}

/// Splits off the bytes of a length-delimited field.
fn delimited<'a>(encoded: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = decode_varint(encoded).map_err(|_| Malformed::Other)?;
    let length = usize::try_from(length).map_err(|_| Malformed::Other)?;
    let (inside, rest) = encoded.split_at_checked(length).ok_or(Malformed::Other)?;
    *encoded = rest;
    Ok(inside)
}

fn collect<'a>(
    scope: &str,
    message: &'a DescriptorProto,
    all: &mut Vec<(String, &'a DescriptorProto)>,
) {
    let name = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, all);
    }
    all.push((name, message));
}

/// The descriptors of all messages by full name.
struct Messages<'a> {
    by_name: &'a BTreeMap<String, usize>,
    all: &'a [(String, &'a DescriptorProto)],
}

impl Messages<'_> {
    /// Returns the message of a descriptor's type name, which has a leading dot.
    fn named(&self, name: &str) -> Option<usize> {
        self.by_name.get(name.strip_prefix('.')?).copied()
    }

    fn shape(&self, at: usize) -> Shape {
        let declared = &self.all[at].1.field;
        let most = declared.iter().map(|field| field.number()).max();
        let mut fields = vec![None; most.map_or(0, |most| most as usize + 1)];
        for field in declared {
            fields[field.number() as usize] = Some(self.field(at, field));
        }
        let size = self.size(at);
        Shape { size, fields }
    }

    fn field(&self, of: usize, field: &FieldDescriptorProto) -> Field {
        let repeated = field.label() == Label::Repeated;
        match (self.message(field), field.r#type()) {
            (Some(inner), _) => {
                let apart = repeated || self.reaches(inner, of);
                Field::Message { inner, apart }
            }
            (None, Type::String | Type::Bytes) => Field::String(if repeated { HANDLE } else { 0 }),
            (None, _) => Field::Number(if repeated { WORD } else { 0 }),
        }
    }

    fn message(&self, field: &FieldDescriptorProto) -> Option<usize> {
        match field.r#type() {
            Type::Message => self.named(field.type_name()),
            _ => None,
        }
    }

    /// Returns the bytes of an empty message. The largest alternative of a oneof counts.
    fn size(&self, at: usize) -> usize {
        let mut size = 0;
        let mut oneofs = BTreeMap::new();
        for field in &self.all[at].1.field {
            let bytes = self.in_place(at, field);
            match field.oneof_index {
                Some(oneof) => {
                    let largest = oneofs.entry(oneof).or_insert(0);
                    *largest = bytes.max(*largest);
                }
                None => size += bytes,
            }
        }
        size + oneofs.values().map(|bytes| bytes + WORD).sum::<usize>()
    }

    /// Returns the bytes that a field takes within its message.
    fn in_place(&self, of: usize, field: &FieldDescriptorProto) -> usize {
        let repeated = field.label() == Label::Repeated;
        match (self.message(field), field.r#type()) {
            _ if repeated => HANDLE,
            // prost boxes a message that may contain itself.
            (Some(inner), _) if self.reaches(inner, of) => WORD,
            (Some(inner), _) => self.size(inner) + WORD,
            (None, Type::String | Type::Bytes) => HANDLE,
            (None, _) => WORD,
        }
    }

    /// True if message `from` may contain message `to`.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let mut seen = BTreeSet::from([from]);
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            if at == to {
                return true;
            }
            let fields = self.all[at].1.field.iter();
            let inner = fields.filter_map(|field| self.message(field));
            next.extend(inner.filter(|inner| seen.insert(*inner)));
        }
        false
    }
}
