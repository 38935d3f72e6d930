//! The controller with the embedded switch.

use std::collections::BTreeSet;

use prost::Message as _;
use ultima_api::client::Client;
use ultima_controller::p4rt::{Device, SwitchClient};
use ultima_controller::server::{self, CandidateHandle, Config, Handle};
use ultima_p4::names::loss;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    self, CloneSessionEntry, DigestEntry, MulticastGroupEntry, ReadRequest, TableEntry, Uint128,
    Update, WriteRequest,
};
use ultima_planner::fabric::{Fabric, Health, SwitchId};
use ultima_planner::job::{Epoch, Job, JobSpec};
use ultima_planner::ledger::Ledger;
use ultima_planner::plan::{self, Entity, SwitchPlan};
use ultima_planner::routing::Routes;
use ultima_planner::target::{TOFINO, V1MODEL};
use ultima_switch::{Switch, SwitchConfig};
use ultima_testing::etcd::Etcd;

use crate::chaos::wire::Wire;
use crate::group;
use crate::target::{Target, on_each_target};
use crate::testbed::{create, until};

on_each_target!(
    the_switch_holds_exactly_what_is_planned,
    a_new_controller_removes_old_entries,
);

/// A switch without ports or program.
async fn switch(target: Target) -> Switch {
    let config = SwitchConfig {
        grpc: "127.0.0.1:0".parse().unwrap(),
        target: target.emulation(),
        ..SwitchConfig::default()
    };
    Switch::start(config).await.unwrap()
}

/// A fabric of four hosts on `switch`.
fn star_on(target: Target, switch: &Switch) -> Fabric {
    let grpc = switch.grpc_addr().to_string();
    let text = include_str!("../../../topologies/star4.yaml").replace("127.0.0.1:9559", &grpc);
    target.fabric(&text, "star.yaml")
}

fn config(target: Target, fabric: &Fabric) -> Config {
    let listen = "127.0.0.1:0".parse().unwrap();
    Config {
        listen,
        ..target.config(fabric.clone())
    }
}

async fn start(target: Target) -> (Switch, Fabric, Handle) {
    let switch = switch(target).await;
    let fabric = star_on(target, &switch);
    let handle = server::serve(config(target, &fabric)).await.unwrap();
    (switch, fabric, handle)
}

fn spec() -> JobSpec {
    JobSpec {
        seed: Some(7),
        request: 5,
        // Keys are random, and jobs are compared.
        sealed: false,
        ..JobSpec::new("train", ["h1", "h2", "h4"])
    }
}

fn routes(fabric: &Fabric) -> Routes {
    Routes::new(fabric, Health::default())
}

/// All entries and groups, read by a client that is not primary.
async fn read_all(target: Target, switch: &Switch) -> BTreeSet<Vec<u8>> {
    let address = format!("http://{}", switch.grpc_addr());
    let mut client = P4RuntimeClient::connect(address).await.unwrap();
    let entities = vec![
        TableEntry::default().into(),
        MulticastGroupEntry::default().into(),
        CloneSessionEntry::default().into(),
        DigestEntry {
            digest_id: target.program().names().digest(loss::DIGEST).unwrap().id,
            ..Default::default()
        }
        .into(),
    ];
    let request = ReadRequest {
        device_id: 1,
        entities,
        ..Default::default()
    };
    let mut responses = client.read(request).await.unwrap().into_inner();
    let mut read = BTreeSet::new();
    while let Some(response) = responses.message().await.unwrap() {
        for mut one in response.entities {
            // A job's row names the controller's store.
            if let Some(v1::entity::Entity::TableEntry(row)) = &mut one.entity {
                assert!([0, 8].contains(&row.metadata.len()), "{row:?}");
                row.metadata.clear();
            }
            read.insert(one.encode_to_vec());
        }
    }
    read
}

/// The entities as they should be read back.
fn expected<'a>(
    target: Target,
    entities: impl IntoIterator<Item = &'a Entity>,
) -> BTreeSet<Vec<u8>> {
    let program = target.program();
    let entities = entities
        .into_iter()
        .filter(|entity| !matches!(entity, Entity::Counter(_)));
    let read = |entity: &Entity| {
        let mut written = entity.creation(program.names()).unwrap();
        target.forget(&mut written);
        written.entity.unwrap().encode_to_vec()
    };
    entities.map(read).collect()
}

async fn the_switch_holds_exactly_what_is_planned(target: Target) {
    let (switch, fabric, handle) = start(target).await;
    let base = plan::of_fabric(&fabric, &routes(&fabric), SwitchId(0));
    assert_eq!(read_all(target, &switch).await, expected(target, &base));

    let state = create(handle.controller(), &spec()).await.unwrap();
    let routes = routes(&fabric);
    let program = target.program();
    let ledger = Ledger::new(&fabric, &routes);
    let (job, plan) = ledger
        .propose(&fabric, &routes, program.names(), &spec(), Epoch(1), 0)
        .unwrap();
    let job = Job {
        uid: state.job.uid,
        ..job
    };
    assert_eq!(*state.job, job);
    assert_eq!(plan::of_job(&fabric, &routes, &job), plan);
    let all = base
        .iter()
        .chain(plan.values().flat_map(SwitchPlan::entities));
    assert_eq!(read_all(target, &switch).await, expected(target, all));

    let counters = server::counters(handle.controller(), "train")
        .await
        .unwrap();
    assert_eq!(counters.len(), 1);
    handle.controller().delete_job("train").await.unwrap();
    assert_eq!(read_all(target, &switch).await, expected(target, &base));
    handle.stop().await;
    switch.stop().await.unwrap();
}

