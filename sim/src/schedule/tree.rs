//! Two binary trees (Sanders, Speck and Träff, 2009, as in NCCL): half of the bucket is summed up and sent
//! down each, piece by piece. An inner node of one is a leaf of the other, almost always, which fills links
//! in both directions.

use super::{Message, Schedule, chunks, part};

pub(crate) struct DoubleTree {
    ranks: u32,
    bytes: u64,
    trees: [Tree; 2],
    /// Pieces of each tree's half.
    pieces: u32,
    /// By tree, rank and piece: children that have sent.
    summed: Vec<u32>,
    /// By rank: received pieces of the result, of both trees.
    has: Vec<u32>,
}

struct Tree {
    parent: Vec<Option<u32>>,
    children: Vec<Vec<u32>>,
}

impl Tree {
    /// The tree in which a number's lowest set bit is its height; 0 is the root.
    fn new(ranks: u32, name: impl Fn(u32) -> u32) -> Self {
        let mut tree = Self {
            parent: vec![None; ranks as usize],
            children: vec![Vec::new(); ranks as usize],
        };
        for node in 1..ranks {
            let height = node & node.wrapping_neg();
            let sideways = (node ^ height) | (height << 1);
            let parent = if sideways < ranks {
                sideways
            } else {
                node ^ height
            };
            let (node, parent) = (name(node), name(parent));
            tree.parent[node as usize] = Some(parent);
            tree.children[parent as usize].push(node);
        }
        tree
    }
}

impl DoubleTree {
    pub(crate) fn new(ranks: u32, bytes: u64) -> Self {
        Self {
            ranks,
            bytes,
            trees: [
                Tree::new(ranks, |node| node),
                // Shifted by one, odd numbers, which are leaves, become even.
                Tree::new(ranks, |node| (node + 1) % ranks),
            ],
            pieces: chunks(bytes.div_ceil(2)),
            summed: Vec::new(),
            has: Vec::new(),
        }
    }

    fn message(&self, from: u32, to: u32, down: bool, piece: u32) -> Message {
        let half = part(self.bytes, piece / self.pieces, 2);
        Message {
            from,
            to,
            stage: down.into(),
            piece,
            bytes: part(half, piece % self.pieces, self.pieces),
        }
    }

    /// Handles the last child's part of a piece at `rank`. Pieces are numbered over both trees.
    fn summed(&mut self, rank: u32, piece: u32, send: &mut Vec<Message>) {
        match self.trees[(piece / self.pieces) as usize].parent[rank as usize] {
            Some(parent) => send.push(self.message(rank, parent, false, piece)),
            None => self.result(rank, piece, send),
        }
    }

    /// Handles a piece of the result at `rank`.
    fn result(&mut self, rank: u32, piece: u32, send: &mut Vec<Message>) {
        self.has[rank as usize] += 1;
        let children = &self.trees[(piece / self.pieces) as usize].children[rank as usize];
        send.extend(
            children
                .iter()
                .map(|&child| self.message(rank, child, true, piece)),
        );
    }
}

impl Schedule for DoubleTree {
    fn begin(&mut self, send: &mut Vec<Message>) {
        let pieces = 2 * self.pieces;
        self.has.clear();
        self.has.resize(self.ranks as usize, 0);
        self.summed.clear();
        self.summed.resize((self.ranks * pieces) as usize, 0);
        for (rank, piece) in (0..self.ranks).flat_map(|r| (0..pieces).map(move |p| (r, p))) {
            let tree = &self.trees[(piece / self.pieces) as usize];
            if tree.children[rank as usize].is_empty() {
                self.summed(rank, piece, send);
            }
        }
    }

    fn received(&mut self, message: &Message, send: &mut Vec<Message>) {
        let (rank, piece) = (message.to, message.piece);
        if message.stage == 1 {
            return self.result(rank, piece, send);
        }
        let summed = &mut self.summed[(rank * 2 * self.pieces + piece) as usize];
        *summed += 1;
        let children = &self.trees[(piece / self.pieces) as usize].children[rank as usize];
        if *summed as usize == children.len() {
            self.summed(rank, piece, send);
        }
    }

    fn is_done(&self, rank: u32) -> bool {
        self.has[rank as usize] == 2 * self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_have_every_rank_once_and_are_low() {
        for ranks in [2, 3, 8, 13, 1000, 1024] {
            for tree in DoubleTree::new(ranks, 1 << 20).trees {
                for rank in 0..ranks {
                    let up = |&node: &u32| tree.parent[node as usize];
                    let path = std::iter::successors(Some(rank), up);
                    assert!(path.count() as u32 <= ranks.ilog2() + 3);
                    assert!(tree.children[rank as usize].len() <= 2);
                }
                let roots = tree.parent.iter().filter(|parent| parent.is_none());
                assert_eq!(roots.count(), 1);
            }
        }
    }

    #[test]
    fn inner_nodes_of_one_are_leaves_of_the_other() {
        let [one, other] = DoubleTree::new(16, 1 << 20).trees;
        let inner = |tree: &Tree, rank: usize| !tree.children[rank].is_empty();
        assert!((0..16).all(|rank| !(inner(&one, rank) && inner(&other, rank))));
    }
}
