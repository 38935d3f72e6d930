//! The data: UCI's optical handwritten digits, embedded in the binary (`data/README.md`).

use crate::random::{Purpose, stream};
use flate2::read::GzDecoder;
use ndarray::{Array2, ArrayView2, Axis};
use rand::seq::SliceRandom;
use std::io::Read;
use thiserror::Error;

/// Pixels of an image: 8×8.
pub const PIXELS: usize = 64;

/// Digits that an image can show: 0 to 9.
pub const CLASSES: usize = 10;

/// One in so many examples is held out of training, rounded up.
const HELD_OUT: usize = 5;

/// A pixel's largest value. Features are pixels divided by it, hence in 0..=1.
const INK: u8 = 16;

/// The table as a compressed file: a line for each image, with its pixels and its digit.
pub static CSV: &[u8] = include_bytes!("../data/digits.csv.gz");

/// Why a table of digits could not be read.
#[derive(Debug, Error)]
pub enum DigitsError {
    /// Not CSV, or a cell that is no integer from 0 to 255.
    #[error("digits: {0}; expected integers between commas")]
    Csv(#[from] csv::Error),
    /// A line that is no image and its class.
    #[error("digits, line {line}: {columns} columns; expected 64 pixels and a class")]
    Columns {
        /// Line, from 1.
        line: usize,
        /// Columns found.
        columns: usize,
    },
    /// A pixel with more ink than a block has points.
    #[error("digits, line {line}: pixel {value}; expected 0 to 16")]
    Pixel {
        /// Line, from 1.
        line: usize,
        /// The value found.
        value: u8,
    },
    /// A class that is no digit.
    #[error("digits, line {line}: class {value}; expected 0 to 9")]
    Class {
        /// Line, from 1.
        line: usize,
        /// The value found.
        value: u8,
    },
}

/// Images and what they show, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    features: Array2<f32>,
    labels: Vec<u8>,
}

impl Samples {
    /// True if there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// One row of [`PIXELS`] features in 0..=1 per image.
    pub fn features(&self) -> ArrayView2<'_, f32> {
        self.features.view()
    }

    /// The digit that each image shows, below [`CLASSES`].
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The examples at `indices`, in that order; an index may occur more than once.
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    pub fn select(&self, indices: &[usize]) -> Self {
        Self {
            features: self.features.select(Axis(0), indices),
            labels: indices.iter().map(|&i| self.labels[i]).collect(),
        }
    }

    /// Reads a table without header: [`PIXELS`] pixels and a class per line.
    fn read(table: impl Read) -> Result<Self, DigitsError> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(table);
        let (mut features, mut labels) = (Vec::new(), Vec::new());
        for (row, record) in reader.deserialize::<Vec<u8>>().enumerate() {
            let (record, line) = (record?, row + 1);
            let Some((&class, pixels)) = record.split_last().filter(|(_, p)| p.len() == PIXELS)
            else {
                return Err(DigitsError::Columns {
                    line,
                    columns: record.len(),
                });
            };
            if let Some(&value) = pixels.iter().find(|&&pixel| pixel > INK) {
                return Err(DigitsError::Pixel { line, value });
            }
            if usize::from(class) >= CLASSES {
                return Err(DigitsError::Class { line, value: class });
            }
            features.extend(
                pixels
                    .iter()
                    .map(|&pixel| f32::from(pixel) / f32::from(INK)),
            );
            labels.push(class);
        }
        let features = Array2::from_shape_vec((labels.len(), PIXELS), features)
            .expect("every line gave PIXELS features");
        Ok(Self { features, labels })
    }
}

/// The examples of a run: shuffled, and a fifth of them held out.
#[derive(Clone, Debug, PartialEq)]
pub struct Digits {
    /// The 1,437 examples of the training.
    pub train: Samples,
    /// The 360 examples for accuracy.
    pub held_out: Samples,
}

impl Digits {
    /// The embedded examples; the same `seed` gives every worker the same split in the same order.
    ///
    /// # Errors
    /// If the embedded file is damaged.
    pub fn load(seed: u64) -> Result<Self, DigitsError> {
        let all = Samples::read(GzDecoder::new(CSV))?;
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.shuffle(&mut stream(seed, Purpose::Split, 0));
        let (held_out, train) = order.split_at(all.len().div_ceil(HELD_OUT));
        Ok(Self {
            train: all.select(train),
            held_out: all.select(held_out),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line whose pixels are all `pixel`.
    fn line(pixel: u8, class: u8) -> String {
        format!("{}{class}\n", format!("{pixel},").repeat(PIXELS))
    }

    fn error(table: &str) -> String {
        Samples::read(table.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_embedded_table_is_what_its_readme_says() {
        let all = Samples::read(GzDecoder::new(CSV)).unwrap();
        assert_eq!(all.len(), 1797);
        let mut per_class = [0; CLASSES];
        all.labels()
            .iter()
            .for_each(|&class| per_class[usize::from(class)] += 1);
        assert_eq!(
            per_class,
            [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        );
        assert!(
            all.features()
                .iter()
                .all(|feature| (0.0..=1.0).contains(feature))
        );
        // The first image: a zero whose top row reads 0 0 5 13 9 1 0 0.
        assert_eq!(all.labels()[0], 0);
        let top: Vec<f32> = all
            .features()
            .row(0)
            .iter()
            .take(8)
            .map(|f| f * 16.0)
            .collect();
        assert_eq!(top, [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn the_split_keeps_every_example_once() {
        let digits = Digits::load(3).unwrap();
        assert_eq!((digits.train.len(), digits.held_out.len()), (1437, 360));
        let rows = |samples: &Samples| -> Vec<Vec<u8>> {
            let features = samples.features();
            let pixels = features.rows().into_iter();
            pixels
                .zip(samples.labels())
                .map(|(row, &class)| {
                    row.iter()
                        .map(|f| (f * 16.0) as u8)
                        .chain([class])
                        .collect()
                })
                .collect()
        };
        let mut split = [rows(&digits.train), rows(&digits.held_out)].concat();
        let mut all = rows(&Samples::read(GzDecoder::new(CSV)).unwrap());
        split.sort();
        all.sort();
        assert!(split == all);
    }

    #[test]
    fn the_split_depends_on_the_seed_alone() {
        assert!(Digits::load(1).unwrap() == Digits::load(1).unwrap());
        assert!(Digits::load(1).unwrap() != Digits::load(2).unwrap());
    }

    #[test]
    fn pixels_are_scaled_by_their_range() {
        let samples = Samples::read((line(16, 9) + &line(4, 0)).as_bytes()).unwrap();
        assert_eq!(samples.labels(), [9, 0]);
        assert!(samples.features().row(0).iter().all(|&f| f == 1.0));
        assert!(samples.features().row(1).iter().all(|&f| f == 0.25));
    }

    #[test]
    fn bad_lines_are_refused_by_place_and_value() {
        let good = line(0, 1);
        assert!(error(&format!("{good}1,2,3\n")).contains("line 2: 3 columns"));
        assert!(error(&format!("{good}{}", line(17, 1))).contains("line 2: pixel 17"));
        assert!(error(&line(0, 10)).contains("line 1: class 10"));
        assert!(error(&good.replace('1', "one")).contains("expected integers"));
        assert!(error(&good.replace('1', "256")).contains("expected integers"));
    }
}
