//! The queue of packets at a link.

use std::collections::VecDeque;

/// Elements per block.
const BLOCK: usize = 32;

/// A first-in, first-out queue in blocks that are freed when empty. Thousands of links have long queues for a
/// moment, at different times, and none keeps the memory of its longest one.
pub(crate) struct Line<T> {
    blocks: VecDeque<Vec<T>>,
    /// Number of removed elements in the first block.
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
            // The only block is kept: most queues are short.
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
    fn a_line_is_first_in_first_out() {
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
