//! A group of controllers, each with its own wires to switches and to the others.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;
use ultima_api::address::Listen;
use ultima_api::client::Client;
use ultima_api::v1::replication_client::ReplicationClient;
use ultima_api::v1::{self as api, GetStandingResponse};
use ultima_controller::job::JobSpec;
use ultima_controller::p4rt::{Device, SwitchClient, Term};
use ultima_controller::server::{self, Config, Group, Handle, MemberHandle, ServeError, serve_in};
use ultima_controller::store::StoreError;

use crate::bed::until;
use crate::chaos::wire::Wire;
use crate::chaos::{ChaosSwitch, Held};
use crate::target::Target;

/// How long switches are without a primary before a takeover.
pub const GRACE: Duration = Duration::from_millis(300);

/// The link that closes the row to a ring.
const CLOSED: &str = "  - { ends: [s1/8, s3/9] }\n";

/// Three switches in a row with a host each. Two of three are a majority.
fn text(switches: &[String]) -> String {
    let [a, b, c] = switches else {
        panic!("three switches")
    };
    format!(
        r#"
switches:
  - {{ name: s1, target: v1model, grpc: "{a}", device_id: 1 }}
  - {{ name: s2, target: v1model, grpc: "{b}", device_id: 1 }}
  - {{ name: s3, target: v1model, grpc: "{c}", device_id: 1 }}
hosts:
  - {{ name: h1, mac: "02:00:00:00:00:01", ip: 10.0.0.1, ranks: 2 }}
  - {{ name: h2, mac: "02:00:00:00:00:02", ip: 10.0.0.2 }}
  - {{ name: h3, mac: "02:00:00:00:00:03", ip: 10.0.0.3, ranks: 2 }}
links:
  - {{ ends: [h1, s1/1] }}
  - {{ ends: [h2, s2/1] }}
  - {{ ends: [h3, s3/1] }}
  - {{ ends: [s1/9, s2/9] }}
  - {{ ends: [s2/8, s3/8] }}
"#
    )
}

pub fn spec(name: &str) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, ["h1", "h2", "h3"])
    }
}

/// The names of all jobs, in the order of their ids.
pub async fn names(client: &Client) -> Vec<String> {
    let jobs = client.jobs().await.unwrap();
    jobs.into_iter().map(|job| job.name).collect()
}

/// Switches, and wires for a number of controllers.
pub struct Bed {
    folder: tempfile::TempDir,
    pub switches: Vec<ChaosSwitch>,
    /// Indexed by controller and switch.
    wires: Vec<Vec<Arc<Wire>>>,
    /// Indexed by client and server.
    peers: Vec<Vec<Wire>>,
    change: Box<dyn Fn(&mut Group) + Send + Sync>,
    /// Links in addition to the row's.
    links: &'static str,
    /// Changes every controller's configuration.
    settings: fn(&mut Config),
}

/// A controller.
pub struct Node {
    handle: Option<MemberHandle>,
}

impl Bed {
    pub async fn new(controllers: usize) -> Self {
        Bed::with(controllers, |_| {}).await
    }

    /// Starts switches; `change` applies to every controller.
    pub async fn with(
        controllers: usize,
        change: impl Fn(&mut Group) + Send + Sync + 'static,
    ) -> Self {
        let mut switches = Vec::new();
        for _ in 0..3 {
            switches.push(ChaosSwitch::start().await);
        }
        let (mut wires, mut peers) = (Vec::new(), Vec::new());
        // One more, for a controller outside the group.
        for _ in 0..=controllers {
            let mut to_switches = Vec::new();
            for switch in &switches {
                to_switches.push(switch.wire().await);
            }
            wires.push(to_switches);
        }
        for _ in 0..controllers {
            let mut to_peers = Vec::new();
            for _ in 0..controllers {
                // No server yet.
                let wire = Wire::start(([127, 0, 0, 1], 1).into()).await;
                to_peers.push(wire);
            }
            peers.push(to_peers);
        }
        Bed {
            folder: tempfile::tempdir().unwrap(),
            switches,
            wires,
            peers,
            change: Box::new(change),
            links: "",
            settings: |_| {},
        }
    }

