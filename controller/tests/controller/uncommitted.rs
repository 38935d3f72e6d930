//! Changes of a job's members while nothing can be committed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1 as api;
use ultima_api::v1::membership_event::Kind;
use ultima_controller::server::{self, Handle};
use ultima_controller::store::{Change, Embedded, Store, StoreError, Stored};
use ultima_planner::job::JobSpec;

use crate::test_agents::{self, TestAgents};
use crate::testbed::{Testbed, check_jobs, names, until, until_event};

const WAIT: Duration = Duration::from_secs(60);

/// A store whose disk can be full, or hang.
#[derive(Debug)]
struct Disk {
    store: Embedded,
    is_full: AtomicBool,
    /// True while changes wait.
    hangs: watch::Sender<bool>,
    /// The number of changes that have come.
    changes: watch::Sender<usize>,
}

#[tonic::async_trait]
impl Store for Disk {
    async fn load(&self) -> Result<Stored, StoreError> {
        self.store.load().await
    }

    async fn apply(&self, change: &Change) -> Result<(), StoreError> {
        self.changes.send_modify(|changes| *changes += 1);
        let mut hangs = self.hangs.subscribe();
        hangs.wait_for(|hangs| !hangs).await.unwrap();
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(StoreError::Io {
                name: "disk".into(),
                reason: Box::new(redb::Error::Io(io::ErrorKind::StorageFull.into())),
            }),
            false => self.store.apply(change).await,
        }
    }
}

impl Disk {
    fn new() -> Arc<Self> {
        Arc::new(Disk {
            store: Embedded::in_memory().unwrap(),
            is_full: AtomicBool::new(false),
            hangs: watch::Sender::new(false),
            changes: watch::Sender::new(0),
        })
    }

    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }
}

/// A controller with such a store.
async fn serve(testbed: &Testbed) -> (Handle, Client, Arc<Disk>) {
    let disk = Disk::new();
    let handle = testbed.serve_on("a", Arc::<Disk>::clone(&disk)).await;
    let client = testbed.client("a").await;
    (handle, client, disk)
}

fn spec(name: &str) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, ["h1", "h3", "h5"])
    }
}

/// Two rejections in sequence: every commit that was pending before the first one has been rejected by then.
async fn refused_twice(client: &Client) {
    for _ in 0..2 {
        let error = client.create_job(&spec("other")).await.unwrap_err();
        assert!(error.to_string().contains("check the disk"), "{error}");
    }
}

type Creating = JoinHandle<Result<api::Job, ClientError>>;

fn create(client: &Client, name: &str) -> Creating {
    let (client, spec) = (client.clone(), spec(name));
    tokio::spawn(async move { client.create_job(&spec).await })
}

/// The store hangs while a job is created.
async fn hang_in_creation(disk: &Disk, client: &Client, name: &str) -> Creating {
    disk.hangs.send_replace(true);
    let mut changes = disk.changes.subscribe();
    let before = *changes.borrow_and_update();
    let creating = create(client, name);
    changes.wait_for(|changes| *changes > before).await.unwrap();
    creating
}

/// A request that waits for another one ends with its client.
#[tokio::test]
async fn a_request_whose_client_goes_while_it_waits_is_cancelled() {
    let testbed = Testbed::new(1, false).await;
    let (_handle, client, disk) = serve(&testbed).await;
    let first = hang_in_creation(&disk, &client, "one").await;
    let second = create(&client, "two");
    // Calls of one connection arrive in their order.
    client.jobs().await.unwrap();
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    for _ in 0..3 {
        client.jobs().await.unwrap();
    }
    disk.hangs.send_replace(false);
    first.await.unwrap().unwrap();
    client.create_job(&spec("three")).await.unwrap();
    assert_eq!(names(&client).await, ["one", "three"]);
}

/// The leader stores events a little later, and the next one lists them.
#[tokio::test]
async fn events_survive_their_leader() {
    let testbed = Testbed::new(1, false).await;
    let disk = Disk::new();
    let mut config = testbed.config("a");
    config.timers.events = Duration::from_millis(1);
    let handle = server::serve_on(config, Some(Arc::<Disk>::clone(&disk))).await;
    let client = testbed.client("a").await;
    client.create_job(&spec("train")).await.unwrap();
    let is_stored = async || {
        let events = disk.load().await.unwrap().events;
        String::from_utf8_lossy(&events).contains("Created")
    };
    until(is_stored).await;
    handle.unwrap().stop().await;
    let _handle = testbed.serve_on("b", disk).await;
    let client = testbed.client("b").await;
    let events = client.events("job/train").await.unwrap();
    let reasons = events.iter().map(|it| (&*it.reason, it.count));
    assert_eq!(reasons.collect::<Vec<_>>(), [("Created", 1)]);
}

