//! Layout of a program's headers and metadata in the packet header vector.
//!
//! The vector is one byte buffer: working memory for operations, a validity byte per header instance, the fill of each header stack, the length of each
//! variable-length field, then all metadata and all headers. So copying or resetting a packet's state is one memory copy.
//! Headers have their wire format. A metadata field has machine words of its own; one of up to 64 bits is a word in the
//! processor's byte order, which operations use as an operand.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::bits::{MAX_BITS, SLACK, Slot};
use super::error::LoadError;
use super::json;
use super::live::{Live, Liveness};

/// Bytes at the start of the buffer for operands and intermediate results of operations.
pub(super) const WORK: usize = 320 * 8;

/// The fields of a header type, positions relative to the start of an instance.
#[derive(Debug)]
pub(super) struct Shape {
    pub name: String,
    pub fields: Vec<FieldShape>,
    /// Bytes on the wire, the variable-length field empty.
    pub fixed_bytes: usize,
    pub varbit: Option<Varbit>,
    /// Bytes in the vector, the variable-length field at its longest.
    pub bytes: usize,
    /// Bytes up to the last field that is live in ingress, and in egress; 0 without one.
    live: [usize; 2],
}

#[derive(Debug)]
pub(super) struct FieldShape {
    pub name: String,
    /// For the variable-length field: all the room it has.
    pub slot: Slot,
}

/// The variable-length field of a header type. In the vector it has room for its longest value,
/// which starts at its first byte; the fields behind it follow that room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Varbit {
    pub field: usize,
    /// Bytes before it.
    pub start: usize,
    pub max_bytes: usize,
}

/// A header or metadata instance.
#[derive(Debug)]
pub(super) struct Instance {
    pub name: String,
    pub shape: usize,
    pub metadata: bool,
    /// Its first byte in the vector.
    pub base: usize,
    /// The place of its variable-length field's length in the vector: bytes, 16 bits.
    pub varbit_length: usize,
    /// The other members of its header union: at most one of them is valid.
    pub siblings: Vec<usize>,
}

/// A header stack or a stack of header unions. Each element is the list of its headers: one, or
/// the members of the union.
#[derive(Debug)]
pub(super) struct Stack {
    pub name: String,
    pub elements: Vec<Vec<usize>>,
    /// The place of the index of the next free element in the vector: 16 bits.
    pub next: usize,
    /// Member names of the union; empty for a header stack.
    pub members: Vec<String>,
}

impl Stack {
    /// A header of the element at an index; `None` outside the stack.
    pub fn element(&self, index: u64, member: usize) -> Option<usize> {
        let element = self.elements.get(usize::try_from(index).ok()?)?;
        Some(element[member])
    }

    /// The position of a union's member.
    pub fn member(&self, name: &str, at: &str) -> Result<usize, LoadError> {
        let found = self.members.iter().position(|member| member == name);
        LoadError::found(found, "union member", name, at)
    }
}

#[derive(Debug)]
pub(super) struct Layout {
    pub shapes: Vec<Shape>,
    pub instances: Vec<Instance>,
    pub stacks: Vec<Stack>,
    /// Members of each header union, by the union's name.
    pub unions: HashMap<String, Vec<usize>>,
    /// The vector of a packet before its parser runs, with the working memory.
    pub initial: Vec<u8>,
    /// The bytes that hold metadata.
    pub metadata: std::ops::Range<usize>,
    /// Ends of what ingress needs from the start, and of what egress needs from ingress.
    pub live: [usize; 2],
    by_name: HashMap<String, usize>,
    stack_by_name: HashMap<String, usize>,
}

impl Layout {
    /// Returns the places of a field list.
    pub fn slots(&self, list: &json::FieldList, at: &str) -> Result<Vec<Slot>, LoadError> {
        let slot = |element| match json::Term::parse(element, at)? {
            json::Term::Field(header, field) => self.field(&header, &field, at),
            other => Err(LoadError::unsupported(format!("{other:?}"), at)),
        };
        list.elements.iter().map(slot).collect()
    }

    pub fn new(program: &json::Program) -> Result<Layout, LoadError> {
        let liveness = Liveness::new(program);
        let shapes = shapes(program, &liveness)?;
        let shape_by_name: HashMap<_, _> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| (shape.name.clone(), i))
            .collect();

