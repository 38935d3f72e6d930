use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use ultima_api::MacAddr;
use ultima_link::WireConfig;
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::text;
use ultima_p4runtime::v1::{self, Update, entity, update};

use super::*;
use crate::job::{CounterIndex, Epoch, GroupId, JobId, Rank, ShareIndex, SourceIndex};
use crate::plan::{
    CounterCell, CutSession, Entity, Group, GroupReplica, LossDigest, LossSession, MeterCell,
    VirtualQueue, table,
};
use crate::program::Program;
use crate::target::{Limits, PortNumber, TOFINO, V1MODEL};

fn names() -> Names {
    Program::v1model().unwrap().names().clone()
}

/// The virtual queue of a link with this rate in bits per second.
fn queue(rate: u64) -> Option<VirtualQueue> {
    let wire = WireConfig {
        rate: Some(rate),
        ..WireConfig::default()
    };
    VirtualQueue::of_link(&wire, 1500)
}

/// The number of kinds of entity.
const KINDS: u8 = 16;

/// An entity of a small world with frequent key collisions: `kind` and `key` identify it, `value`
/// is its value.
fn planned((kind, key, value): (u8, u16, u16)) -> Entity {
    let ip = [10, 0, 0, key as u8].into();
    let mac = MacAddr([2, 0, 0, 0, 0, value as u8]);
    let (port, job) = (PortNumber(1 + key), JobId(1 + key));
    let queue = queue(1_000_000 * (1 + u64::from(value)));
    match kind {
        0 => Entity::Source(table::Source {
            ingress: port,
            job: JobId(1),
            epoch: Epoch(1),
            rank: Rank(key),
            ip,
            index: (value > 0).then_some(SourceIndex(value)),
        }),
        1 => Entity::Job(table::JobRow {
            job,
            counter: CounterIndex(1 + value),
            group: Some(GroupId(1 + key)),
            loss_threshold: 1,
        }),
        2 => Entity::Route(table::Route {
            to: ip,
            port: PortNumber(1 + value),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
        }),
        3 => Entity::Group(Group {
            id: GroupId(1 + key),
            replicas: (0..=value)
                .map(|rank| GroupReplica::to_rank(PortNumber(1 + rank), Rank(rank)))
                .collect(),
        }),
        4 => Entity::Meter(MeterCell::of_share(ShareIndex(1 + key), queue)),
        5 => Entity::Meter(MeterCell::of_port(port, queue.expect("it has a rate"))),
        6 => Entity::Neighbor(table::Neighbor { ip, mac }),
        7 => Entity::Destination(table::Destination {
            job: JobId(1),
            ip,
            udp_port: 5000,
        }),
        8 => Entity::Replica(table::Replica {
            job: JobId(1),
            rank: Rank(key),
            mac,
            ip,
            udp_port: 5000 + value,
        }),
        9 => Entity::Share(table::Share {
            job,
            egress: PortNumber(1),
            index: ShareIndex(1 + value),
        }),
        10 => Entity::QueueTime(table::QueueTime {
            egress: port,
            queue: queue.expect("it has a rate"),
        }),
        11 => Entity::Cut(table::Cut {
            egress: PortNumber(1 + key / 2),
            sealed: key % 2 == 1,
            session: 2 + u32::from(value),
        }),
        12 => Entity::CutSession(CutSession {
            id: 2 + u32::from(key),
            port: PortNumber(1 + value),
            bytes: 100,
        }),
        13 => Entity::LossSession(LossSession {
            port: PortNumber(1 + value),
            bytes: Some(100),
        }),
        14 => Entity::LossDigest(LossDigest),
        // The last kind is not reconciled.
        _ => Entity::Counter(
            CounterCell::of_job(CounterIndex(1 + key))
                .next()
                .expect("a job is counted"),
        ),
    }
}

/// The values of entities by kind and key.
type World = BTreeMap<(u8, u16), u16>;

fn world() -> impl Strategy<Value = World> {
    prop::collection::btree_map((0..KINDS, 0u16..6), 0u16..4, 0..60)
}

fn held(world: &World, names: &Names) -> Held {
    let entities: Vec<Entity> = (world
        .iter()
        .map(|(&(kind, key), &value)| planned((kind, key, value))))
    .collect();
    Held::planned(&entities, names).unwrap()
}

