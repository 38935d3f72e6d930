//! Grids: rows and columns of ranks, each an ordinary job.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{
    Collective, Config, Core, Element, Error, Gather, Grid, GridError, Hierarchical, IncastPolicy,
    Layout, OperationId, Part, Piece, Recycling, Rejection, StartError, Time, UdpConfig,
};
use ultima_testing::cases;

const T_B: Duration = Duration::from_millis(60);

/// The rows and columns of a grid, each a separate network, on one clock.
struct Jobs {
    grid: Grid,
    /// Rows, then columns.
    networks: Vec<Network>,
    /// The upper bound of the three phases.
    bound: Duration,
}

/// One rank's end of a grid's operation.
struct GridDone {
    values: Vec<f32>,
    at: Time,
    lost: u64,
    /// True if the result is complete, as far as the rank knows.
    whole: bool,
}

impl Jobs {
    fn new(grid: Grid, whole: &Config) -> Self {
        let row = grid.row(whole, 1);
        let column = grid.column(whole, 2);
        let networks = (0..grid.groups())
            .map(|_| Network::new(&row))
            .chain((0..grid.members()).map(|_| Network::new(&column)))
            .collect();
        Self {
            grid,
            networks,
            bound: row.t_s + column.t_b + row.t_b,
        }
    }

    /// Averages `buckets` without coding. Rank *i* starts `starts[i]` from `begin`.
    fn run(
        &mut self,
        begin: Time,
        id: OperationId,
        buckets: &[Vec<f32>],
        starts: &[Duration],
    ) -> Vec<GridDone> {
        let grid = self.grid;
        let groups = usize::from(grid.groups());
        let mut waiting: Vec<(Time, u16)> = (0..grid.ranks())
            .map(|rank| (begin + starts[usize::from(rank)], rank))
            .collect();
        let mut done: Vec<Option<GridDone>> = buckets.iter().map(|_| None).collect();
        let mut held: Vec<Vec<f32>> = vec![Vec::new(); buckets.len()];
        let mut lost = vec![0; buckets.len()];
        let mut whole = vec![true; buckets.len()];
        while done.iter().any(Option::is_none) {
            let events = self.networks.iter().filter_map(Network::next_event);
            let now = events.chain(waiting.iter().map(|w| w.0)).min();
            let now = now.expect("something happens").max(begin);
            let mut ended: Vec<(u16, usize, Done)> = Vec::new();
            while let Some(at) = waiting.iter().position(|w| w.0 <= now) {
                let rank = waiting.swap_remove(at).1;
                let (row, member) = (usize::from(grid.group_of(rank)), grid.member_of(rank));
                let scatter = (Grid::scatter_id(id), Part::Scatter.into());
                let bucket = buckets[usize::from(rank)].clone();
                let at_once = self.networks[row].start_part(now, member, scatter, bucket);
                ended.extend(at_once.into_iter().map(|done| (rank, row, done)));
            }
            for (number, network) in self.networks.iter_mut().enumerate() {
                let rank = |place| match number.checked_sub(groups) {
                    None => grid.rank(number as u16, place),
                    Some(column) => grid.rank(place, column as u16),
                };
                let over = network.advance(now).into_iter();
                ended.extend(over.map(|(place, done)| (rank(place), number, done)));
            }
            while let Some((rank, number, end)) = ended.pop() {
                let at = usize::from(rank);
                let (group, member) = (grid.group_of(rank), grid.member_of(rank));
                let own = Layout::new(buckets[at].len(), grid.members(), 1).shard(member);
                let causes = end.outcome.lost;
                lost[at] += causes.scatter.total() + causes.gather.total();
                whole[at] &= end.outcome.is_whole();
                let lacks = !whole[at];
                let (network, place, part, values) = if number >= groups {
                    held[at][own].copy_from_slice(&end.encoded);
                    let values = std::mem::take(&mut held[at]);
                    let part = Part::Gather;
                    let gather = (Grid::gather_id(id), piece(part, lacks));
                    (usize::from(group), member, gather, values)
                } else if end.outcome.id == Grid::scatter_id(id) {
                    let outside = end.encoded.iter().enumerate();
                    let outside = outside.filter(|(entry, _)| !own.contains(entry));
                    assert!(outside.into_iter().all(|(_, value)| *value == 0.0));
                    held[at] = end.encoded;
                    let shard = held[at][own].to_vec();
                    let part = Part::Whole;
                    let across = (id, piece(part, lacks));
                    (groups + usize::from(member), group, across, shard)
                } else {
                    done[at] = Some(GridDone {
                        values: end.encoded,
                        at: end.at,
                        lost: lost[at],
                        whole: whole[at],
                    });
                    continue;
                };
                let at_once = self.networks[network].start_part(now, place, part, values);
                ended.extend(at_once.into_iter().map(|done| (rank, network, done)));
            }
        }
        done.into_iter().flatten().collect()
    }