        let mut instances = Vec::new();
        let mut by_id = HashMap::new();
        for header in &program.headers {
            let at = format!("header {}", header.name);
            let shape = shape_by_name.get(&header.header_type);
            let shape = *LoadError::found(shape, "type", &header.header_type, &at)?;
            if by_id.insert(header.id, instances.len()).is_some() {
                return Err(LoadError::malformed(
                    format!("id {} is taken", header.id),
                    at,
                ));
            }
            instances.push(Instance {
                name: header.name.clone(),
                shape,
                metadata: header.metadata,
                base: 0,
                varbit_length: 0,
                siblings: Vec::new(),
            });
        }
        let (unions, union_by_id) = unions(program, &mut instances, &by_id)?;
        let mut stacks = stacks(program, &by_id, &union_by_id)?;
        check_alike(&instances, &shapes, &stacks)?;

        let mut end = WORK + instances.len();
        let mut place = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        for stack in &mut stacks {
            stack.next = place(2);
        }
        for instance in instances
            .iter_mut()
            .filter(|i| shapes[i.shape].varbit.is_some())
        {
            instance.varbit_length = place(2);
        }
        for instance in instances.iter_mut().filter(|i| !i.metadata) {
            instance.base = place(shapes[instance.shape].bytes);
        }
        let before = place(0);
        place(before.next_multiple_of(8) - before);
        let start = place(0);
        let mut by_use: Vec<_> = instances.iter_mut().filter(|i| i.metadata).collect();
        // The fewest bytes that are not live come first.
        by_use.sort_by_key(|i| {
            let shape = &shapes[i.shape];
            (
                Reverse(shape.live[1] > 0),
                Reverse(shape.live[0] > 0),
                shape.bytes - shape.live[1],
            )
        });
        let mut live = [start; 2];
        for instance in by_use {
            let shape = &shapes[instance.shape];
            instance.base = place(shape.bytes);
            for (end, bytes) in live
                .iter_mut()
                .zip(shape.live)
                .filter(|(_, bytes)| *bytes > 0)
            {
                *end = instance.base + bytes;
            }
        }
        let metadata = start..place(0);
        LoadError::check("size in bytes", place(0) as u64, MAX_BYTES, "headers")?;
        let mut initial = vec![0; place(0) + SLACK];
        for (valid, instance) in initial[WORK..].iter_mut().zip(&instances) {
            *valid = u8::from(instance.metadata);
        }

        let by_name = instances.iter().map(|x| x.name.clone()).zip(0..).collect();
        let stack_by_name = stacks.iter().map(|x| x.name.clone()).zip(0..).collect();
        Ok(Layout {
            shapes,
            instances,
            stacks,
            unions,
            initial,
            metadata,
            live,
            by_name,
            stack_by_name,
        })
    }

    pub fn shape(&self, instance: usize) -> &Shape {
        &self.shapes[self.instances[instance].shape]
    }

    pub fn find(&self, name: &str, at: &str) -> Result<usize, LoadError> {
        LoadError::found(self.by_name.get(name).copied(), "header", name, at)
    }

    /// A header that has a form on the wire, which metadata has not.
    pub fn find_on_wire(&self, name: &str, at: &str) -> Result<usize, LoadError> {
        let found = self.find(name, at)?;
        if self.instances[found].metadata {
            return Err(LoadError::malformed(format!("{name} is metadata"), at));
        }
        Ok(found)
    }

    pub fn find_stack(&self, name: &str, at: &str) -> Result<usize, LoadError> {
        let found = self.stack_by_name.get(name).copied();
        LoadError::found(found, "header stack", name, at)
    }

    pub fn find_union(&self, name: &str, at: &str) -> Result<&[usize], LoadError> {
        let found = self.unions.get(name).map(Vec::as_slice);
        LoadError::found(found, "header union", name, at)
    }

    /// The slot of a field, `$valid$` included.
    pub fn field(&self, header: &str, field: &str, at: &str) -> Result<Slot, LoadError> {
        let instance = self.find(header, at)?;
        if field == "$valid$" {
            return Ok(self.validity(instance));
        }
        let shape = self.shape(instance);
        let index = shape.find(field, at)?;
        Ok(shape.fields[index].slot.at(self.instances[instance].base))
    }

    /// The slot of a field, if the program has it.
    pub fn field_if_any(&self, header: &str, field: &str) -> Option<Slot> {
        self.field(header, field, "").ok()
    }

    /// The one-bit field that is 1 if an instance is valid.
    pub fn validity(&self, instance: usize) -> Slot {
        validity(instance)
    }

    /// A field of an instance, by its position in the type.
    pub fn slot(&self, instance: usize, field: usize) -> Slot {
        self.shape(instance).fields[field]
            .slot
            .at(self.instances[instance].base)
    }
}

/// The one-bit field that is 1 if an instance is valid.
pub(super) fn validity(instance: usize) -> Slot {
    Slot::new((WORK + instance) * 8 + 7, 1, false)
}