/// The used amounts of limited resources: entries by table, groups, and replication nodes.
#[derive(Debug, Default)]
struct Used {
    tables: BTreeMap<u32, u64>,
    groups: u32,
    nodes: u32,
}

impl Used {
    fn of<'a>(entities: impl IntoIterator<Item = &'a v1::Entity>) -> Self {
        let mut used = Used::default();
        for entity in entities {
            let (key, value) = key::canonical(entity).expect("what is reconciled");
            match key {
                Key::Row { table, .. } => *used.tables.entry(table).or_default() += 1,
                Key::Group(_) => {
                    used.groups += 1;
                    used.nodes += value.nodes() as u32;
                }
                _ => {}
            }
        }
        used
    }

    fn of_held(held: &Held) -> Self {
        Used::of(held.iter().map(|(_, item)| &item.entity))
    }

    fn in_table(&self, id: u32) -> u64 {
        self.tables.get(&id).copied().unwrap_or_default()
    }
}

/// The names of a program for a chip that mirrors trimmed packets, which supports every kind. Its
/// tables have room for the larger of both worlds, plus `spare` entries.
fn names_for(was: &Used, wanted: &Used, spare: &[u32]) -> Names {
    let mut p4info: P4Info = text::parse(ultima_p4::tofino().p4info).unwrap();
    for (table, spare) in p4info.tables.iter_mut().zip(spare.iter().cycle()) {
        let id = table.preamble.as_ref().unwrap().id;
        let most = was.in_table(id).max(wanted.in_table(id));
        table.size = most as i64 + i64::from(*spare);
    }
    Names::new(p4info).unwrap()
}

/// A switch that applies updates, and rejects what the specification requires and what exceeds its
/// limits.
struct Switch<'a> {
    held: BTreeMap<Key, v1::Entity>,
    room: Room<'a>,
}

impl Switch<'_> {
    fn apply(&mut self, update: &Update) {
        let held = &mut self.held;
        let entity = update.entity.clone().unwrap();
        let cleared = matches!(&entity.entity, Some(entity::Entity::MeterEntry(cell)) if cell.config.is_none());
        let mut with_config = entity.clone();
        if let Some(entity::Entity::MeterEntry(cell)) = &mut with_config.entity {
            cell.config.get_or_insert_default();
        }
        let (key, _) = key::canonical(&with_config).unwrap();
        match update.r#type() {
            _ if cleared => drop(held.remove(&key)),
            update::Type::Modify if matches!(key, Key::Meter { .. }) => {
                drop(held.insert(key, entity));
            }
            update::Type::Insert => assert!(held.insert(key, entity).is_none()),
            update::Type::Modify => assert!(held.insert(key, entity).is_some()),
            update::Type::Delete => assert!(held.remove(&key).is_some()),
            update::Type::Unspecified => panic!("an update that does nothing"),
        }
        let used = Used::of(self.held.values());
        for table in self.room.names.tables.iter() {
            let entries = used.in_table(table.id);
            assert!(entries <= table.size, "{} of {entries} entries", table.name);
        }
        let Limits { groups, nodes, .. } = self.room.limits;
        assert!(used.groups <= groups && used.nodes <= nodes, "{used:?}");
    }

    /// True if the difference is gone.
    fn has_mended(&self, difference: &Difference) -> bool {
        let now = self.held.get(&difference.key);
        now == difference.wanted.as_ref().map(|wanted| &wanted.entity)
    }
}

