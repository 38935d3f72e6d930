//! Everything that a controller does, against switches that fail on purpose while it does it: they refuse, delay, do half of it,
//! disconnect and forget. Whatever happens, in the end each job is whole or not there, as was answered, and nothing else is
//! on any switch.

mod chaos;
mod target;

use std::path::Path;
use std::time::Duration;

use chaos::{ChaosSwitch, FAULTS, Fault, Held};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use ultima_controller::client::Client;
use ultima_controller::fabric;
use ultima_controller::fabric::damping::Terms;
use ultima_controller::job::{DEFAULT_LOSS_THRESHOLD, Gather, JobSpec, Weight};
use ultima_controller::membership::Eviction;
use ultima_controller::server::{
    self, Config, Controller, Group, Handle, MemberHandle, ServeError, serve_in,
};
use ultima_controller::store::StoreError;

/// Two spines over four leaves of two hosts each, in the file's order: the spines first.
const TOPOLOGY: &str = include_str!("../../topologies/leaf-spine.yaml");
const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];
/// How often each thing is done with each fault, each time with it elsewhere.
const SEEDS: u64 = 4;

/// Less patient than a fabric's operator.
const TERMS: Terms = Terms {
    grace: Duration::from_millis(50),
    hold_first: Duration::from_millis(50),
    hold_most: Duration::from_secs(1),
    quiet: Duration::from_secs(1),
};

struct Bed {
    folder: tempfile::TempDir,
    switches: Vec<ChaosSwitch>,
    text: String,
    random: StdRng,
}

fn spec(name: &str) -> JobSpec {
    JobSpec {
        name: name.into(),
        members: ["h1", "h4", "h5", "h8"].map(String::from).to_vec(),
        gather: Gather::Multicast,
        seed: Some(7),
        loss_threshold: DEFAULT_LOSS_THRESHOLD,
        weight: Weight::default(),
        eviction: Eviction::default(),
        sealed: false,
    }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

impl Bed {
    async fn new(seed: u64) -> Self {
        let mut switches = Vec::new();
        let mut text = TOPOLOGY.to_owned();
        for name in NAMES {
            let switch = ChaosSwitch::start().await;
            let entry = format!("name: {name}, grpc: \"{}\", device_id: 1", switch.address());
            text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
            switches.push(switch);
        }
        Bed {
            folder: tempfile::tempdir().unwrap(),
            switches,
            text,
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn config(&self, name: &str) -> Config {
        let path: &Path = self.folder.path();
        Config {
            listen: self.address(name).parse().unwrap(),
            patience: Duration::from_secs(1),
            // What a switch refused to give up goes with the next look at it.
            audit_every: Duration::from_millis(300),
            state: Some(path.join(name)),
            terms: TERMS,
            ..Config::new(fabric::parse(&self.text, "leaf-spine.yaml").unwrap()).unwrap()
        }
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}/{name}.sock", self.folder.path().display())
    }

    async fn try_serve(&self) -> Result<Handle, ServeError> {
        loop {
            match server::serve(self.config("a")).await {
                // Tasks of the one that was stopped, which is in this process too, still end.
                Err(ServeError::Store(StoreError::InUse { .. })) => pause().await,
                served => return served,
            }
        }
    }

    async fn serve(&self) -> Handle {
        self.try_serve().await.unwrap()
    }

    async fn serve_in(&self, name: &str, other: &str) -> MemberHandle {
        let group = Group {
            grace: Duration::from_millis(50),
            ..Group::new(vec![self.address(other)])
        };
        serve_in(self.config(name), group).await.unwrap()
    }

    async fn client(&self, name: &str) -> Client {
        Client::connect(&self.address(name)).await.unwrap()
    }

    fn held(&self) -> Vec<Held> {
        self.switches.iter().map(ChaosSwitch::held).collect()
    }

    /// One of the switches goes wrong soon; which.
    fn fail(&mut self, fault: Fault, within: usize) -> usize {
        let at = self.random.random_range(0..self.switches.len());
        let nth = self.random.random_range(0..within);
        self.switches[at].fail_at(nth, fault);
        at
    }

    /// Somebody takes a few things off each switch.
    fn damage(&mut self) {
        for switch in &self.switches {
            let held = &mut switch.state().held;
            for _ in 0..6 {
                let at = self.random.random_range(0..held.len());
                let key = held.keys().nth(at).unwrap().clone();
                held.remove(&key);
            }
        }
    }

    /// Whether the fault has happened; it does not from now on.
    fn has_failed(&self, at: usize) -> bool {
        !self.switches[at].forgive()
    }
}

/// Waits until all switches hold what they should.
async fn whole(controller: &Controller) {
    loop {
        let audit = controller.audit(false).await;
        if (audit.iter()).all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty())) {
            return;
        }
        pause().await;
    }
}

async fn names(client: &Client) -> Vec<String> {
    let jobs = client.jobs().await.unwrap();
    jobs.into_iter().map(|job| job.name).collect()
}