#[cfg(test)]
impl Layout {
    /// The layout of a program without headers.
    pub fn empty() -> Layout {
        Layout {
            shapes: Vec::new(),
            instances: Vec::new(),
            stacks: Vec::new(),
            unions: HashMap::new(),
            initial: vec![0; SLACK],
            metadata: 0..0,
            live: [0; 2],
            by_name: HashMap::new(),
            stack_by_name: HashMap::new(),
        }
    }
}

impl Shape {
    pub fn find(&self, field: &str, at: &str) -> Result<usize, LoadError> {
        self.fields
            .iter()
            .position(|f| f.name == field)
            .ok_or_else(|| {
                LoadError::malformed(format!("type {} has no field {field}", self.name), at)
            })
    }
}

fn shapes(program: &json::Program, liveness: &Liveness) -> Result<Vec<Shape>, LoadError> {
    let types_of = |metadata: bool| -> HashSet<_> {
        let instances = program.headers.iter().filter(|h| h.metadata == metadata);
        instances.map(|h| &h.header_type).collect()
    };
    let (metadata_types, wire_types) = (types_of(true), types_of(false));
    let mut ids = Vec::new();
    let mut shapes: Vec<Shape> = Vec::new();
    for header_type in &program.header_types {
        let at = format!("header type {}", header_type.name);
        if header_type.length_exp.is_some() {
            return Err(LoadError::unsupported("length_exp", at));
        }
        if ids.contains(&header_type.id) || shapes.iter().any(|s| s.name == header_type.name) {
            return Err(LoadError::malformed("its name or id is taken", at));
        }
        ids.push(header_type.id);
        let fixed_bits: u64 = header_type
            .fields
            .iter()
            .filter_map(|f| f.width)
            .map(u64::from)
            .sum();
        check_bits(fixed_bits, &at)?;
        if !fixed_bits.is_multiple_of(8) && !metadata_types.contains(&header_type.name) {
            return Err(LoadError::unsupported(
                format!("a header of {fixed_bits} bits"),
                at,
            ));
        }
        let fixed_bytes = fixed_bits.div_ceil(8) as usize;
        let varies = header_type.fields.iter().any(|field| field.width.is_none());
        let on_wire = varies || wire_types.contains(&header_type.name);
        let mut varbit = None;
        let mut bit = 0;
        let instances = || {
            program
                .headers
                .iter()
                .filter(|h| h.header_type == header_type.name)
        };
        let uses = header_type.fields.iter().map(|field| {
            let uses = instances().map(|instance| liveness.of(&instance.name, &field.name));
            uses.max().filter(|_| !on_wire).unwrap_or(Live::Egress)
        });
        let uses: Vec<_> = uses.collect();
        let mut order: Vec<_> = (0..uses.len()).collect();
        order.sort_by_key(|index| Reverse(uses[*index]));
        let mut live = [0; 2];
        let mut fields = Vec::new();
        for index in order {
            let field = &header_type.fields[index];
            let width = match field.width {
                Some(width) => width,
                None => {
                    let max = header_type.max_length.map_or(0, |max| max as usize);
                    check_bits(max as u64 * 8, &at)?;
                    let room = max.checked_sub(fixed_bytes).ok_or_else(|| {
                        LoadError::malformed(format!("max_length {max} is too short"), &at)
                    })?;
                    if varbit.is_some() || bit % 8 != 0 {
                        let what = "a second variable-length field, or one within a byte,";
                        return Err(LoadError::unsupported(what, at));
                    }
                    varbit = Some(Varbit {
                        field: index,
                        start: bit / 8,
                        max_bytes: room,
                    });
                    (room * 8) as u32
                }
            };
            if !on_wire {
                bit = bit.next_multiple_of(64);
            }
            let slot = match Slot::new(bit, width, field.signed) {
                slot if !on_wire && (1..=64).contains(&width) => slot.in_word(),
                slot => slot,
            };
            let name = field.name.clone();
            fields.push((index, FieldShape { name, slot }));
            bit += width as usize;
            let least = [Live::Ingress, Live::Egress];
            for (end, _) in live
                .iter_mut()
                .zip(least)
                .filter(|(_, least)| uses[index] >= *least)
            {
                *end = bit.next_multiple_of(64) / 8;
            }
        }
        fields.sort_by_key(|(index, _)| *index);
        let fields = fields.into_iter().map(|(_, field)| field).collect();
        let name = header_type.name.clone();
        let bytes = match on_wire {
            true => bit.div_ceil(8),
            false => bit.next_multiple_of(64) / 8,
        };
        shapes.push(Shape {
            name,
            fields,
            fixed_bytes,
            varbit,
            live: live.map(|end| end.min(bytes)),
            bytes,
        });
    }
    Ok(shapes)
}