/// Shuffles a round by `seed`.
fn shuffled(mut round: Vec<Update>, seed: u64) -> Vec<Update> {
    round.shuffle(&mut StdRng::seed_from_u64(seed));
    round
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(32, 2000)))]

    #[test]
    fn any_state_becomes_the_desired_one_with_the_fewest_updates(
        was in world(),
        wanted in world(),
        spare in prop::collection::vec(0u32..4, 16),
        seed in any::<u64>(),
    ) {
        let any = names_for(&Used::default(), &Used::default(), &[64]);
        let used = [&was, &wanted].map(|world| Used::of_held(&held(world, &any)));
        let names = names_for(&used[0], &used[1], &spare);
        let (held, wanted) = (held(&was, &names), held(&wanted, &names));
        let diff = Diff::between(&held, &wanted, &V1MODEL);
        let limits = Limits {
            groups: used[0].groups.max(used[1].groups) + spare[0],
            nodes: used[0].nodes.max(used[1].nodes) + spare[1],
            ..V1MODEL.limits
        };
        let room = Room { names: &names, limits };
        let rounds = diff.updates(&held, room);

        // No two differences have the same entity, and entities without a difference are not
        // written.
        let updates: usize = rounds.iter().map(Vec::len).sum();
        prop_assert_eq!(updates, diff.differences().len());
        let same = wanted.iter().filter(|(key, item)| {
            held.get(key).is_some_and(|there| there.value == item.value)
        });
        let union = held.len() + wanted.iter().filter(|(key, _)| held.get(key).is_none()).count();
        prop_assert_eq!(updates, union - same.count());

        let entities = held.iter().map(|(key, item)| (key.clone(), item.entity.clone()));
        let mut switch = Switch { held: entities.collect(), room };
        for update in rounds.into_iter().flat_map(|round| shuffled(round, seed)) {
            let entity = update.entity.as_ref().unwrap();
            let key = key::key_of(entity).unwrap();
            let stage = key.stage(&names);
            let goes = wanted.get(&key).is_none();
            for open in diff.differences().iter().filter(|it| !switch.has_mended(it)) {
                let other = open.key.stage(&names);
                match (goes, open.wanted.is_some()) {
                    // An entry that admits or announces finds all that it needs.
                    (false, true) => prop_assert!(other >= stage, "{:?} after {:?}", open, update),
                    // No entry is deleted before the entries that need it.
                    (true, false) => prop_assert!(other <= stage, "{:?} after {:?}", open, update),
                    _ => {}
                }
            }
            switch.apply(&update);
        }
        let mut now = Held::default();
        now.extend(switch.held.into_values());
        prop_assert!(Diff::between(&now, &wanted, &V1MODEL).is_empty());
    }
}

/// Ordered by need, not by id.
#[test]
fn shrinking_groups_make_room_for_growing_ones() {
    let names = names();
    let world = |values: [u16; 2]| {
        (0..)
            .zip(values)
            .map(|(key, value)| planned((3, key, value)))
    };
    let of = |values| Held::planned(&world(values).collect::<Vec<_>>(), &names).unwrap();
    let (held, wanted) = (of([0, 2]), of([2, 0]));
    let diff = Diff::between(&held, &wanted, &V1MODEL);
    let first = |nodes| {
        let limits = Limits {
            nodes,
            ..V1MODEL.limits
        };
        let room = Room {
            names: &names,
            limits,
        };
        let rounds = diff.updates(&held, room);
        let entity = rounds[0][0].entity.as_ref().unwrap();
        (rounds.len(), key::key_of(entity).unwrap())
    };
    assert_eq!(first(4), (2, Key::Group(2)));
    assert_eq!(first(6).0, 1, "there is room for both");
}

#[test]
fn equivalent_encodings_are_equal() {
    let names = names();
    let mut read = Held::planned(&[planned((0, 3, 1))], &names).unwrap();
    let wanted = read.clone();
    let mut entity = wanted.iter().next().unwrap().1.entity.clone();
    let Some(entity::Entity::TableEntry(entry)) = &mut entity.entity else {
        panic!("a row");
    };
    // Fields in another order, numbers with leading zeros, and data that a server adds.
    entry.r#match.reverse();
    for field in &mut entry.r#match {
        if let Some(v1::field_match::FieldMatchType::Exact(exact)) = &mut field.field_match_type {
            exact.value.insert(0, 0);
        }
    }
    entry.time_since_last_hit = Some(v1::table_entry::IdleTimeout { elapsed_ns: 7 });
    read.insert(entity);
    assert_eq!(read.len(), 1);
    assert!(Diff::between(&read, &wanted, &V1MODEL).is_empty());

    // A rate that BMv2 rounded is equal; half of it is not.
    let meter = |rate| {
        let cell = names.meters.iter().next().unwrap().cell(5).unwrap();
        let config = v1::MeterConfig {
            cir: rate,
            pir: rate,
            cburst: 9,
            pburst: 10,
            ..Default::default()
        };
        let mut held = Held::default();
        held.insert(
            v1::MeterEntry {
                config: Some(config),
                ..cell
            }
            .into(),
        );
        held
    };
    assert!(Diff::between(&meter(124_999_999), &meter(125_000_000), &V1MODEL).is_empty());
    assert!(!Diff::between(&meter(62_500_000), &meter(125_000_000), &V1MODEL).is_empty());
}

