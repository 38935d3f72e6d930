//! A bucket's values, or only their number.

use std::ops::Range;
use std::ptr::NonNull;

use crate::memory;

/// A caller's bucket, which an operation takes and replaces by its result: [`crate::Collective::start_taken`].
pub enum Taken {
    /// Values that come back with the result in their place.
    Owned(Vec<f32>),
    /// Values that stay where they are, such as a tensor's. The operation drops the box when it ends.
    Lent(Box<dyn AsMut<[f32]> + Send>),
}

impl Taken {
    /// The values.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
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

impl From<Taken> for Values {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Owned(values) => Values::Stored(values),
            Taken::Lent(owner) => Values::Lent(Lent::of(owner)),
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

    /// Of values that their `owner` keeps where they are.
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

/// Values to compute with, or only their number. With the number alone packets have the same lengths and
/// times, and nothing is stored, read or written.
pub(crate) enum Values {
    Stored(Vec<f32>),
    Lent(Lent),
    Counted(usize),
}

impl Default for Values {
    fn default() -> Self {
        Values::Stored(Vec::new())
    }
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Stored(values) => values.len(),
            Values::Lent(values) => values.len,
            Values::Counted(len) => *len,
        }
    }

    pub(crate) fn is_stored(&self) -> bool {
        !matches!(self, Values::Counted(_))
    }

    /// Resizes to `len` values, stored or counted, with any content. Allocates only for the largest number so
    /// far.
    pub(crate) fn resize(&mut self, len: usize, stored: bool) {
        match (stored, &mut *self) {
            (true, Values::Stored(values)) if values.capacity() >= len => values.resize(len, 0.0),
            (true, _) => *self = Values::Stored(memory::zeroed(len)),
            (false, _) => *self = Values::Counted(len),
        }
    }

    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[f32]> {
        match self {
            Values::Stored(values) => Some(&values[range]),
            Values::Lent(values) => Some(&values.as_slice()[range]),
            Values::Counted(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [f32]> {
        match self {
            Values::Stored(values) => Some(&mut values[range]),
            Values::Lent(values) => Some(&mut values.as_mut_slice()[range]),
            Values::Counted(_) => None,
        }
    }

    /// The values; empty if they were lent or counted.
    pub(crate) fn into_vec(self) -> Vec<f32> {
        match self {
            Values::Stored(values) => values,
            Values::Lent(_) | Values::Counted(_) => Vec::new(),
        }
    }
}

/// The values of an operation.
pub(crate) struct Bucket {
    /// Contributions, and the aggregates in their place: an aggregate that arrives, or a slot that closes, shows that
    /// no rank needs the contribution any more. With recycling, the others' aggregates are in `result`.
    values: Values,
    /// With recycling, which compares them with the contributions: all aggregates.
    result: Option<Values>,
    shard: Range<usize>,
    /// After the end, aggregates of the own shard that were not sent.
    unsent: Values,
    has_ended: bool,
}

/// Memory of an operation that is over.
#[derive(Default)]
pub(crate) struct Spare {
    values: Values,
    unsent: Values,
}

impl Bucket {
    /// Of an operation that contributes `values`, and owns `shard` of them. Their place is for the result, unless
    /// it is to be written `apart`.
    pub(crate) fn new(values: Values, shard: Range<usize>, apart: bool, spare: Spare) -> Self {
        let result = apart.then(|| {
            let mut result = spare.values;
            result.resize(values.len(), values.is_stored());
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

    pub(crate) fn is_stored(&self) -> bool {
        self.values.is_stored()
    }

    /// Contributions that are still needed, and the own shard's aggregates.
    pub(crate) fn own(&self) -> &Values {
        &self.values
    }

    pub(crate) fn own_mut(&mut self) -> &mut Values {
        &mut self.values
    }

    /// The result so far.
    pub(crate) fn result(&self) -> &Values {
        self.result.as_ref().unwrap_or(&self.values)
    }

    pub(crate) fn result_mut(&mut self) -> &mut Values {
        self.result.as_mut().unwrap_or(&mut self.values)
    }

    /// Notes that the own values in `range` are aggregates.
    pub(crate) fn close(&mut self, range: Range<usize>) {
        if let Some(result) = &mut self.result
            && let Some(result) = result.get_mut(range.clone())
            && let Some(aggregates) = self.values.get(range)
        {
            result.copy_from_slice(aggregates);
        }
    }

    /// Aggregates to send, in `range` of the own shard.
    pub(crate) fn aggregates(&self, range: Range<usize>) -> Option<&[f32]> {
        match self.has_ended {
            true => self.unsent.get(within(&self.shard, range)),
            false => self.values.get(range),
        }
    }

    /// Takes the result at the end, and keeps the own shard's aggregates in the ranges that are not sent.
    pub(crate) fn end(&mut self, unsent: impl Iterator<Item = Range<usize>>) -> Values {
        if let Some(result) = self.result.take() {
            return result;
        }
        self.has_ended = true;
        let result = std::mem::take(&mut self.values);
        self.unsent.resize(self.shard.len(), result.is_stored());
        for range in unsent {
            let place = within(&self.shard, range.clone());
            if let (Some(kept), Some(values)) = (self.unsent.get_mut(place), result.get(range)) {
                kept.copy_from_slice(values);
            }
        }
        result
    }

    /// The memory, after [`Bucket::end`].
    pub(crate) fn into_spare(self) -> Spare {
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
