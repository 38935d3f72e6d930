//! A switch's pool of slots, in which it adds its children's values.
//!
//! After SwitchML (Sapio et al., NSDI 2021, section 3.5 for loss): a slot has two versions, used in turn. The
//! result of a piece is stored until every child has that of the next piece in the same slot, and can be sent
//! again to a child that missed it. In SwitchML packets name the version; here they name the piece.

use std::rc::Rc;

/// Values of a piece. None if buckets have none.
pub(super) type Values = Option<Rc<[f32]>>;

/// The state of a piece at a switch.
pub(super) enum Progress {
    /// Children are missing.
    Incomplete,
    /// All children have sent; this is their sum. The result is not known.
    Summed(Values),
    /// The result is known.
    Result(Values),
    /// A later piece has its slot, so no child waits for it.
    Past,
}

/// The pool of one switch.
pub(super) struct Pool {
    children: u32,
    slots: u64,
    /// The two versions of slot *s* have the indices 2*s* and 2*s* + 1.
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    piece: Option<u64>,
    missing: u32,
    /// By child: true if it has sent.
    came: Vec<u64>,
    sum: Vec<f32>,
    has_result: bool,
    /// The sum until there is a result, then the result.
    values: Values,
}

impl Pool {
    pub(super) fn new(slots: u64, children: u32) -> Self {
        let entry = Entry {
            piece: None,
            missing: children,
            came: vec![0; children.div_ceil(64) as usize],
            sum: Vec::new(),
            has_result: false,
            values: None,
        };
        Self {
            children,
            slots,
            entries: vec![entry; 2 * slots as usize],
        }
    }

    fn entry(&mut self, piece: u64) -> &mut Entry {
        let (slot, version) = (piece % self.slots, piece / self.slots % 2);
        &mut self.entries[(2 * slot + version) as usize]
    }

    /// Adds the contribution of `child` to `piece`, once.
    pub(super) fn add(&mut self, piece: u64, child: u32, values: &Values) -> Progress {
        let children = self.children;
        let entry = self.entry(piece);
        if entry.piece > Some(piece) {
            return Progress::Past;
        }
        if entry.piece != Some(piece) {
            entry.piece = Some(piece);
            entry.missing = children;
            entry.came.fill(0);
            entry.sum.clear();
            entry.has_result = false;
            entry.values = None;
        }
        let (word, bit) = (child as usize / 64, 1 << (child % 64));
        if entry.came[word] & bit == 0 {
            entry.came[word] |= bit;
            entry.missing -= 1;
            if let Some(values) = values {
                entry.sum.resize(values.len(), 0.0);
                for (sum, value) in entry.sum.iter_mut().zip(values.iter()) {
                    *sum += value;
                }
                if entry.missing == 0 {
                    entry.values = Some(entry.sum.as_slice().into());
                }
            }
        }
        match (entry.missing, entry.has_result) {
            (0, false) => Progress::Summed(entry.values.clone()),
            (0, true) => Progress::Result(entry.values.clone()),
            _ => Progress::Incomplete,
        }
    }

    /// Stores the result of `piece`. Returns true if it is new.
    pub(super) fn set_result(&mut self, piece: u64, result: Values) -> bool {
        let entry = self.entry(piece);
        let is_new = entry.piece == Some(piece) && !entry.has_result;
        if is_new {
            entry.has_result = true;
            entry.values = result;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: f32) -> Values {
        Some([value].into())
    }

    /// Progress as a letter, for comparisons.
    fn letter(progress: &Progress) -> char {
        match progress {
            Progress::Incomplete => 'i',
            Progress::Summed(_) => 's',
            Progress::Result(_) => 'r',
            Progress::Past => 'p',
        }
    }

    #[test]
    fn every_child_counts_once() {
        let mut pool = Pool::new(4, 70);
        for child in (0..70).chain([3, 69]) {
            let progress = pool.add(9, child, &values(2.0));
            match progress {
                Progress::Summed(Some(sum)) if child == 69 || child == 3 => {
                    assert_eq!(*sum, [140.0])
                }
                progress => assert_eq!(letter(&progress), 'i', "{child}"),
            }
        }
        assert!(pool.set_result(9, values(2.0)) && !pool.set_result(9, values(3.0)));
        assert!(matches!(pool.add(9, 0, &values(9.0)), Progress::Result(Some(r)) if *r == [2.0]));
    }

    #[test]
    fn a_result_is_kept_until_the_piece_after_next_of_its_slot() {
        let mut pool = Pool::new(2, 1);
        let mut add = |piece| letter(&pool.add(piece, 0, &None));
        assert_eq!([add(0), add(2), add(0), add(1)], ['s', 's', 's', 's']);
        assert_eq!([add(4), add(0), add(2)], ['s', 'p', 's']);
        assert!(!pool.set_result(0, None) && pool.set_result(2, None));
    }
}
