//! Cores that only count values behave like cores with values, packet by packet.

use std::time::Duration;

use crate::common::{Random, config};
use ultima_host::{
    Config, Core, Destination, Event, OperationId, Outcome, Recycling, Time, Totals,
};
use ultima_wire::{HEADER_LEN, Header, Kind};

const RANKS: u16 = 4;
const LEN: usize = 5000;

/// Two sets of cores with the same input.
struct Twins {
    stored: Vec<Core>,
    counted: Vec<Core>,
    random: Random,
    outcomes: Vec<Outcome>,
}

impl Twins {
    fn new(config: &Config, seed: u64) -> Self {
        let cores = || {
            (0..RANKS)
                .map(|rank| {
                    let config = config.clone();
                    Core::new(Config { rank, ..config }).expect("a good configuration")
                })
                .collect()
        };
        Self {
            stored: cores(),
            counted: cores(),
            random: Random::new(seed),
            outcomes: Vec::new(),
        }
    }

    fn start(&mut self, rank: usize, now: Time, id: OperationId) {
        let bucket = vec![rank as f32; LEN];
        self.stored[rank].start(now, id, bucket).expect("starts");
        self.counted[rank]
            .start_counted(now, id, LEN)
            .expect("starts");
        self.exchange(now);
    }

    /// Delivers packets until there are none. A tenth is lost, a tenth has no payload.
    fn exchange(&mut self, now: Time) {
        let mut bufs = [0, 1].map(|_| vec![0; self.stored[0].max_datagram()]);
        let mut idle = false;
        while !std::mem::replace(&mut idle, true) {
            for rank in 0..usize::from(RANKS) {
                while let Some(transmit) = self.stored[rank].next_datagram(now, &mut bufs[0]) {
                    idle = false;
                    let twin = self.counted[rank].next_datagram(now, &mut bufs[1]);
                    let twin = twin.expect("the same packet");
                    assert_eq!((twin.to, twin.len), (transmit.to, transmit.len));
                    let whole = &bufs[0][..transmit.len];
                    let (header, payload) = Header::parse(whole).expect("a header");
                    let values = transmit.len - twin.head;
                    let head = [&whole[..HEADER_LEN], &payload[values..]].concat();
                    assert_eq!(bufs[1][..twin.head], head);
                    let receivers = match transmit.to {
                        Destination::Rank(to) => usize::from(to)..usize::from(to) + 1,
                        Destination::Group => 0..usize::from(RANKS),
                    };
                    for to in receivers.filter(|&to| to != rank) {
                        let mut header = header.clone();
                        if self.random.chance(0.1) {
                            continue;
                        }
                        header.switch_flags.trimmed =
                            self.random.chance(0.1) && header.kind != Kind::Feedback;
                        let mut datagram = vec![0; HEADER_LEN];
                        header.emit(&mut datagram);
                        if !header.switch_flags.trimmed {
                            datagram.extend_from_slice(payload);
                        }
                        let head = match datagram.len() {
                            HEADER_LEN => &datagram,
                            _ => &[&datagram[..HEADER_LEN], &head[HEADER_LEN..]].concat(),
                        };
                        self.stored[to].handle_datagram(now, &datagram);
                        self.counted[to].handle_head(now, head, datagram.len());
                    }
                }
                assert_eq!(self.counted[rank].next_datagram(now, &mut bufs[1]), None);
            }
            for rank in 0..usize::from(RANKS) {
                self.compare(rank);
            }
        }
    }

    fn compare(&mut self, rank: usize) {
        let [stored, counted] = [&mut self.stored[rank], &mut self.counted[rank]];
        assert_eq!(stored.totals(), counted.totals());
        assert_eq!(stored.poll_timeout(), counted.poll_timeout());
        assert_eq!(stored.poll_transmit_at(), counted.poll_transmit_at());
        while let Some(event) = stored.poll_event() {
            match (event, counted.poll_event()) {
                (Event::SlotTrimmed(a), Some(Event::SlotTrimmed(b))) => assert_eq!(a, b),
                (
                    Event::Done { outcome, result },
                    Some(Event::Done {
                        outcome: twin,
                        result: none,
                    }),
                ) => {
                    assert_eq!(outcome, twin);
                    assert_eq!((result.len(), none.len()), (LEN, 0));
                    self.outcomes.push(*outcome);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(counted.poll_event().is_none());
    }

    fn wake(&mut self, now: Time) {
        for core in self.stored.iter_mut().chain(&mut self.counted) {
            core.handle_timeout(now);
        }
        self.exchange(now);
    }
}

#[test]
fn cores_with_counted_values_take_the_same_decisions() {
    take_the_same_decisions(None);
}

#[test]
fn and_so_they_do_with_recycling() {
    let totals = take_the_same_decisions(Some(Recycling { keep: 4 }));
    assert!(totals.recycling.repaired > 0 && totals.recycling.uncounted > 0);
}

/// Compares all decisions. Returns rank 0's counters.
fn take_the_same_decisions(recycling: Option<Recycling>) -> Totals {
    let config = Config {
        slot_bytes: 256,
        recycling,
        ..config(RANKS)
    };
    let mut twins = Twins::new(&config, 5);
    let mut now = Time::ZERO;
    for step in 0..20 {
        let id = OperationId { step, bucket: 0 };
        // The last rank to start has stored packets.
        for rank in 0..RANKS {
            let rank = (u32::from(rank) + step) % u32::from(RANKS);
            twins.start(rank as usize, now, id);
            now = now + Duration::from_micros(10);
        }
        for due in [config.t_s, config.t_b] {
            twins.wake(now + due);
        }
        now = now + config.t_b;
    }
    assert_eq!(twins.outcomes.len(), 20 * usize::from(RANKS));
    let early = |core: &Core| core.totals().phases.scatter.refused;
    assert_eq!(twins.stored.iter().map(early).sum::<u64>(), 0);
    twins.counted[0].totals()
}

#[test]
fn a_core_with_values_refuses_packets_without() {
    let config = config(RANKS);
    let mut twins = Twins::new(&config, 1);
    let id = OperationId { step: 0, bucket: 0 };
    let mut buf = vec![0; twins.stored[0].max_datagram()];
    twins.counted[1]
        .start_counted(Time::ZERO, id, LEN)
        .expect("starts");
    let sent = twins.counted[1]
        .next_datagram(Time::ZERO, &mut buf)
        .expect("a contribution");
    // A source's first owner is the next rank.
    let core = &mut twins.stored[2];
    core.start(Time::ZERO, id, vec![0.0; LEN]).expect("starts");
    core.handle_head(Time::ZERO, &buf[..HEADER_LEN], sent.len);
    assert_eq!(core.totals().rejected.of(ultima_host::Rejection::Length), 1);
    let mut whole = buf[..HEADER_LEN].to_vec();
    whole.resize(sent.len, 0);
    core.handle_datagram(Time::ZERO, &whole);
    assert_eq!(core.totals().phases.scatter.in_time, 1);
}
