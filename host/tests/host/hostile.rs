//! An attacker that sees a running job's packets sends copies of them: repeated, changed, cut, or of its own making.
//! A sealed job has the same results. One without a key recovers when the attack ends.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use ultima_host::{
    ClosedBy, Config, Core, OperationId, Outcome, Preset, ReceiveBuffer, Recycling, Rejection,
};
use ultima_testing::per_run;
use ultima_wire::{Dtype, Header, Key, Kind, Ticks};

const KEY: Key = Key(*b"a job's own key!");
const RANKS: u16 = 4;
const T_B: Duration = Duration::from_millis(20);
/// Hostile packets after each of the job's.
const EACH: u32 = 4;
/// Packets that the attacker remembers of those to one rank.
const REMEMBERED: usize = 200;

fn config(key: Option<Key>, recycling: Option<Recycling>) -> Config {
    Config {
        key,
        recycling,
        slot_bytes: 64,
        receive_buffer: Some(ReceiveBuffer { packets: 30 }),
        ..crate::common::config(RANKS)
    }
}

/// The attacker's knowledge: all packets that it saw, by receiver.
struct Attack {
    random: Random,
    seen: Vec<VecDeque<Vec<u8>>>,
}

impl Attack {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            seen: vec![VecDeque::new(); RANKS.into()],
        }
    }

    fn see(&mut self, datagram: &[u8], to: u16) {
        let seen = &mut self.seen[usize::from(to)];
        if seen.len() == REMEMBERED {
            seen.pop_front();
        }
        seen.push_back(datagram.to_vec());
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    /// A hostile packet for `to`, made of one that it received before.
    fn next(&mut self, to: u16) -> Vec<u8> {
        let count = self.seen[usize::from(to)].len();
        let at = self.below(count);
        let mut datagram = self.seen[usize::from(to)][at].clone();
        match self.below(6) {
            0 => {}
            1 => {
                let bit = self.below(8 * datagram.len());
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
            2 => datagram.truncate(at % datagram.len()),
            3 => {
                let len = self.below(100);
                datagram.extend(std::iter::repeat_n(0x55, len));
            }
            4 => datagram = (0..self.below(200)).map(|at| (at * 37) as u8).collect(),
            _ => datagram = self.rewritten(&datagram),
        }
        datagram
    }

    /// The packet with another value in one field, and payload of the right length if it can.
    fn rewritten(&mut self, datagram: &[u8]) -> Vec<u8> {
        let (mut header, payload) = Header::parse(datagram).expect("a core sent it");
        let any = self.random.below(1 << 32) as u32;
        let small = any % 5;
        match self.below(15) {
            0 => header.kind = Kind::ALL[any as usize % 7],
            1 => header.source = small as u16,
            2 => header.owner = small as u16,
            3 => header.step = header.step.wrapping_add(small),
            // Consistent claims, and others.
            4 if small == 0 => header.step = any,
            4 => header.step = header.step.wrapping_add(1 << 20),
            5 => header.bucket = small as u16,
            6 => header.slot = small,
            7 => header.slots = small,
            8 => header.contributions = any as u16,
            9 => header.shared_tc = any as u16,
            10 => header.echoed = Ticks(any),
            11 => header.host_flags.last = !header.host_flags.last,
            12 => header.host_flags.exact = !header.host_flags.exact,
            13 => header.dtype = [Dtype::F32, Dtype::Bf16][any as usize % 2],
            _ => header.epoch = header.epoch.wrapping_add(1),
        }
        let mut rewritten = vec![0; header.len()];
        header.emit(&mut rewritten);
        rewritten.extend_from_slice(payload);
        rewritten
    }
}

/// An attack on `network` that lasts until `most` packets were sent. Returns how many were.
fn attack(network: &mut Network, seed: u64, most: u32) -> Rc<Cell<u32>> {
    let sent = Rc::new(Cell::new(0));
    let count = Rc::clone(&sent);
    let mut attack = Attack::new(seed);
    network.attacker = Some(Box::new(move |datagram, to| {
        attack.see(datagram, to);
        if count.get() >= most {
            return Vec::new();
        }
        count.set(count.get() + EACH);
        (0..EACH).map(|_| attack.next(to)).collect()
    }));
    sent
}

fn id(step: u32) -> OperationId {
    OperationId { step, bucket: 0 }
}

/// The parts of an outcome that hostile packets must not change. A repeated packet may bring a grant of credit
/// forward, or delay it by a request, and so change times.
fn essence(outcome: &Outcome) -> (ClosedBy, u64, u64, usize) {
    let Outcome {
        closed_by,
        lost,
        missed_values,
        ..
    } = outcome;
    let lost = [lost.scatter.total(), lost.gather.total()];
    (*closed_by, lost[0], lost[1], *missed_values)
}

/// With lost packets, repairs and credit, results are the same to the bit.
#[test]
fn hostile_packets_change_nothing_in_a_sealed_job() {
    let most = per_run(20_000, 1_000_000);
    let mut random = Random::new(11);
    let buckets: Vec<Vec<f32>> = (0..RANKS).map(|_| random.bucket(2_003)).collect();
    for recycling in [None, Some(Recycling::default())] {
        let network = || {
            let mut network = Network::new(&config(Some(KEY), recycling));
            // The same packets, whatever else is sent.
            network.faults = Box::new(|header, to| {
                let is_data = matches!(header.kind, Kind::Scatter | Kind::Gather);
                let number =
                    header.step * 7919 + header.slot * 31 + u32::from(header.source * 5 + to);
                match is_data && number % 97 == 0 {
                    true => vec![],
                    false => vec![Duration::ZERO],
                }
            });
            network
        };
        let (mut undisturbed, mut attacked) = (network(), network());
        let sent = attack(&mut attacked, 5, most / 2);
        let mut step = 0;
        while sent.get() < most / 2 {
            step += 1;
            let expected = undisturbed.allreduce(id(step), &buckets);
            let results = attacked.allreduce(id(step), &buckets);
            for (rank, (result, expected)) in results.iter().zip(&expected).enumerate() {
                let essences = [&result.0, &expected.0].map(essence);
                assert_eq!(essences[0], essences[1], "step {step}, rank {rank}");
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(&result.1),
                    bits(&expected.1),
                    "step {step}, rank {rank}"
                );
            }
        }
        let rejected = attacked.cores.iter().map(Core::totals);
        let seals: u64 = rejected
            .map(|totals| totals.rejected.of(Rejection::Seal))
            .sum();
        assert!(seals > u64::from(most / 2) / 3, "{seals} of {most}");
        let undisturbed = undisturbed.cores.iter().map(Core::totals);
        assert!(
            undisturbed
                .map(|t| t.rejected.total())
                .all(|rejected| rejected == 0)
        );
    }
}

