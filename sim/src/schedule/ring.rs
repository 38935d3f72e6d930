//! Ring (Patarasuk and Yuan, 2009): *N*−1 steps in which every rank adds to a part of 1/*N* and forwards it,
//! then *N*−1 steps that circulate the sums.

use super::{Message, Schedule, part};

pub(crate) struct Ring {
    ranks: u32,
    bytes: u64,
    /// By rank: number of received steps.
    received: Vec<u32>,
}

impl Ring {
    pub(crate) fn new(ranks: u32, bytes: u64) -> Self {
        Self {
            ranks,
            bytes,
            received: Vec::new(),
        }
    }

    fn steps(&self) -> u32 {
        2 * (self.ranks - 1)
    }

    /// In step *s* rank *r* forwards part *r* − *s*, and in the second round *r* + 1 − (*s* − (*N*−1)): the
    /// same modulo *N*.
    fn message(&self, from: u32, step: u32) -> Message {
        let piece = (from + 2 * self.ranks - step) % self.ranks;
        Message {
            from,
            to: (from + 1) % self.ranks,
            stage: step,
            piece,
            bytes: part(self.bytes, piece, self.ranks),
        }
    }
}

impl Schedule for Ring {
    fn begin(&mut self, send: &mut Vec<Message>) {
        self.received.clear();
        self.received.resize(self.ranks as usize, 0);
        send.extend((0..self.ranks).map(|rank| self.message(rank, 0)));
    }

    fn received(&mut self, message: &Message, send: &mut Vec<Message>) {
        let received = &mut self.received[message.to as usize];
        *received += 1;
        let step = *received;
        if step < self.steps() {
            send.push(self.message(message.to, step));
        }
    }

    fn is_done(&self, rank: u32) -> bool {
        self.received[rank as usize] == self.steps()
    }
}
