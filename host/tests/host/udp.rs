//! The UDP driver, over real sockets on loopback.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::common::training::recycling;
use crate::common::*;
use ultima_host::safeguards::CodingRule;
use ultima_host::{
    CheckPacket, ClosedBy, Coding, Collective, Config, Core, Destination, EarlyBounds, Error,
    Exact, Gather, Heard, OperationId, Outcome, Rejection, Report, Rules, Safeguards, Stopped,
    Taken, Time, UdpConfig,
};
use ultima_wire::{Key, UDP_PORT, group_address};

fn sockets(ranks: u16) -> (Vec<UdpSocket>, Vec<SocketAddrV4>) {
    (0..ranks)
        .map(|_| {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
            let SocketAddr::V4(address) = socket.local_addr().expect("is bound") else {
                panic!("an IPv4 socket");
            };
            (socket, address)
        })
        .unzip()
}

fn collective(config: Config, socket: UdpSocket, peers: &[SocketAddrV4]) -> Collective {
    let group = SocketAddrV4::new(group_address(config.job), UDP_PORT);
    let udp = UdpConfig {
        socket,
        peers: peers.to_vec(),
        group,
    };
    Collective::over_udp(config, udp).expect("starts")
}

/// One rank's result: each step's outcome and mean, and its report.
struct Rank {
    steps: Vec<(Outcome, Vec<f32>)>,
    report: Report,
}

/// Averages `steps` (buckets by step and rank) over loopback; returns each rank's outcomes, results
/// and report.
fn run(config: &Config, steps: &Arc<Vec<Vec<Vec<f32>>>>) -> Vec<Rank> {
    let (sockets, peers) = sockets(config.ranks);
    let ended = Arc::new(Barrier::new(usize::from(config.ranks)));
    let ranks: Vec<_> = (0u16..)
        .zip(sockets)
        .map(|(rank, socket)| {
            let (steps, ended) = (steps.clone(), ended.clone());
            let mut collective = collective(
                Config {
                    rank,
                    ..config.clone()
                },
                socket,
                &peers,
            );
            thread::spawn(move || {
                let results = (0..)
                    .zip(steps.iter())
                    .map(|(step, buckets)| {
                        let mut bucket = buckets[usize::from(rank)].clone();
                        let id = OperationId { step, bucket: 0 };
                        let outcome = collective.allreduce(id, &mut bucket).expect("averages");
                        (outcome, bucket)
                    })
                    .collect();
                ended.wait();
                let report = collective
                    .finish(Duration::from_millis(100))
                    .expect("finishes");
                Rank {
                    steps: results,
                    report,
                }
            })
        })
        .collect();
    ranks
        .into_iter()
        .map(|rank| rank.join().expect("no panic"))
        .collect()
}

#[test]
fn four_ranks_average_over_loopback() {
    // Two operations fit a socket's default receive buffer, so that nothing is lost however late a
    // thread gets its turn.
    let key = Some(Key(*b"a job's own key!"));
    for (slot_bytes, len, key) in [(8192, 20_003, None), (256, 5_003, None), (256, 5_003, key)] {
        let config = Config {
            key,
            gather: Gather::Unicast,
            slot_bytes,
            t_b: Duration::from_secs(20),
            t_s: Duration::from_secs(10),
            ..config(4)
        };
        let mut random = Random::new(len as u64);
        let steps: Vec<Vec<Vec<f32>>> = (0..4)
            .map(|_| (0..4).map(|_| random.bucket(len)).collect())
            .collect();
        let steps = Arc::new(steps);
        let ranks = run(&config, &steps);
        for (step, buckets) in steps.iter().enumerate() {
            let exact = exact_mean(buckets);
            for (at, rank) in ranks.iter().enumerate() {
                let (outcome, bucket) = &rank.steps[step];
                assert_eq!(
                    outcome.closed_by,
                    ClosedBy::Complete,
                    "rank {at}, step {step}"
                );
                assert!(relative_error(bucket, &exact) < 1e-12);
                assert_eq!(bucket, &ranks[0].steps[step].1);
            }
        }
        for Rank { report, .. } in &ranks {
            let phases = report.totals.phases;
            assert_eq!(phases.scatter.slots, phases.scatter.sent);
            assert_eq!(phases.scatter.slots, phases.scatter.in_time);
            assert_eq!(phases.gather.slots, phases.gather.in_time);
            assert_eq!(report.totals.rejected.total(), 0);
            assert_eq!(report.link, Default::default());
        }
    }
}

