//! Random fabrics, jobs and faults. In the end each committed job is installed, and a packet to its group reaches each of its
//! ranks once and no other rank.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;
use tempfile::TempDir;
use ultima_api::client::Client;
use ultima_controller::server::{self, Config, Handle, ServeError};
use ultima_controller::store::StoreError;
use ultima_p4::names::replica::TRUNK_RID;
use ultima_p4runtime::v1::{
    Entity, entity, packet_replication_engine_entry::Type, replica::PortKind,
};
use ultima_planner::fabric::{Element, Fabric, SwitchPort, TrunkId};
use ultima_planner::job::{Gather, JobSpec};
use ultima_planner::target::PortNumber;

use crate::chaos::{CALLS, Call, ChaosSwitch, FAULTS, Fault, Held};
use crate::target::Target;
use crate::testbed::{DAMPING, until};

const JOBS: [&str; 3] = ["one", "two", "three"];
/// The ports of a switch. Emulated chips have as many connectors.
const PORTS: usize = 9;

/// The number of hosts on each switch, and the links between switches.
#[derive(Clone, Debug)]
struct Shape {
    hosts: Vec<usize>,
    links: Vec<(usize, usize)>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let hosts = prop::collection::vec(0usize..=2, 1..=5);
    let ends = (any::<Index>(), any::<Index>());
    (
        hosts,
        prop::collection::vec(any::<Index>(), 4),
        prop::collection::vec(ends, 0..=4),
    )
        .prop_map(|(mut hosts, parents, more)| {
            let switches = hosts.len();
            // At least one job has room.
            hosts[0] = hosts[0].max(1);
            hosts[switches - 1] = 2;
            // The fabric is connected. Parallel links are common.
            let tree = (1..switches).map(|at| (parents[at - 1].index(at), at));
            let more = more
                .into_iter()
                .map(|(one, other)| (one.index(switches), other.index(switches)));
            let links = tree
                .chain(more.filter(|(one, other)| one != other))
                .collect();
            Shape { hosts, links }
        })
}

impl Shape {
    /// The fabric's YAML, with these switches.
    fn text(&self, switches: &[ChaosSwitch]) -> String {
        let mut next = vec![0; self.hosts.len()];
        let mut port = |at: usize| {
            next[at] += 1;
            (next[at] <= PORTS).then(|| format!("s{at}/{}", next[at]))
        };
        let (mut of_hosts, mut links) = (String::new(), String::new());
        for (at, count) in self.hosts.iter().enumerate() {
            for nth in 0..*count {
                let (name, last) = (format!("h{at}{nth}"), 1 + 10 * at + nth);
                of_hosts += &format!(
                    "  - {{ name: {name}, mac: '02:00:00:00:00:{last:02x}', ip: 10.0.0.{last}, ranks: 3 }}\n"
                );
                links += &format!(
                    "  - {{ ends: [{name}, {}] }}\n",
                    port(at).expect("few hosts")
                );
            }
        }
        for (one, other) in &self.links {
            if let (Some(one), Some(other)) = (port(*one), port(*other)) {
                links += &format!("  - {{ ends: [{one}, {other}] }}\n");
            }
        }
        let switches = switches.iter().enumerate().map(|(at, switch)| {
            format!(
                "  - {{ name: s{at}, grpc: '{}', device_id: 1 }}\n",
                switch.address()
            )
        });
        let switches: String = switches.collect();
        format!("switches:\n{switches}hosts:\n{of_hosts}links:\n{links}")
    }
}

