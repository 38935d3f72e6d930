//! Transpose AllReduce over a reliable transport: every rank sends each owner its part, and each owner sends
//! all ranks the mean.

use super::{Message, Schedule, part};

pub(crate) struct Transpose {
    ranks: u32,
    bytes: u64,
    /// By rank: received contributions to its part, and received means.
    scatter: Vec<u32>,
    gather: Vec<u32>,
}

impl Transpose {
    pub(crate) fn new(ranks: u32, bytes: u64) -> Self {
        Self {
            ranks,
            bytes,
            scatter: Vec::new(),
            gather: Vec::new(),
        }
    }

    /// One message to each other rank, starting after the sender, so that not all send to the same one.
    fn send(&self, from: u32, stage: u32, send: &mut Vec<Message>) {
        for to in (1..self.ranks).map(|n| (from + n) % self.ranks) {
            let owner = if stage == 0 { to } else { from };
            send.push(Message {
                from,
                to,
                stage,
                piece: owner,
                bytes: part(self.bytes, owner, self.ranks),
            });
        }
    }
}

impl Schedule for Transpose {
    fn begin(&mut self, send: &mut Vec<Message>) {
        for counts in [&mut self.scatter, &mut self.gather] {
            counts.clear();
            counts.resize(self.ranks as usize, 0);
        }
        for rank in 0..self.ranks {
            self.send(rank, 0, send);
        }
    }

    fn received(&mut self, message: &Message, send: &mut Vec<Message>) {
        let counts = match message.stage {
            0 => &mut self.scatter,
            _ => &mut self.gather,
        };
        let count = &mut counts[message.to as usize];
        *count += 1;
        if message.stage == 0 && *count == self.ranks - 1 {
            self.send(message.to, 1, send);
        }
    }

    fn is_done(&self, rank: u32) -> bool {
        let rank = rank as usize;
        self.scatter[rank] == self.ranks - 1 && self.gather[rank] == self.ranks - 1
    }
}
