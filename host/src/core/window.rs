//! The congestion window: how many packets a rank may have outstanding at another because of the network between them,
//! where no switch shows its queues.
//!
//! The rules are TCP's (RFC 5681: slow start, a smaller window after a loss, slow growth), with four changes, which are
//! our choice:
//! - A lost packet is not sent again, so a window that is too large costs little. The window falls by the share of packets
//!   that were lost, by an eighth at least and by half at most, and not below a quarter of [`FIRST`].
//! - After a loss the window grows only while round trips show that the queue is less than a quarter as long as at the loss.
//!   So there is room when more ranks begin to send on the same path.
//! - Below the size of the last loss the window grows in every round. There it waits; if it loses packets soon after it
//!   grew further, it waits twice as long the next time. So a network of constant speed loses few packets.
//! - Counts of sent and received packets show losses, because nothing is acknowledged packet by packet. Packets that arrive in
//!   another order look lost for a moment; only more of them than ever before count.

use std::time::Duration;

/// Bytes that all senders together have outstanding at a receiver at first: the product of 10 Gbit/s and 50 µs, and
/// about as much as the shortest usual queues (64 packets) hold.
pub(super) const FIRST: usize = 64 << 10;
/// The smallest window: one packet on its way while the grant for another is.
pub(super) const SMALLEST: u32 = 2;
/// The window never waits for more rounds before it grows. A round is a window of packets.
const MOST_PATIENCE: u32 = 256;

/// The part of the queue at a loss above which the window does not grow.
const SHORT_QUEUE: u32 = 4;

/// The congestion window of the packets to one receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct CongestionWindow {
    packets: u32,
    floor: u32,
    most: u32,
    /// None until the first loss: in slow start.
    known: Option<Known>,
    /// Packets taken since the window grew or shrank.
    quiet: u32,
    /// The most packets that were missing at a time.
    missing: i32,
    /// Packets up to this one, counted as [`Taken::total`], were sent before the window last shrank.
    sent_before: u64,
    /// The last round trip, and the shortest. Zero before the first.
    round_trip: Duration,
    shortest: Duration,
}

/// What losses showed of the network.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The window of the last loss.
    limit: u32,
    /// Rounds without a loss before the window grows at about this limit.
    patience: u32,
    /// Packets taken since it last did.
    since_try: u32,
    /// Round trips with a shorter queue are at most this long.
    short: Duration,
}

/// What a receiver has taken from the network, as a grant of credit shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Packets to the receiver that arrived or are lost, and how many of them are new.
    pub(super) total: u64,
    pub(super) new: u32,
    /// Packets that were sent to it.
    pub(super) sent: u64,
    /// Packets that arrived there, wrapping.
    pub(super) arrived: u32,
}

impl CongestionWindow {
    /// A window that begins with `first` packets and never exceeds `most`.
    pub(super) fn new(first: u32, most: u32) -> Self {
        Self {
            packets: first.min(most),
            floor: (first / 4).max(SMALLEST),
            most,
            known: None,
            quiet: 0,
            missing: 0,
            sent_before: 0,
            round_trip: Duration::ZERO,
            shortest: Duration::ZERO,
        }
    }

    /// The window, in packets.
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// Notes the time from a packet to the grant for it.
    pub(super) fn round_trip(&mut self, time: Duration) {
        self.round_trip = time;
        if self.shortest.is_zero() || time < self.shortest {
            self.shortest = time;
        }
    }

    /// Notes what the receiver has taken.
    pub(super) fn taken(&mut self, taken: Taken) {
        let missing = (taken.total as u32).wrapping_sub(taken.arrived) as i32;
        let lost = missing.saturating_sub(self.missing);
        self.missing = self.missing.max(missing);
        self.quiet = self.quiet.saturating_add(taken.new);
        if let Some(known) = &mut self.known {
            known.since_try = known.since_try.saturating_add(taken.new);
        }
        if let Ok(lost @ 1..) = u32::try_from(lost) {
            if taken.total > self.sent_before {
                self.shrink(lost.min(taken.new), taken);
            }
            return;
        }
        // A window that is not used does not show what the network takes (RFC 7661).
        let outstanding = taken.sent - taken.total + u64::from(taken.new);
        if outstanding >= u64::from(self.packets / 2) {
            self.grow(taken.new);
        }
    }

    fn grow(&mut self, taken: u32) {
        let Some(known) = &mut self.known else {
            self.packets = (self.packets + taken).min(self.most);
            return;
        };
        let larger = self.packets + (self.packets / 16).max(1);
        let tries = larger > known.limit - known.limit / 16;
        let patience = if tries { known.patience } else { 1 };
        if self.quiet < self.packets.saturating_mul(patience) || self.round_trip > known.short {
            return;
        }
        if tries {
            known.since_try = 0;
            if self.packets > known.limit {
                known.patience = (known.patience / 2).max(1);
            }
        }
        self.packets = larger.min(self.most);
        self.quiet = 0;
    }