#[derive(Clone, Debug)]
enum Event {
    Create(&'static str, Vec<Index>, Gather),
    Delete(&'static str),
    /// Drains or undrains a switch or a link.
    Drain(Index, bool),
    /// A link between switches is reported down or up.
    Link(Index, bool),
    /// A switch refuses connections.
    Fail(Index),
    /// All switches accept connections again.
    Mend,
    Reboot(Index),
    /// Another client removes an entry of a switch.
    Take(Index, Index),
    /// Another client inserts an entry that was there earlier.
    Put(Index),
    Restart,
    /// Arms a fault at one of the next calls of a kind.
    Fault(Index, Call, usize, Fault),
}

fn event() -> impl Strategy<Value = Event> {
    let at = any::<Index>;
    let job = || select(&JOBS[..]);
    let hosts = prop::collection::vec(at(), 2..=7);
    let gather = select(&[Gather::Multicast, Gather::Multicast, Gather::Unicast][..]);
    let fault = (at(), select(&CALLS[..]), 0usize..8, select(&FAULTS[..]));
    prop_oneof![
        8 => (job(), hosts, gather).prop_map(|(job, hosts, gather)| Event::Create(job, hosts, gather)),
        2 => job().prop_map(Event::Delete),
        2 => (at(), any::<bool>()).prop_map(|(element, is)| Event::Drain(element, is)),
        3 => (at(), any::<bool>()).prop_map(|(link, is)| Event::Link(link, is)),
        1 => at().prop_map(Event::Fail),
        1 => Just(Event::Mend),
        1 => at().prop_map(Event::Reboot),
        2 => (at(), at()).prop_map(|(switch, what)| Event::Take(switch, what)),
        2 => at().prop_map(Event::Put),
        1 => Just(Event::Restart),
        8 => fault.prop_map(|(at, call, nth, fault)| Event::Fault(at, call, nth, fault)),
    ]
}

struct World {
    folder: TempDir,
    text: String,
    switches: Vec<ChaosSwitch>,
    handle: Option<Handle>,
    client: Client,
    /// The switches' entities before all jobs.
    base: Vec<Held>,
    jobs: BTreeSet<&'static str>,
    drained: BTreeSet<String>,
    /// Removed entities, with their switch.
    taken: Vec<(usize, Vec<u8>, Entity)>,
}

impl World {
    async fn new(shape: &Shape) -> Self {
        let mut switches = Vec::new();
        for _ in &shape.hosts {
            switches.push(ChaosSwitch::start().await);
        }
        let (folder, text) = (tempfile::tempdir().unwrap(), shape.text(&switches));
        let handle = serve(&text, &folder).await;
        World {
            client: Client::connect(&handle.address().to_string())
                .await
                .unwrap(),
            base: switches.iter().map(ChaosSwitch::held).collect(),
            handle: Some(handle),
            folder,
            text,
            switches,
            jobs: BTreeSet::new(),
            drained: BTreeSet::new(),
            taken: Vec::new(),
        }
    }

    fn handle(&self) -> &Handle {
        self.handle.as_ref().expect("it runs")
    }

    fn fabric(&self) -> &Fabric {
        self.handle().controller().fabric()
    }

    async fn happens(&mut self, event: &Event) {
        match event {
            Event::Create(name, hosts, gather) => {
                let all = self.fabric().hosts();
                let hosts = hosts.iter().map(|at| all[at.index(all.len())].name.clone());
                let spec = JobSpec {
                    gather: *gather,
                    ..JobSpec::new(*name, hosts)
                };
                let created = self.client.create_job(&spec).await;
                assert!(
                    created.is_err() || self.jobs.insert(*name),
                    "{name} is there twice"
                );
            }
            Event::Delete(name) => {
                let before = self.held();
                let deleted = self.client.delete_job(name).await;
                assert_eq!(deleted.is_ok(), self.jobs.remove(name));
                self.remember(&before);
            }
            Event::Drain(element, drained) => {
                let name = self.element(element);
                // A drain is rejected if jobs have no room elsewhere.
                if self.client.drain(&name, *drained).await.is_ok() {
                    match drained {
                        true => self.drained.insert(name),
                        false => self.drained.remove(&name),
                    };
                }
            }
            Event::Link(link, is_up) => {
                let trunks = self.fabric().trunks().len();
                if trunks > 0 {
                    self.see(TrunkId(link.index(trunks)), *is_up);
                }
            }
            Event::Fail(at) => self.switch(at).refuse(true),
            Event::Mend => self.mend(),
            Event::Reboot(at) => self.switch(at).reboot(),
            Event::Take(at, what) => {
                let before = self.held();
                let keys: Vec<Vec<u8>> = self.switch(at).held().into_keys().collect();
                if !keys.is_empty() {
                    let key = &keys[what.index(keys.len())];
                    self.switch(at).state().held.remove(key);
                }
                self.remember(&before);
            }
            Event::Put(what) => {
                if !self.taken.is_empty() {
                    let (at, key, entity) = self.taken[what.index(self.taken.len())].clone();
                    let mut state = self.switches[at].state();
                    // A switch without a program takes no writes.
                    if state.pipeline.is_some() {
                        state.held.entry(key).or_insert(entity);
                    }
                }
            }
            Event::Restart => {
                self.handle.take().expect("it runs").stop().await;
                // A controller that never had a job waits for all switches.
                self.mend();
                let handle = serve(&self.text, &self.folder).await;
                self.client = Client::connect(&handle.address().to_string())
                    .await
                    .unwrap();
                self.handle = Some(handle);
            }
            Event::Fault(at, call, nth, fault) => self.switch(at).fail(*call, *nth, *fault),
        }
    }

    fn switch(&self, at: &Index) -> &ChaosSwitch {
        &self.switches[at.index(self.switches.len())]
    }

    fn held(&self) -> Vec<Held> {
        self.switches.iter().map(ChaosSwitch::held).collect()
    }

    /// Notes removed entities for [`Event::Put`].
    fn remember(&mut self, before: &[Held]) {
        for (at, before) in before.iter().enumerate() {
            let now = self.switches[at].held();
            let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
            let gone = gone.map(|(key, entity)| (at, key.clone(), entity.clone()));
            self.taken.extend(gone);
        }
    }

    fn see(&self, trunk: TrunkId, is_up: bool) {
        self.handle()
            .controller()
            .observe(Element::Trunk(trunk), is_up);
    }

    /// Draws a switch or a link.
    fn element(&self, at: &Index) -> String {
        let fabric = self.fabric();
        let switches = fabric.switch_ids().map(Element::Transit);
        let trunks = (0..fabric.trunks().len()).map(|at| Element::Trunk(TrunkId(at)));
        let parts: Vec<Element> = switches.chain(trunks).collect();
        fabric.name_of(parts[at.index(parts.len())])
    }

    fn mend(&self) {
        self.switches.iter().for_each(|switch| switch.refuse(false));
    }

    /// Ends all faults and waits until the switches match the plan.
    async fn check_final_state(&mut self) {
        self.mend();
        for switch in &self.switches {
            switch.forgive();
        }
        for trunk in 0..self.fabric().trunks().len() {
            self.see(TrunkId(trunk), true);
        }
        until(async || {
            let switches = self.client.switches().await.unwrap();
            let is_used = |health: &str| health.is_empty() || health.contains("drained");
            switches
                .iter()
                .all(|it| it.connected && is_used(&it.health))
                && self.is_whole().await
        })
        .await;
        let jobs = self.client.jobs().await.unwrap();
        let names: BTreeSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, self.jobs.iter().copied().collect());
        for job in jobs.iter().filter(|job| job.group_id > 0) {
            self.reaches_its_ranks(job);
        }
        for name in std::mem::take(&mut self.drained) {
            self.client.drain(&name, false).await.unwrap();
        }
        for name in std::mem::take(&mut self.jobs) {
            self.client.delete_job(name).await.unwrap();
        }
        until(async || self.held() == self.base).await;
    }

    async fn is_whole(&self) -> bool {
        let audit = self.handle().controller().audit(false).await;
        audit
            .iter()
            .all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()))
    }

    /// Follows each rank's packet to the group: it reaches all others once, and passes no switch twice.
    fn reaches_its_ranks(&self, job: &ultima_api::v1::Job) {
        let fabric = self.fabric();
        let homes: Vec<SwitchPort> = (job.members.iter())
            .map(|member| {
                fabric
                    .host(fabric.host_named(&member.host).unwrap())
                    .attached
            })
            .collect();
        for (from, home) in homes.iter().enumerate() {
            let mut came: BTreeMap<usize, usize> = BTreeMap::new();
            let mut passed = BTreeSet::new();
            let mut under_way = vec![(home.switch, None)];
            while let Some((switch, by)) = under_way.pop() {
                assert!(
                    passed.insert(switch),
                    "{} goes round by switch {}",
                    job.name,
                    switch.0
                );
                for (port, rid) in copies(&self.switches[switch.0], job.group_id) {
                    let at = SwitchPort { switch, port };
                    match fabric.across(at) {
                        // A copy does not return over the trunk that it came from.
                        Some(_) if by == Some(port) => assert_eq!(rid, u32::from(TRUNK_RID)),
                        Some(next) => {
                            assert_eq!(rid, u32::from(TRUNK_RID));
                            under_way.push((next.switch, Some(next.port)));
                        }
                        None => {
                            let rank = rid as usize;
                            assert_eq!(homes.get(rank), Some(&at), "{}: rank {rank}", job.name);
                            *came.entry(rank).or_default() += 1;
                        }
                    }
                }
            }
            // The edge switch drops a rank's own copy.
            let all: BTreeMap<usize, usize> = (0..homes.len()).map(|rank| (rank, 1)).collect();
            assert_eq!(came, all, "{}, from rank {from}", job.name);
        }
    }
}

