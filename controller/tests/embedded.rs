//! The controller and the embedded switch.

use std::collections::BTreeSet;

use prost::Message as _;
use ultima_controller::fabric::{self, Fabric, Health, SwitchId};
use ultima_controller::job::{DEFAULT_LOSS_THRESHOLD, Gather, JobSpec, Weight};
use ultima_controller::ledger::Ledger;
use ultima_controller::membership::Eviction;
use ultima_controller::p4rt::{Device, SwitchClient};
use ultima_controller::plan::{self, Entity, SwitchPlan};
use ultima_controller::program::Program;
use ultima_controller::routing::Routes;
use ultima_controller::server::{self, Config, Handle};
use ultima_controller::target::V1MODEL;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    self, CloneSessionEntry, DigestEntry, MulticastGroupEntry, ReadRequest, TableEntry,
};
use ultima_switch::{Switch, SwitchConfig};

/// A switch without ports or program.
async fn switch() -> Switch {
    let config = SwitchConfig {
        grpc: "127.0.0.1:0".parse().unwrap(),
        ..SwitchConfig::default()
    };
    Switch::start(config).await.unwrap()
}

/// Four hosts on `switch`.
fn star_on(switch: &Switch) -> Fabric {
    let grpc = switch.grpc_addr().to_string();
    let text = include_str!("../../topologies/star4.yaml").replace("127.0.0.1:9559", &grpc);
    fabric::parse(&text, "star.yaml").unwrap()
}

fn config(fabric: &Fabric) -> Config {
    let listen = "127.0.0.1:0".parse().unwrap();
    Config {
        listen,
        ..Config::new(fabric.clone()).unwrap()
    }
}

async fn start() -> (Switch, Fabric, Handle) {
    let switch = switch().await;
    let fabric = star_on(&switch);
    let handle = server::serve(config(&fabric)).await.unwrap();
    (switch, fabric, handle)
}

fn spec() -> JobSpec {
    JobSpec {
        name: "train".into(),
        members: ["h1", "h2", "h4"].map(String::from).to_vec(),
        gather: Gather::Multicast,
        seed: Some(7),
        loss_threshold: DEFAULT_LOSS_THRESHOLD,
        weight: Weight::default(),
        eviction: Eviction::default(),
    }
}

fn routes(fabric: &Fabric) -> Routes {
    Routes::new(fabric, Health::default())
}

/// All entries and groups, read by a client that is nobody's primary.
async fn read_all(switch: &Switch) -> BTreeSet<Vec<u8>> {
    let address = format!("http://{}", switch.grpc_addr());
    let mut client = P4RuntimeClient::connect(address).await.unwrap();
    let entities = vec![
        TableEntry::default().into(),
        MulticastGroupEntry::default().into(),
        CloneSessionEntry::default().into(),
        DigestEntry::default().into(),
    ];
    let request = ReadRequest {
        device_id: 1,
        entities,
        ..Default::default()
    };
    let mut responses = client.read(request).await.unwrap().into_inner();
    let mut read = BTreeSet::new();
    while let Some(response) = responses.message().await.unwrap() {
        read.extend(response.entities.iter().map(v1::Entity::encode_to_vec));
    }
    read
}

/// What `entities` should look like when read.
fn expected<'a>(entities: impl IntoIterator<Item = &'a Entity>) -> BTreeSet<Vec<u8>> {
    let program = Program::v1model().unwrap();
    let entities = entities
        .into_iter()
        .filter(|entity| !matches!(entity, Entity::Counter(_)));
    entities
        .map(|entity| {
            entity
                .creation(program.names())
                .unwrap()
                .entity
                .unwrap()
                .encode_to_vec()
        })
        .collect()
}

