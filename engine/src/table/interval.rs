//! Finds the best range that contains a value: a search tree by lower bounds, balanced at random (treap; Seidel, Aragon 1996).
//! Every node knows the highest upper bound and the best rank in its subtree, so a search skips subtrees that cannot contain
//! the value or a better range.

use super::matcher::{Candidate, Range};

/// A range and its entry.
#[derive(Debug)]
pub(super) struct Interval {
    pub low: u64,
    pub high: u64,
    pub candidate: Candidate,
    /// Further ranges that must match.
    pub ranges: Box<[Range]>,
}

#[derive(Debug)]
struct Node {
    interval: Interval,
    /// Highest upper bound and best candidate of this subtree.
    highest: u64,
    best: Candidate,
    /// Random level. Higher ones are nearer to the root.
    level: u64,
    left: Option<Box<Node>>,
    right: Option<Box<Node>>,
}

/// The intervals of one field.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    root: Link,
}

type Link = Option<Box<Node>>;

/// Sort key of nodes, unique for each interval.
type Place = (u64, u64, Candidate);

impl Interval {
    fn place(&self) -> Place {
        (self.low, self.high, self.candidate)
    }
}

impl Intervals {
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    pub fn insert(&mut self, interval: Interval) {
        let node = Box::new(Node {
            highest: interval.high,
            best: interval.candidate,
            level: scramble(interval.candidate.age.0),
            interval,
            left: None,
            right: None,
        });
        self.root = Some(insert(self.root.take(), node));
    }

    /// Returns the candidate with these ranges and priority.
    pub fn find(&self, low: u64, high: u64, priority: i32, ranges: &[Range]) -> Option<Candidate> {
        find(&self.root, (low, high, priority), ranges)
    }

    /// Removes the interval of a candidate of [`Intervals::find`].
    pub fn remove(&mut self, low: u64, high: u64, candidate: Candidate) {
        self.root = remove(self.root.take(), &(low, high, candidate));
    }

    /// Replaces `best` by the best interval that contains `value` and whose further ranges match, if that is better.
    #[inline]
    pub fn search(&self, value: u64, key: &[u64], best: &mut Option<Candidate>) {
        search(&self.root, value, key, best);
    }
}

/// Spreads consecutive numbers over all 64 bits (the finalizer of SplitMix64).
fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Node {
    /// Updates the facts about the subtree.
    fn update(&mut self) {
        (self.highest, self.best) = (self.interval.high, self.interval.candidate);
        for below in [&self.left, &self.right].into_iter().flatten() {
            self.highest = self.highest.max(below.highest);
            self.best = self.best.max(below.best);
        }
    }
}

fn insert(link: Link, mut new: Box<Node>) -> Box<Node> {
    let Some(mut node) = link else { return new };
    let place = new.interval.place();
    if new.level > node.level {
        (new.left, new.right) = split(Some(node), &place);
        new.update();
        return new;
    }
    let side = if place < node.interval.place() {
        &mut node.left
    } else {
        &mut node.right
    };
    *side = Some(insert(side.take(), new));
    node.update();
    node
}

/// Splits a tree at a sort key.
fn split(link: Link, place: &Place) -> (Link, Link) {
    let Some(mut node) = link else {
        return (None, None);
    };
    if node.interval.place() < *place {
        let (before, behind) = split(node.right.take(), place);
        node.right = before;
        node.update();
        (Some(node), behind)
    } else {
        let (before, behind) = split(node.left.take(), place);
        node.left = behind;
        node.update();
        (before, Some(node))
    }
}

/// Joins two trees, the first entirely before the second.
fn join(left: Link, right: Link) -> Link {
    match (left, right) {
        (None, link) | (link, None) => link,
        (Some(mut left), Some(right)) if left.level > right.level => {
            left.right = join(left.right.take(), Some(right));
            left.update();
            Some(left)
        }
        (left, Some(mut right)) => {
            right.left = join(left, right.left.take());
            right.update();
            Some(right)
        }
    }
}

fn remove(link: Link, place: &Place) -> Link {
    let mut node = link?;
    let here = node.interval.place();
    if here == *place {
        return join(node.left.take(), node.right.take());
    }
    let side = if *place < here {
        &mut node.left
    } else {
        &mut node.right
    };
    *side = remove(side.take(), place);
    node.update();
    Some(node)
}

fn find(link: &Link, wanted: (u64, u64, i32), ranges: &[Range]) -> Option<Candidate> {
    let node = link.as_ref()?;
    let interval = &node.interval;
    let here = (interval.low, interval.high, interval.candidate.priority);
    match wanted.cmp(&here) {
        std::cmp::Ordering::Less => find(&node.left, wanted, ranges),
        std::cmp::Ordering::Greater => find(&node.right, wanted, ranges),
        std::cmp::Ordering::Equal if *interval.ranges == *ranges => Some(interval.candidate),
        std::cmp::Ordering::Equal => {
            find(&node.left, wanted, ranges).or_else(|| find(&node.right, wanted, ranges))
        }
    }
}

fn search(link: &Link, value: u64, key: &[u64], best: &mut Option<Candidate>) {
    let Some(node) = link else { return };
    if node.highest < value || best.is_some_and(|best| best > node.best) {
        return;
    }
    let interval = &node.interval;
    let starts = interval.low <= value;
    let better = best.is_none_or(|best| interval.candidate > best);
    if starts && value <= interval.high && better && interval.ranges.iter().all(|r| r.holds(key)) {
        *best = Some(interval.candidate);
    }
    // The more promising side first: what it finds may spare the other.
    let rank = |link: &Link| link.as_ref().map(|node| node.best);
    if !starts {
        search(&node.left, value, key, best);
    } else if rank(&node.left) > rank(&node.right) {
        search(&node.left, value, key, best);
        search(&node.right, value, key, best);
    } else {
        search(&node.right, value, key, best);
        search(&node.left, value, key, best);
    }
}
