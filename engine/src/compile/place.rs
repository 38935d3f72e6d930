//! References of expressions to headers, stacks and fields.

use super::super::bits::Slot;
use super::super::error::LoadError;
use super::super::expression::{FieldRef, HeaderRef, Num};
use super::super::json::{Operation, Term};
use super::Scope;

/// A field that can be read and written.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Fixed(Slot),
    Element(FieldRef),
}

impl Place {
    /// Its width in bits.
    pub fn width(&self) -> u32 {
        match self {
            Place::Fixed(slot) => slot.width,
            Place::Element(field) => field.slot.width,
        }
    }

    /// The computed index of its header.
    pub fn index(&self) -> Option<&Num> {
        match self {
            Place::Fixed(_) => None,
            Place::Element(field) => field.header.index(),
        }
    }

    /// Returns the value at this place.
    pub fn value(self) -> Num {
        match self {
            Place::Fixed(slot) => Num::Field(slot),
            Place::Element(field) => Num::Element(Box::new(field)),
        }
    }
}

impl Scope<'_> {
    /// A header.
    pub fn header(&self, term: &Term) -> Result<HeaderRef, LoadError> {
        let operation = match term {
            Term::Header(name) => return Ok(HeaderRef::Fixed(self.layout.find(name, self.at)?)),
            // p4c writes a stack's last header like a field of that name.
            Term::StackField(stack, last) if last == "last" => {
                return Ok(last_of(self.layout.find_stack(stack, self.at)?, 0));
            }
            Term::Operation(operation) => operation,
            _ => return Err(self.mismatch("a header", term)),
        };
        match operation.op.as_str() {
            "dereference_header_stack" | "dereference_stack" => {
                let (stack, index) = self.dereference(operation)?;
                Ok(HeaderRef::Element {
                    stack,
                    index: Box::new(index),
                    member: 0,
                })
            }
            "access_union_header" => {
                let union = self.operand(operation, &operation.left)?;
                let member = self.position(operation)?;
                match union {
                    Term::Operation(inner) if inner.op == "dereference_union_stack" => {
                        let (stack, index) = self.dereference(inner)?;
                        self.member(self.layout.stacks[stack].elements[0].len(), member)?;
                        Ok(HeaderRef::Element {
                            stack,
                            index: Box::new(index),
                            member,
                        })
                    }
                    union => {
                        let members = self.union(union)?;
                        self.member(members.len(), member)?;
                        Ok(HeaderRef::Fixed(members[member]))
                    }
                }
            }
            _ => Err(self.unknown(operation)),
        }
    }

    /// The members of a header union that is known when the program is loaded.
    pub fn union(&self, term: &Term) -> Result<Vec<usize>, LoadError> {
        match term {
            Term::HeaderUnion(name) => Ok(self.layout.find_union(name, self.at)?.to_vec()),
            Term::Operation(operation) => Err(LoadError::unsupported(
                format!("a header union by {}", operation.op),
                self.at,
            )),
            _ => Err(self.mismatch("a header union", term)),
        }
    }

    /// A stack of headers or of header unions.
    pub fn stack(&self, term: &Term) -> Result<usize, LoadError> {
        match term {
            Term::HeaderStack(name) | Term::HeaderUnionStack(name) => {
                self.layout.find_stack(name, self.at)
            }
            _ => Err(self.mismatch("a header stack", term)),
        }
    }

    /// A field that can be assigned to.
    pub fn field(&self, term: &Term) -> Result<Place, LoadError> {
        match term {
            Term::Field(header, field) => {
                Ok(Place::Fixed(self.layout.field(header, field, self.at)?))
            }
            Term::StackField(stack, field) => {
                let stack = self.layout.find_stack(stack, self.at)?;
                self.late(last_of(stack, 0), field)
            }
            Term::UnionStackField(stack, member, field) => {
                let stack = self.layout.find_stack(stack, self.at)?;
                let member = self.layout.stacks[stack].member(member, self.at)?;
                self.late(last_of(stack, member), field)
            }
            Term::Operation(operation) if operation.op == "access_field" => {
                let header = self.header(self.operand(operation, &operation.left)?)?;
                let field = self.position(operation)?;
                let shape = self.layout.shape(self.sample(&header));
                let found = shape.fields.get(field).ok_or_else(|| {
                    let what = format!("type {} has no field {field}", shape.name);
                    LoadError::malformed(what, self.at)
                })?;
                match header {
                    HeaderRef::Fixed(header) => Ok(Place::Fixed(self.layout.slot(header, field))),
                    header => Ok(Place::Element(FieldRef {
                        header,
                        slot: found.slot,
                    })),
                }
            }
            _ => Err(self.mismatch("a field", term)),
        }
    }

    fn late(&self, header: HeaderRef, field: &str) -> Result<Place, LoadError> {
        let shape = self.layout.shape(self.sample(&header));
        let slot = shape.fields[shape.find(field, self.at)?].slot;
        Ok(Place::Element(FieldRef { header, slot }))
    }

    /// A header of the same type as the one that `header` will be.
    pub(crate) fn sample(&self, header: &HeaderRef) -> usize {
        match header {
            HeaderRef::Fixed(header) => *header,
            HeaderRef::Element { stack, member, .. } => {
                self.layout.stacks[*stack].elements[0][*member]
            }
        }
    }

    fn dereference(&self, operation: &Operation) -> Result<(usize, Num), LoadError> {
        let stack = self.stack(self.operand(operation, &operation.left)?)?;
        let index = self.number(self.operand(operation, &operation.right)?)?;
        Ok((stack, index))
    }

    fn member(&self, members: usize, member: usize) -> Result<(), LoadError> {
        if member < members {
            return Ok(());
        }
        Err(LoadError::malformed(
            format!("the header union has no member {member}"),
            self.at,
        ))
    }
}

fn last_of(stack: usize, member: usize) -> HeaderRef {
    HeaderRef::Element {
        stack,
        index: Box::new(Num::Fill { stack, plus: -1 }),
        member,
    }
}
