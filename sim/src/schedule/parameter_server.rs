//! One parameter server (Li et al., OSDI 2014) on rank 0's host: every rank sends it the bucket and gets the
//! mean back, piece by piece.

use super::{Message, Schedule, chunks, part};

const SERVER: u32 = 0;

pub(crate) struct ParameterServer {
    ranks: u32,
    bytes: u64,
    pieces: u32,
    /// By piece: number of ranks that have sent it.
    pushed: Vec<u32>,
    /// By rank: received pieces of the mean.
    pulled: Vec<u32>,
}

impl ParameterServer {
    pub(crate) fn new(ranks: u32, bytes: u64) -> Self {
        Self {
            ranks,
            bytes,
            pieces: chunks(bytes),
            pushed: Vec::new(),
            pulled: Vec::new(),
        }
    }

    fn message(&self, from: u32, to: u32, piece: u32) -> Message {
        Message {
            from,
            to,
            stage: u32::from(from == SERVER),
            piece,
            bytes: part(self.bytes, piece, self.pieces),
        }
    }
}

impl Schedule for ParameterServer {
    fn begin(&mut self, send: &mut Vec<Message>) {
        self.pushed.clear();
        self.pushed.resize(self.pieces as usize, 0);
        self.pulled.clear();
        self.pulled.resize(self.ranks as usize, 0);
        for rank in (0..self.ranks).filter(|&rank| rank != SERVER) {
            let pieces = 0..self.pieces;
            send.extend(pieces.map(|piece| self.message(rank, SERVER, piece)));
        }
    }

    fn received(&mut self, message: &Message, send: &mut Vec<Message>) {
        if message.to != SERVER {
            self.pulled[message.to as usize] += 1;
            return;
        }
        let pushed = &mut self.pushed[message.piece as usize];
        *pushed += 1;
        if *pushed == self.ranks - 1 {
            self.pulled[SERVER as usize] += 1;
            let others = (0..self.ranks).filter(|&rank| rank != SERVER);
            send.extend(others.map(|rank| self.message(SERVER, rank, message.piece)));
        }
    }

    fn is_done(&self, rank: u32) -> bool {
        self.pulled[rank as usize] == self.pieces
    }
}
