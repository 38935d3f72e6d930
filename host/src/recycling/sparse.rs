//! Sparse values: some slots of an encoded bucket.

use std::ops::Range;

/// Values at some positions of an encoded bucket; zero elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparse {
    places: Vec<Range<usize>>,
    values: Vec<f32>,
}

impl Sparse {
    /// Adds values for all of `place`.
    pub(crate) fn push(&mut self, place: Range<usize>, values: impl Iterator<Item = f32>) {
        self.values.extend(values.take(place.len()));
        self.places.push(place);
    }

    /// Moves the values of `other` here.
    pub(crate) fn append(&mut self, other: &mut Sparse) {
        self.places.append(&mut other.places);
        self.values.append(&mut other.values);
    }

    /// True if all values are zero.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds the values to `bucket`.
    ///
    /// # Panics
    /// If the bucket is too short for the positions.
    pub fn add_to(&self, bucket: &mut [f32]) {
        let mut values = self.values.iter();
        for place in &self.places {
            for (sum, value) in bucket[place.clone()].iter_mut().zip(&mut values) {
                *sum += value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_where_they_belong() {
        let mut sparse = Sparse::default();
        assert!(sparse.is_empty());
        sparse.push(3..5, [1.0, 2.0].into_iter());
        sparse.push(0..1, [4.0].into_iter());
        let mut more = Sparse::default();
        more.push(4..5, [7.0].into_iter());
        sparse.append(&mut more);
        assert!(more.is_empty());
        let mut bucket = [1.0; 6];
        sparse.add_to(&mut bucket);
        assert_eq!(bucket, [5.0, 1.0, 1.0, 2.0, 10.0, 1.0]);
    }
}