#[tokio::test]
async fn what_is_planned_is_what_the_switch_has() {
    let (switch, fabric, handle) = start().await;
    let base = plan::of_fabric(&fabric, &routes(&fabric), SwitchId(0));
    assert_eq!(read_all(&switch).await, expected(&base));

    let state = handle.controller().create_job(&spec()).await.unwrap();
    let routes = routes(&fabric);
    let program = Program::v1model().unwrap();
    let ledger = Ledger::new(&fabric, &routes);
    let (job, plan) = ledger
        .propose(&fabric, &routes, program.names(), &spec(), 0)
        .unwrap();
    assert_eq!(*state.job, job);
    assert_eq!(plan::of_job(&fabric, &routes, &job), plan);
    let all = base
        .iter()
        .chain(plan.values().flat_map(SwitchPlan::entities));
    assert_eq!(read_all(&switch).await, expected(all));

    let counters = handle.controller().counters("train").await.unwrap();
    assert_eq!(counters.len(), 1);
    handle.controller().delete_job("train").await.unwrap();
    assert_eq!(read_all(&switch).await, expected(&base));
    handle.stop().await;
    switch.stop().await.unwrap();
}

#[tokio::test]
async fn a_controller_that_starts_anew_starts_from_nothing() {
    let (switch, fabric, handle) = start().await;
    handle.controller().create_job(&spec()).await.unwrap();
    handle.stop().await;
    let handle = server::serve(config(&fabric)).await.unwrap();
    let base = plan::of_fabric(&fabric, &routes(&fabric), SwitchId(0));
    assert_eq!(read_all(&switch).await, expected(&base));
    handle.controller().create_job(&spec()).await.unwrap();
}

#[tokio::test]
async fn a_program_that_does_not_match_its_p4info_is_one_line() {
    let switch = switch().await;
    let own = ultima_p4::v1model();
    let json = String::from_utf8(own.device_config.to_vec()).unwrap();
    let json = json.replace("UltimaIngress.jobs.job", "UltimaIngress.jobs.jib");
    let program = Program::new(json.into_bytes(), own.p4info, "p4info").unwrap();
    let config = Config {
        program,
        ..config(&star_on(&switch))
    };
    let error = server::serve(config)
        .await
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "switch s1 refused the program: INVALID_ARGUMENT: program and P4Info disagree: the P4Info has no table UltimaIngress.jobs.jib"
    );
}

#[tokio::test]
async fn a_program_without_our_tables_is_not_put_to_work() {
    let switch = switch().await;
    let own = ultima_p4::v1model();
    let p4info = own
        .p4info
        .replace("UltimaIngress.admission.source", "Other.admission.source");
    let program = Program::new(own.device_config.to_vec(), &p4info, "p4info").unwrap();
    let config = Config {
        program,
        ..config(&star_on(&switch))
    };
    let error = server::serve(config)
        .await
        .map(|_| ())
        .unwrap_err()
        .to_string();
    let [start, end] = [
        "P4Info has no table \"UltimaIngress.admission.source\"; ",
        "; give the controller Ultima's program and its P4Info, or ones derived from them",
    ];
    assert!(error.starts_with(start) && error.ends_with(end), "{error}");
}

#[tokio::test]
async fn when_another_client_takes_over_and_goes_the_controller_is_primary_again() {
    let (switch, fabric, handle) = start().await;
    let device = Device {
        name: "s1".into(),
        grpc: switch.grpc_addr().to_string(),
        device_id: 1,
        tls: None,
    };
    let patience = std::time::Duration::from_secs(5);
    let other = SwitchClient::connect(device, u128::MAX, patience)
        .await
        .unwrap();
    let problem = || handle.controller().switches()[0].problem.clone();
    while problem().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let error = handle
        .controller()
        .create_job(&spec())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("switch s1 is not connected: "), "{error}");
    drop(other);
    while problem().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    handle.controller().create_job(&spec()).await.unwrap();
    assert_eq!(fabric.hosts().len(), 4);
}

#[test]
fn the_embedded_switch_has_room_for_what_the_target_promises() {
    let limits = ultima_switch::engine::Limits::default();
    assert!(limits.groups >= V1MODEL.limits.groups as usize);
    assert!(limits.replicas >= V1MODEL.limits.group_replicas as usize);
}
