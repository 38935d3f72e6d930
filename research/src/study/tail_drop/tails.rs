//! Drops the last packets of every message.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_wire::{Header, Kind};

/// Drops the same share of every message: the last packets that a source sends to an owner (SCATTER), and that an owner sends
/// to all ranks (GATHER).
///
/// The share of a message is rounded to whole packets, down or up at random, so that its mean is exact. All receivers of an
/// aggregate lose the same packets, because the delay occurs at the sender.
pub struct Tails {
    share: f64,
    random: Xoshiro256PlusPlus,
    step: u32,
    /// Packets of each message that are not dropped, by kind, source and owner.
    kept: HashMap<(Kind, u16, u16), u32>,
    /// Packets of each message that were sent, by kind, source and receiver.
    sent: HashMap<(Kind, u16, u16), u32>,
}

impl Tails {
    /// `share` is from 0 to under 1.
    pub fn new(share: f64, seed: u64) -> Self {
        Self {
            share,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            step: 0,
            kept: HashMap::new(),
            sent: HashMap::new(),
        }
    }

    /// True if the copy of the next packet of this kind is dropped. Operations do not overlap; late packets of an earlier one
    /// are not dropped.
    pub fn drops(&mut self, header: &Header, receiver: u16) -> bool {
        let Header { kind, source, .. } = *header;
        if !matches!(kind, Kind::Scatter | Kind::Gather) || header.step < self.step {
            return false;
        }
        if header.step > self.step {
            self.step = header.step;
            self.kept.clear();
            self.sent.clear();
        }
        let kept = *(self.kept.entry((kind, source, header.owner))).or_insert_with(|| {
            let dropped = self.share * f64::from(header.slots);
            header.slots - (dropped + self.random.random::<f64>()) as u32
        });
        let sent = self.sent.entry((kind, source, receiver)).or_default();
        *sent += 1;
        *sent > kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: Kind, step: u32, owner: u16) -> Header {
        Header {
            step,
            slots: 10,
            ..Header::new(kind, 1, 1, 2, owner)
        }
    }

    fn dropped(tails: &mut Tails, header: &Header, receiver: u16) -> Vec<bool> {
        (0..10).map(|_| tails.drops(header, receiver)).collect()
    }

    #[test]
    fn all_receivers_lose_the_same_last_packets() {
        let mut tails = Tails::new(0.25, 1);
        let mut lost = 0;
        for step in 0..400 {
            let scatter = dropped(&mut tails, &packet(Kind::Scatter, step, 0), 0);
            assert!(scatter.is_sorted());
            let gather = packet(Kind::Gather, step, 2);
            let [one, other] = [0, 1].map(|receiver| dropped(&mut tails, &gather, receiver));
            assert!(one.is_sorted() && one == other);
            for message in [scatter, one] {
                let here = message.iter().filter(|lost| **lost).count();
                assert!((2..=3).contains(&here));
                lost += here;
            }
        }
        // 2,000 are expected; one standard deviation is 14.
        assert!((1930..2070).contains(&lost), "{lost}");
    }

    #[test]
    fn feedback_and_earlier_steps_are_not_dropped() {
        let mut tails = Tails::new(0.9, 1);
        assert!(dropped(&mut tails, &packet(Kind::Scatter, 3, 0), 0)[9]);
        for header in [packet(Kind::Feedback, 3, 0), packet(Kind::Gather, 2, 2)] {
            assert!(!dropped(&mut tails, &header, 0).contains(&true));
        }
    }
}
