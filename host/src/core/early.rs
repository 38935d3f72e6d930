//! Storage for packets of operations that this rank has not started.

use ultima_wire::Kind;

use crate::config::EarlyBounds;
use crate::operation::OperationId;
use crate::stats::{PhaseCounters, Phases};
use crate::time::Time;

/// Bytes stored with each datagram.
const PREFIX: usize = 2 + 8;

/// Whole datagrams by operation, in the order of arrival; bounded in operations and bytes.
pub(super) struct Early {
    bounds: EarlyBounds,
    kept: Vec<EarlyOperation>,
    bytes: usize,
    /// Two buffers at most. In a long run each becomes as long as the operation with the most bytes needs, or twice that.
    spare: Vec<Vec<u8>>,
}

struct EarlyOperation {
    id: OperationId,
    /// For each datagram: its length (two bytes), the arrival time (eight bytes), its bytes.
    datagrams: Vec<u8>,
    scatter: u64,
    gather: u64,
}

impl Early {
    pub(super) fn new(bounds: EarlyBounds) -> Self {
        Self {
            bounds,
            kept: Vec::new(),
            bytes: 0,
            spare: Vec::new(),
        }
    }

    /// Stores a datagram, or counts it as refused. With too many operations it keeps the nearest ones: a
    /// faulty or forged sender could fill the store with distant ones.
    pub(super) fn keep(
        &mut self,
        now: Time,
        id: OperationId,
        kind: Kind,
        datagram: &[u8],
        counters: &mut Phases,
    ) {
        let size = PREFIX + datagram.len();
        let room = self.bytes + size <= self.bounds.bytes;
        let Some(at) = room.then(|| self.place(id, counters)).flatten() else {
            count(kind, counters, |phase| &mut phase.refused);
            return;
        };
        let kept = &mut self.kept[at];
        // Lengths were compared with the slot's, which fits a UDP datagram.
        kept.datagrams
            .extend_from_slice(&(datagram.len() as u16).to_le_bytes());
        kept.datagrams
            .extend_from_slice(&now.as_nanos().to_le_bytes());
        kept.datagrams.extend_from_slice(datagram);
        match kind {
            Kind::Scatter => kept.scatter += 1,
            Kind::Gather => kept.gather += 1,
            _ => {}
        }
        self.bytes += size;
    }

    /// Index of operation `id`. Adds it if there is room, or by removing a more distant one.
    fn place(&mut self, id: OperationId, counters: &mut Phases) -> Option<usize> {
        if let Some(at) = self.kept.iter().position(|kept| kept.id == id) {
            return Some(at);
        }
        if self.kept.len() >= self.bounds.operations {
            let (at, furthest) = self
                .kept
                .iter()
                .enumerate()
                .max_by_key(|(_, kept)| kept.id)?;
            if furthest.id < id {
                return None;
            }
            let dropped = self.remove(at);
            counters.scatter.refused += dropped.scatter;
            counters.gather.refused += dropped.gather;
            self.recycle(dropped.datagrams);
        }
        let datagrams = self.spare.pop().unwrap_or_default();
        self.kept.push(EarlyOperation {
            id,
            datagrams,
            scatter: 0,
            gather: 0,
        });
        Some(self.kept.len() - 1)
    }

    /// Takes the datagrams of operation `id`: read them with [`datagrams`], then return the buffer to
    /// [`Early::recycle`].
    pub(super) fn take(&mut self, id: OperationId) -> Option<Vec<u8>> {
        let at = self.kept.iter().position(|kept| kept.id == id)?;
        Some(self.remove(at).datagrams)
    }

    /// Removes operations that `ended` says will never start, and counts their datagrams as late.
    pub(super) fn drop_if(&mut self, ended: impl Fn(OperationId) -> bool, counters: &mut Phases) {
        while let Some(at) = self.kept.iter().position(|kept| ended(kept.id)) {
            let dropped = self.remove(at);
            counters.scatter.late += dropped.scatter;
            counters.gather.late += dropped.gather;
            self.recycle(dropped.datagrams);
        }
    }

    fn remove(&mut self, at: usize) -> EarlyOperation {
        let kept = self.kept.swap_remove(at);
        self.bytes -= kept.datagrams.len();
        kept
    }

    /// Keeps a buffer for the next operation.
    pub(super) fn recycle(&mut self, mut datagrams: Vec<u8>) {
        if self.spare.len() < 2 {
            datagrams.clear();
            self.spare.push(datagrams);
        }
    }
}

/// Adds a packet to a counter of its phase. FEEDBACK has none.
pub(super) fn count(
    kind: Kind,
    counters: &mut Phases,
    counter: impl Fn(&mut PhaseCounters) -> &mut u64,
) {
    match kind {
        Kind::Scatter => *counter(&mut counters.scatter) += 1,
        Kind::Gather => *counter(&mut counters.gather) += 1,
        _ => {}
    }
}

/// The datagrams in a buffer of [`Early::take`], with their arrival times, in order.
pub(super) fn datagrams(mut kept: &[u8]) -> impl Iterator<Item = (Time, &[u8])> {
    std::iter::from_fn(move || {
        let (len, rest) = kept.split_first_chunk::<2>()?;
        let (arrival, rest) = rest.split_first_chunk::<8>()?;
        let (datagram, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        kept = rest;
        Some((Time::from_nanos(u64::from_le_bytes(*arrival)), datagram))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(step: u32) -> OperationId {
        OperationId { step, bucket: 0 }
    }

    fn early(operations: usize, bytes: usize) -> Early {
        Early::new(EarlyBounds { operations, bytes })
    }

    #[test]
    fn datagrams_come_back_in_order() {
        let (mut early, mut counters) = (early(2, 1000), Phases::default());
        let at = Time::from_nanos;
        early.keep(at(7), id(1), Kind::Scatter, b"one", &mut counters);
        early.keep(at(8), id(2), Kind::Scatter, b"other", &mut counters);
        early.keep(at(9), id(1), Kind::Gather, b"", &mut counters);
        let kept = early.take(id(1)).unwrap();
        let datagrams: Vec<_> = datagrams(&kept).collect();
        let expected: [(Time, &[u8]); 2] = [(at(7), b"one"), (at(9), b"")];
        assert_eq!(datagrams, expected);
        assert!(early.take(id(1)).is_none());
        assert_eq!(counters, Phases::default());
    }

    #[test]
    fn bytes_are_bounded() {
        let (mut early, mut counters) = (early(2, 40), Phases::default());
        for _ in 0..3 {
            early.keep(Time::ZERO, id(1), Kind::Scatter, b"12345", &mut counters);
        }
        assert_eq!(counters.scatter.refused, 1);
        early.take(id(1)).unwrap();
        early.keep(Time::ZERO, id(2), Kind::Scatter, b"12345", &mut counters);
        assert_eq!(counters.scatter.refused, 1);
    }

    #[test]
    fn the_nearest_operations_are_kept() {
        let (mut early, mut counters) = (early(2, 1000), Phases::default());
        for step in [5, 9, 7, 8] {
            early.keep(Time::ZERO, id(step), Kind::Gather, b"x", &mut counters);
        }
        assert_eq!(counters.gather.refused, 2);
        assert!(early.take(id(9)).is_none());
        early.drop_if(|id| id.step < 7, &mut counters);
        assert_eq!(counters.gather.late, 1);
        assert!(early.take(id(7)).is_some());
    }
}