/// Without a key results may be wrong during the attack, but every operation ends by its bound. The attacker also writes
/// packets for the next four operations, so the fifth one after the attack is complete.
#[test]
fn a_job_without_a_key_recovers_when_the_attack_ends() {
    const RECOVERS_IN: u32 = 5;
    let (attacks, most) = per_run((5, 20_000), (50, 1_000_000));
    let buckets = powers(RANKS, 2_003);
    for recycling in [None, Some(Recycling::default())] {
        let mut network = Network::new(&config(None, recycling));
        let mut step = 0;
        for seed in 0..attacks {
            let sent = attack(&mut network, seed, most / attacks as u32 / 2);
            while sent.get() < most / attacks as u32 / 2 {
                step += 1;
                for (rank, (outcome, _)) in network.allreduce(id(step), &buckets).iter().enumerate()
                {
                    assert!(
                        outcome.duration <= T_B,
                        "step {step}, rank {rank}: {outcome:?}"
                    );
                }
            }
            network.attacker = None;
            for after in 1..=RECOVERS_IN {
                step += 1;
                let results = network.allreduce(id(step), &buckets);
                if after == RECOVERS_IN {
                    for (rank, (outcome, _)) in results.iter().enumerate() {
                        assert!(
                            outcome.is_whole(),
                            "attack {seed}, step {step}, rank {rank}: {outcome:?}"
                        );
                    }
                }
            }
        }
    }
}

/// The job's default policies, whose bounds are learned.
fn learning() -> Config {
    Preset::Adaptive
        .policies()
        .apply(config(Some(KEY), Some(Recycling::default())))
}

/// Copies of the packets of a rank that has ended do not hide its end.
#[test]
fn a_rank_whose_packets_are_repeated_is_suspected_all_the_same() {
    const ENDED: u16 = 3;
    let buckets = powers(RANKS, 2_003);
    let mut network = Network::new(&learning());
    let mut attack = Attack::new(3);
    network.attacker = Some(Box::new(move |datagram, to| {
        let (header, _) = Header::parse(datagram).expect("a core sent it");
        if header.source == ENDED {
            attack.see(datagram, to);
        }
        let count = attack.seen[usize::from(to)].len();
        let copies = (0..EACH).filter(|_| count > 0);
        let at: Vec<usize> = copies.map(|_| attack.below(count)).collect();
        at.iter()
            .map(|&at| attack.seen[usize::from(to)][at].clone())
            .collect()
    }));
    for step in 1..=5 {
        network.allreduce(id(step), &buckets);
    }
    let mut starts = at_once(RANKS);
    starts[usize::from(ENDED)] = None;
    for step in 6..=9 {
        let encoded = buckets.clone();
        let done = network.run(id(step), encoded, &starts);
        let suspected = |done: &Option<Done>| done.as_ref().map(|it| it.outcome.suspected.clone());
        // In the third step without a packet, some ranks end before the others suspect it.
        if step != 8 {
            let expected = if step == 9 { vec![ENDED] } else { vec![] };
            assert_eq!(suspected(&done[0]), Some(expected), "step {step}");
        }
    }
    let repeated = network.cores[0].totals().rejected.of(Rejection::Repeated);
    assert!(repeated > 100, "{repeated}");
}

/// Copies of packets of earlier operations are no measurements of how long packets take.
#[test]
fn repeated_packets_do_not_change_learned_bounds() {
    let buckets = powers(RANKS, 2_003);
    let bounds = |is_attacked: bool| {
        let mut network = Network::new(&learning());
        let mut attack = Attack::new(4);
        if is_attacked {
            network.attacker = Some(Box::new(move |datagram, to| {
                attack.see(datagram, to);
                let count = attack.seen[usize::from(to)].len();
                let at: Vec<usize> = (0..EACH).map(|_| attack.below(count)).collect();
                at.iter()
                    .map(|&at| attack.seen[usize::from(to)][at].clone())
                    .collect()
            }));
        }
        let mut last = None;
        for step in 1..=60 {
            // The pause in which copies of the operation before arrive.
            network.now = network.now + Duration::from_millis(5);
            let results = network.allreduce(id(step), &buckets);
            last = Some(results.iter().map(|(it, _)| (it.t_s, it.t_b)).max());
        }
        last.flatten().expect("operations")
    };
    let (undisturbed, attacked) = (bounds(false), bounds(true));
    let near = |a: Duration, b: Duration| b <= a.mul_f64(1.05) && a <= b.mul_f64(1.05);
    assert!(
        near(undisturbed.0, attacked.0),
        "{undisturbed:?} {attacked:?}"
    );
    assert!(
        near(undisturbed.1, attacked.1),
        "{undisturbed:?} {attacked:?}"
    );
}