/// Switches are as they should be with exactly these jobs, and as before all jobs when these go.
async fn settle(controller: &Controller, client: &Client, jobs: &[&str], base: &[Held], bed: &Bed) {
    whole(controller).await;
    assert_eq!(names(client).await, jobs);
    for job in jobs {
        client.delete_job(job).await.unwrap();
    }
    whole(controller).await;
    assert_eq!(bed.held(), base, "something is left");
}

/// Does something with every fault, at places by seed. `act` says whether the fault came into it.
async fn with_every_fault(act: impl AsyncFn(Bed, Fault) -> bool) {
    for fault in FAULTS {
        let mut failed = 0;
        for seed in 0..SEEDS {
            eprintln!("{fault:?}, seed {seed}");
            failed += usize::from(act(Bed::new(seed).await, fault).await);
        }
        assert!(failed > 0, "{fault:?} never happened");
    }
}

#[tokio::test]
async fn a_job_is_created_or_not() {
    with_every_fault(async |mut bed, fault| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        client.create_job(&spec("kept")).await.unwrap();
        let at = bed.fail(fault, 8);
        let created = client.create_job(&spec("new")).await;
        let failed = bed.has_failed(at);
        let jobs = match created {
            Ok(_) => vec!["kept", "new"],
            Err(_) => vec!["kept"],
        };
        assert!(failed || created.is_ok(), "{created:?}");
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_job_is_deleted() {
    with_every_fault(async |mut bed, fault| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        for name in ["kept", "old"] {
            client.create_job(&spec(name)).await.unwrap();
        }
        let at = bed.fail(fault, 8);
        // What is left on a switch goes when that is back.
        client.delete_job("old").await.unwrap();
        let failed = bed.has_failed(at);
        settle(handle.controller(), &client, &["kept"], &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn jobs_move() {
    with_every_fault(async |mut bed, fault| {
        let handle = bed.serve().await;
        let client = bed.client("a").await;
        client.drain("spine1", true).await.unwrap();
        let base = bed.held();
        client.drain("spine1", false).await.unwrap();
        for name in ["one", "two"] {
            client.create_job(&spec(name)).await.unwrap();
        }
        let at = bed.fail(fault, 8);
        client.drain("spine1", true).await.unwrap();
        let failed = bed.has_failed(at);
        whole(handle.controller()).await;
        // A switch that was away counts as down for a while: then all of it is used again.
        while client.switches().await.unwrap()[1..]
            .iter()
            .any(|it| !it.health.is_empty())
        {
            pause().await;
        }
        for job in client.jobs().await.unwrap() {
            assert!(!job.switches.contains(&"spine1".to_owned()), "{}", job.name);
        }
        settle(handle.controller(), &client, &["one", "two"], &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn what_others_changed_is_put_right() {
    with_every_fault(async |mut bed, fault| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        client.create_job(&spec("kept")).await.unwrap();
        bed.damage();
        let at = bed.fail(fault, 6);
        client.sync_fabric().await.unwrap();
        let failed = bed.has_failed(at);
        // What was refused or lost is put right the next time.
        whole_after_sync(handle.controller(), &client).await;
        settle(handle.controller(), &client, &["kept"], &base, &bed).await;
        failed
    })
    .await;
}

async fn whole_after_sync(controller: &Controller, client: &Client) {
    let is_right = |it: &ultima_controller::api::SwitchDiff| it.problem.is_empty();
    while !client.sync_fabric().await.unwrap().iter().all(is_right) {
        pause().await;
    }
    whole(controller).await;
}

#[tokio::test]
async fn a_controller_comes_back() {
    with_every_fault(async |mut bed, fault| {
        let handle = bed.serve().await;
        let base = bed.held();
        bed.client("a")
            .await
            .create_job(&spec("kept"))
            .await
            .unwrap();
        handle.stop().await;
        bed.damage();
        let at = bed.fail(fault, 6);
        let handle = match bed.try_serve().await {
            Ok(handle) => handle,
            // As whoever keeps it running does.
            Err(error) => {
                eprintln!("{error}");
                bed.serve().await
            }
        };
        let failed = bed.has_failed(at);
        let client = bed.client("a").await;
        settle(handle.controller(), &client, &["kept"], &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn another_controller_takes_over() {
    with_every_fault(async |mut bed, fault| {
        let first = bed.serve_in("a", "b").await;
        let client = bed.client("a").await;
        let base = bed.held();
        let second = bed.serve_in("b", "a").await;
        // Answered when the second has stored it.
        client.create_job(&spec("kept")).await.unwrap();
        bed.damage();
        let at = bed.fail(fault, 6);
        drop(first);
        let client = bed.client("b").await;
        let failed = bed.has_failed(at);
        let controller = second.primary().unwrap();
        whole(&controller).await;
        assert_eq!(names(&client).await, ["kept"]);
        // The first one comes back, and the job goes: only that needs both.
        let _first = bed.serve_in("a", "b").await;
        settle(&controller, &client, &["kept"], &base, &bed).await;
        failed
    })
    .await;
}
