//! A packet's headers and metadata: one byte buffer in the program's [`Layout`].

use super::bits::{NEAR, Slot, word_at};
use super::layout::{Layout, Shape, Stack, WORK};

/// The first words of the buffer: operands of an instruction, or the key of a lookup.
pub(super) const OPERANDS: usize = 8;

#[derive(Debug, Clone, Default)]
pub(super) struct Phv {
    pub bytes: Vec<u8>,
}

impl Phv {
    /// Copies fields from another header vector.
    pub fn keep(&mut self, fields: &[Slot], from: &Phv) {
        for slot in fields {
            slot.copy_to(&from.bytes, *slot, &mut self.bytes);
        }
    }

    /// A header vector with any content.
    pub fn new(layout: &Layout) -> Phv {
        Phv {
            bytes: vec![0; layout.initial.len().max(NEAR)],
        }
    }

    /// The part that operations reach.
    #[inline(always)]
    pub fn near(&mut self) -> &mut [u8; NEAR] {
        let near = self.bytes.first_chunk_mut();
        near.expect("every header vector has as many bytes")
    }

    /// A machine word.
    pub fn word(&self, at: u16) -> u64 {
        let near = self.bytes.first_chunk();
        word_at(near.expect("every header vector has as many bytes"), at)
    }

    /// The operands of the instruction at hand.
    pub fn operands(&self) -> [u64; OPERANDS] {
        std::array::from_fn(|at| self.word(at as u16 * 8))
    }

    /// The bytes of headers and metadata.
    pub fn content(&self, layout: &Layout) -> &[u8] {
        &self.bytes[WORK..layout.initial.len()]
    }

    /// The bytes that egress may read before it writes them.
    pub fn live(&self, layout: &Layout) -> &[u8] {
        &self.bytes[WORK..layout.live[1]]
    }

    /// Replaces the first bytes of headers and metadata.
    pub fn set_content(&mut self, content: &[u8]) {
        self.bytes[WORK..WORK + content.len()].copy_from_slice(content);
    }

    /// Copies headers and metadata to where the recorder compares them.
    pub fn save(&self, layout: &Layout, to: &mut Phv) {
        to.bytes.clear();
        to.bytes
            .extend_from_slice(&self.bytes[..layout.initial.len()]);
    }

    /// The state before the parser runs.
    pub fn reset(&mut self, layout: &Layout) {
        self.set_content(&layout.initial[WORK..]);
    }

    /// The same for all that parser and ingress may read before they write it.
    pub fn reset_live(&mut self, layout: &Layout) {
        self.set_content(&layout.initial[WORK..layout.live[0]]);
    }

    pub fn reset_metadata(&mut self, layout: &Layout) {
        self.bytes[layout.metadata.clone()].fill(0);
    }

    pub fn is_valid(&self, header: usize) -> bool {
        self.bytes[WORK + header] != 0
    }

    /// Makes a header valid and, if it is in a union, the other members invalid.
    pub fn set_valid(&mut self, layout: &Layout, header: usize) {
        self.bytes[WORK + header] = 1;
        for sibling in &layout.instances[header].siblings {
            self.bytes[WORK + *sibling] = 0;
        }
    }

    pub fn set_invalid(&mut self, header: usize) {
        self.bytes[WORK + header] = 0;
    }

    /// All fields zero, the variable-length field empty.
    pub fn clear(&mut self, layout: &Layout, header: usize) {
        let base = layout.instances[header].base;
        let shape = layout.shape(header);
        self.bytes[base..base + shape.bytes].fill(0);
        self.set_varbit_length(layout, header, 0);
    }

    /// Bytes of the header on the wire.
    pub fn wire_length(&self, layout: &Layout, header: usize) -> usize {
        layout.shape(header).fixed_bytes + self.varbit_length(layout, header)
    }

    /// Bytes of the header's variable-length field; 0 if it has none.
    pub fn varbit_length(&self, layout: &Layout, header: usize) -> usize {
        match layout.shape(header).varbit {
            Some(_) => usize::from(self.short(layout.instances[header].varbit_length)),
            None => 0,
        }
    }

    fn set_varbit_length(&mut self, layout: &Layout, header: usize, bytes: usize) {
        if layout.shape(header).varbit.is_some() {
            self.set_short(layout.instances[header].varbit_length, bytes as u16);
        }
    }

    /// Fills a header from the wire, its variable-length field taking `varbit` bytes. `wire` must
    /// be as long as that makes the header, and `varbit` within the field's room.
    pub fn extract(&mut self, layout: &Layout, header: usize, wire: &[u8], varbit: usize) {
        let base = layout.instances[header].base;
        match layout.shape(header) {
            Shape { varbit: None, .. } => {
                self.bytes[base..base + wire.len()].copy_from_slice(wire);
            }
            Shape {
                varbit: Some(field),
                bytes,
                ..
            } => {
                let (before, rest) = wire.split_at(field.start);
                let (content, behind) = rest.split_at(varbit);
                let storage = &mut self.bytes[base..base + bytes];
                storage[..field.start].copy_from_slice(before);
                let room = &mut storage[field.start..field.start + field.max_bytes];
                room[..varbit].copy_from_slice(content);
                room[varbit..].fill(0);
                let tail = *bytes - behind.len();
                storage[tail..].copy_from_slice(behind);
                self.set_varbit_length(layout, header, varbit);
            }
        }
        self.set_valid(layout, header);
    }

