//! The congestion window: how many packets a rank may have outstanding at another because of the network between them,
//! where no switch shows its queues.
//!
//! The rules are TCP's (RFC 5681: slow start, a smaller window after a loss, slow growth), with four changes, which are
//! our choice:
//! - The window falls by the share of packets that were lost, by an eighth at least and by half at most, and not below a
//!   quarter of [`FIRST`]: losses cost little, because most operations do without the lost packets.
//! - After a loss the window grows only while round trips show that the queue is less than a quarter as long as at the loss,
//!   or after [`LONGEST_WAIT`] rounds without a loss. So there is room when more ranks begin to send on the same path.
//! - Below the size of the last loss the window grows in every round. There it waits. If it loses packets soon after it
//!   grew further, it waits twice as long the next time, and half as long after it grew beyond that size. So a network of
//!   constant speed loses few packets.
//! - Counts of sent and received packets show losses, because nothing is acknowledged packet by packet. Packets that arrive in
//!   another order look lost for a moment; only more of them than ever before count.

use std::time::Duration;

/// Bytes that all senders together have outstanding at a receiver at first: the product of 10 Gbit/s and 50 µs, and
/// about as much as the shortest usual queues (64 packets) hold.
pub(super) const FIRST: usize = 64 << 10;
/// The smallest window: one packet on its way while the grant for another is.
pub(super) const SMALLEST: u32 = 2;
/// The most rounds without a loss before the window grows. A round is a window of packets.
const LONGEST_WAIT: u32 = 256;
/// The part of the queue at a loss above which the window does not grow.
const SHORT_QUEUE: u32 = 4;

/// The congestion window of the packets to one receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct CongestionWindow {
    packets: u32,
    floor: u32,
    /// None until the first loss: in slow start.
    known: Option<Known>,
    /// Packets covered since the window grew or shrank.
    quiet: u32,
    /// The most packets that were missing at a time, wrapping.
    missing: u32,
    /// Packets up to this one, counted as [`Covered::total`], were sent before the window last shrank.
    sent_before: u64,
    round_trip: Option<RoundTrip>,
}

/// The network's limits, as losses showed them.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The window of the last loss.
    limit: u32,
    /// Rounds without a loss before the window grows at about this limit.
    wait: u32,
    /// Packets covered since it last did.
    since_try: u32,
    /// Round trips with a short queue are at most this long.
    short: Duration,
}

#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    last: Duration,
    shortest: Duration,
}

/// The packets that a grant covers: they have arrived or are lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covered {
    /// All of them, and those that no earlier grant covered.
    pub(super) total: u64,
    pub(super) new: u32,
    /// Packets that were sent.
    pub(super) sent: u64,
    /// Packets that arrived, wrapping.
    pub(super) arrived: u32,
    /// Packets for which the receiver has room: the largest window.
    pub(super) room: u32,
}

impl CongestionWindow {
    /// A window that begins with `first` packets.
    pub(super) fn new(first: u32) -> Self {
        Self {
            packets: first,
            floor: (first / 4).max(SMALLEST),
            known: None,
            quiet: 0,
            missing: 0,
            sent_before: 0,
            round_trip: None,
        }
    }

    /// The window, in packets.
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// Notes the time from a packet to the grant that covers it.
    pub(super) fn measured(&mut self, round_trip: Duration) {
        let shortest = self.round_trip.map_or(round_trip, |it| it.shortest);
        self.round_trip = Some(RoundTrip {
            last: round_trip,
            shortest: shortest.min(round_trip),
        });
    }

    /// Notes a grant.
    pub(super) fn granted(&mut self, covered: Covered) {
        let missing = (covered.total as u32).wrapping_sub(covered.arrived);
        let lost = missing.wrapping_sub(self.missing) as i32;
        self.quiet = self.quiet.saturating_add(covered.new);
        if let Some(known) = &mut self.known {
            known.since_try = known.since_try.saturating_add(covered.new);
        }
        // More is never outstanding.
        self.packets = self.packets.min(covered.room.max(self.floor));
        if let Ok(lost @ 1..) = u32::try_from(lost) {
            self.missing = missing;
            if covered.total > self.sent_before {
                self.shrink(lost.min(covered.new), covered);
            }
            return;
        }
        // A window that is not used does not show what the network takes (RFC 7661).
        let outstanding = covered.sent - covered.total + u64::from(covered.new);
        if outstanding >= u64::from(self.packets / 2) {
            self.grow(covered);
        }
    }

