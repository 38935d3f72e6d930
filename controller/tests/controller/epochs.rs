//! Changes of a job's members while it runs.

mod keys;
mod library;
mod restarts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use ultima_api::address::Listen;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::attend_request::Event as Request;
use ultima_api::v1::control_client::ControlClient;
use ultima_api::v1::evict_member_request::Member as Named;
use ultima_api::v1::membership_event::Kind;
use ultima_api::v1::{
    AttendRequest, AttendResponse, Attendance, Job, JoinRequest, JoinResponse, LeaveRequest,
    Member, MemberState, Suspects,
};
use ultima_controller::server::{self, Config, Handle, ServeError};
use ultima_controller::store::StoreError;
use ultima_p4runtime::v1::Entity;
use ultima_planner::job::{JobPolicy, JobSpec};
use ultima_planner::membership::Eviction;

use crate::chaos::{ChaosSwitch, Fault};
use crate::target::Target;
use crate::test_agents::{self, TestAgents};
use crate::testbed::{metrics, until, until_event};

const TWO: &str = include_str!("../../../topologies/two-switches.yaml");
const WAIT: Duration = Duration::from_secs(60);

/// A controller with two chaos switches.
struct Site {
    _folder: tempfile::TempDir,
    /// The store's file.
    state: PathBuf,
    /// The control API's socket.
    socket: PathBuf,
    switches: [ChaosSwitch; 2],
    text: String,
    handle: Option<Handle>,
    client: Client,
}

type Held = [BTreeMap<Vec<u8>, Entity>; 2];

async fn serve(text: &str, state: &Path, socket: &Path) -> (Handle, Client) {
    let config = Config {
        listen: Listen::Unix(socket.to_owned()),
        startup_timeout: Duration::from_millis(500),
        state: Some(state.to_owned()),
        ..Target::of_run().config_for(text, "two.yaml")
    };
    let handle = loop {
        match server::serve(config.clone()).await {
            // Tasks of the stopped controller, which ran in this process, may still hold the store.
            Err(ServeError::Store(StoreError::InUse { .. })) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            served => break served.unwrap(),
        }
    };
    let client = Client::connect(&handle.address().to_string())
        .await
        .unwrap();
    (handle, client)
}

impl Site {
    async fn start() -> Self {
        Self::start_with(TWO).await
    }

    async fn start_with(fabric: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [state, socket] = ["state", "socket"].map(|name| folder.path().join(name));
        let switches = [ChaosSwitch::start().await, ChaosSwitch::start().await];
        let [s1, s2] = switches.each_ref().map(|it| it.address().to_string());
        let text = fabric
            .replace("127.0.0.1:9559", &s1)
            .replace("127.0.0.1:9560", &s2)
            .replace("device_id: 2", "device_id: 1");
        let (handle, client) = serve(&text, &state, &socket).await;
        let handle = Some(handle);
        Site {
            _folder: folder,
            state,
            socket,
            switches,
            text,
            handle,
            client,
        }
    }

    /// Restarts the controller.
    async fn restart(&mut self) {
        self.handle.take().unwrap().stop().await;
        let (handle, client) = serve(&self.text, &self.state, &self.socket).await;
        (self.handle, self.client) = (Some(handle), client);
    }

    /// Creates a job on these hosts, with members that run operations.
    async fn run(&self, hosts: &[&str], eviction: Eviction) -> TestAgents {
        let spec = spec(hosts, eviction);
        self.client.create_job(&spec).await.unwrap();
        let mut agents = TestAgents::default();
        for host in hosts {
            agents.join(&self.client, host).await;
        }
        agents.run_in(1, hosts).await;
        agents
    }

    async fn resize(&self, hosts: &[&str], join: Duration) -> Result<Job, ClientError> {
        let members: Vec<String> = hosts.iter().map(|host| (*host).into()).collect();
        self.client
            .resize_job("train", None, &members, join, false)
            .await
    }

    async fn job(&self) -> Job {
        self.client.job("train").await.unwrap()
    }

    fn held(&self) -> Held {
        self.switches.each_ref().map(ChaosSwitch::held)
    }

    /// The number of entities of a job on these hosts.
    async fn size_of(hosts: &[&str]) -> usize {
        let site = Site::start().await;
        let before: usize = site.held().iter().map(BTreeMap::len).sum();
        let agents = site.run(hosts, Eviction::Never).await;
        drop(agents);
        site.held().iter().map(BTreeMap::len).sum::<usize>() - before
    }
}

