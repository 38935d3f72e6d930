//! Who stands in line at a link.

use std::collections::VecDeque;

/// As many as are kept together.
const BLOCK: usize = 32;

/// First in, first out, in blocks that are given back as they empty: thousands of links have long lines for a moment, at
/// different times, and none of them keeps what its longest one took.
pub(crate) struct Line<T> {
    blocks: VecDeque<Vec<T>>,
    /// Of the first block, how many have left.
    left: usize,
}

impl<T: Copy> Line<T> {
    pub(crate) fn new() -> Self {
        Self {
            blocks: VecDeque::new(),
            left: 0,
        }
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.blocks.front()?.get(self.left)
    }

    pub(crate) fn push(&mut self, last: T) {
        match self.blocks.back_mut() {
            Some(block) if block.len() < BLOCK => block.push(last),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(last);
                self.blocks.push_back(block);
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = *self.front()?;
        self.left += 1;
        let block = self.blocks.front_mut()?;
        if self.left == block.len() {
            self.left = 0;
            // The only one is kept: most lines are short.
            if self.blocks.len() == 1 {
                self.blocks[0].clear();
            } else {
                self.blocks.pop_front();
            }
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_leaves_first() {
        let mut line = Line::new();
        let (mut next, mut expected) = (0, 0);
        for (come, leave) in [
            (1, 1),
            (0, 1),
            (100, 40),
            (5, 65),
            (31, 31),
            (33, 0),
            (0, 40),
        ] {
            for _ in 0..come {
                line.push(next);
                next += 1;
            }
            for _ in 0..leave {
                let there = (expected < next).then_some(expected);
                assert_eq!(line.front().copied(), there);
                assert_eq!(line.pop(), there);
                expected = next.min(expected + 1);
            }
            let here: usize = next - expected;
            assert!(line.blocks.len() <= here / BLOCK + 2, "{here}");
        }
    }
}
