//! A leaf-spine fabric of [`ChaosSwitch`]es, and its controllers.

use std::collections::BTreeSet;
use std::panic::Location;
use std::slice;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http_body_util::BodyExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{self, StatusCode};
use ultima_api::client::{self, Client, ClientError, JobWatch, READY_WAIT};
use ultima_api::v1::{self as api, membership_event::Kind};
use ultima_controller::server::{
    self, CandidateHandle, Config, Controller, Handle, JobRequestError, JobState, ServeError,
    Timers, serve_with_etcd,
};
use ultima_controller::store::{Store, StoreError, etcd};
use ultima_grpc::tls::ClientTls;
use ultima_planner::fabric::damping::DampingConfig;
use ultima_planner::job::JobSpec;
use ultima_planner::membership;
use ultima_testing::etcd::Etcd;

use crate::chaos::{Call, ChaosSwitch, FAULTS, Fault, Hanging, Held};
use crate::group::{self, LEASE};
use crate::target::Target;

/// Two spines and four leaves with two hosts each. The spines come first.
const TOPOLOGY: &str = include_str!("../../../topologies/leaf-spine.yaml");
pub const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];
pub const SPINE1: usize = 0;
pub const LEAF1: usize = 2;

/// A switch's ports to other switches, as the file numbers them.
pub fn ports_of(at: usize) -> &'static [u16] {
    match at {
        ..LEAF1 => &[1, 2, 3, 4],
        _ => &[101, 102],
    }
}

/// Creates a job, and waits until it is ready.
pub async fn create(controller: &Controller, spec: &JobSpec) -> Result<JobState, JobRequestError> {
    let created = controller.create_jobs(slice::from_ref(spec)).await;
    let created = created.map_err(|refused| *refused.error)?;
    let mut created = controller.until_ready(&created, READY_WAIT).await?;
    Ok(created.pop().expect("as many as were asked for"))
}

/// The answer of a control API to a request for metrics.
pub async fn metrics(address: &str, tls: Option<&ClientTls>) -> (StatusCode, String) {
    let endpoint = client::endpoint(address, tls).unwrap();
    let mut channel = endpoint.connect().await.unwrap();
    std::future::poll_fn(|context| Service::poll_ready(&mut channel, context))
        .await
        .unwrap();
    let request = http::Request::get("/metrics").body(Body::empty()).unwrap();
    let answer = channel.call(request).await.unwrap();
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Longer than any wait in these tests, even on a busy machine.
pub const FOREVER: Duration = Duration::from_secs(120);

/// Shorter times than an operator's.
pub const DAMPING: DampingConfig = DampingConfig {
    grace: Duration::from_millis(50),
    hold_first: Duration::from_millis(50),
    hold_most: Duration::from_secs(1),
    quiet: Duration::from_secs(1),
};

/// Timers of the tests' controllers. Those that bound a call keep some room for a busy machine.
pub const TIMERS: Timers = Timers {
    change: Duration::from_millis(100),
    reroute_call: Duration::from_millis(300),
    retry: Duration::from_millis(300),
    reconnect: Duration::from_millis(200),
    unanswered_read: Duration::from_secs(1),
    resubscribe: Duration::from_millis(200),
    // Tests count the changes of a store.
    events: Duration::from_secs(600),
    eviction_retry: Duration::from_millis(500),
    stop: Duration::from_secs(1),
    connection: Duration::from_secs(45),
    members: membership::MemberTimers {
        suspicion: Duration::from_millis(400),
        takeover: Duration::from_secs(1),
        answer: Duration::from_secs(1),
        reconnect: Duration::from_millis(400),
    },
};

/// A call of this kind fails; which of the first so many is random.
pub type Danger = (Call, usize);

pub struct Testbed {
    folder: tempfile::TempDir,
    pub switches: Vec<ChaosSwitch>,
    text: String,
    random: StdRng,
    /// True if further faults are injected on other switches.
    storms: bool,
    /// The number of faults that are armed.
    armed: usize,
    /// For each switch, the keys that must not be written again, and how often its tables had been lost by then.
    untouched: Vec<(BTreeSet<Vec<u8>>, usize)>,
    /// True if switches are audited only on demand.
    pub looks_seldom: bool,
    /// True if changes wait for members however long they take to answer, as on a busy machine.
    pub waits_for_members: bool,
    /// True if the controller repairs foreign changes.
    pub repairs: bool,
    /// The last controller that was started.
    controller: Arc<Mutex<Weak<Controller>>>,
    loses: JoinHandle<()>,
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.loses.abort();
    }
}