    /// Appends the header as it goes on the wire.
    pub fn emit(&self, layout: &Layout, header: usize, out: &mut Vec<u8>) {
        let base = layout.instances[header].base;
        let shape = layout.shape(header);
        let storage = &self.bytes[base..base + shape.bytes];
        match shape.varbit {
            None => out.extend_from_slice(storage),
            Some(field) => {
                let length = self.varbit_length(layout, header);
                out.extend_from_slice(&storage[..field.start + length]);
                out.extend_from_slice(&storage[field.start + field.max_bytes..]);
            }
        }
    }

    /// The bytes of a header's variable-length field.
    pub fn varbit<'a>(&'a self, layout: &Layout, header: usize) -> &'a [u8] {
        match layout.shape(header).varbit {
            Some(field) => {
                let start = layout.instances[header].base + field.start;
                &self.bytes[start..start + self.varbit_length(layout, header)]
            }
            None => &[],
        }
    }

    /// Copies the variable-length field of one header to that of another, as much as has room.
    pub fn copy_varbit(&mut self, layout: &Layout, from: usize, to: usize) {
        let (Some(source), Some(target)) = (layout.shape(from).varbit, layout.shape(to).varbit)
        else {
            return;
        };
        let length = self.varbit_length(layout, from).min(target.max_bytes);
        let start = layout.instances[from].base + source.start;
        let room = layout.instances[to].base + target.start;
        self.bytes.copy_within(start..start + length, room);
        self.bytes[room + length..room + target.max_bytes].fill(0);
        self.set_varbit_length(layout, to, length);
    }

    /// `to = from` for headers of one type: content if `from` is valid, else invalid.
    pub fn assign_header(&mut self, layout: &Layout, from: usize, to: usize) {
        if self.is_valid(from) {
            self.copy_content(layout, from, to);
            self.set_valid(layout, to);
        } else {
            self.set_invalid(to);
        }
    }

    fn copy_content(&mut self, layout: &Layout, from: usize, to: usize) {
        let start = layout.instances[from].base;
        let end = start + layout.shape(from).bytes;
        self.bytes
            .copy_within(start..end, layout.instances[to].base);
        let length = self.varbit_length(layout, from);
        self.set_varbit_length(layout, to, length);
    }

    /// True if two headers of one type are both valid and equal in every field.
    pub fn equal(&self, layout: &Layout, left: usize, right: usize) -> bool {
        let bytes = |header: usize| {
            let base = layout.instances[header].base;
            &self.bytes[base..base + layout.shape(header).bytes]
        };
        self.is_valid(left)
            && self.is_valid(right)
            && self.varbit_length(layout, left) == self.varbit_length(layout, right)
            && bytes(left) == bytes(right)
    }

    /// The index of a stack's next free element.
    pub fn next(&self, stack: &Stack) -> usize {
        usize::from(self.short(stack.next))
    }

    pub fn set_next(&mut self, stack: &Stack, next: usize) {
        self.set_short(stack.next, next as u16);
    }

    /// Moves all elements up by `count`; the first ones become invalid.
    pub fn push_front(&mut self, layout: &Layout, stack: &Stack, count: usize) {
        let size = stack.elements.len();
        let count = count.min(size);
        self.set_next(stack, (self.next(stack) + count).min(size));
        for index in (count..size).rev() {
            self.move_element(layout, stack, index - count, index);
        }
        self.invalidate(stack, 0..count);
    }

    /// Moves all elements down by `count`; the last ones become invalid.
    pub fn pop_front(&mut self, layout: &Layout, stack: &Stack, count: usize) {
        let size = stack.elements.len();
        let count = count.min(size);
        self.set_next(stack, self.next(stack).saturating_sub(count));
        for index in count..size {
            self.move_element(layout, stack, index, index - count);
        }
        self.invalidate(stack, size - count..size);
    }

    fn move_element(&mut self, layout: &Layout, stack: &Stack, from: usize, to: usize) {
        for (from, to) in stack.elements[from].iter().zip(&stack.elements[to]) {
            self.copy_content(layout, *from, *to);
            self.bytes[WORK + *to] = self.bytes[WORK + *from];
        }
    }

    fn invalidate(&mut self, stack: &Stack, elements: std::ops::Range<usize>) {
        for header in stack.elements[elements].iter().flatten() {
            self.set_invalid(*header);
        }
    }

    fn short(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn set_short(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}
