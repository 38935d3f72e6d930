//! Recursive exchange: in each round the ranks whose numbers differ in one digit halve their part, then
//! assemble it in the same number of rounds.
//!
//! Base 2 is recursive halving–doubling (Rabenseifner, 2004), base 4 is BCube in collective libraries (Gloo's
//! `allreduce_bcube`; each digit is a level of the BCube network of Guo et al., 2009). Ranks beyond the
//! largest power of the base send their values to one below it first, and get the result last.

use super::{Message, Schedule, part};

pub(crate) struct Exchange {
    base: u32,
    /// Number of digits, and of ranks that exchange: `base` to that power.
    digits: u32,
    core: u32,
    ranks: u32,
    bytes: u64,
    /// By rank and stage: number of received messages.
    received: Vec<u32>,
    /// By rank: its stage.
    stage: Vec<u32>,
}

impl Exchange {
    pub(crate) fn new(base: u32, ranks: u32, bytes: u64) -> Self {
        let digits = ranks.ilog(base);
        Self {
            base,
            digits,
            core: base.pow(digits),
            ranks,
            bytes,
            received: Vec::new(),
            stage: Vec::new(),
        }
    }

    /// The last stage. Stage 0 collects from the ranks beyond, the rounds follow, the last one sends them the
    /// result.
    fn last(&self) -> u32 {
        2 * self.digits + 1
    }

    /// The ranks beyond that send their values to `rank`.
    fn guests(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        (rank + self.core..self.ranks).step_by(self.core as usize)
    }

    /// Number of messages that `rank` waits for in `stage`.
    fn awaited(&self, rank: u32, stage: u32) -> u32 {
        match stage {
            0 => self.guests(rank).count() as u32,
            stage if stage < self.last() => self.base - 1,
            _ => 0,
        }
    }

    /// The messages of the core rank `rank` in `stage`.
    fn send(&self, rank: u32, stage: u32, send: &mut Vec<Message>) {
        let message = |to, bytes| Message {
            from: rank,
            to,
            stage,
            piece: 0,
            bytes,
        };
        if stage == self.last() {
            send.extend(self.guests(rank).map(|guest| message(guest, self.bytes)));
        } else if stage > 0 {
            let round = stage - 1;
            let (digit, parts) = if round < self.digits {
                (round, self.base.pow(round + 1))
            } else {
                let digit = 2 * self.digits - 1 - round;
                (digit, self.base.pow(digit + 1))
            };
            let weight = self.base.pow(digit);
            let own = rank / weight % self.base;
            let peers = (1..self.base).map(|d| (own + d) % self.base);
            let to = peers.map(|peer| rank - own * weight + peer * weight);
            send.extend(to.map(|to| message(to, part(self.bytes, 0, parts))));
        }
    }

    /// Advances `rank` as far as its received messages allow.
    fn advance(&mut self, rank: u32, send: &mut Vec<Message>) {
        loop {
            let stage = self.stage[rank as usize];
            if stage > self.last() || self.count(rank, stage) < self.awaited(rank, stage) {
                return;
            }
            self.stage[rank as usize] += 1;
            if stage < self.last() {
                self.send(rank, stage + 1, send);
            }
        }
    }

    fn count(&self, rank: u32, stage: u32) -> u32 {
        self.received[(rank * (self.last() + 1) + stage) as usize]
    }
}

impl Schedule for Exchange {
    fn begin(&mut self, send: &mut Vec<Message>) {
        self.received.clear();
        self.received
            .resize((self.ranks * (self.last() + 1)) as usize, 0);
        self.stage.clear();
        self.stage.resize(self.ranks as usize, 0);
        for guest in self.core..self.ranks {
            send.push(Message {
                from: guest,
                to: guest % self.core,
                stage: 0,
                piece: 0,
                bytes: self.bytes,
            });
        }
        for rank in 0..self.core {
            self.advance(rank, send);
        }
    }

    fn received(&mut self, message: &Message, send: &mut Vec<Message>) {
        let at = message.to * (self.last() + 1) + message.stage;
        self.received[at as usize] += 1;
        if message.to < self.core {
            self.advance(message.to, send);
        }
    }

    fn is_done(&self, rank: u32) -> bool {
        if rank < self.core {
            self.stage[rank as usize] >= self.last()
        } else {
            self.count(rank, self.last()) > 0
        }
    }
}
