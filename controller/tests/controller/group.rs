//! Several controllers that share etcd, each with its own wires to switches and to etcd.

use std::sync::Arc;
use std::time::Duration;

use ultima_api::client::Client;
use ultima_api::v1::{self as api, GetStandingResponse};
use ultima_controller::server::{
    self, CandidateHandle, Config, Handle, ServeError, serve_with_etcd,
};
use ultima_controller::store::etcd;
use ultima_planner::job::JobSpec;
use ultima_testing::etcd::Etcd;

use crate::chaos::wire::Wire;
use crate::chaos::{ChaosSwitch, Held};
use crate::target::Target;
use crate::testbed::until;

/// A leader's lease: short, with room for a busy machine.
pub const LEASE: Duration = Duration::from_secs(2);

/// The prefix of the controllers' keys in etcd.
pub const PREFIX: &str = "three";

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

/// The store of a controller in tests.
pub fn cluster(endpoints: Vec<String>, prefix: &str) -> etcd::Config {
    etcd::Config {
        endpoints,
        prefix: prefix.to_owned(),
        tls: None,
        user: None,
        secret: None,
        lease: LEASE,
    }
}

/// Switches, etcd, and wires for a number of controllers.
pub struct Testbed {
    pub etcd: Etcd,
    pub switches: Vec<ChaosSwitch>,
    /// Indexed by controller and switch.
    wires: Vec<Vec<Arc<Wire>>>,
    /// Indexed by controller and member of etcd.
    to_etcd: Vec<Vec<Wire>>,
    /// Links in addition to the row's.
    links: &'static str,
}

/// A controller.
pub struct Node {
    handle: Option<CandidateHandle>,
}

impl Testbed {
    /// None without etcd.
    pub async fn new(controllers: usize) -> Option<Self> {
        Testbed::with(controllers, Etcd::start(1)?).await
    }

    /// The same, with this etcd.
    pub async fn with(controllers: usize, etcd: Etcd) -> Option<Self> {
        let mut switches = Vec::new();
        for _ in 0..3 {
            switches.push(ChaosSwitch::start().await);
        }
        let (mut wires, mut to_etcd) = (Vec::new(), Vec::new());
        for _ in 0..controllers {
            let mut to_switches = Vec::new();
            for switch in &switches {
                to_switches.push(switch.wire().await);
            }
            wires.push(to_switches);
            let mut to_members = Vec::new();
            for endpoint in etcd.endpoints() {
                to_members.push(Wire::start(endpoint.parse().unwrap()).await);
            }
            to_etcd.push(to_members);
        }
        Some(Testbed {
            etcd,
            switches,
            wires,
            to_etcd,
            links: "",
        })
    }

    /// Controllers that start from now on know another link.
    pub fn close_the_ring(&mut self) {
        self.links = CLOSED;
    }

    fn config(&self, at: usize) -> Config {
        let wires = self.wires[at].iter().map(|wire| wire.address().to_string());
        let text = text(&wires.collect::<Vec<_>>()) + self.links;
        Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            startup_timeout: Duration::from_millis(500),
            ..Target::of_run().config_for(&text, "three.yaml")
        }
    }

    /// Starts two controllers: the first leads.
    pub async fn pair(&self) -> [Node; 2] {
        let first = self.start(0).await;
        first.leads().await;
        let second = self.start(1).await;
        second.knows(&first).await;
        [first, second]
    }

    pub async fn start(&self, at: usize) -> Node {
        self.start_with(at, PREFIX, false).await
    }

    /// Starts a controller with this prefix in etcd.
    pub async fn start_with(&self, at: usize, prefix: &str, take_over: bool) -> Node {
        let wires = self.to_etcd[at].iter();
        let endpoints = wires.map(|wire| wire.address().to_string()).collect();
        let store = cluster(endpoints, prefix);
        let config = Config {
            take_over,
            ..self.config(at)
        };
        let handle = serve_with_etcd(config, store, None).await;
        Node {
            handle: Some(handle.unwrap()),
        }
    }

    /// Starts a controller with its own store.
    pub async fn serve_alone(&self, at: usize) -> Result<Handle, ServeError> {
        server::serve(self.config(at)).await
    }

    /// Cuts a controller off from etcd: bytes are held back, or connections break.
    pub fn partition_from_etcd(&self, at: usize, swallow: bool) {
        self.to_etcd[at].iter().for_each(|wire| match swallow {
            true => wire.swallow(true),
            false => wire.refuse(true),
        });
    }

    /// Cuts a controller off from etcd and the switches.
    pub fn partition(&self, at: usize, swallow: bool) {
        self.partition_from_etcd(at, swallow);
        self.wires[at].iter().for_each(|wire| match swallow {
            true => wire.swallow(true),
            false => wire.refuse(true),
        });
    }

    pub fn heal(&self, at: usize) {
        let wires = self.wires[at].iter().map(|wire| &**wire);
        wires.chain(&self.to_etcd[at]).for_each(|wire| {
            wire.swallow(false);
            wire.refuse(false);
        });
    }

    pub fn held(&self) -> Vec<Held> {
        self.switches.iter().map(ChaosSwitch::held).collect()
    }

    pub fn updates(&self) -> Vec<usize> {
        self.switches.iter().map(ChaosSwitch::updates).collect()
    }
}

impl Node {
    pub fn handle(&self) -> &CandidateHandle {
        self.handle.as_ref().expect("it was not stopped")
    }

    /// Stops the controller at once, as far as this is possible within a process.
    pub fn stop(&mut self) {
        self.handle = None;
    }

    /// Stops the controller as an operator does: it stores its last events and ends its lease.
    pub async fn end(&mut self) {
        self.handle.take().expect("it runs").stop().await;
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        until(async || self.is_leader()).await;
    }

    pub fn is_leader(&self) -> bool {
        let handle = self.handle.as_ref();
        handle.is_some_and(|handle| handle.leader().is_some())
    }

    /// Waits until it is a standby of that leader.
    pub async fn knows(&self, leader: &Node) {
        let address = leader.handle().address().to_string();
        until(async || self.standing().await.leader == address).await;
    }

    pub async fn client(&self) -> Client {
        let address = self.handle().address().to_string();
        Client::connect(&address).await.unwrap()
    }

    pub async fn standing(&self) -> GetStandingResponse {
        let address = self.handle().address().to_string();
        Client::standing(&address, None).await.unwrap()
    }

    /// Waits until it reports `what` as its problem.
    pub async fn says(&self, what: &str) {
        until(async || self.standing().await.problem.contains(what)).await;
    }

    /// Waits until all switches match the plan.
    pub async fn is_whole(&self) {
        until(async || self.is_whole_now().await).await;
    }

    async fn is_whole_now(&self) -> bool {
        let Some(leader) = self.handle().leader() else {
            return false;
        };
        let audit = leader.audit(false).await;
        let whole = |diff: &Result<_, _>| {
            diff.as_ref()
                .is_ok_and(ultima_planner::reconcile::Diff::is_empty)
        };
        audit.iter().all(|(_, diff)| whole(diff))
    }
}

/// Waits for a leader. There are never two.
pub async fn only_leader(nodes: &[Node]) -> usize {
    loop {
        let leaders = (0..nodes.len()).filter(|at| nodes[*at].is_leader());
        match leaders.collect::<Vec<_>>()[..] {
            [leader] => return leader,
            [] => tokio::time::sleep(Duration::from_millis(5)).await,
            _ => panic!("several controllers lead"),
        }
    }
}

/// True if a standby or a leader of this role answers.
pub fn is_standby(standing: &GetStandingResponse) -> bool {
    standing.role() == api::Role::Standby
}
