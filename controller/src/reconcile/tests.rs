use std::collections::BTreeMap;

use proptest::prelude::*;
use ultima_link::WireConfig;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, Update, entity, update};

use super::*;
use crate::MacAddr;
use crate::job::{Epoch, GroupId, JobId, Rank, ShareIndex};
use crate::plan::{Copy, Entity, Group, MeterCell, Stage, VirtualQueue, table};
use crate::program::Program;
use crate::target::{PortNumber, TOFINO, V1MODEL};

fn names() -> Names {
    Program::v1model().unwrap().names().clone()
}

/// A queue of a link of so many bits a second.
fn queue(rate: u64) -> Option<VirtualQueue> {
    let wire = WireConfig {
        rate: Some(rate),
        ..WireConfig::default()
    };
    VirtualQueue::of_link(&wire, 1500)
}

/// An entity of a small world, in which keys meet often: `kind` and `key` say which, `value` what it says.
fn planned((kind, key, value): (u8, u16, u16)) -> Entity {
    let ip = [10, 0, 0, key as u8].into();
    match kind {
        0 => Entity::Source(table::Source {
            ingress: PortNumber(1 + key),
            job: JobId(1),
            epoch: Epoch(1),
            rank: Rank(key),
            ip,
            index: (value > 0).then_some(crate::job::SourceIndex(value)),
        }),
        1 => Entity::Job(table::JobRow {
            job: JobId(1 + key),
            counter: crate::job::CounterIndex(1 + value),
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
            copies: (0..=value)
                .map(|rank| Copy::to_rank(PortNumber(1 + rank), Rank(rank)))
                .collect(),
        }),
        _ => Entity::Meter(MeterCell::of_share(
            ShareIndex(1 + key),
            queue(1_000_000 * (1 + u64::from(value))),
        )),
    }
}

fn world() -> impl Strategy<Value = BTreeMap<(u8, u16), u16>> {
    prop::collection::btree_map((0u8..5, 0u16..6), 0u16..3, 0..20)
}

fn held(world: &BTreeMap<(u8, u16), u16>, names: &Names) -> Held {
    let entities: Vec<Entity> = (world
        .iter()
        .map(|(&(kind, key), &value)| planned((kind, key, value))))
    .collect();
    Held::planned(&entities, names).unwrap()
}

/// A switch that does what it is told, and refuses what the specification says that it refuses.
fn apply(held: &mut BTreeMap<Key, v1::Entity>, update: &Update) {
    let entity = update.entity.clone().unwrap();
    let cleared =
        matches!(&entity.entity, Some(entity::Entity::MeterEntry(cell)) if cell.config.is_none());
    let mut with_config = entity.clone();
    if let Some(entity::Entity::MeterEntry(cell)) = &mut with_config.entity {
        cell.config.get_or_insert_default();
    }
    let (key, _) = key::canonical(&with_config).unwrap();
    match update.r#type() {
        _ if cleared => drop(held.remove(&key)),
        update::Type::Modify if matches!(key, Key::Meter { .. }) => drop(held.insert(key, entity)),
        update::Type::Insert => assert!(held.insert(key, entity).is_none()),
        update::Type::Modify => assert!(held.insert(key, entity).is_some()),
        update::Type::Delete => assert!(held.remove(&key).is_some()),
        update::Type::Unspecified => panic!("an update that does nothing"),
    }
}

proptest! {
    #[test]
    fn any_state_becomes_the_wanted_one_with_the_fewest_updates(was in world(), wanted in world()) {
        let names = names();
        let (held, wanted) = (held(&was, &names), held(&wanted, &names));
        let diff = Diff::between(&held, &wanted, &V1MODEL);
        let room = Room { names: &names, limits: V1MODEL.limits };
        let updates = diff.updates(&held, room).concat();

        // No two differences are about one thing, and nothing that is as it should be is written.
        prop_assert_eq!(updates.len(), diff.differences().len());
        let same = wanted.iter().filter(|(key, item)| {
            held.get(key).is_some_and(|there| there.value == item.value)
        });
        let union = held.len() + wanted.iter().filter(|(key, _)| held.get(key).is_none()).count();
        prop_assert_eq!(updates.len(), union - same.count());

        let mut switch: BTreeMap<Key, v1::Entity> =
            held.iter().map(|(key, item)| (key.clone(), item.entity.clone())).collect();
        for update in &updates {
            apply(&mut switch, update);
            // Whoever is admitted who was not is admitted last.
            let arriving = |stage| diff.differences().iter().any(|it| {
                it.wanted.is_some() && it.key.stage(&names) == stage
                    && !switch.get(&it.key).is_some_and(|now| *now == it.wanted.as_ref().unwrap().entity)
            });
            let admits = update.r#type() != update::Type::Delete
                && key::canonical(update.entity.as_ref().unwrap())
                    .is_some_and(|(key, _)| key.stage(&names) == Stage::Admit);
            prop_assert!(!admits || !arriving(Stage::Prepare) && !arriving(Stage::Announce));
        }
        let mut now = Held::default();
        now.extend(switch.into_values());
        prop_assert!(Diff::between(&now, &wanted, &V1MODEL).is_empty());
    }
}

#[test]
fn how_a_server_writes_it_makes_no_difference() {
    let names = names();
    let mut read = Held::planned(&[planned((0, 3, 1))], &names).unwrap();
    let wanted = read.clone();
    let mut entity = wanted.iter().next().unwrap().1.entity.clone();
    let Some(entity::Entity::TableEntry(entry)) = &mut entity.entity else {
        panic!("a row");
    };
    // Fields in another order, numbers with leading zeros, and what a server adds.
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

    // A rate that BMv2 has rounded is the rate; half of it isn't.
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

/// Stratum tells the chip kilobits, the chip rounds to nine bits, and of a digest's subscription it knows only how long to wait.
#[test]
fn what_a_tofino_rounds_and_forgets_is_no_difference() {
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
fn the_old_makes_room_only_where_there_is_none_for_both() {
    let names = names();
    let group = |id| planned((3, id, 1));
    let held = Held::planned(&[group(0), group(1)], &names).unwrap();
    let wanted = Held::planned(&[group(2)], &names).unwrap();
    let diff = Diff::between(&held, &wanted, &V1MODEL);
    let kinds = |groups, nodes| {
        let limits = crate::target::Limits {
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
    // Two nodes each: a switch may have groups left and no nodes.
    assert_eq!(kinds(3, 5), [Delete, Delete, Insert]);
}

#[test]
fn differences_are_said_in_the_programs_names() {
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
fn what_counts_and_what_is_constant_is_nobodys_wish() {
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