/// The reroute also plans the job that is being committed.
#[tokio::test]
async fn a_reroute_does_not_wait_for_the_store() {
    let testbed = Testbed::new(1, false).await;
    let (handle, client, disk) = serve(&testbed).await;
    let (controller, base) = (handle.controller(), testbed.held());
    client.create_job(&spec("one")).await.unwrap();
    let creating = hang_in_creation(&disk, &client, "two").await;
    let uses_spine1 = async |job: &str| {
        let job = client.job(job).await.unwrap();
        job.switches.contains(&"spine1".into())
    };
    assert!(uses_spine1("one").await);
    let spine1 = controller.fabric().element_named("spine1").unwrap();
    controller.observe(spine1, false);
    until(async || !uses_spine1("one").await).await;
    assert!(!creating.is_finished());

    disk.hangs.send_replace(false);
    assert!(creating.await.unwrap().unwrap().ready);
    assert!(!uses_spine1("two").await);
    controller.observe(spine1, true);
    check_jobs(controller, &client, &["one", "two"], &base, &testbed).await;
}

/// The new epoch keeps the members that had joined before it was planned. A later one would lose the rank of the old epoch.
#[tokio::test]
async fn a_join_during_the_commit_of_an_epoch_gets_a_rank_of_that_epoch() {
    let testbed = Testbed::new(1, false).await;
    let (_handle, client, disk) = serve(&testbed).await;
    let spec = JobSpec {
        sealed: true,
        ..spec("train")
    };
    client.create_job(&spec).await.unwrap();
    let seat = client.join("train", "h1", Duration::ZERO).await.unwrap();
    client.leave(seat.leave("train")).await.unwrap();
    let join = |host: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", host, Duration::ZERO).await })
    };
    // The member that left knows the key.
    disk.hangs.send_replace(true);
    let mut changes = disk.changes.subscribe();
    let before = *changes.borrow_and_update();
    let first = join("h1");
    changes.wait_for(|changes| *changes > before).await.unwrap();
    let second = join("h3");
    // Calls of one connection arrive in their order.
    for _ in 0..3 {
        client.jobs().await.unwrap();
    }
    disk.hangs.send_replace(false);
    let [first, second] = [first.await, second.await].map(|seat| seat.unwrap().unwrap());
    assert_eq!(
        [(first.epoch, first.rank), (second.epoch, second.rank)],
        [(2, 0), (2, 1)]
    );
}

/// The job is deleted in both of its epochs, or in none.
#[tokio::test]
async fn a_deletion_that_cannot_be_committed_changes_nothing() {
    let testbed = Testbed::new(1, false).await;
    let (_handle, client, disk) = serve(&testbed).await;
    let base = testbed.held();
    client.create_job(&spec("train")).await.unwrap();
    for host in ["h1", "h3", "h5"] {
        client.join("train", host, Duration::ZERO).await.unwrap();
    }
    let mut watch = client.watch_job("train").await.unwrap();
    let members = ["h1", "h3", "h5", "h7"].map(String::from);
    let resized = client.resize_job("train", None, &members, WAIT, false);
    resized.await.unwrap();
    until_event(&mut watch, Kind::Installed).await;
    let held = testbed.held();
    disk.fill(true);
    let error = client.delete_job("train").await.unwrap_err().to_string();
    assert!(error.contains("check the disk"), "{error}");
    let job = client.job("train").await.unwrap();
    assert_eq!((job.epoch, job.next.map(|next| next.epoch)), (1, Some(2)));
    assert_eq!(testbed.held(), held);
    disk.fill(false);
    assert_eq!(client.delete_job("train").await.unwrap(), [""; 0]);
    assert_eq!(testbed.held(), base);
}

#[tokio::test]
async fn decisions_that_cannot_be_committed_are_retried() {
    let testbed = Testbed::new(1, false).await;
    let (_handle, client, disk) = serve(&testbed).await;
    client.create_job(&spec("train")).await.unwrap();
    let mut agents = TestAgents::default();
    for host in ["h1", "h3"] {
        agents.join(&client, host).await;
    }
    // A member that never changes over.
    let seat = client.join("train", "h5", Duration::ZERO).await.unwrap();
    let attendance = api::Attendance {
        slot_bytes: 1408,
        ..seat.attendance("train")
    };
    let attends = client.clone();
    let third = tokio::spawn(async move { test_agents::hold_session(&attends, attendance).await });
    agents.run_in(1, &["h1", "h3"]).await;
    let mut watch = client.watch_job("train").await.unwrap();
    let resize = async |hosts: &[&str], join: Duration| {
        let members: Vec<String> = hosts.iter().map(|host| (*host).into()).collect();
        let resized = client
            .resize_job("train", None, &members, join, false)
            .await;
        resized.unwrap()
    };

    // An epoch is cancelled.
    resize(&["h1", "h3", "h5", "h7"], Duration::from_millis(200)).await;
    disk.fill(true);
    refused_twice(&client).await;
    assert_eq!(client.job("train").await.unwrap().next.unwrap().epoch, 2);
    disk.fill(false);
    until_event(&mut watch, Kind::Cancelled).await;

    // An epoch ends.
    resize(&["h1", "h3"], WAIT).await;
    until_event(&mut watch, Kind::Decided).await;
    agents.run_in(2, &["h1", "h3"]).await;
    disk.fill(true);
    third.abort();
    refused_twice(&client).await;
    disk.fill(false);
    until_event(&mut watch, Kind::Fenced).await;
    agents.epochs();
}