    fn shrink(&mut self, lost: u32, taken: Taken) {
        let by_share = u64::from(self.packets) * u64::from(lost) / u64::from(taken.new.max(1));
        let by = (by_share as u32).clamp((self.packets / 8).max(1), (self.packets / 2).max(1));
        let patience = match self.known {
            None => 1,
            Some(known) if known.since_try <= 2 * self.packets => {
                (2 * known.patience).min(MOST_PATIENCE)
            }
            Some(known) => known.patience,
        };
        self.known = Some(Known {
            limit: self.packets,
            patience,
            since_try: u32::MAX,
            short: self.shortest + (self.round_trip - self.shortest) / SHORT_QUEUE,
        });
        self.packets = (self.packets.saturating_sub(by)).max(self.floor);
        self.sent_before = taken.sent;
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that always has packets, and a path that holds `path` packets and drops the rest of each round. `drop` says
    /// whether the path loses the packet with this number besides.
    struct Path {
        window: CongestionWindow,
        path: u32,
        sent: u64,
        arrived: u32,
        lost: u32,
    }

    impl Path {
        fn new(path: u32) -> Self {
            Self {
                window: CongestionWindow::new(8, 4096),
                path,
                sent: 0,
                arrived: 0,
                lost: 0,
            }
        }

        /// Sends a window of packets, then notes that all are taken.
        fn round(&mut self, drop: impl Fn(u64) -> bool) {
            let sent = self.window.packets();
            let through =
                (0..sent.min(self.path)).filter(|packet| !drop(self.sent + u64::from(*packet)));
            let through = through.count() as u32;
            self.sent += u64::from(sent);
            self.arrived += through;
            self.lost += sent - through;
            self.window.taken(Taken {
                total: self.sent,
                new: sent,
                sent: self.sent,
                arrived: self.arrived,
            });
        }
    }

    #[test]
    fn without_loss_it_doubles_up_to_the_most() {
        let mut path = Path::new(u32::MAX);
        let mut packets = Vec::new();
        for _ in 0..11 {
            packets.push(path.window.packets());
            path.round(|_| false);
        }
        assert_eq!(
            packets,
            [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096]
        );
    }

    #[test]
    fn a_path_of_constant_size_is_filled_and_loses_little() {
        let mut path = Path::new(100);
        (0..2000).for_each(|_| path.round(|_| false));
        path.lost = 0;
        let (before, arrived) = (path.sent, path.arrived);
        (0..2000).for_each(|_| path.round(|_| false));
        let sent = (path.sent - before) as u32;
        assert!(path.lost * 1000 < sent, "{} of {sent} lost", path.lost);
        assert!(
            path.arrived - arrived > 2000 * 80,
            "{} arrived",
            path.arrived - arrived
        );
    }

    #[test]
    fn a_larger_path_is_found() {
        let mut path = Path::new(100);
        (0..2000).for_each(|_| path.round(|_| false));
        path.path = 1000;
        (0..1000).for_each(|_| path.round(|_| false));
        assert!(path.window.packets() > 500, "{:?}", path.window);
    }

    /// A tenth of the packets, whatever the window.
    #[test]
    fn it_never_falls_below_the_floor() {
        let mut path = Path::new(1000);
        (0..200).for_each(|_| path.round(|packet| packet % 10 == 0));
        assert!(
            (2..=16).contains(&path.window.packets()),
            "{:?}",
            path.window
        );
    }

    #[test]
    fn losses_of_one_round_count_once() {
        let mut window = CongestionWindow::new(8, 64);
        let grant = |total, new, arrived| Taken {
            total,
            new,
            sent: 64,
            arrived,
        };
        window.packets = 64;
        window.taken(grant(16, 16, 8));
        assert_eq!(window.packets(), 32);
        for (total, arrived) in [(32, 16), (48, 24), (64, 32)] {
            window.taken(grant(total, 16, arrived));
        }
        assert_eq!(window.packets(), 32);
    }

    /// Three packets arrive after the grant that covers them, again and again.
    #[test]
    fn reordering_counts_once() {
        let mut window = CongestionWindow::new(8, 64);
        let mut sizes = Vec::new();
        for round in 1..100 {
            let total = 32 * round;
            window.taken(Taken {
                total,
                new: 32,
                sent: total,
                arrived: total as u32 - if round % 2 == 0 { 3 } else { 0 },
            });
            sizes.push(window.packets());
        }
        let falls = sizes.windows(2).filter(|pair| pair[1] < pair[0]);
        assert_eq!(falls.count(), 1, "{sizes:?}");
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut window = CongestionWindow::new(8, 64);
        for total in 1..100 {
            window.taken(Taken {
                total,
                new: 1,
                sent: total,
                arrived: total as u32,
            });
        }
        assert_eq!(window.packets(), 8);
    }
}