    /// Controllers that fail to commit after one second, for tests without followers.
    pub async fn with_short_ack_timeout(controllers: usize) -> Self {
        Bed::with(controllers, |group| {
            group.ack_timeout = Duration::from_secs(1)
        })
        .await
    }

    /// The switches in a ring, and one controller that leads without its peer.
    pub async fn ring(settings: fn(&mut Config)) -> Self {
        Bed {
            links: CLOSED,
            settings,
            ..Bed::with(2, |group| group.copies = 0).await
        }
    }

    /// Controllers that start from now on know another link.
    pub fn close_the_ring(&mut self) {
        self.links = CLOSED;
    }

    /// A controller's store.
    pub fn state(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("{at}.redb"))
    }

    /// The address at which one controller reaches another.
    pub fn address(&self, from: usize, to: usize) -> String {
        self.peers[from][to].address().to_string()
    }

    fn config(&self, at: usize) -> Config {
        let wires = self.wires[at].iter().map(|wire| wire.address().to_string());
        let text = text(&wires.collect::<Vec<_>>()) + self.links;
        let mut config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            patience: Duration::from_millis(500),
            state: Some(self.state(at)),
            ..Target::of_run().config_for(&text, "three.yaml")
        };
        (self.settings)(&mut config);
        config
    }

    /// Starts two controllers: the first leads, the second follows.
    pub async fn pair(&self) -> [Node; 2] {
        let first = self.start(0).await;
        first.leads().await;
        let second = self.start(1).await;
        first.followers(1).await;
        [first, second]
    }

    pub async fn start(&self, at: usize) -> Node {
        self.start_with(at, |_| {}).await
    }

    pub async fn start_with(&self, at: usize, change: impl Fn(&mut Group)) -> Node {
        self.try_start(at, change).await.unwrap()
    }

    pub async fn try_start(
        &self,
        at: usize,
        change: impl Fn(&mut Group),
    ) -> Result<Node, ServeError> {
        let others = (0..self.peers.len()).filter(|other| *other != at);
        let mut group = Group::new(others.map(|other| self.address(at, other)).collect());
        group.grace = GRACE;
        (self.change)(&mut group);
        change(&mut group);
        let handle = loop {
            match serve_in(self.config(at), group.clone()).await {
                // Tasks of the stopped controller, which ran in this process, may still hold the store.
                Err(ServeError::Store(StoreError::InUse { .. })) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                started => break started?,
            }
        };
        let Listen::Tcp(address) = handle.address() else {
            panic!("an address")
        };
        for from in &self.peers {
            from[at].redirect(*address);
        }
        Ok(Node {
            handle: Some(handle),
        })
    }

    /// Starts a controller without peers.
    pub async fn serve_alone(&self, at: usize) -> Result<Handle, ServeError> {
        loop {
            match server::serve(self.config(at)).await {
                Err(ServeError::Store(StoreError::InUse { .. })) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                served => return served,
            }
        }
    }

    /// Cuts a controller off from switches and peers: bytes are held back, or connections break.
    pub fn part(&self, at: usize, swallow: bool) {
        self.every_way(at, |wire| match swallow {
            true => wire.swallow(true),
            false => wire.refuse(true),
        });
    }

    pub fn heal(&self, at: usize) {
        self.every_way(at, |wire| {
            wire.swallow(false);
            wire.refuse(false);
        });
    }

    /// Breaks a controller's connections to these switches until `part` is false.
    pub fn part_from(&self, at: usize, switches: &[usize], part: bool) {
        switches
            .iter()
            .for_each(|to| self.wires[at][*to].refuse(part));
    }

    /// Holds back a controller's bytes to all switches, and none to its peers.
    pub fn part_from_switches(&self, at: usize) {
        self.wires[at].iter().for_each(|wire| wire.swallow(true));
    }

    /// Breaks a controller's connections to switches. It can connect again.
    pub fn shake(&self, at: usize) {
        self.wires[at].iter().for_each(|wire| wire.cut());
    }

    /// Connects a client that is primary at a switch in `term` and neither writes nor leaves.
    pub async fn ghost(&self, switch: usize, term: Term) -> SwitchClient {
        let device = Device {
            name: format!("s{}", switch + 1),
            grpc: self.switches[switch].address().to_string(),
            device_id: 1,
            tls: None,
            packing: Default::default(),
        };
        let election_id = term.election_id();
        let ghost = SwitchClient::connect(device, election_id, Duration::from_secs(5)).await;
        ghost.unwrap()
    }

    /// Cuts two controllers off from each other.
    pub fn part_peers(&self, one: usize, other: usize) {
        self.peers[one][other].refuse(true);
        self.peers[other][one].refuse(true);
    }

    pub fn heal_peers(&self, one: usize, other: usize) {
        self.peers[one][other].refuse(false);
        self.peers[other][one].refuse(false);
    }

    fn every_way(&self, at: usize, change: impl Fn(&Wire)) {
        self.wires[at].iter().for_each(|wire| change(wire));
        for other in 0..self.peers.len() {
            change(&self.peers[at][other]);
            change(&self.peers[other][at]);
        }
    }

    pub fn held(&self) -> Vec<Held> {
        self.switches.iter().map(ChaosSwitch::held).collect()
    }

    pub fn updates(&self) -> Vec<usize> {
        self.switches.iter().map(ChaosSwitch::updates).collect()
    }
}