    /// Delivers all packets, and checks that they are counted.
    fn settle(&mut self) {
        for network in &mut self.networks {
            network.settle();
            network.check_accounts();
        }
    }
}

/// A part whose operation states no length.
fn piece(part: Part, lacks: bool) -> Piece {
    Piece {
        lacks,
        ..part.into()
    }
}

/// Every possible mean if rank *r* contributes 2^*r*: in the shard of `member` any of each row's
/// contributions except the owner's may be missing, and all rows except one.
fn possible(grid: Grid, member: u16) -> Vec<f64> {
    let row = |group: u16| -> Vec<f64> {
        (0u32..1 << grid.members())
            .filter(|set| set >> member & 1 == 1)
            .map(|set| {
                let here = (0..grid.members()).filter(|other| set >> other & 1 == 1);
                let sum: f64 = here
                    .map(|other| f64::from(1u32 << grid.rank(group, other)))
                    .sum();
                sum / f64::from(set.count_ones())
            })
            .collect()
    };
    let mut sums = vec![(0.0, 0)];
    for group in 0..grid.groups() {
        let with: Vec<(f64, u32)> = (sums.iter())
            .flat_map(|(sum, rows)| {
                row(group)
                    .into_iter()
                    .map(move |mean| (sum + mean, rows + 1))
            })
            .collect();
        sums.extend(with);
    }
    let means = sums.into_iter().filter(|(_, rows)| *rows > 0);
    means.map(|(sum, rows)| sum / f64::from(rows)).collect()
}

