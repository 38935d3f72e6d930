//! Learned state by bucket.

use std::collections::BTreeMap;

/// Learned state by bucket. A bucket with another number of values counts as a new one.
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
    /// The state of the bucket of an operation that starts; `new` if there is none for this number of values.
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

    /// The state of a bucket that has started an operation.
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