impl Node {
    pub fn handle(&self) -> &MemberHandle {
        self.handle.as_ref().expect("it was not stopped")
    }

    /// Stops the controller at once, as far as this is possible within a process.
    pub fn stop(&mut self) {
        self.handle = None;
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        until(async || self.is_leader()).await;
    }

    /// Returns true if the controller reports that it leads.
    pub async fn leads_at_most(&self) -> bool {
        self.standing().await.role() == api::Role::Leader
    }

    /// A client of the replication service.
    pub async fn replication(&self) -> ReplicationClient<Channel> {
        let address = format!("http://{}", self.handle().address());
        ReplicationClient::connect(address).await.unwrap()
    }

    pub fn is_leader(&self) -> bool {
        let handle = self.handle.as_ref();
        handle.is_some_and(|handle| handle.leader().is_some())
    }

    /// Waits until `count` followers are up to date.
    pub async fn followers(&self, count: usize) {
        until(async || self.has_followers(count).await).await;
    }

    async fn has_followers(&self, count: usize) -> bool {
        let followers = self.standing().await.followers;
        followers.iter().filter(|it| it.behind == Some(0)).count() == count
    }

    pub async fn client(&self) -> Client {
        let address = self.handle().address().to_string();
        Client::connect(&address).await.unwrap()
    }

    pub async fn standing(&self) -> GetStandingResponse {
        let address = self.handle().address().to_string();
        Client::standing(&address, None).await.unwrap()
    }

    /// Waits until it reports `what` as the reason why it does not lead or follow.
    pub async fn says(&self, what: &str) {
        until(async || self.standing().await.problem.contains(what)).await;
    }

    /// Waits until all switches match the plan.
    pub async fn is_whole(&self) {
        until(async || self.is_whole_now().await).await;
    }

    /// Returns true if it leads and all switches match the plan.
    pub async fn is_whole_now(&self) -> bool {
        let Some(leader) = self.handle().leader() else {
            return false;
        };
        let audit = leader.audit(false).await;
        let whole = |diff: &Result<_, _>| {
            diff.as_ref()
                .is_ok_and(ultima_controller::reconcile::Diff::is_empty)
        };
        audit.iter().all(|(_, diff)| whole(diff))
    }
}

/// Waits for a single leader. Two never lead in the same term.
pub async fn only_leader(nodes: &[Node]) -> usize {
    let all: Vec<&Node> = nodes.iter().collect();
    let leader = only_leader_of(&all).await;
    (nodes.iter().position(|node| std::ptr::eq(node, leader))).expect("one of them")
}

/// Waits for a leader that all others follow: of two that start at once both may claim the first term, and one
/// steps down then.
pub async fn settled(nodes: &[Node]) -> usize {
    loop {
        let leader = only_leader(nodes).await;
        if nodes[leader].has_followers(nodes.len() - 1).await && nodes[leader].is_leader() {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn only_leader_of<'a>(nodes: &[&'a Node]) -> &'a Node {
    loop {
        let leaders = nodes.iter().filter(|node| node.is_leader());
        if let [leader] = leaders.collect::<Vec<_>>()[..] {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
