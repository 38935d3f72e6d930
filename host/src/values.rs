//! An operation's values: where they are, and which of them are contributions, aggregates and results.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use crate::memory::Buffer;

/// A caller's bucket, which an operation takes and replaces by its result: [`crate::Collective::start_taken`].
pub enum Taken {
    /// Values that come back with the result in their place.
    Owned(Vec<f32>),
    /// Values that stay where they are, such as a tensor's. The operation drops the box when it ends.
    Lent(Box<dyn AsMut<[f32]> + Send>),
}

impl Taken {
    /// The values.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        match self {
            Taken::Owned(values) => values,
            Taken::Lent(values) => (**values).as_mut(),
        }
    }

    /// The values; empty if they stay where they are.
    pub fn into_vec(self) -> Vec<f32> {
        match self {
            Taken::Owned(values) => values,
            Taken::Lent(_) => Vec::new(),
        }
    }
}

/// A caller's memory, for an operation that replaces its values.
#[derive(Debug)]
pub(crate) struct Lent {
    start: NonNull<f32>,
    len: usize,
    /// From `Box::into_raw`. Nothing uses it before it is dropped.
    owner: Option<NonNull<dyn AsMut<[f32]> + Send>>,
}

// SAFETY: it is the only access to the values, see `Lent::new` and `Lent::of`; `f32` and the owner may move between
// threads.
unsafe impl Send for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(owner) = self.owner {
            // SAFETY: it comes from `Box::into_raw`, and is dropped once.
            drop(unsafe { Box::from_raw(owner.as_ptr()) });
        }
    }
}

impl Lent {
    /// # Safety
    /// Until the value is dropped, `bucket`'s memory stays allocated, and all access to it is through this value.
    pub(crate) unsafe fn new(bucket: &mut [f32]) -> Self {
        Self {
            len: bucket.len(),
            start: NonNull::from(bucket).cast(),
            owner: None,
        }
    }

    /// Borrows values that their `owner` keeps where they are.
    fn of(owner: Box<dyn AsMut<[f32]> + Send>) -> Self {
        let mut owner = NonNull::from(Box::leak(owner));
        // SAFETY: this is the only reference to the owner. The slice stays valid while the owner is neither moved, dropped
        // nor borrowed again, which only `drop` does.
        let values = unsafe { owner.as_mut() }.as_mut();
        Self {
            len: values.len(),
            start: NonNull::from(values).cast(),
            owner: Some(owner),
        }
    }

    fn as_slice(&self) -> &[f32] {
        // SAFETY: `Lent::new`, `Lent::of`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: `Lent::new`, `Lent::of`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Memory for an operation's values. [`Values`] has room for all of them.
///
/// [`Core`](crate::Core) takes all lengths from a bucket's layout, and the values that it sends, adds and rounds from here.
/// So a simulation that needs only the packets' lengths and times can have a store without memory, whose slices are all empty.
pub trait ValueStore: Default {
    /// Number of values.
    fn count(&self) -> usize;

    /// Makes room for `count` values, with any content.
    fn resize(&mut self, count: usize);

    /// The values in `range`.
    fn get(&self, range: Range<usize>) -> &[f32];

    /// The values in `range`, to be changed.
    fn get_mut(&mut self, range: Range<usize>) -> &mut [f32];

    /// The values, for the caller of the operation; empty if they stay where they are.
    fn into_values(self) -> Values;
}

/// Values in memory of the operation's own, or in memory that its caller gives or lends.
#[derive(Debug)]
pub struct Values(Memory);

#[derive(Debug)]
enum Memory {
    Own(Buffer),
    Given(Vec<f32>),
    Lent(Lent),
}

impl Values {
    /// The values; empty if they stay where they are.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Memory::Own(values) => values.to_vec(),
            Memory::Given(values) => values,
            Memory::Lent(_) => Vec::new(),
        }
    }

    /// The operation's own memory; empty if it has none.
    pub(crate) fn into_buffer(self) -> Buffer {
        match self.0 {
            Memory::Own(values) => values,
            Memory::Given(_) | Memory::Lent(_) => Buffer::default(),
        }
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Memory::Own(values) => values,
            Memory::Given(values) => values,
            Memory::Lent(values) => values.as_slice(),
        }
    }
}

impl DerefMut for Values {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.0 {
            Memory::Own(values) => values,
            Memory::Given(values) => values,
            Memory::Lent(values) => values.as_mut_slice(),
        }
    }
}