/// A link between two switches that no path needs.
const LINK: &str = "leaf2/101";

/// Takes a link down while any call hangs, so that a reroute waits for that call.
async fn lose_while_anything_hangs(all: Vec<Hanging>, controller: Arc<Mutex<Weak<Controller>>>) {
    loop {
        let controller = controller.lock().unwrap().upgrade();
        if let Some(controller) = controller {
            let link = controller
                .fabric()
                .element_named(&Target::of_run().element(LINK))
                .unwrap();
            controller.observe(link, !all.iter().any(Hanging::any));
        }
        pause().await;
    }
}

/// The request for a plan with these new jobs.
pub fn creation_plan(specs: &[JobSpec]) -> api::PlanJobsRequest {
    api::PlanJobsRequest {
        create: specs.iter().map(Into::into).collect(),
        ..api::PlanJobsRequest::default()
    }
}

pub fn spec(name: &str) -> JobSpec {
    spec_on(name, &["h1", "h4", "h5", "h8"])
}

pub fn spec_on(name: &str, hosts: &[&str]) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, hosts.iter().copied())
    }
}

pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Waits until a condition is true. A panic names the caller's line.
#[track_caller]
pub fn until(mut condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let comes_true = async {
            while !condition().await {
                pause().await;
            }
        };
        let in_time = tokio::time::timeout(FOREVER, comes_true).await;
        in_time.unwrap_or_else(|_| panic!("the condition at {caller} is never true"));
    }
}

/// Repeats a request that is refused because no path leads to a host: on a busy machine, a late heartbeat makes a switch count as down
/// for a moment. Such a request does nothing.
pub async fn with_paths<T>(
    ask: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let mut answer = None;
    until(async || {
        let answered = ask().await;
        let no_path = |error: &ClientError| error.to_string().contains("no path leads from");
        let is_refused = answered.as_ref().is_err_and(no_path);
        answer = Some(answered);
        !is_refused
    })
    .await;
    answer.unwrap()
}

/// Waits for an event of a job. Returns the kinds of the events up to it.
pub async fn until_event(watch: &mut JobWatch, kind: Kind) -> Vec<Kind> {
    let mut kinds = Vec::new();
    while kinds.last() != Some(&kind) {
        let next = watch.next().await.unwrap().expect("another event");
        kinds.extend(next.event.map(|event| event.kind()));
    }
    kinds
}

impl Testbed {
    pub async fn new(seed: u64, storms: bool) -> Self {
        let mut switches = Vec::new();
        let mut text = TOPOLOGY.to_owned();
        for name in NAMES {
            let switch = ChaosSwitch::start().await;
            let entry = format!("name: {name}, grpc: \"{}\", device_id: 1", switch.address());
            text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
            switches.push(switch);
        }
        let controller = Arc::default();
        let hanging = switches.iter().map(ChaosSwitch::hanging).collect();
        let loses = lose_while_anything_hangs(hanging, Arc::clone(&controller));
        Testbed {
            folder: tempfile::tempdir().unwrap(),
            switches,
            looks_seldom: false,
            waits_for_members: false,
            repairs: true,
            controller,
            loses: tokio::spawn(loses),
            text,
            random: StdRng::seed_from_u64(seed),
            storms,
            armed: 0,
            untouched: Vec::new(),
        }
    }

    /// All switches report their ports to other switches as up.
    pub fn tells_of_ports(&self) {
        for at in 0..self.switches.len() {
            for nth in 0..ports_of(at).len() {
                self.port(at, nth, true);
            }
        }
    }