/// A job of unicast packets that waits for all of them.
fn patient(ranks: u16, coding: Coding) -> Config {
    Config {
        coding,
        gather: Gather::Unicast,
        slot_bytes: 8192,
        t_b: Duration::from_secs(20),
        t_s: Duration::from_secs(10),
        ..config(ranks)
    }
}

/// Without coding, values leave from the caller's memory and arrive there.
#[test]
fn an_uncoded_bucket_may_change_after_the_operation() {
    let config = patient(4, Coding::Identity);
    let (sockets, peers) = sockets(4);
    let ranks = (0u16..).zip(sockets).map(|(rank, socket)| {
        let config = Config {
            rank,
            ..config.clone()
        };
        let mut collective = collective(config, socket, &peers);
        thread::spawn(move || {
            let mut bucket = vec![0.0; 100_003];
            for step in 0..20 {
                bucket.fill((step * u32::from(rank)) as f32);
                let id = OperationId { step, bucket: 0 };
                let outcome = collective.allreduce(id, &mut bucket).expect("averages");
                assert_eq!(outcome.closed_by, ClosedBy::Complete);
                let mean = step as f32 * 1.5;
                assert!(bucket.iter().all(|value| *value == mean), "step {step}");
            }
            collective
                .finish(Duration::from_millis(100))
                .expect("finishes");
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks
        .into_iter()
        .for_each(|rank| rank.join().expect("no panic"));
}

/// Values that come back when the operation drops them.
struct Loan {
    values: Vec<f32>,
    back: Sender<Vec<f32>>,
}

impl AsMut<[f32]> for Loan {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let _ = self.back.send(std::mem::take(&mut self.values));
    }
}

#[test]
fn taken_values_come_back_with_the_mean_in_their_place() {
    const LEN: usize = 50_003;
    for coding in [Coding::Identity, Coding::Hadamard { log2_block: 12 }] {
        let config = patient(2, coding);
        let (sockets, peers) = sockets(2);
        let ranks = (0u16..).zip(sockets).map(|(rank, socket)| {
            let config = Config {
                rank,
                ..config.clone()
            };
            let mut collective = collective(config, socket, &peers);
            thread::spawn(move || {
                let own = f32::from(rank);
                let is_mean = |values: &[f32]| {
                    values.len() == LEN && values.iter().all(|value| (value - 0.5).abs() < 1e-5)
                };
                let [owned, lent, past] = [0, 1, 0].map(|step| OperationId { step, bucket: 0 });

                let values = vec![own; LEN];
                let start = values.as_ptr();
                collective
                    .start_taken(owned, Taken::Owned(values))
                    .expect("starts");
                let waited = collective.wait(owned, &mut [0.0; LEN]);
                assert!(matches!(waited, Err(Error::NotStarted(_))), "{waited:?}");
                let (outcome, mean) = collective.wait_taken(owned).expect("averages");
                assert_eq!(outcome.closed_by, ClosedBy::Complete);
                assert!(is_mean(&mean));
                assert_eq!(mean.as_ptr(), start, "not a copy");

                let (back, returned) = channel();
                let lend = |values| {
                    let back = back.clone();
                    Taken::Lent(Box::new(Loan { values, back }))
                };
                collective
                    .start_taken(lent, lend(vec![own; LEN]))
                    .expect("starts");
                let (outcome, none) = collective.wait_taken(lent).expect("averages");
                assert_eq!(outcome.closed_by, ClosedBy::Complete);
                assert!(none.is_empty());
                assert!(is_mean(&returned.try_recv().expect("dropped by now")));

                // Refused: the values are as they were.
                collective
                    .start_taken(past, lend(vec![own; LEN]))
                    .expect("is not refused yet");
                collective.wait_taken(past).expect_err("an earlier step");
                let unchanged = returned.try_recv().expect("dropped by now");
                assert!(unchanged.iter().all(|value| *value == own));
                collective
                    .finish(Duration::from_millis(100))
                    .expect("finishes");
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks
            .into_iter()
            .for_each(|rank| rank.join().expect("no panic"));
    }
}

#[test]
fn a_peer_without_a_socket_is_loss() {
    let (mut sockets, peers) = sockets(3);
    sockets.truncate(2);
    let ranks: Vec<_> = (0u16..)
        .zip(sockets)
        .map(|(rank, socket)| {
            let config = Config {
                rank,
                gather: Gather::Unicast,
                ..config(3)
            };
            let mut collective = collective(config, socket, &peers);
            thread::spawn(move || {
                (0..5)
                    .map(|step| {
                        let mut bucket = vec![f32::from(rank); 3000];
                        let id = OperationId { step, bucket: 0 };
                        collective
                            .allreduce(id, &mut bucket)
                            .expect("ends")
                            .contributions
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    for rank in ranks {
        for contributions in rank.join().expect("no panic") {
            assert_eq!(contributions[3], 0, "the third rank contributes nothing");
        }
    }
}

/// A rank that leaves right after its result has sent the others theirs.
#[test]
fn leaving_at_once_costs_the_others_no_packets() {
    for _ in 0..30 {
        let (sockets, peers) = sockets(2);
        let ranks: Vec<_> = (0u16..)
            .zip(sockets)
            .map(|(rank, socket)| {
                let t_b = Duration::from_secs(20);
                let mut config = Config::new(7, 1, rank, 2, 42, t_b);
                config.gather = Gather::Unicast;
                let mut collective = collective(config, socket, &peers);
                thread::spawn(move || {
                    let mut bucket = vec![1.0; 3000];
                    collective
                        .allreduce(ID, &mut bucket)
                        .expect("averages")
                        .closed_by
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().expect("no panic"), ClosedBy::Complete);
        }
    }
}

#[test]
fn check_packets_show_which_paths_work() {
    let (mut sockets, peers) = sockets(3);
    // Rank 2 has no socket.
    let gone = sockets.pop().expect("three").local_addr();
    assert_eq!(gone.expect("was bound"), SocketAddr::V4(peers[2]));
    let config = Config {
        gather: Gather::Unicast,
        ..config(3)
    };
    let mut ranks = (0u16..).zip(sockets).map(|(rank, socket)| {
        let config = Config {
            rank,
            ..config.clone()
        };
        collective(config, socket, &peers)
    });
    let (one, other) = (ranks.next().expect("two"), ranks.next().expect("two"));
    drop(ranks);
    let packet = |rank, payload| CheckPacket {
        to: Destination::Rank(rank),
        probe: false,
        about: OperationId::default(),
        token: 77,
        payload,
    };
    let packets = vec![
        packet(2, 8),
        packet(1, 8),
        packet(1, 1408),
        packet(1, 1 << 20),
    ];
    one.prober().send(packets).expect("runs");
    let prober = other.prober();
    let heard = loop {
        let (heard, report) = prober.heard(77).expect("runs");
        if report.totals.control_received == 3 {
            break heard;
        }
        thread::yield_now();
    };
    let expected = Heard {
        source: 0,
        by_group: false,
        packets: 3,
        hops: 0,
    };
    assert_eq!(heard.ranks, [expected]);
    drop(other);
    assert_eq!(prober.heard(77), Err(Stopped));
}

/// Exact operations that store no packets before their start: ranks request them again. A rank leaves when no
/// other rank needs it.
#[test]
fn exact_operations_repair_packets_that_came_too_early() {
    let limit = Duration::from_secs(20);
    let config = Config {
        gather: Gather::Unicast,
        early: EarlyBounds {
            operations: 1,
            bytes: 0,
        },
        t_b: Duration::from_secs(1),
        t_s: Duration::from_millis(500),
        ..config(3)
    };
    let (sockets, peers) = sockets(3);
    let ranks = (0u16..).zip(sockets).map(|(rank, socket)| {
        let config = Config {
            rank,
            ..config.clone()
        };
        let mut collective = collective(config, socket, &peers);
        thread::spawn(move || {
            let id = |bucket| OperationId { step: 1, bucket };
            let mut values: Vec<f32> = (0..2000).map(|at| f32::from(rank) + at as f32).collect();
            thread::sleep(Duration::from_millis(u64::from(rank) * 40));
            let first = collective.allreduce_exact(id(0), &mut values, limit);
            let mut sent = [f32::from(rank), 0.5];
            collective
                .broadcast(id(1), 2, &mut sent, limit)
                .expect("has the root's");
            let (_, gathered) = collective
                .all_gather(id(2), &sent[..1], limit)
                .expect("all");
            collective.barrier(id(3), limit).expect("all come");
            let totals = collective.report().expect("reports").totals;
            (
                first.expect("complete").requests,
                values,
                sent,
                gathered,
                totals,
            )
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let mut requests = 0;
    for rank in ranks {
        let (asked, mean, sent, gathered, totals) = rank.join().expect("no panic");
        requests += asked;
        assert!((0..2000).all(|at| mean[at] == 1.0 + at as f32));
        assert_eq!(sent, [2.0, 0.5]);
        assert_eq!(gathered, [2.0; 3]);
        assert_eq!((totals.exact.complete, totals.exact.incomplete), (4, 0));
        assert_eq!(totals.rejected.total(), 0);
    }
    assert!(requests > 0);
}

#[test]
fn buckets_run_in_parallel_and_in_any_order() {
    const BUCKETS: u16 = 12;
    const RANKS: u16 = 3;
    let (sockets, peers) = sockets(RANKS);
    let ranks: Vec<_> = (0..RANKS)
        .zip(sockets)
        .map(|(rank, socket)| {
            let config = Config {
                rank,
                gather: Gather::Unicast,
                ..Config::new(7, 1, rank, RANKS, 42, Duration::from_secs(5))
            };
            let mut collective = collective(config, socket, &peers);
            thread::spawn(move || {
                for step in 0..3 {
                    let id = |bucket| OperationId { step, bucket };
                    // Every rank starts and waits in a different order.
                    let order: Vec<u16> =
                        (0..BUCKETS).map(|n| (n * 5 + rank * 4) % BUCKETS).collect();
                    for &bucket in &order {
                        let values = vec![f32::from(bucket + rank); 1000 + usize::from(bucket)];
                        collective.start(id(bucket), &values).expect("starts");
                        let again = collective
                            .start(id(bucket), &values)
                            .unwrap_err()
                            .to_string();
                        assert!(again.contains("started before"), "{again}");
                    }
                    // In parallel, an exact operation.
                    let mut sum = [f32::from(rank)];
                    let limit = Duration::from_secs(5);
                    collective
                        .allreduce_exact(id(BUCKETS), &mut sum, limit)
                        .expect("is exact");
                    assert_eq!(sum, [1.0]);
                    for bucket in order.into_iter().rev() {
                        let mut mean = vec![0.0; 1000 + usize::from(bucket)];
                        let short = collective
                            .wait(id(bucket), &mut mean[1..])
                            .unwrap_err()
                            .to_string();
                        assert!(short.contains("now has"), "{short}");
                        let outcome = collective.wait(id(bucket), &mut mean).expect("averages");
                        assert_eq!(outcome.closed_by, ClosedBy::Complete);
                        let expected = f32::from(bucket + 1);
                        assert!(
                            mean.iter().all(|value| (value - expected).abs() < 1e-5),
                            "{bucket}"
                        );
                        assert!(collective.wait(id(bucket), &mut mean).is_err());
                    }
                }
                // Steps never decrease: the waiting caller gets the error.
                let past = OperationId { step: 1, bucket: 0 };
                collective.start(past, &[0.0]).expect("is not refused yet");
                let past = collective.wait(past, &mut [0.0]).unwrap_err().to_string();
                assert!(past.contains("expected step 2"), "{past}");
            })
        })
        .collect();
    for rank in ranks {
        rank.join().expect("no panic");
    }
}

/// Rank 1 contributes to an exact operation and is gone before it has the result. Rank 0 has it, and leaves
/// although the operation's limit is a day away.
#[test]
fn a_leaving_rank_does_not_wait_for_dead_ranks() {
    let day = Duration::from_secs(24 * 3600);
    let config = Config {
        gather: Gather::Unicast,
        ..config(2)
    };
    let (mut sockets, peers) = sockets(2);
    let (gone, here) = (sockets.pop().expect("two"), sockets.pop().expect("two"));
    let mut collective = collective(config.clone(), here, &peers);
    let mut core = Core::new(Config { rank: 1, ..config }).expect("a good configuration");
    let (id, values) = (OperationId::default(), vec![1.0; 10]);
    core.start_exact(Time::ZERO, id, Exact::Mean, values, day)
        .expect("starts");
    let mut buf = vec![0; core.max_datagram()];
    let mut sent = Vec::new();
    while let Some(transmit) = core.next_datagram(Time::ZERO, &mut buf) {
        sent.push(buf[..transmit.len].to_vec());
    }
    // Also its aggregates, which need rank 0's contributions.
    let last = thread::spawn(move || {
        let mut bytes = vec![0; 2000];
        loop {
            for datagram in &sent {
                gone.send_to(datagram, peers[0]).expect("sends");
            }
            while let Some(transmit) = core.next_datagram(Time::ZERO, &mut buf) {
                gone.send_to(&buf[..transmit.len], peers[0]).expect("sends");
                let (header, _) = ultima_wire::Header::parse(&buf).expect("a header");
                if header.kind == ultima_wire::Kind::Gather {
                    return;
                }
            }
            let len = gone.recv(&mut bytes).expect("rank 0 sends");
            core.handle_datagram(Time::ZERO, &bytes[..len]);
        }
    });
    let mut values = [2.0; 10];
    collective
        .allreduce_exact(id, &mut values, day)
        .expect("complete");
    assert_eq!(values, [1.5; 10]);
    last.join().expect("no panic");
    drop(collective);
}

/// Ranks code as decided by their vote. A rank that missed the vote follows one step after it has received
/// the others' packets, and then none is rejected.
#[test]
fn coding_is_agreed_and_taken_over() {
    const LEN: usize = 5000;
    let (sockets, peers) = sockets(2);
    let rules = Rules {
        coding: Some(CodingRule {
            above: 0.5,
            every: 1,
        }),
        ..Rules::default()
    };
    let barrier = Arc::new(Barrier::new(2));
    let ranks = (0u16..).zip(sockets).map(|(rank, socket)| {
        let config = Config {
            rank,
            gather: Gather::Unicast,
            ..Config::new(7, 1, rank, 2, 42, Duration::from_secs(1))
        };
        let mut collective = collective(config, socket, &peers);
        let barrier = barrier.clone();
        thread::spawn(move || {
            let mut safeguards = Safeguards::new(rules, 42);
            let gradient: Vec<f32> = (0..LEN)
                .map(|at| (at as f32).sin() + f32::from(rank))
                .collect();
            // True if the mean is the rounded sum divided by two, bit by bit, which a transform would not
            // give.
            let is_plain = |collective: &mut Collective, step| {
                barrier.wait();
                let mut mean = gradient.clone();
                let id = OperationId { step, bucket: 0 };
                collective.allreduce(id, &mut mean).expect("averages");
                let sum = |at: usize| (at as f32).sin() + 0.0 + ((at as f32).sin() + 1.0);
                (0..LEN).all(|at| mean[at] == sum(at) / 2.0)
            };
            let mut plain = vec![is_plain(&mut collective, 0)];
            let mut vote = |collective: &mut Collective, step, lost, limit| {
                let id = OperationId { step, bucket: 1 };
                collective.agree(id, &mut safeguards, lost, &[], limit)
            };
            // Nothing is lost, so the transform is switched off.
            let limit = Duration::from_secs(20);
            let verdict = vote(&mut collective, 0, 0.0, limit).expect("both vote");
            assert_eq!(verdict.code, Some(false));
            collective.code(false);
            plain.push(is_plain(&mut collective, 1));
            // Rank 1 misses a vote, after which rank 0 transforms again.
            match rank {
                0 => collective.code(true),
                _ => {
                    let missed = vote(&mut collective, 1, 1.0, Duration::from_millis(50));
                    assert!(matches!(missed, Err(Error::Incomplete(_))), "{missed:?}");
                }
            }
            is_plain(&mut collective, 2);
            let refused = |collective: &mut Collective| {
                let report = collective.report().expect("reports");
                report.totals.rejected.of(Rejection::Coding)
            };
            barrier.wait();
            let before = refused(&mut collective);
            assert!(before > 0);
            plain.push(is_plain(&mut collective, 3));
            barrier.wait();
            assert_eq!(refused(&mut collective), before);
            plain
        })
    });
    let ranks: Vec<_> = ranks.collect();
    for rank in ranks {
        assert_eq!(rank.join().expect("no panic"), [false, true, false]);
    }
}

/// A residual of the previous epoch is part of the next one's first operation, at another rank number and
/// among another number of ranks.
#[test]
fn residuals_are_carried_into_the_next_epoch() {
    const BUCKET: u16 = 3;
    let (sockets, peers) = sockets(4);
    let mut sockets = sockets.into_iter();
    let mut start = |config: Config, peers: &[SocketAddrV4]| {
        let config = Config {
            gather: Gather::Unicast,
            ..config
        };
        collective(config, sockets.next().expect("enough"), peers)
    };
    let mut before = start(recycling(2, 2), &peers[..2]);
    // No rank has the other one's socket.
    let average = |collective: &mut Collective, step, mut bucket: Vec<f32>| {
        let id = OperationId {
            step,
            bucket: BUCKET,
        };
        let outcome = collective.allreduce(id, &mut bucket).expect("ends");
        (outcome.closed_by, bucket)
    };
    for step in 0..4 {
        average(&mut before, step, vec![1.0; 100]);
    }
    let carried: Vec<f32> = before.residual(BUCKET).expect("it carries").to_vec();
    assert!(carried.iter().any(|value| *value != 0.0));

    let next = |rank| Config {
        epoch: 2,
        rank,
        t_b: Duration::from_secs(20),
        t_s: Duration::from_secs(10),
        ..recycling(3, 2)
    };
    let mut ranks = [0, 1, 2].map(|rank| start(next(rank), &peers[1..4]));
    ranks[2].inherit(&mut before);
    assert_eq!(before.residual(BUCKET), None);
    assert_eq!(ranks[2].residual(BUCKET), Some(&carried[..]));
    let means = thread::scope(|scope| {
        let averaging: Vec<_> = (ranks.iter_mut())
            .map(|rank| scope.spawn(move || average(rank, 4, vec![0.0; 100])))
            .collect();
        averaging
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect::<Vec<_>>()
    });
    let exact: Vec<f64> = carried
        .iter()
        .map(|value| f64::from(*value) / 3.0)
        .collect();
    for (closed_by, mean) in means {
        assert_eq!(closed_by, ClosedBy::Complete);
        assert!(relative_error(&mean, &exact) < 1e-10);
    }
}