async fn a_new_controller_removes_old_entries(target: Target) {
    let (switch, fabric, handle) = start(target).await;
    create(handle.controller(), &spec()).await.unwrap();
    handle.stop().await;
    let handle = server::serve(config(target, &fabric)).await.unwrap();
    let base = plan::of_fabric(&fabric, &routes(&fabric), SwitchId(0));
    assert_eq!(read_all(target, &switch).await, expected(target, &base));
    create(handle.controller(), &spec()).await.unwrap();
}

/// The switch, as another client of its P4Runtime server names it.
fn device(switch: &Switch) -> Device {
    Device {
        name: "s1".into(),
        grpc: switch.grpc_addr().to_string(),
        device_id: 1,
        tls: None,
        packing: Default::default(),
    }
}

#[tokio::test]
async fn the_controller_is_primary_again_when_another_client_disconnects() {
    let (switch, fabric, handle) = start(Target::of_run()).await;
    let limit = std::time::Duration::from_secs(5);
    let other = SwitchClient::connect(device(&switch), u128::MAX, limit)
        .await
        .unwrap();
    let problem = || handle.controller().switches()[0].problem.clone();
    while problem().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let controller = handle.controller();
    let ids = controller.create_jobs(&[spec()]).await.unwrap();
    let status = controller.job("train").unwrap().status.unwrap();
    let reason = &status.conditions[0].reason;
    assert!(reason.starts_with("not connected: "), "{status:?}");
    drop(other);
    let ready = controller.until_ready(&ids, 12 * limit).await.unwrap();
    assert!(ready[0].status.as_ref().unwrap().is_ready);
    assert_eq!(problem(), None);
    assert_eq!(fabric.hosts().len(), 4);
}

/// A controller that is killed between the program and the first entries leaves such a switch.
#[tokio::test]
async fn a_switch_with_the_program_and_without_entries_comes_up() {
    let target = Target::of_run();
    let switch = switch(target).await;
    let fabric = star_on(target, &switch);
    let killed = SwitchClient::connect(device(&switch), 1, std::time::Duration::from_secs(5))
        .await
        .unwrap();
    killed.set_pipeline(&target.program()).await.unwrap();
    drop(killed);
    let handle = server::serve(config(target, &fabric)).await.unwrap();
    assert_eq!(handle.controller().switches()[0].problem, None);
    let base = plan::of_fabric(&fabric, &routes(&fabric), SwitchId(0));
    assert_eq!(read_all(target, &switch).await, expected(target, &base));
}

/// The election id of a leader's writes.
async fn election_id(leader: &CandidateHandle) -> Uint128 {
    let address = leader.address().to_string();
    let standing = Client::standing(&address, None).await.unwrap();
    Uint128 {
        high: standing.revision,
        low: ultima_wire::MAGIC.into(),
    }
}

/// A write that has left the old leader, and reaches the switch after the next leader.
#[tokio::test]
async fn the_switch_rejects_a_write_of_a_deposed_leader() {
    let Some(etcd) = Etcd::start(1) else { return };
    let target = Target::of_run();
    let switch = switch(target).await;
    let fabric = star_on(target, &switch);
    let to_etcd = Wire::start(etcd.endpoints()[0].parse().unwrap()).await;
    let serve = async |etcd: String| {
        let store = group::cluster(vec![etcd], group::PREFIX);
        let served = server::serve_with_etcd(config(target, &fabric), store, None);
        served.await.unwrap()
    };
    let mut client = P4RuntimeClient::connect(format!("http://{}", switch.grpc_addr()))
        .await
        .unwrap();
    let mut write = async |election_id: Uint128, group: u32| {
        let group = MulticastGroupEntry {
            multicast_group_id: group,
            ..Default::default()
        };
        let request = WriteRequest {
            device_id: 1,
            election_id: Some(election_id),
            updates: vec![Update::insert(group)],
            ..Default::default()
        };
        client.write(request).await.map(drop)
    };
    let leads = |it: &CandidateHandle| it.leader().is_some();
    let old = serve(to_etcd.address().to_string()).await;
    until(async || leads(&old)).await;
    let of_old = election_id(&old).await;
    write(of_old, 64_001).await.unwrap();
    let new = serve(etcd.endpoints()[0].clone()).await;
    to_etcd.swallow(true);
    until(async || leads(&new)).await;
    let of_new = election_id(&new).await;
    assert!(of_old.high < of_new.high);
    let held = read_all(target, &switch).await;
    let rejected = write(of_old, 64_002).await.unwrap_err();
    assert_eq!(rejected.code(), tonic::Code::PermissionDenied);
    assert_eq!(read_all(target, &switch).await, held);
    write(of_new, 64_002).await.unwrap();
    assert_ne!(read_all(target, &switch).await, held);
}

#[test]
fn the_embedded_switch_meets_the_limits_of_each_target() {
    let own = ultima_switch::engine::Limits::default;
    let emulation = Target::Tofino.emulation().expect("an emulation");
    for (limits, promised) in [
        (own(), V1MODEL.limits),
        (emulation.limits(own()), TOFINO.limits),
    ] {
        assert!(limits.groups >= promised.groups as usize);
        assert!(limits.replicas >= promised.group_replicas as usize);
    }
}