impl From<Buffer> for Values {
    fn from(values: Buffer) -> Self {
        Self(Memory::Own(values))
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self(Memory::Given(values))
    }
}

impl From<Lent> for Values {
    fn from(values: Lent) -> Self {
        Self(Memory::Lent(values))
    }
}

impl From<Taken> for Values {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Owned(values) => values.into(),
            Taken::Lent(owner) => Lent::of(owner).into(),
        }
    }
}

impl Default for Values {
    fn default() -> Self {
        Buffer::default().into()
    }
}

impl ValueStore for Values {
    fn count(&self) -> usize {
        self.len()
    }

    /// Allocates only for the largest number so far.
    fn resize(&mut self, count: usize) {
        match &mut self.0 {
            Memory::Own(values) => values.resize(count),
            Memory::Given(values) if values.capacity() >= count => values.resize(count, 0.0),
            _ => *self = Buffer::zeroed(count).into(),
        }
    }

    fn get(&self, range: Range<usize>) -> &[f32] {
        &self[range]
    }

    fn get_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        &mut self[range]
    }

    /// Drops lent values' owner before the caller hears of the end.
    fn into_values(self) -> Values {
        match self.0 {
            Memory::Lent(_) => Values::default(),
            memory => Values(memory),
        }
    }
}

/// The values of an operation.
pub(crate) struct Bucket<V> {
    /// Contributions, and the aggregates in their place: an aggregate that arrives, or a slot that closes, shows that
    /// no rank needs the contribution any more. With recycling, the others' aggregates are in `result`.
    values: V,
    /// With recycling, which compares them with the contributions: all aggregates.
    result: Option<V>,
    shard: Range<usize>,
    /// After the end, aggregates of the own shard that were not sent.
    unsent: V,
    has_ended: bool,
}

/// Memory of an operation that is over.
#[derive(Default)]
pub(crate) struct Spare<V> {
    values: V,
    unsent: V,
}

impl<V: ValueStore> Bucket<V> {
    /// Creates the bucket of an operation that contributes `values`, and owns `shard` of them. Their place is for the result,
    /// unless it is to be written `apart`.
    pub(crate) fn new(values: V, shard: Range<usize>, apart: bool, spare: Spare<V>) -> Self {
        let result = apart.then(|| {
            let mut result = spare.values;
            result.resize(values.count());
            result
        });
        Self {
            values,
            result,
            shard,
            unsent: spare.unsent,
            has_ended: false,
        }
    }

    /// Contributions that are still needed, and the own shard's aggregates.
    pub(crate) fn own(&self) -> &V {
        &self.values
    }

    pub(crate) fn own_mut(&mut self) -> &mut V {
        &mut self.values
    }

    /// The result so far.
    pub(crate) fn result(&self) -> &V {
        self.result.as_ref().unwrap_or(&self.values)
    }

    pub(crate) fn result_mut(&mut self) -> &mut V {
        self.result.as_mut().unwrap_or(&mut self.values)
    }

    /// Notes that the own values in `range` are aggregates.
    pub(crate) fn close(&mut self, range: Range<usize>) {
        if let Some(result) = &mut self.result {
            result
                .get_mut(range.clone())
                .copy_from_slice(self.values.get(range));
        }
    }

    /// Aggregates to send, in `range` of the own shard.
    pub(crate) fn aggregates(&self, range: Range<usize>) -> &[f32] {
        match self.has_ended {
            true => self.unsent.get(within(&self.shard, range)),
            false => self.values.get(range),
        }
    }

    /// Takes the result at the end, and keeps the own shard's aggregates in the ranges that are not sent.
    pub(crate) fn end(&mut self, unsent: impl Iterator<Item = Range<usize>>) -> V {
        if let Some(result) = self.result.take() {
            return result;
        }
        self.has_ended = true;
        let result = std::mem::take(&mut self.values);
        self.unsent.resize(self.shard.len());
        for range in unsent {
            let place = within(&self.shard, range.clone());
            self.unsent
                .get_mut(place)
                .copy_from_slice(result.get(range));
        }
        result
    }

    /// The memory, after [`Bucket::end`].
    pub(crate) fn into_spare(self) -> Spare<V> {
        Spare {
            values: self.values,
            unsent: self.unsent,
        }
    }
}

/// `range` of a bucket, counted from the start of the shard that contains it.
fn within(shard: &Range<usize>, range: Range<usize>) -> Range<usize> {
    range.start - shard.start..range.end - shard.start
}