fn grid() -> impl Strategy<Value = Grid> {
    (2u16..=4, 2u16..=4)
        .prop_filter("few enough to tell all means apart", |(g, m)| g * m <= 12)
        .prop_map(|(groups, members)| Grid::new(groups, members).expect("a grid"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24, 640)))]

    #[test]
    fn without_loss_it_is_the_mean_and_every_replica_the_same(
        grid in grid(),
        len in 0usize..300,
        seed in any::<u64>(),
        multicast in any::<bool>(),
        element in 0usize..3,
        late in 0u64..5_000,
    ) {
        let mut random = Random::new(seed);
        let mut whole = Config::new(1, 1, 0, grid.ranks(), seed, T_B);
        whole.slot_bytes = 32;
        whole.gather = if multicast { Gather::Multicast } else { Gather::Unicast };
        whole.element = [Element::F32, Element::Bf16, Element::F16][element];
        let mut jobs = Jobs::new(grid, &whole);
        for step in 0..3 {
            let buckets: Vec<_> = (0..grid.ranks()).map(|_| random.bucket(len)).collect();
            let mean = exact_mean(&buckets);
            let starts: Vec<_> = (0..grid.ranks())
                .map(|_| Duration::from_micros(random.below(late + 1)))
                .collect();
            let id = OperationId { step, bucket: 3 };
            let begin = Time::ZERO + Duration::from_secs(step.into());
            let done = jobs.run(begin, id, &buckets, &starts);
            for one in &done {
                prop_assert_eq!(one.lost, 0);
                prop_assert!(one.whole);
                prop_assert_eq!(&one.values, &done[0].values, "bits");
            }
            // Three roundings: of contributions, of rows' means and of the mean.
            let rounding = [1e-6, 1.0 / 128.0, 1.0 / 1024.0][element];
            for (value, mean) in done[0].values.iter().zip(&mean) {
                prop_assert!((f64::from(*value) - mean).abs() < 3.0 * rounding, "{value} {mean}");
            }
        }
        jobs.settle();
    }

    #[test]
    fn with_loss_no_mean_is_wrong_and_the_bounds_hold(
        grid in grid(),
        len in 1usize..200,
        seed in any::<u64>(),
        loss in prop_oneof![0.0..0.3, Just(0.9)],
        cuts in prop_oneof![Just(0.0), 0.0..0.3],
        late in prop_oneof![Just(0u64), 0u64..60_000],
    ) {
        let mut random = Random::new(seed);
        let mut whole = Config::new(1, 1, 0, grid.ranks(), seed, T_B);
        whole.slot_bytes = 32;
        let mut jobs = Jobs::new(grid, &whole);
        for (number, network) in (0..).zip(&mut jobs.networks) {
            network.faults = lossy(loss, seed ^ number);
            let mut switch = Random::new(seed ^ number ^ 1 << 32);
            network.switch = Some(Box::new(move |header, _| {
                header.switch_flags.trimmed |= switch.chance(cuts);
            }));
        }
        let possible: Vec<_> = (0..grid.members()).map(|m| possible(grid, m)).collect();
        let layout = Layout::new(len, grid.members(), 1);
        for step in 0..4 {
            let buckets = powers(grid.ranks(), len);
            let starts: Vec<_> = (0..grid.ranks())
                .map(|_| Duration::from_micros(random.below(late + 1)))
                .collect();
            let id = OperationId { step, bucket: 0 };
            let begin = Time::ZERO + Duration::from_secs(step.into());
            let done = jobs.run(begin, id, &buckets, &starts);
            let mean = &exact_mean(&buckets)[0];
            for (one, start) in done.iter().zip(&starts) {
                // A rank that owns no values cannot report a loss.
                let is_mean = |value: &f32| (f64::from(*value) - mean).abs() <= 1e-6 * mean;
                prop_assert!(
                    !one.whole || len < 4 * usize::from(grid.ranks()) || one.values.iter().all(is_mean)
                );
                prop_assert!(one.at.since(begin + *start) <= jobs.bound);
                for (member, possible) in (0..).zip(&possible) {
                    for &value in &one.values[layout.shard(member)] {
                        let known = |mean: &f64| (mean - f64::from(value)).abs() <= 1e-6 * mean;
                        prop_assert!(value == 0.0 || possible.iter().any(known), "{value}");
                    }
                }
            }
        }
        jobs.settle();
    }
}

#[test]
fn every_rank_knows_that_one_row_is_incomplete() {
    let grid = Grid::new(3, 2).expect("a grid");
    let mut whole = Config::new(1, 1, 0, grid.ranks(), 42, T_B);
    whole.slot_bytes = 32;
    let mut jobs = Jobs::new(grid, &whole);
    let mut is_first = true;
    jobs.networks[0].switch = Some(Box::new(move |header, _| {
        let scatter = header.kind == ultima_wire::Kind::Scatter;
        header.switch_flags.trimmed |= scatter && std::mem::take(&mut is_first);
    }));
    let starts = [Duration::ZERO; 6];
    for (step, known) in [(0, false), (1, true)] {
        let id = OperationId { step, bucket: 0 };
        let begin = Time::ZERO + Duration::from_secs(step.into());
        let done = jobs.run(begin, id, &powers(grid.ranks(), 96), &starts);
        assert!(done.iter().all(|one| one.whole == known));
    }
}