    fn grow(&mut self, covered: Covered) {
        let Some(known) = &mut self.known else {
            let larger = self.packets.saturating_add(covered.new);
            self.packets = self.packets.max(larger.min(covered.room));
            return;
        };
        let larger = self.packets + (self.packets / 16).max(1);
        let tries = larger > known.limit - known.limit / 16;
        let wait = if tries { known.wait } else { 1 };
        if self.quiet < self.packets.saturating_mul(wait) {
            return;
        }
        if let Some(round_trip) = &mut self.round_trip
            && round_trip.last > known.short
        {
            if self.quiet < self.packets.saturating_mul(LONGEST_WAIT) {
                return;
            }
            // The path itself may have become longer.
            round_trip.shortest = round_trip.last;
            known.short = round_trip.last;
        }
        if tries {
            known.since_try = 0;
            if self.packets > known.limit {
                known.wait = (known.wait / 2).max(1);
            }
        }
        self.packets = self.packets.max(larger.min(covered.room));
        self.quiet = 0;
    }

    fn shrink(&mut self, lost: u32, covered: Covered) {
        let by_share = u64::from(self.packets) * u64::from(lost) / u64::from(covered.new.max(1));
        let by = (by_share as u32).clamp((self.packets / 8).max(1), (self.packets / 2).max(1));
        let wait = match self.known {
            None => 1,
            Some(known) if known.since_try <= 2 * self.packets => {
                (2 * known.wait).min(LONGEST_WAIT)
            }
            Some(known) => known.wait,
        };
        let short = self.round_trip.map_or(Duration::MAX, |it| {
            it.shortest + (it.last - it.shortest) / SHORT_QUEUE
        });
        self.known = Some(Known {
            limit: self.packets,
            wait,
            since_try: u32::MAX,
            short,
        });
        self.packets = self.packets.saturating_sub(by).max(self.floor);
        self.sent_before = covered.sent;
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that always has packets, and a path that holds `path` packets and drops the rest of each round. It also loses
    /// packets whose number `drop` accepts.
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
                window: CongestionWindow::new(8),
                path,
                sent: 0,
                arrived: 0,
                lost: 0,
            }
        }

        /// Sends a window of packets, then notes that a grant covers all.
        fn round(&mut self, drop: impl Fn(u64) -> bool) {
            let sent = self.window.packets();
            let through =
                (0..sent.min(self.path)).filter(|packet| !drop(self.sent + u64::from(*packet)));
            let through = through.count() as u32;
            self.sent += u64::from(sent);
            self.arrived += through;
            self.lost += sent - through;
            self.window.granted(Covered {
                total: self.sent,
                new: sent,
                sent: self.sent,
                arrived: self.arrived,
                room: 4096,
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
        let mut window = CongestionWindow::new(8);
        let grant = |total, new, arrived| Covered {
            total,
            new,
            sent: 64,
            arrived,
            room: 64,
        };
        window.packets = 64;
        window.granted(grant(16, 16, 8));
        assert_eq!(window.packets(), 32);
        for (total, arrived) in [(32, 16), (48, 24), (64, 32)] {
            window.granted(grant(total, 16, arrived));
        }
        assert_eq!(window.packets(), 32);
    }

    /// Three packets arrive after the grant that covers them, again and again.
    #[test]
    fn reordering_counts_once() {
        let mut window = CongestionWindow::new(8);
        let mut sizes = Vec::new();
        for round in 1..100 {
            let total = 32 * round;
            window.granted(Covered {
                total,
                new: 32,
                sent: total,
                arrived: total as u32 - if round % 2 == 0 { 3 } else { 0 },
                room: 64,
            });
            sizes.push(window.packets());
        }
        let falls = sizes.windows(2).filter(|pair| pair[1] < pair[0]);
        assert_eq!(falls.count(), 1, "{sizes:?}");
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut window = CongestionWindow::new(8);
        for total in 1..100 {
            window.granted(Covered {
                total,
                new: 1,
                sent: total,
                arrived: total as u32,
                room: 64,
            });
        }
        assert_eq!(window.packets(), 8);
    }

    #[test]
    fn a_loss_before_the_first_round_trip_does_not_stop_growth() {
        let mut path = Path::new(1000);
        path.round(|packet| packet == 0);
        for _ in 0..600 {
            path.window.measured(Duration::from_millis(1));
            path.round(|_| false);
        }
        assert!(path.window.packets() > 500, "{:?}", path.window);
    }

    #[test]
    fn a_longer_path_stops_growth_for_a_while() {
        let mut path = Path::new(1000);
        path.window.measured(Duration::from_micros(50));
        (0..6).for_each(|_| path.round(|_| false));
        for round in 0..3000 {
            path.window.measured(Duration::from_micros(500));
            path.round(|packet| round < 20 && packet % 10 == 0);
            let growing = !(20..200).contains(&round);
            assert!(growing || path.window.packets() < 200, "{:?}", path.window);
        }
        assert!(path.window.packets() > 500, "{:?}", path.window);
    }

    #[test]
    fn it_is_at_most_the_receivers_room() {
        let mut path = Path::new(u32::MAX);
        (0..20).for_each(|_| path.round(|_| false));
        assert_eq!(path.window.packets(), 4096);
        path.window.granted(Covered {
            total: path.sent,
            new: 0,
            sent: path.sent,
            arrived: path.arrived,
            room: 100,
        });
        assert_eq!(path.window.packets(), 100);
    }
}