/// Stratum passes kilobits to the chip, the chip rounds to nine bits, and only the timeout of a
/// digest's subscription is read back.
#[test]
fn rounding_and_omissions_of_tofino_are_equal() {
    let held_by = |cir, cburst, list| {
        let mut held = Held::default();
        let cell = names().meters.iter().next().unwrap().cell(5).unwrap();
        let config = Some(v1::MeterConfig {
            cir,
            pir: cir,
            cburst,
            pburst: cburst,
            ..Default::default()
        });
        held.insert(v1::MeterEntry { config, ..cell }.into());
        let config = Some(v1::digest_entry::Config {
            max_timeout_ns: 10_000_000,
            max_list_size: list,
            ack_timeout_ns: i64::from(list) * 1000,
        });
        let digest_id = names().digests.iter().next().unwrap().id;
        held.insert(v1::DigestEntry { digest_id, config }.into());
        held
    };
    let wanted = held_by(11_875_000_123, 788_000, 64);
    let rounded = held_by(11_840_000_000, 782_000, 0);
    assert!(Diff::between(&rounded, &wanted, &TOFINO).is_empty());
    assert_eq!(
        Diff::between(&rounded, &wanted, &V1MODEL)
            .differences()
            .len(),
        2
    );
    for another in [
        held_by(11_700_000_000, 788_000, 64),
        held_by(11_875_000_123, 700_000, 64),
    ] {
        assert_eq!(
            Diff::between(&another, &wanted, &TOFINO)
                .differences()
                .len(),
            1
        );
    }
}

#[test]
fn old_entities_are_deleted_first_only_without_room() {
    let names = names();
    let group = |id| planned((3, id, 1));
    let held = Held::planned(&[group(0), group(1)], &names).unwrap();
    let wanted = Held::planned(&[group(2)], &names).unwrap();
    let diff = Diff::between(&held, &wanted, &V1MODEL);
    let kinds = |groups, nodes| {
        let limits = Limits {
            groups,
            nodes,
            ..V1MODEL.limits
        };
        let updates = diff.updates(
            &held,
            Room {
                names: &names,
                limits,
            },
        );
        updates
            .iter()
            .flatten()
            .map(|update| update.r#type())
            .collect::<Vec<_>>()
    };
    use update::Type::{Delete, Insert};
    assert_eq!(kinds(3, 6), [Insert, Delete, Delete]);
    assert_eq!(kinds(2, 6), [Delete, Delete, Insert]);
    // Two nodes each: a switch may have groups left but no nodes.
    assert_eq!(kinds(3, 5), [Delete, Delete, Insert]);
}

#[test]
fn differences_use_the_programs_names() {
    let names = names();
    let held = Held::planned(&[planned((0, 3, 1)), planned((3, 0, 1))], &names).unwrap();
    let texts: Vec<String> = (held.iter())
        .map(|(key, item)| describe(key, Some(&item.value), &names))
        .collect();
    assert_eq!(
        texts,
        [
            "UltimaIngress.admission.source[ingress_port 0x04, job 0x01, epoch 0x01, source_rank 0x03, src_addr 0x0a000003]: admit_from_host(source_index 0x01)",
            "multicast group 1: to port 1 as 0, 2 as 1",
        ]
    );
    let unknown = Key::Row {
        table: 77,
        fields: vec![(1, Match::Exact(5u8.into()))],
        priority: 0,
    };
    assert_eq!(describe(&unknown, None, &names), "table 77[1 0x05]");
}

#[test]
fn counters_and_constants_are_not_reconciled() {
    let names = names();
    let mut held = Held::default();
    let cell = names.counters.iter().next().unwrap().cell(1).unwrap();
    held.insert(
        v1::CounterEntry {
            data: Some(v1::CounterData::default()),
            ..cell
        }
        .into(),
    );
    let table = names.tables.iter().next().unwrap();
    held.insert(
        v1::TableEntry {
            is_default_action: true,
            ..table.all_entries()
        }
        .into(),
    );
    held.insert(
        v1::TableEntry {
            is_const: true,
            ..table.all_entries()
        }
        .into(),
    );
    held.insert(names.meters.iter().next().unwrap().cell(5).unwrap().into());
    assert!(held.is_empty());
}