    /// A switch reports one of its ports to other switches as up or down.
    pub fn port(&self, at: usize, nth: usize, is_up: bool) {
        let port = Target::of_run().port(ports_of(at)[nth]);
        self.switches[at].port(port, is_up);
    }

    pub fn config(&self, name: &str) -> Config {
        let mut config = Target::of_run().config_for(&self.text, "leaf-spine.yaml");
        if self.waits_for_members {
            config.timers.members.answer = FOREVER;
        }
        Config {
            listen: self.address(name).parse().unwrap(),
            startup_timeout: FOREVER,
            // An audit removes entries that a switch refused to delete.
            audit_every: match self.looks_seldom {
                true => 2 * FOREVER,
                false => Duration::from_millis(300),
            },
            repair: self.repairs,
            state: Some(self.folder.path().join(name)),
            damping: DAMPING,
            ..config
        }
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}/{name}.sock", self.folder.path().display())
    }

    pub async fn try_serve(&self) -> Result<Handle, ServeError> {
        loop {
            match server::serve(self.config("a")).await {
                // Tasks of the stopped controller, which ran in this process, may still hold the store.
                Err(ServeError::Store(StoreError::InUse { .. })) => pause().await,
                served => {
                    if let Ok(handle) = &served {
                        *self.controller.lock().unwrap() = Arc::downgrade(handle.controller());
                    }
                    return served;
                }
            }
        }
    }

    pub async fn serve(&self) -> Handle {
        self.try_serve().await.unwrap()
    }

    /// Starts a controller as a supervisor does: again until it keeps running.
    pub async fn serve_in_the_end(&self) -> Handle {
        let mut served = None;
        until(async || {
            match self.try_serve().await {
                Ok(handle) => served = Some(handle),
                Err(error) => eprintln!("{error}"),
            }
            served.is_some()
        })
        .await;
        served.unwrap()
    }

    /// Starts a controller with this store.
    pub async fn serve_on(&self, name: &str, store: Arc<dyn Store>) -> Handle {
        let served = server::serve_on(self.config(name), Some(store)).await;
        served.unwrap()
    }

    /// Starts a controller that shares etcd with others of this testbed.
    pub async fn serve_with(&self, etcd: &Etcd, name: &str) -> CandidateHandle {
        let prefix = self.folder.path().file_name().unwrap();
        let store = etcd::Config {
            // Many cases share the processor, and none may lose the lead for that.
            lease: 3 * LEASE,
            ..group::cluster(etcd.endpoints(), prefix.to_str().unwrap())
        };
        serve_with_etcd(self.config(name), store, None)
            .await
            .unwrap()
    }

    pub async fn client(&self, name: &str) -> Client {
        // On a busy machine, the controller may not say its role in time.
        let mut client = None;
        until(async || {
            client = Client::connect(&self.address(name)).await.ok();
            client.is_some()
        })
        .await;
        client.unwrap()
    }

    /// Waits until no call hangs.
    pub async fn calms_down(&self) {
        until(async || !self.switches.iter().any(|it| it.hanging().any())).await;
    }

    pub fn held(&self) -> Vec<Held> {
        self.switches.iter().map(ChaosSwitch::held).collect()
    }

    /// The number of updates that each switch has seen.
    pub fn updates(&self) -> Vec<usize> {
        self.switches.iter().map(ChaosSwitch::updates).collect()
    }

    /// Draws a switch.
    pub fn any_switch(&mut self) -> usize {
        self.random.random_range(0..self.switches.len())
    }

    /// Arms a fault on a random switch, and in a storm random faults on others.
    pub fn fail(&mut self, fault: Fault, danger: Danger) {
        let at = self.any_switch();
        self.fail_on(at, fault, danger);
    }

    /// Arms a fault on this switch, and in a storm random faults on others.
    pub fn fail_on(&mut self, at: usize, fault: Fault, (call, within): Danger) {
        let nth = self.random.random_range(0..within);
        self.switches[at].fail(call, nth, fault);
        self.armed += 1;
        if self.storms {
            for _ in 0..self.random.random_range(1..=4) {
                let at = self.any_switch();
                let fault = FAULTS[self.random.random_range(0..FAULTS.len())];
                let nth = self.random.random_range(0..within);
                self.switches[at].fail(call, nth, fault);
            }
            self.armed = self.switches.iter().map(ChaosSwitch::armed).sum();
        }
    }

    /// Disarms all faults. Returns true if any has happened.
    pub fn has_failed(&mut self) -> bool {
        let left: usize = self.switches.iter().map(ChaosSwitch::forgive).sum();
        left < std::mem::take(&mut self.armed)
    }

    /// Removes a few random entries from each switch, except those that must not be written again.
    pub fn damage(&mut self) {
        for at in 0..self.switches.len() {
            for _ in 0..6 {
                self.take_one(at);
            }
        }
    }

    /// Removes one random entry from a switch.
    pub fn take_one(&mut self, at: usize) {
        let held = &mut self.switches[at].state().held;
        let untouched = self.untouched.get(at).map(|(keys, _)| keys);
        let may = |key: &&Vec<u8>| !untouched.is_some_and(|keys| keys.contains(*key));
        let keys: Vec<&Vec<u8>> = held.keys().filter(may).collect();
        if !keys.is_empty() {
            let key = keys[self.random.random_range(0..keys.len())].clone();
            held.remove(&key);
        }
    }

    /// Notes that entries which are new since `since` must not be written again.
    pub fn leave_alone(&mut self, since: &[Held]) {
        let added = |(switch, before): (&ChaosSwitch, &Held)| {
            switch.take_log();
            let mut keys: BTreeSet<Vec<u8>> = switch.held().into_keys().collect();
            keys.retain(|key| !before.contains_key(key));
            let emptied = switch.state().emptied;
            (keys, emptied)
        };
        self.untouched = self.switches.iter().zip(since).map(added).collect();
        assert!(self.untouched.iter().any(|(keys, _)| !keys.is_empty()));
    }

    /// Asserts that those entries were not written again, except where a switch had lost its tables.
    pub fn was_left_alone(&self) {
        for (switch, (keys, emptied)) in self.switches.iter().zip(&self.untouched) {
            if switch.state().emptied > *emptied {
                continue;
            }
            for done in switch.take_log() {
                assert!(!keys.contains(&done.key), "{done:?}");
            }
        }
    }
}