/// The replicas of a switch's group: port and RID.
#[allow(deprecated)] // BMv2 reads only `egress_port`, and so that is what is written.
fn copies(switch: &ChaosSwitch, group: u32) -> Vec<(PortNumber, u32)> {
    let mut copies = Vec::new();
    for entity in switch.held().into_values() {
        let Some(entity::Entity::PacketReplicationEngineEntry(entry)) = entity.entity else {
            continue;
        };
        if let Some(Type::MulticastGroupEntry(entry)) = entry.r#type
            && entry.multicast_group_id == group
        {
            copies.extend(entry.replicas.into_iter().map(|replica| {
                let port = match replica.port_kind.expect("a port") {
                    PortKind::EgressPort(port) => port,
                    PortKind::Port(bytes) => bytes
                        .iter()
                        .fold(0, |port, byte| port << 8 | u32::from(*byte)),
                };
                (
                    PortNumber(port.try_into().expect("a port")),
                    replica.instance,
                )
            }));
        }
    }
    copies
}

/// Starts a controller, and retries: a switch may fail meanwhile.
async fn serve(text: &str, folder: &TempDir) -> Handle {
    let config = Config {
        listen: format!("unix:{}/control.sock", folder.path().display())
            .parse()
            .unwrap(),
        startup_timeout: Duration::from_secs(2),
        audit_every: Duration::from_millis(300),
        state: Some(folder.path().join("state")),
        damping: DAMPING,
        ..Target::of_run().config_for(text, "fabric.yaml")
    };
    let mut served = None;
    until(async || {
        match server::serve(config.clone()).await {
            Ok(handle) => served = Some(handle),
            // Tasks of the stopped controller, which ran in this process, may still hold the store.
            Err(ServeError::Store(StoreError::InUse { .. })) => {}
            Err(error) => eprintln!("{error}"),
        }
        served.is_some()
    })
    .await;
    served.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        // A case takes a second or more.
        max_shrink_iters: 40,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(ultima_testing::cases(4, 100))
    })]

    #[test]
    fn groups_reach_exactly_all_ranks_after_random_events(
        shape in shape(),
        events in prop::collection::vec(event(), 1..24),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut world = World::new(&shape).await;
            for event in &events {
                world.happens(event).await;
            }
            world.check_final_state().await;
        });
    }
}