#[test]
fn a_gather_does_not_make_room_for_more_senders() {
    let of_rank = |rank| {
        core(|config| {
            (config.rank, config.ranks) = (rank, 8);
            config.incast = IncastPolicy::Dynamic;
        })
    };
    let (mut here, mut there) = (of_rank(0), of_rank(1));
    let part = |core: &mut Core, step: u32, part: Part| {
        let now = Time::ZERO + step * T_B;
        let id = OperationId { step, bucket: 0 };
        core.start_part(now, id, part, vec![1.0; 64])
            .expect("starts");
        now
    };
    let mut buf = vec![0; here.max_datagram()];
    let now = part(&mut there, 0, Part::Scatter);
    part(&mut here, 0, Part::Scatter);
    while let Some(transmit) = there.next_datagram(now, &mut buf) {
        let (mut header, _) = ultima_wire::Header::parse(&buf[..transmit.len]).expect("sent");
        header.switch_flags.trimmed = true;
        header.emit(&mut buf);
        here.handle_datagram(now, &buf[..ultima_wire::HEADER_LEN]);
    }
    let mut announced = |here: &mut Core, now: Time| {
        let mut sent = Vec::new();
        while let Some(transmit) = here.next_datagram(now, &mut buf) {
            let (header, _) = ultima_wire::Header::parse(&buf[..transmit.len]).expect("sent");
            sent.push(header.incast);
        }
        sent.last().copied()
    };
    here.handle_timeout(now + T_B);
    let now = part(&mut here, 1, Part::Gather);
    assert_eq!(announced(&mut here, now), Some(3), "half of seven");
    here.handle_timeout(now + T_B);
    let now = part(&mut here, 2, Part::Scatter);
    assert_eq!(announced(&mut here, now), Some(3));
    here.handle_timeout(now + T_B);
    let now = part(&mut here, 3, Part::Scatter);
    assert_eq!(announced(&mut here, now), Some(4), "one more");
}