/// Returns true if all switches but one match the plan.
pub async fn is_whole_but(controller: &Controller, away: Option<usize>) -> bool {
    let audit = controller.audit(false).await;
    let mut others = audit.iter().filter(|(id, _)| Some(id.0) != away);
    others.all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()))
}

/// Waits until all switches match the plan.
pub async fn whole(controller: &Controller) {
    until(async || is_whole_but(controller, None).await).await;
}

/// Waits until the fabric is in use except for drained elements: a switch that reconnects counts as down for its hold time.
pub async fn trusted(client: &Client) {
    until(async || {
        let switches = client.switches().await.unwrap();
        let is_used = |health: &str| health.is_empty() || health == "drained";
        switches
            .iter()
            .all(|it| it.connected && is_used(&it.health))
    })
    .await;
    // Is answered after all pending reroutes, and changes nothing itself.
    client
        .drain(&Target::of_run().element(LINK), false)
        .await
        .unwrap();
}

pub async fn names(client: &Client) -> Vec<String> {
    let jobs = client.jobs().await.unwrap();
    jobs.into_iter().map(|job| job.name).collect()
}

/// Asserts that switches match the plan with exactly these jobs, and hold `base` when the jobs are deleted.
pub async fn check_jobs(
    controller: &Controller,
    client: &Client,
    jobs: &[&str],
    base: &[Held],
    testbed: &Testbed,
) {
    testbed.calms_down().await;
    trusted(client).await;
    whole(controller).await;
    assert_eq!(names(client).await, jobs);
    testbed.was_left_alone();
    for job in jobs {
        client.delete_job(job).await.unwrap();
    }
    // On a busy machine a late heartbeat may reroute once more.
    until(async || testbed.held() == base).await;
}