fn spec(hosts: &[&str], eviction: Eviction) -> JobSpec {
    JobSpec {
        seed: Some(7),
        policy: JobPolicy {
            eviction,
            ..JobPolicy::default()
        },
        sealed: true,
        ..JobSpec::new("train", hosts.iter().copied())
    }
}

fn hosts(job: &Job) -> Vec<&str> {
    job.members
        .iter()
        .map(|member| member.host.as_str())
        .collect()
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (Code, String) {
    match answer {
        Err(ClientError::Refused { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_grows_and_shrinks_while_it_runs() {
    let site = Site::start().await;
    let base = site.held();
    let mut agents = site.run(&["h1", "h2", "h3"], Eviction::Never).await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    let first = watch.next().await.unwrap().unwrap();
    assert_eq!(first.event, None);
    let first = first.job.unwrap();
    assert_eq!(first.epoch, 1);

    // Ranks follow the new order. The old epoch goes on until the newcomer has joined.
    let job = site.resize(&["h4", "h3", "h2", "h1"], WAIT).await.unwrap();
    let next = job.next.clone().unwrap();
    assert_eq!((job.epoch, next.epoch, job.id, next.id), (1, 2, 1, 2));
    assert_eq!(next.members[0].state(), MemberState::Free);
    let refused = refusal(site.resize(&["h1", "h2"], WAIT).await);
    assert_eq!(
        refused,
        (Code::FailedPrecondition, "job train is changing to epoch 2; wait for it (`ultima job watch train`), or cancel it (`ultima job resize train --cancel`)".into())
    );
    agents.join(&site.client, "h4").await;
    agents.run_in(2, &["h1", "h2", "h3", "h4"]).await;
    let kinds = until_event(&mut watch, Kind::Fenced).await;
    assert_eq!(
        kinds,
        [Kind::Installed, Kind::Joined, Kind::Decided, Kind::Fenced]
    );
    let job = site.job().await;
    let grown = job.clone();
    assert_eq!(hosts(&job), ["h4", "h3", "h2", "h1"]);
    assert!(
        job.members
            .iter()
            .all(|member| member.state() == MemberState::Joined)
    );
    assert_eq!(agents.epochs()[&2], job.first_operation);
    assert_eq!((job.epoch, job.seed, job.next), (2, 7, None));

    let refused = refusal(site.resize(&["h4", "h3", "h2", "h1"], WAIT).await);
    assert_eq!(refused.0, Code::AlreadyExists);
    site.resize(&["h1", "h3"], WAIT).await.unwrap();
    agents.run_in(3, &["h1", "h3"]).await;
    agents.ended("h2").await;
    agents.ended("h4").await;
    until_event(&mut watch, Kind::Fenced).await;
    let job = site.job().await;
    assert_eq!(agents.epochs()[&3], job.first_operation);
    // Each fetch of a key is counted.
    let events = site.client.events("job/train").await.unwrap();
    let fetched = events.iter().filter(|it| it.reason == "KeyFetched");
    let fetched: u32 = fetched.map(|it| it.count).sum();
    assert_eq!(fetched, 3 + 4 + 2, "{events:?}");
    // All members of an epoch have the same key, and each epoch has another one.
    let keys = agents.keys();
    let lengths = keys.values().flatten().map(Vec::len);
    assert_eq!(lengths.collect::<Vec<_>>(), [16, 16, 16], "{keys:?}");
    assert_eq!(keys.values().flatten().collect::<BTreeSet<_>>().len(), 3);
    assert!(first.sealed && job.sealed);
    // Each epoch has another UDP port: an agent's socket may still use the old one.
    let ports = [&first, &grown, &job].map(|job| {
        let member = job.members.iter().find(|member| member.host == "h3");
        member.unwrap().udp_port
    });
    assert!(ports[0] < ports[1] && ports[1] < ports[2], "{ports:?}");
    // Nothing of earlier epochs is left on switches.
    let size = site.held().iter().map(BTreeMap::len).sum::<usize>()
        - base.iter().map(BTreeMap::len).sum::<usize>();
    assert_eq!(size, Site::size_of(&["h1", "h3"]).await);
    // An agent of the first epoch gets the reason why it cannot reconnect.
    let gone = LeaveRequest {
        job: "train".into(),
        epoch: 1,
        job_id: 1,
        ..LeaveRequest::default()
    };
    let leave = site.client.leave(gone).await.unwrap_err();
    assert_eq!(
        leave.to_string(),
        "rank 0 of job train has not joined in epoch 1"
    );

    site.client.delete_job("train").await.unwrap();
    until_event(&mut watch, Kind::Deleted).await;
    assert_eq!(watch.next().await.unwrap(), None);
    assert_eq!(site.held(), base);
}

#[tokio::test]
async fn a_switch_that_rejects_a_change_delays_it() {
    let site = Site::start().await;
    let agents = site.run(&["h1", "h2", "h3"], Eviction::Never).await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    let faults = [
        (0, Fault::Refuse),
        (3, Fault::Refuse),
        (9, Fault::Refuse),
        (20, Fault::Refuse),
        (12, Fault::DoAndDisconnect),
    ];
    for (epoch, (nth, fault)) in (2..).zip(faults) {
        let mut hosts = ["h1", "h3"];
        if epoch % 2 == 1 {
            hosts.reverse();
        }
        site.switches[1].fail_at(nth, fault);
        site.resize(&hosts, WAIT).await.unwrap();
        agents.run_in(epoch, &hosts).await;
        until_event(&mut watch, Kind::Fenced).await;
        assert_eq!(site.switches[1].forgive(), 0, "{fault:?} at {nth}");
    }
    agents.epochs();
}

#[tokio::test]
async fn a_missing_or_unwilling_member_cancels_the_change() {
    let site = Site::start().await;
    let mut agents = site.run(&["h1", "h2"], Eviction::Never).await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    let before = site.held();
    site.resize(&["h1", "h2", "h4"], Duration::from_millis(200))
        .await
        .unwrap();
    assert_eq!(
        until_event(&mut watch, Kind::Cancelled).await,
        [Kind::Installed, Kind::Cancelled]
    );
    let job = site.job().await;
    assert_eq!((job.epoch, job.next), (1, None));
    assert_eq!(
        job.unchanged,
        "epoch 2 was cancelled: rank 2 did not join within 0.2 s"
    );
    assert_eq!(site.held(), before);
    agents.epochs();

    // A member that refuses to change over.
    site.resize(&["h1", "h2", "h3"], WAIT).await.unwrap();
    agents.join_refusing(&site.client, "h3").await;
    agents.run_in(2, &["h1", "h2", "h3"]).await;
    until_event(&mut watch, Kind::Fenced).await;
    site.resize(&["h3", "h1"], WAIT).await.unwrap();
    until_event(&mut watch, Kind::Cancelled).await;
    let job = site.job().await;
    assert_eq!(
        job.unchanged,
        "epoch 3 was cancelled: rank 2 cannot change epochs: itssocket is taken"
    );
    // Such a member can be left out. A newcomer's rank is free when it leaves, in another epoch with another key.
    let members = ["h1", "h2", "h3", "h4"].map(String::from);
    site.client
        .resize_job("train", None, &members, WAIT, true)
        .await
        .unwrap();
    until_event(&mut watch, Kind::Installed).await;
    let newcomer = site.client.join("train", "h4", Duration::ZERO).await;
    let newcomer = newcomer.unwrap();
    assert_eq!((newcomer.epoch, newcomer.rank), (3, 3));
    let first_try = newcomer.leave("train");
    site.client.leave(first_try.clone()).await.unwrap();
    agents.join(&site.client, "h4").await;
    until_event(&mut watch, Kind::Installed).await;
    until_event(&mut watch, Kind::Installed).await;
    // Newcomers join again for the new epoch.
    agents.kill("h4");
    agents.join(&site.client, "h4").await;
    // The leave belongs to the cancelled epoch, not to the one with the same number.
    let first_try = LeaveRequest {
        rank: 2,
        ..first_try
    };
    let left = site.client.leave(first_try).await;
    assert_eq!(
        left.unwrap_err().to_string(),
        "rank 2 of job train has not joined in epoch 3"
    );
    agents.run_in(3, &["h1", "h2", "h4"]).await;
    agents.epochs();
    assert_eq!(hosts(&site.job().await), ["h1", "h2", "h4"]);
}

#[tokio::test]
async fn a_controller_restart_during_a_change_leaves_one_epoch() {
    let mut site = Site::start().await;
    let mut agents = site.run(&["h1", "h2", "h3"], Eviction::Never).await;
    // A restart while the change waits for newcomers: the new controller goes on waiting.
    let mut watch = site.client.watch_job("train").await.unwrap();
    site.resize(&["h1", "h2", "h3", "h4"], WAIT).await.unwrap();
    until_event(&mut watch, Kind::Installed).await;
    let held = site.held();
    site.restart().await;
    assert_eq!(site.held(), held);
    assert_eq!(site.job().await.next.unwrap().epoch, 2);
    agents.join(&site.client, "h4").await;
    // Restarts at different moments of a change.
    for (epoch, pause) in [(2, 0), (3, 1), (4, 2), (5, 4), (6, 8), (7, 16), (8, 32)] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        site.restart().await;
        agents.run_in(epoch, &["h1", "h2", "h3", "h4"]).await;
        agents.epochs();
        let mut order = ["h1", "h2", "h3", "h4"];
        order.rotate_left(epoch as usize % 4);
        loop {
            match site.resize(&order, WAIT).await {
                Ok(_) => break,
                Err(error) => assert!(error.to_string().contains("is changing"), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    agents.run_in(9, &["h1", "h2", "h3", "h4"]).await;
    let epochs = agents.epochs();
    assert_eq!(
        epochs.keys().copied().collect::<Vec<_>>(),
        (1..=9).collect::<Vec<_>>()
    );
    let job = site.job().await;
    assert_eq!(job.first_operation, epochs[&9]);
}

#[tokio::test]
async fn a_member_that_missed_an_epochs_end_changes_over_when_it_reconnects() {
    let site = Site::start().await;
    let agents = site.run(&["h1", "h2", "h3"], Eviction::Never).await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    let first = loop {
        agents.disconnect("h3");
        site.resize(&["h3", "h2", "h1"], WAIT).await.unwrap();
        // Nothing is decided until h3 acknowledges: h2 has time to acknowledge, and loses touch then, too.
        tokio::time::sleep(Duration::from_millis(100)).await;
        agents.disconnect("h2");
        agents.reconnect("h3");
        let decided = loop {
            let event = watch.next().await.unwrap().and_then(|next| next.event);
            match event.map(|event| (event.kind(), event.first_operation)) {
                Some((Kind::Decided, first)) => break first,
                // The acknowledgement came too late.
                Some((Kind::Cancelled, _)) => break None,
                _ => {}
            }
        };
        if let Some(first) = decided {
            break first;
        }
        agents.reconnect("h2");
    };
    agents.run_in(2, &["h1", "h3"]).await;
    until_event(&mut watch, Kind::Fenced).await;
    agents.reconnect("h2");
    agents.run_in(2, &["h2"]).await;
    assert_eq!(agents.epochs(), [(1, 0), (2, first)].into());
    // A removed member gets an error, and so does one that never was in that epoch.
    let attendance = |rank, job_id| Attendance {
        job: "train".into(),
        epoch: 1,
        rank,
        slot_bytes: 1408,
        job_id,
        ..Attendance::default()
    };
    for (rank, job_id) in [(3, 1), (1, 9)] {
        let attended = test_agents::hold_session(&site.client, attendance(rank, job_id)).await;
        assert!(attended.unwrap_err().is_over());
    }
}

#[tokio::test]
async fn a_lost_member_is_suspected_and_then_evicted() {
    let site = Site::start().await;
    let mut agents = site
        .run(&["h1", "h2", "h3", "h4"], Eviction::After(1))
        .await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    agents.kill("h2");
    assert_eq!(
        until_event(&mut watch, Kind::Suspected).await,
        [Kind::Suspected]
    );
    assert_eq!(site.job().await.members[1].state(), MemberState::Suspected);
    agents.run_in(2, &["h1", "h3", "h4"]).await;
    agents.epochs();
    let kinds = until_event(&mut watch, Kind::LeftOut).await;
    assert_eq!(kinds, [Kind::Installed, Kind::Decided, Kind::LeftOut]);
    assert_eq!(hosts(&site.job().await), ["h1", "h3", "h4"]);
    until_event(&mut watch, Kind::Fenced).await;
    // The evicted member reconnects to an old epoch.
    let attendance = Attendance {
        job: "train".into(),
        epoch: 1,
        rank: 1,
        slot_bytes: 1408,
        job_id: 1,
        ..Attendance::default()
    };
    let error = test_agents::hold_session(&site.client, attendance)
        .await
        .unwrap_err();
    let first = site.job().await.first_operation;
    assert_eq!(
        error.to_string(),
        format!(
            "epoch 1 of job train is over for rank 1: the job is in epoch 2 since operation {first}; the rank has no place there: it was suspected for 1 s"
        )
    );

    // One of two members cannot accuse the other alone.
    agents.kill("h4");
    agents.run_in(3, &["h1", "h3"]).await;
    until_event(&mut watch, Kind::Fenced).await;
    agents.kill("h3");
    until_event(&mut watch, Kind::Suspected).await;
    while site.job().await.unchanged.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let unchanged = site.job().await.unchanged;
    assert_eq!(
        unchanged,
        "suspected members were not evicted: at most half of the members have a session with the controller, and these receive packets from rank 1"
    );

    // h3 stays suspected after h1, the last member with a session, is killed, too.
    agents.kill("h1");
    let kinds = until_event(&mut watch, Kind::Suspected).await;
    assert_eq!(kinds, [Kind::Suspected]);
    let states = site.job().await.members;
    let suspected = |member: &Member| member.state() == MemberState::Suspected;
    assert!(states.iter().all(suspected), "{states:?}");
}

/// A member with a session that reports silent ranks.
struct Witness {
    says: mpsc::Sender<AttendRequest>,
    _orders: Streaming<AttendResponse>,
}

impl Witness {
    async fn attend(site: &Site, job: &str, seat: &JoinResponse) -> Self {
        let (says, requests) = mpsc::channel(1);
        let attendance = Attendance {
            slot_bytes: 1408,
            ..seat.attendance(job)
        };
        let event = Some(Request::Attendance(attendance));
        says.send(AttendRequest { event }).await.unwrap();
        let address = format!("unix:{}", site.socket.display());
        let mut rpc = ControlClient::connect(address).await.unwrap();
        let orders = rpc.attend(ReceiverStream::new(requests)).await.unwrap();
        Witness {
            says,
            _orders: orders.into_inner(),
        }
    }

    async fn suspects(&self, ranks: &[u32]) {
        let ranks = ranks.to_vec();
        let event = Some(Request::Suspects(Suspects { ranks }));
        self.says.send(AttendRequest { event }).await.unwrap();
    }
}

/// A switch that takes no writes delays the eviction that needs it.
#[tokio::test]
async fn a_slow_eviction_does_not_delay_suspicion_in_other_jobs() {
    let site = Site::start().await;
    let other = JobSpec::new("other", ["h3", "h3", "h4"]);
    site.client.create_job(&other).await.unwrap();
    let mut watch = site.client.watch_job("other").await.unwrap();
    let mut seats = Vec::new();
    for host in &other.members {
        let seat = site.client.join("other", host, Duration::ZERO).await;
        seats.push(seat.unwrap());
    }
    let witnesses = seats
        .iter()
        .map(|seat| Witness::attend(&site, "other", seat));
    let [one, two, _three] = join_all(witnesses).await.try_into().ok().unwrap();

    let eviction = Eviction::After(1);
    let mut agents = site.run(&["h1", "h2", "h3", "h4"], eviction).await;
    let mut evicted = site.client.watch_job("train").await.unwrap();
    site.switches[0].state().stalls_writes = true;
    agents.kill("h2");
    while site.switches[0].state().stalled_writes == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (ranks, kind) in [(&[2][..], Kind::Suspected), (&[], Kind::Cleared)] {
        one.suspects(ranks).await;
        two.suspects(ranks).await;
        until_event(&mut watch, kind).await;
    }
    let job = site.job().await;
    let next = job.next.map(|next| next.epoch);
    assert_eq!((job.epoch, next), (1, Some(2)), "it still waits");
    site.switches[0].state().stalls_writes = false;
    until_event(&mut evicted, Kind::Fenced).await;
    assert_eq!(hosts(&site.job().await), ["h1", "h3", "h4"]);
}

#[tokio::test]
async fn a_watch_sends_the_job_only_when_its_epochs_change() {
    let site = Site::start().await;
    site.client
        .create_job(&spec(&["h1", "h2"], Eviction::Never))
        .await
        .unwrap();
    let mut watch = site.client.watch_job("train").await.unwrap();
    let mut agents = TestAgents::default();
    for host in ["h1", "h2"] {
        agents.join(&site.client, host).await;
    }
    site.resize(&["h2", "h1"], WAIT).await.unwrap();
    agents.run_in(2, &["h1", "h2"]).await;
    let mut reported = BTreeMap::new();
    while !reported.contains_key(&(Kind::Fenced as i32)) {
        let next = watch.next().await.unwrap().expect("more happens");
        let kind = next.event.map_or(0, |event| event.kind);
        reported.insert(kind, next.job.map(|job| hosts(&job).concat()));
    }
    site.client.delete_job("train").await.unwrap();
    let last = watch.next().await.unwrap().expect("more happens");
    assert_eq!(
        (last.job, last.event.unwrap().kind()),
        (None, Kind::Deleted)
    );
    assert_eq!(watch.next().await.unwrap(), None);
    let was = |members: &str| Some(members.to_owned());
    let expected = [
        (Kind::Unspecified, was("h1h2")),
        (Kind::Joined, None),
        (Kind::Installed, was("h1h2")),
        (Kind::Decided, was("h2h1")),
        (Kind::Fenced, was("h2h1")),
    ];
    let expected = expected.map(|(kind, job)| (kind as i32, job));
    assert_eq!(reported, expected.into());
}

#[tokio::test]
async fn invalid_changes_are_rejected_with_one_line() {
    let site = Site::start().await;
    let agents = site.run(&["h1", "h1", "h2"], Eviction::Never).await;
    let unknown = refusal(site.resize(&["h1", "h9"], WAIT).await);
    assert_eq!(unknown.0, Code::NotFound);
    let alone = refusal(site.resize(&["h1"], WAIT).await);
    assert_eq!(alone.0, Code::InvalidArgument);
    let others = refusal(site.resize(&["h3", "h4"], WAIT).await);
    assert_eq!(
        others,
        (
            Code::FailedPrecondition,
            "job train is running: at least one current member must remain; keep one, or delete the job and create it with others".into()
        )
    );
    let full = refusal(site.resize(&["h2", "h2"], WAIT).await);
    assert_eq!(
        full.1,
        "job train: members[1]: host h2 has room for 1 rank of a job (`ranks` in the fabric's file); list another host"
    );
    let evict = async |who| refusal(site.client.evict("train", who, "").await).1;
    assert_eq!(
        evict(Named::Rank(3)).await,
        "job train has no rank 3; it has ranks 0 to 2"
    );
    assert_eq!(
        evict(Named::Host("h1".into())).await,
        "job train has 2 ranks on host h1; name one by its number"
    );
    assert_eq!(
        evict(Named::Host("h4".into())).await,
        "job train has no member on host h4; its members are on h1, h2"
    );
    drop(agents);
    for line in ["grid.row0", "grid.column0"] {
        let mut spec = spec(&["h1", "h2"], Eviction::Never);
        line.clone_into(&mut spec.name);
        site.client.create_job(&spec).await.unwrap();
    }
    let evicted = site.client.evict("grid.row0", Named::Rank(0), "").await;
    assert_eq!(
        refusal(evicted),
        (
            Code::FailedPrecondition,
            "job grid.row0 is a part of grid grid, whose members cannot change; delete the grid and create it with others".into()
        )
    );
}

/// Members that had acknowledged the change go on in the old epoch.
#[tokio::test]
async fn an_operator_can_cancel_a_pending_change() {
    let site = Site::start().await;
    let agents = site.run(&["h1", "h2"], Eviction::Never).await;
    let before = site.held();
    let cancel = async |epoch| site.client.cancel_change("train", epoch).await;
    let nothing = refusal(cancel(0).await);
    assert_eq!(
        nothing,
        (
            Code::FailedPrecondition,
            "job train is in epoch 1: there is no such change to cancel; a decided change cannot be cancelled".into()
        )
    );
    let day = Duration::from_secs(86_400);
    let too_long = refusal(site.resize(&["h1", "h2", "h3"], day + WAIT).await);
    assert_eq!(too_long.0, Code::InvalidArgument, "{}", too_long.1);
    let mut watch = site.client.watch_job("train").await.unwrap();
    site.resize(&["h1", "h2", "h3"], day).await.unwrap();
    let address = site.handle.as_ref().unwrap().address().to_string();
    let (_, metrics) = metrics(&address, None).await;
    let under_way = "ultima_controller_changes_under_way 1";
    assert!(metrics.lines().any(|it| it == under_way), "{metrics}");
    let in_the_way = refusal(site.client.evict("train", Named::Rank(0), "").await);
    assert!(
        in_the_way.1.contains("resize train --cancel"),
        "{}",
        in_the_way.1
    );
    assert_eq!(refusal(cancel(3).await).0, Code::FailedPrecondition);
    let kinds = until_event(&mut watch, Kind::Installed).await;
    assert_eq!(kinds, [Kind::Installed]);
    let job = cancel(2).await.unwrap();
    assert_eq!((job.epoch, &job.next), (1, &None));
    assert_eq!(
        job.unchanged,
        "epoch 2 was cancelled: requested by a client"
    );
    let kinds = until_event(&mut watch, Kind::Cancelled).await;
    assert_eq!(kinds, [Kind::Cancelled]);
    assert_eq!(site.held(), before);
    agents.run_in(1, &["h1", "h2"]).await;
    drop(agents);
}

#[tokio::test]
async fn a_cancelled_change_that_waited_for_a_switch_was_never_installed() {
    let site = Site::start().await;
    let agents = site.run(&["h1", "h2"], Eviction::Never).await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    let hanging = site.switches.each_ref();
    hanging.iter().for_each(|switch| switch.swallow(true));
    site.resize(&["h1", "h2", "h3"], WAIT).await.unwrap();
    // A new member joins when the switches have its epoch.
    let join = site.client.join("train", "h3", Duration::ZERO).await;
    let (code, says) = refusal(join);
    assert_eq!(code, Code::Unavailable);
    assert!(
        says.starts_with("job train is not ready: switch "),
        "{says}"
    );
    let job = site.client.cancel_change("train", 2).await.unwrap();
    assert_eq!((job.epoch, &job.next), (1, &None));
    hanging.iter().for_each(|switch| switch.swallow(false));
    let kinds = until_event(&mut watch, Kind::Cancelled).await;
    assert_eq!(kinds, [Kind::Cancelled]);
    drop(agents);
}

/// Ranks move up when a member is removed, so that rank 1 is another member.
#[tokio::test]
async fn an_eviction_for_an_older_epoch_is_rejected() {
    let site = Site::start().await;
    let spec = spec(&["h1", "h2", "h3", "h4"], Eviction::Never);
    let seen = site.client.create_job(&spec).await.unwrap();
    let mut watch = site.client.watch_job("train").await.unwrap();
    site.resize(&["h2", "h3", "h4"], WAIT).await.unwrap();
    until_event(&mut watch, Kind::Fenced).await;
    let evict = async |epoch, number| {
        let member = Named::Rank(1);
        site.client
            .evict_seen("train", epoch, number, member, "")
            .await
    };
    let now = site.job().await;
    for (epoch, number) in [(1, 0), (0, seen.id), (1, now.id), (2, seen.id), (65538, 0)] {
        let (code, said) = refusal(evict(epoch, number).await);
        assert_eq!(code, Code::FailedPrecondition, "{said}");
        assert_eq!(
            said,
            "job train is in epoch 2, and its members have changed since they were read; nothing was changed: check them with `ultima job show train` and try again"
        );
    }
    assert_eq!(site.job().await, now);
    evict(2, now.id).await.unwrap();
}

/// A member repeats its join with the same attempt number.
#[tokio::test]
async fn a_repeated_join_returns_the_same_rank() {
    let mut site = Site::start().await;
    let spec = spec(&["h1", "h1", "h2"], Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let address = format!("unix:{}", site.socket.display());
    let keys = Mutex::new(BTreeSet::new());
    // The request to leave the rank that was given last.
    let last = Mutex::new(LeaveRequest::default());
    // A rank without a session would be given out again.
    let sessions = Mutex::new(JoinSet::new());
    let join = async |attempt: u64| {
        let mut rpc = ControlClient::connect(address.clone()).await.unwrap();
        let request = JoinRequest {
            job: "train".into(),
            host: "h1".into(),
            wait_ms: 0,
            attempt,
        };
        let seat = rpc.join(request).await.map(tonic::Response::into_inner);
        if let Ok(seat) = &seat {
            keys.lock().unwrap().insert(seat.key.clone());
            *last.lock().unwrap() = seat.leave("train");
            let client = Client::connect(&address).await.unwrap();
            let attendance = seat.attendance("train");
            let session = async move { test_agents::hold_session(&client, attendance).await };
            sessions.lock().unwrap().spawn(session);
        }
        seat.map(|seat| seat.rank).map_err(|status| status.code())
    };
    assert_eq!([join(7).await, join(7).await], [Ok(0), Ok(0)]);
    // The key belongs to the epoch, and survives a restart.
    site.restart().await;
    assert_eq!([join(8).await, join(7).await], [Ok(1), Ok(0)]);
    assert_eq!(join(9).await, Err(Code::FailedPrecondition));
    assert_eq!(keys.lock().unwrap().len(), 1);

    // A rank that was left is free. In a job with a key it would be free in the next epoch.
    site.client.delete_job("train").await.unwrap();
    let spec = JobSpec {
        sealed: false,
        ..spec
    };
    site.client.create_job(&spec).await.unwrap();
    assert_eq!([join(8).await, join(7).await], [Ok(0), Ok(1)]);
    let leave = async || {
        let request = last.lock().unwrap().clone();
        site.client.leave(request).await.unwrap();
    };
    leave().await;
    assert_eq!(join(9).await, Ok(1));
    assert_eq!(join(7).await, Err(Code::FailedPrecondition));
    // Joins without a number are always new members.
    leave().await;
    assert_eq!(join(0).await, Ok(1));
    assert_eq!(join(0).await, Err(Code::FailedPrecondition));
    let members = site.job().await.members;
    let states: Vec<MemberState> = members.iter().map(|member| member.state()).collect();
    use MemberState::{Free, Joined};
    assert_eq!(states, [Joined, Joined, Free]);
}

#[tokio::test]
async fn removed_places_that_were_free_are_reported() {
    let site = Site::start().await;
    let spec = spec(&["h1", "h2", "h3"], Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let mut watch = site.client.watch_job("train").await.unwrap();
    site.resize(&["h3", "h1", "h4"], WAIT).await.unwrap();
    let mut left_out = Vec::new();
    loop {
        let next = watch.next().await.unwrap().expect("more happens");
        match next.event.map(|event| (event.kind(), event)) {
            Some((Kind::LeftOut, event)) => left_out.push((event.rank, event.host, event.reason)),
            Some((Kind::Fenced, _)) => break,
            _ => {}
        }
    }
    let why = "the rank was free, and the job was resized without it";
    assert_eq!(left_out, [(Some(1), "h2".to_owned(), why.to_owned())]);
}

/// The same list is no change, whether members have joined or not, unless one has left.
#[tokio::test]
async fn a_resize_to_the_same_members_is_rejected() {
    let site = Site::start().await;
    let hosts = ["h1", "h3"];
    let client = &site.client;
    client
        .create_job(&spec(&hosts, Eviction::Never))
        .await
        .unwrap();
    let before = site.held();
    let refused = async || {
        let refused = site.resize(&hosts, WAIT).await.unwrap_err().to_string();
        let says = "job train already has these members in this order; nothing was changed";
        assert!(refused.contains(says), "{refused}");
        assert_eq!((site.job().await.next, site.held()), (None, before.clone()));
    };
    refused().await;
    let mut seats = Vec::new();
    for host in hosts {
        seats.push(client.join("train", host, Duration::ZERO).await.unwrap());
        refused().await;
    }
    client.leave(seats[1].leave("train")).await.unwrap();
    let resized = site.resize(&hosts, WAIT).await.unwrap();
    assert_eq!(resized.next.unwrap().epoch, 2);
}

#[tokio::test]
async fn a_join_that_waited_in_a_cancelled_epoch_names_the_job_that_goes_on() {
    let site = Site::start().await;
    let agents = site.run(&["h1", "h2"], Eviction::Never).await;
    site.resize(&["h1", "h2", "h3", "h4"], WAIT).await.unwrap();
    let waiting = tokio::spawn({
        let client = site.client.clone();
        async move { client.join("train", "h3", WAIT).await }
    });
    let state = async || site.job().await.next.map(|next| next.members[2].state());
    until(async || state().await == Some(MemberState::Joined)).await;
    site.client.cancel_change("train", 2).await.unwrap();
    let (code, says) = refusal(waiting.await.unwrap());
    assert_eq!(code, Code::NotFound);
    assert!(says.contains("has no member on host h3"), "{says}");
    drop(agents);
}