#[test]
fn one_silent_rank_costs_the_others_itself_and_not_its_row() {
    let (grid, len, silent) = (Grid::new(3, 3).expect("a grid"), 90, 4);
    let mut whole = Config::new(1, 1, 0, grid.ranks(), 42, T_B);
    whole.slot_bytes = 32;
    let mut jobs = Jobs::new(grid, &whole);
    let mut starts = [Duration::ZERO; 9];
    starts[usize::from(silent)] = 10 * T_B;
    let done = jobs.run(Time::ZERO, ID, &powers(grid.ranks(), len), &starts);
    let row_mean = |group: u16, member: u16| -> Option<f64> {
        let ranks = (0..3).map(|other| grid.rank(group, other));
        let there = ranks.filter(|&rank| rank != silent);
        let values: Vec<f64> = there.map(|rank| f64::from(1u32 << rank)).collect();
        let is_there = grid.rank(group, member) != silent;
        is_there.then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    for rank in (0..grid.ranks()).filter(|&rank| rank != silent) {
        let one = &done[usize::from(rank)];
        assert!(one.at.since(Time::ZERO) <= T_B, "rank {rank}");
        for member in 0..3 {
            let rows: Vec<f64> = (0..3).filter_map(|row| row_mean(row, member)).collect();
            let mean = rows.iter().sum::<f64>() / rows.len() as f64;
            let shard = Layout::new(len, 3, 1).shard(member);
            // The silent rank's values are zero: its shard in its row, a third of that in its column.
            let is_owned = |at: usize| {
                let of_column = Layout::new(shard.len(), 3, 1).shard(grid.group_of(silent));
                let in_row = grid.group_of(rank) == grid.group_of(silent);
                member == grid.member_of(silent) && (in_row || of_column.contains(&at))
            };
            for (at, value) in one.values[shard.clone()].iter().enumerate() {
                let expected = if is_owned(at) { 0.0 } else { mean };
                let error = (f64::from(*value) - expected).abs();
                assert!(
                    error <= 1e-6 * mean,
                    "rank {rank}, {member}: {value} {expected}"
                );
            }
        }
    }
}

fn core(change: impl FnOnce(&mut Config)) -> Core {
    let mut config = Config::new(1, 1, 0, 2, 42, T_B);
    change(&mut config);
    Core::new(config).expect("a good configuration")
}

#[test]
fn half_an_operation_is_not_recycled() {
    let mut core = core(|config| config.recycling = Some(Recycling::default()));
    for part in [Part::Scatter, Part::Gather] {
        let refused = core.start_part(Time::ZERO, ID, part, vec![0.0; 8]);
        assert_eq!(refused, Err(StartError::Recycling(ID)));
    }
    assert_eq!(
        core.start_part(Time::ZERO, ID, Part::Whole, vec![0.0; 8]),
        Ok(())
    );
}

#[test]
fn the_other_half_is_refused() {
    for (part, of_them, rejected) in [
        (Part::Scatter, Part::Gather, 1),
        (Part::Gather, Part::Scatter, 1),
        (Part::Gather, Part::Gather, 0),
        (Part::Scatter, Part::Scatter, 0),
    ] {
        let mut cores = [core(|_| ()), core(|config| config.rank = 1)];
        for (core, part) in cores.iter_mut().zip([part, of_them]) {
            let started = core.start_part(Time::ZERO, ID, part, vec![1.0; 8]);
            assert_eq!(started, Ok(()));
        }
        let [here, there] = &mut cores;
        let mut buf = vec![0; there.max_datagram()];
        while let Some(transmit) = there.next_datagram(Time::ZERO, &mut buf) {
            here.handle_datagram(Time::ZERO, &buf[..transmit.len]);
        }
        assert_eq!(
            here.totals().rejected.of(Rejection::Part),
            rejected,
            "{part:?} {of_them:?}"
        );
    }
}

#[test]
fn a_late_rank_contributes_after_its_own_shard_has_closed() {
    let (mut first, mut late) = (core(|_| ()), core(|config| config.rank = 1));
    let mut buf = vec![0; first.max_datagram()];
    let now = Time::ZERO;
    first
        .start_part(now, ID, Part::Scatter, vec![2.0; 8])
        .expect("starts");
    while let Some(transmit) = first.next_datagram(now, &mut buf) {
        late.handle_datagram(now, &buf[..transmit.len]);
    }
    late.start_part(now, ID, Part::Scatter, vec![4.0; 8])
        .expect("starts");
    assert!(late.poll_event().is_none(), "its contributions are not out");
    while let Some(transmit) = late.next_datagram(now, &mut buf) {
        first.handle_datagram(now, &buf[..transmit.len]);
    }
    for (core, shard) in [(&mut first, 0..4), (&mut late, 4..8)] {
        let Some(ultima_host::Event::Done { result, .. }) = core.poll_event() else {
            panic!("ended")
        };
        assert_eq!(result[shard], [3.0; 4]);
    }
}

/// A rank's collectives of its row and its column, over sockets without a switch.
fn collectives(
    grid: Grid,
    rank: u16,
    sockets: &mut [[Option<UdpSocket>; 2]],
    peers: &[[SocketAddrV4; 2]],
) -> [Collective; 2] {
    let mut whole = Config::new(0, 1, rank, grid.ranks(), 42, Duration::from_secs(30));
    whole.gather = Gather::Unicast;
    let group = SocketAddrV4::new(ultima_wire::group_address(1), ultima_wire::UDP_PORT);
    let [row, column] = &mut sockets[usize::from(rank)];
    let of = |ranks: &mut dyn Iterator<Item = u16>, which: usize| -> Vec<SocketAddrV4> {
        ranks.map(|rank| peers[usize::from(rank)][which]).collect()
    };
    let (here, member) = (grid.group_of(rank), grid.member_of(rank));
    let row = UdpConfig {
        socket: row.take().expect("once"),
        peers: of(&mut (0..grid.members()).map(|m| grid.rank(here, m)), 0),
        group,
    };
    let column = UdpConfig {
        socket: column.take().expect("once"),
        peers: of(&mut (0..grid.groups()).map(|g| grid.rank(g, member)), 1),
        group,
    };
    let rows = grid.row(&whole, 10 + here);
    let columns = grid.column(&whole, 20 + member);
    [
        Collective::over_udp(rows, row).expect("a row"),
        Collective::over_udp(columns, column).expect("a column"),
    ]
}

#[test]
fn over_sockets_a_grid_averages_coded_buckets() {
    let grid = Grid::new(2, 3).expect("a grid");
    let mut sockets: Vec<_> = (0..grid.ranks())
        .map(|_| [(); 2].map(|()| Some(UdpSocket::bind("127.0.0.1:0").expect("a port"))))
        .collect();
    let address = |socket: &Option<UdpSocket>| match socket.as_ref().map(UdpSocket::local_addr) {
        Some(Ok(SocketAddr::V4(address))) => address,
        other => panic!("an IPv4 socket: {other:?}"),
    };
    let peers: Vec<_> = sockets
        .iter()
        .map(|both| both.each_ref().map(address))
        .collect();
    let mut ranks = Vec::new();
    for rank in 0..grid.ranks() {
        let [row, column] = collectives(grid, rank, &mut sockets, &peers);
        ranks.push(std::thread::spawn(move || {
            let mut grid = Hierarchical::new(grid, row, column).expect("a place");
            let mut results = Vec::new();
            for step in 0..3 {
                let mut gradient = Random::new(u64::from(rank) << 8 | step).bucket(5000);
                let id = OperationId {
                    step: step as u32,
                    bucket: Grid::MAX_BUCKET,
                };
                let outcome = grid.allreduce(id, &mut gradient).expect("runs");
                assert_eq!(outcome.lost_share(), 0.0);
                assert_eq!(outcome.gather.slots, outcome.scatter.slots);
                results.push(gradient);
            }
            let bucket = Grid::MAX_BUCKET + 1;
            let refused = grid.allreduce(OperationId { step: 9, bucket }, &mut [1.0]);
            let named = OperationId { step: 9, bucket };
            assert!(matches!(refused, Err(Error::Grid(GridError::Bucket(id))) if id == named));
            grid.finish(Duration::from_millis(100)).expect("ends");
            results
        }));
    }
    let results: Vec<_> = ranks
        .into_iter()
        .map(|rank| rank.join().expect("no panic"))
        .collect();
    for step in 0..3 {
        let buckets: Vec<_> = (0..u64::from(grid.ranks()))
            .map(|rank| Random::new(rank << 8 | step).bucket(5000))
            .collect();
        let mean = exact_mean(&buckets);
        for result in &results {
            let result = &result[step as usize];
            assert_eq!(result, &results[0][step as usize], "bits");
            assert!(relative_error(result, &mean) < 1e-10);
        }
    }
}

#[test]
fn collectives_that_do_not_match_the_grid_are_rejected() {
    let collective = |ranks: u16, change: fn(&mut Config)| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let SocketAddr::V4(own) = socket.local_addr().expect("bound") else {
            panic!("IPv4")
        };
        let mut config = Config::new(1, 1, 0, ranks, 42, T_B);
        change(&mut config);
        let (peers, group) = (vec![own; usize::from(ranks)], own);
        let udp = UdpConfig {
            socket,
            peers,
            group,
        };
        Collective::over_udp(config, udp).expect("a socket")
    };
    let grid = Grid::new(2, 3).expect("a grid");
    let refused = |row, column| {
        Hierarchical::new(grid, row, column)
            .err()
            .map(|e| e.to_string())
    };
    let contains = |text: Option<String>, what: &str| {
        assert!(
            text.as_ref().is_some_and(|text| text.contains(what)),
            "{text:?}"
        );
    };
    contains(
        refused(collective(2, |_| ()), collective(3, |_| ())),
        "2 ranks and the column 3",
    );
    let recycles = |config: &mut Config| config.recycling = Some(Recycling::default());
    contains(
        refused(collective(3, recycles), collective(2, |_| ())),
        "without recycling",
    );
    contains(
        refused(collective(3, |c| c.seed = 1), collective(2, |_| ())),
        "seed",
    );
    assert!(refused(collective(3, |_| ()), collective(2, |_| ())).is_none());
}
