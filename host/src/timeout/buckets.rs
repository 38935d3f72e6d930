//! What a policy learns of each bucket.

use std::collections::BTreeMap;

/// By bucket. One that comes with another number of values is another one, of which nothing is known.
pub(super) struct Buckets<B> {
    buckets: BTreeMap<u16, (usize, B)>,
}

impl<B> Default for Buckets<B> {
    fn default() -> Self {
        Self {
            buckets: BTreeMap::new(),
        }
    }
}

impl<B> Buckets<B> {
    /// The bucket of which an operation with so many values starts; a `new` one where that is not known.
    pub(super) fn start(&mut self, bucket: u16, values: usize, new: impl Fn() -> B) -> &mut B {
        let (known, bucket) = (self.buckets.entry(bucket)).or_insert_with(|| (values, new()));
        if *known != values {
            (*known, *bucket) = (values, new());
        }
        bucket
    }

    /// All of them.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.buckets.values_mut().map(|(_, bucket)| bucket)
    }

    /// A bucket of which an operation has started.
    pub(super) fn get_mut(&mut self, bucket: u16) -> Option<&mut B> {
        self.buckets.get_mut(&bucket).map(|(_, bucket)| bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_length_is_another_bucket() {
        let mut buckets = Buckets::default();
        *buckets.start(3, 10, || 0) += 1;
        *buckets.start(3, 10, || 0) += 1;
        *buckets.start(4, 10, || 0) += 1;
        let known = [3, 4, 5].map(|bucket| buckets.get_mut(bucket).copied());
        assert_eq!(known, [Some(2), Some(1), None]);
        assert_eq!(*buckets.start(3, 11, || 0), 0);
        assert_eq!(*buckets.start(3, 10, || 7), 7);
    }
}