fn check_bits(bits: u64, at: &str) -> Result<(), LoadError> {
    LoadError::check("width in bits", bits, u64::from(MAX_BITS), at)
}

/// Bytes of all headers and metadata of a packet, and of all that a deparser may emit.
pub(super) const MAX_BYTES: u64 = 1 << 20;
/// Members of a header union.
const MAX_MEMBERS: u64 = 256;
/// Elements of all stacks together, those of header unions counted by their members.
const MAX_ELEMENTS: u64 = 1 << 17;

type Unions = (
    HashMap<String, Vec<usize>>,
    HashMap<u32, (Vec<usize>, Vec<String>)>,
);

fn unions(
    program: &json::Program,
    instances: &mut [Instance],
    by_id: &HashMap<u32, usize>,
) -> Result<Unions, LoadError> {
    let (mut unions, mut union_by_id) = (HashMap::new(), HashMap::new());
    for union in &program.header_unions {
        let at = format!("header union {}", union.name);
        let count = union.header_ids.len() as u64;
        LoadError::check("number of members", count, MAX_MEMBERS, &at)?;
        let members = resolve(&union.header_ids, by_id, &at)?;
        for member in &members {
            instances[*member].siblings = members
                .iter()
                .copied()
                .filter(|other| other != member)
                .collect();
        }
        let union_type = program
            .header_union_types
            .iter()
            .find(|t| t.name == union.union_type);
        let union_type = LoadError::found(union_type, "union type", &union.union_type, &at)?;
        let names: Vec<_> = union_type
            .headers
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        if names.len() != members.len() {
            return Err(LoadError::malformed(
                "it has not as many headers as its type",
                at,
            ));
        }
        unions.insert(union.name.clone(), members.clone());
        union_by_id.insert(union.id, (members, names));
    }
    Ok((unions, union_by_id))
}

fn stacks(
    program: &json::Program,
    by_id: &HashMap<u32, usize>,
    union_by_id: &HashMap<u32, (Vec<usize>, Vec<String>)>,
) -> Result<Vec<Stack>, LoadError> {
    let mut stacks = Vec::new();
    let mut elements = 0;
    let mut count = |more: usize, at: &str| {
        elements += more as u64;
        LoadError::check(
            "number of elements, with those before,",
            elements,
            MAX_ELEMENTS,
            at,
        )
    };
    for stack in &program.header_stacks {
        let at = format!("header stack {} of {}", stack.name, stack.header_type);
        count(stack.header_ids.len(), &at)?;
        let headers = resolve(&stack.header_ids, by_id, &at)?;
        let elements = headers.into_iter().map(|header| vec![header]).collect();
        stacks.push(Stack {
            name: stack.name.clone(),
            elements,
            next: 0,
            members: Vec::new(),
        });
    }
    for stack in &program.header_union_stacks {
        let at = format!("header union stack {} of {}", stack.name, stack.union_type);
        let (mut elements, mut members) = (Vec::new(), Vec::new());
        for id in &stack.header_union_ids {
            let (headers, names) = LoadError::found(union_by_id.get(id), "union", id, &at)?;
            count(headers.len(), &at)?;
            elements.push(headers.clone());
            members.clone_from(names);
        }
        stacks.push(Stack {
            name: stack.name.clone(),
            elements,
            next: 0,
            members,
        });
    }
    Ok(stacks)
}

/// Elements of a stack are moved and indexed as if they were one type, so they must be.
fn check_alike(
    instances: &[Instance],
    shapes: &[Shape],
    stacks: &[Stack],
) -> Result<(), LoadError> {
    for stack in stacks {
        let types = |element: &Vec<usize>| -> Vec<_> {
            element
                .iter()
                .map(|header| &shapes[instances[*header].shape].name)
                .collect()
        };
        let alike = stack
            .elements
            .windows(2)
            .all(|pair| types(&pair[0]) == types(&pair[1]));
        if !alike || stack.elements.is_empty() || stack.elements.len() > usize::from(u16::MAX) {
            let at = format!("header stack {}", stack.name);
            return Err(LoadError::malformed(
                "its elements are none, too many or differ",
                at,
            ));
        }
    }
    Ok(())
}

fn resolve(ids: &[u32], by_id: &HashMap<u32, usize>, at: &str) -> Result<Vec<usize>, LoadError> {
    let find = |id| LoadError::found(by_id.get(id).copied(), "header", id, at);
    ids.iter().map(find).collect()
}
