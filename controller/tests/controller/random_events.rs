//! Random events in random order: jobs are created, deleted, updated and resized; members join, run, die, disconnect, are suspected and
//! evicted; elements are drained; switches fail, report ports as down, restart and get another program; another client removes
//! entries; the controller restarts; and calls fail meanwhile. In the end switches match the plan by themselves, and staying
//! members have run each operation in the same epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::FileFailurePersistence;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::evict_member_request::Member;
use ultima_api::v1::{self as api, Job, MemberState};
use ultima_controller::server::Handle;
use ultima_planner::membership::Eviction;

use crate::chaos::{CALLS, Call, FAULTS, Fault, Held};
use crate::target::Target;
use crate::test_agents::TestAgents;
use crate::testbed::{NAMES, Testbed, is_whole_but, names, ports_of, spec_on, trusted, until};

const HOSTS: [&str; 8] = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
/// The job with running members.
const RUNS: &str = "train";
const JOBS: [&str; 3] = [RUNS, "two", "three"];
/// The time for newcomers to join.
const JOIN: Duration = Duration::from_secs(1);
/// Elements that are drained: a spine, a leaf's link to the other spine, and a host's link.
const PARTS: [&str; 3] = ["spine1", "leaf2/102-spine2/2", "leaf3/1"];

#[derive(Clone, Debug)]
enum Event {
    Create(&'static str, Vec<&'static str>),
    Delete(&'static str),
    Resize(&'static str, Vec<&'static str>),
    /// Changes a job's weight and loss threshold.
    Update(&'static str, u32),
    /// Evicts a random rank.
    Evict(&'static str, Index),
    /// All members that have a place in this epoch or the next one, and have not joined.
    Join,
    /// A member dies.
    Kill(Index),
    /// A member loses its session.
    Lose(Index),
    /// All members may open sessions again.
    Find,
    /// All members report one rank as silent.
    Suspect(Index),
    /// All members report no rank as silent.
    Clear,
    Drain(&'static str, bool),
    /// A switch reports one of its ports to other switches as up or down.
    Port(usize, Index, bool),
    /// A switch refuses connections.
    Fail(usize),
    /// All switches accept connections again.
    Mend,
    Reboot(usize),
    Replace(usize),
    Spoil(usize),
    Restart,
    /// Arms a fault at one of the next calls of a kind.
    Fault(usize, Call, usize, Fault),
}

fn event() -> impl Strategy<Value = Event> {
    let job = || select(&JOBS[..]);
    let hosts = || subsequence(&HOSTS[..], 2..=5).prop_shuffle();
    let switch = || 0..NAMES.len();
    let fault = (switch(), select(&CALLS[..]), 0usize..8, select(&FAULTS[..]));
    prop_oneof![
        4 => (job(), hosts()).prop_map(|(job, hosts)| Event::Create(job, hosts)),
        2 => job().prop_map(Event::Delete),
        3 => (job(), hosts()).prop_map(|(job, hosts)| Event::Resize(job, hosts)),
        2 => (job(), 1u32..4).prop_map(|(job, weight)| Event::Update(job, weight)),
        1 => (job(), any::<Index>()).prop_map(|(job, rank)| Event::Evict(job, rank)),
        2 => hosts().prop_map(|hosts| Event::Create(RUNS, hosts)),
        2 => hosts().prop_map(|hosts| Event::Resize(RUNS, hosts)),
        8 => Just(Event::Join),
        1 => any::<Index>().prop_map(Event::Kill),
        1 => any::<Index>().prop_map(Event::Lose),
        1 => Just(Event::Find),
        1 => any::<Index>().prop_map(Event::Suspect),
        1 => Just(Event::Clear),
        2 => (select(&PARTS[..]), any::<bool>()).prop_map(|(element, is)| Event::Drain(element, is)),
        3 => (switch(), any::<Index>(), any::<bool>())
            .prop_map(|(at, nth, is_up)| Event::Port(at, nth, is_up)),
        1 => switch().prop_map(Event::Fail),
        1 => Just(Event::Mend),
        1 => switch().prop_map(Event::Reboot),
        1 => switch().prop_map(Event::Replace),
        1 => switch().prop_map(Event::Spoil),
        1 => Just(Event::Restart),
        6 => fault.prop_map(|(at, call, nth, fault)| Event::Fault(at, call, nth, fault)),
    ]
}

/// A job as the controller reported it.
struct Known {
    /// Its latest epoch.
    epoch: u32,
    weight: u32,
    /// Its possible members: before and after the last accepted change.
    members: Vec<Vec<String>>,
}

struct World {
    testbed: Testbed,
    handle: Option<Handle>,
    client: Client,
    /// The switches' entities before all jobs.
    base: Vec<Held>,
    jobs: BTreeMap<&'static str, Known>,
    /// The owner of each job id in packets: job, number of its creation, and epoch.
    numbers: BTreeMap<u32, (String, u64, u32)>,
    /// The number of times that a job of this name was created.
    creations: BTreeMap<&'static str, u64>,
    drained: BTreeSet<&'static str>,
    /// The members of the running job.
    agents: TestAgents,
    /// True if a member died, or disconnected for so long that it may have lost its place.
    has_lost: bool,
}

fn hosts_of(members: &[api::Member]) -> Vec<String> {
    members.iter().map(|member| member.host.clone()).collect()
}

/// Returns true if `hosts` are `all` or some of them: changes drop members that did not answer or were suspected.
fn are_of(hosts: &[String], all: &[String]) -> bool {
    let mut all = all.iter();
    hosts.iter().all(|host| all.any(|it| it == host))
}

impl World {
    async fn new(seed: u64) -> Self {
        let testbed = Testbed::new(seed, false).await;
        testbed.tells_of_ports();
        let handle = testbed.serve_in_the_end().await;
        World {
            client: testbed.client("a").await,
            base: testbed.held(),
            handle: Some(handle),
            testbed,
            jobs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            creations: BTreeMap::new(),
            drained: BTreeSet::new(),
            agents: TestAgents::default(),
            has_lost: false,
        }
    }

    async fn happens(&mut self, event: &Event) {
        match event {
            Event::Create(name, hosts) => {
                let mut spec = spec_on(name, hosts);
                if *name == RUNS {
                    spec.policy.eviction = Eviction::After(1);
                }
                // A switch that is away until a later event delays the job.
                let at_once = api::CreateJobRequest {
                    wait_ms: Some(0),
                    ..(&spec).into()
                };
                let created = self.client.create_job(at_once).await;
                assert!(created.is_err() || !self.jobs.contains_key(name));
                if let Ok(job) = created {
                    *self.creations.entry(*name).or_default() += 1;
                    let known = Known {
                        epoch: job.epoch,
                        weight: 1,
                        members: vec![hosts_of(&job.members)],
                    };
                    self.jobs.insert(*name, known);
                }
            }
            Event::Delete(name) => {
                let deleted = self.client.delete_job(name).await;
                assert_eq!(deleted.is_ok(), self.jobs.remove(name).is_some());
                if *name == RUNS {
                    self.agents.agree();
                    (self.agents, self.has_lost) = (TestAgents::default(), false);
                }
            }
            Event::Resize(name, hosts) => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                let resized = self.client.resize_job(name, None, &hosts, JOIN, false);
                let resized = resized.await;
                self.changes(name, resized);
            }
            Event::Update(name, weight) => {
                let update = api::UpdateJobRequest {
                    job: name.to_string(),
                    weight: Some(*weight),
                    loss_threshold: Some(10 * weight),
                    evict_after_s: None,
                };
                // It waits for switches that are away no longer than the client.
                let updated = self.client.update_job(update).await;
                assert_eq!(updated.is_ok(), self.jobs.contains_key(name));
                if let Some(known) = self.jobs.get_mut(name) {
                    known.weight = *weight;
                }
            }
            Event::Evict(name, rank) => {
                if let Ok(job) = self.client.job(name).await {
                    let rank = rank.index(job.members.len()) as u32;
                    let evicted = self.client.evict(name, Member::Rank(rank), "").await;
                    self.changes(name, evicted);
                }
            }
            Event::Join => self.join().await,
            Event::Kill(at) => {
                if let Some(host) = self.member(at) {
                    self.agents.kill(&host);
                    self.has_lost = true;
                }
            }
            Event::Lose(at) => {
                if let Some(host) = self.member(at) {
                    self.agents.disconnect(&host);
                    self.has_lost = true;
                }
            }
            Event::Find => self.find(),
            Event::Suspect(at) => self.agents.suspect(&[at.index(HOSTS.len()) as u32]),
            Event::Clear => self.agents.suspect(&[]),
            Event::Drain(element, drained) => {
                // A drain is rejected if jobs have no room elsewhere.
                let name = Target::of_run().element(element);
                if self.client.drain(&name, *drained).await.is_ok() {
                    match drained {
                        true => self.drained.insert(*element),
                        false => self.drained.remove(*element),
                    };
                }
            }
            Event::Port(at, nth, is_up) => {
                self.testbed
                    .port(*at, nth.index(ports_of(*at).len()), *is_up);
            }
            Event::Fail(at) => self.testbed.switches[*at].refuse(true),
            Event::Mend => self.mend(),
            Event::Reboot(at) => self.testbed.switches[*at].reboot(),
            Event::Replace(at) => {
                if self.testbed.switches[*at].state().pipeline.is_some() {
                    self.testbed.switches[*at].replace_program();
                }
            }
            Event::Spoil(at) => self.testbed.take_one(*at),
            Event::Restart => self.restart().await,
            Event::Fault(at, call, nth, fault) => {
                self.testbed.switches[*at].fail(*call, *nth, *fault)
            }
        }
        self.compare().await;
    }

    /// Notes a requested change, which may be carried out or cancelled.
    fn changes(&mut self, name: &'static str, asked: Result<Job, ClientError>) {
        let Ok(job) = asked else { return };
        let next = job.next.as_ref().map_or(&job.members, |it| &it.members);
        let known = self.jobs.get_mut(name).expect("it was created");
        known.members = vec![hosts_of(&job.members), hosts_of(next)];
    }

    /// A random running member.
    fn member(&self, at: &Index) -> Option<String> {
        let hosts = self.agents.hosts();
        (!hosts.is_empty()).then(|| hosts[at.index(hosts.len())].clone())
    }

    async fn join(&mut self) {
        let Ok(job) = self.client.job(RUNS).await else {
            return;
        };
        let members = job.next.as_ref().map_or(&job.members, |it| &it.members);
        let free = members.iter().filter(|it| it.state() == MemberState::Free);
        for member in free {
            // The change may just have been cancelled.
            let _ = self.agents.try_join(&self.client, &member.host).await;
        }
    }

    fn find(&self) {
        HOSTS.iter().for_each(|host| self.agents.reconnect(host));
    }

    fn mend(&self) {
        for switch in &self.testbed.switches {
            switch.refuse(false);
        }
    }

    async fn restart(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.stop().await;
        }
        // A controller without jobs waits for all switches.
        self.mend();
        self.handle = Some(self.testbed.serve_in_the_end().await);
        self.client = self.testbed.client("a").await;
    }

    /// Asserts that exactly the committed jobs exist, epochs only grow, and no job id is used twice.
    async fn compare(&mut self) {
        let jobs = self.client.jobs().await.unwrap();
        let there: BTreeSet<&str> = jobs.iter().map(|job| &*job.name).collect();
        assert_eq!(there, self.jobs.keys().copied().collect::<BTreeSet<_>>());
        for job in &jobs {
            let known = self.jobs.get_mut(&*job.name).expect("as all");
            assert!(job.epoch >= known.epoch, "{} goes back", job.name);
            known.epoch = job.epoch;
            assert_eq!(job.weight, known.weight);
            let hosts = hosts_of(&job.members);
            assert!(
                known.members.iter().any(|all| are_of(&hosts, all)),
                "{job:?}"
            );
            let next = job.next.as_ref().map(|next| (next.epoch, next.id));
            for (epoch, id) in [Some((job.epoch, job.id)), next].into_iter().flatten() {
                let owner = (job.name.clone(), self.creations[&*job.name], epoch);
                let before = self.numbers.insert(id, owner.clone());
                // The next change reuses a cancelled change's epoch.
                assert!(before.is_none_or(|before| before == owner), "{job:?}");
            }
        }
    }

    fn handle(&self) -> &Handle {
        self.handle.as_ref().expect("it runs")
    }

    /// Ends all faults and checks the result.
    async fn check_final_state(mut self) {
        self.testbed.has_failed();
        self.testbed.calms_down().await;
        self.mend();
        self.until_ports_are_known().await;
        self.testbed.tells_of_ports();
        self.find();
        self.agents.suspect(&[]);
        if self.has_lost {
            // A lost member is evicted later, or kept because too few would be left.
            self.happens(&Event::Delete(RUNS)).await;
        }
        for element in std::mem::take(&mut self.drained) {
            let name = Target::of_run().element(element);
            self.client.drain(&name, false).await.unwrap();
        }
        self.rests().await;
        self.runs_on().await;
        self.compare().await;

        // A restarted controller finds the switches matching its store.
        let updates = self.testbed.updates();
        self.restart().await;
        self.rests().await;
        assert_eq!(self.testbed.updates(), updates, "something was written");
        self.compare().await;
        self.runs_on().await;
        self.agents.agree();
        for name in names(&self.client).await {
            self.client.delete_job(&name).await.unwrap();
        }
        self.rests().await;
        assert_eq!(self.testbed.held(), self.base, "something is left");
    }

    /// Waits until the controller has processed all reports of port states: also that of a last port, which goes down.
    async fn until_ports_are_known(&self) {
        (0..self.testbed.switches.len()).for_each(|at| self.testbed.port(at, 0, false));
        until(async || {
            let switches = self.client.switches().await.unwrap();
            switches.iter().all(|it| !it.health.is_empty())
        })
        .await;
    }

    /// Waits until the running job changes no more. If all its members have joined, all run in its epoch.
    async fn runs_on(&self) {
        let mut job = None;
        until(async || {
            job = self.client.job(RUNS).await.ok();
            let Some(job) = &job else { return true };
            let hosts = hosts_of(&job.members);
            // Only this event shows that the previous epoch is removed from switches.
            let resized = self.client.resize_job(RUNS, None, &hosts, JOIN, false);
            let refused = resized.await.err().map(|error| error.to_string());
            let is_over = refused.is_some_and(|it| it.contains("has these members"));
            is_over
                && !job
                    .members
                    .iter()
                    .any(|it| it.state() == MemberState::Suspected)
        })
        .await;
        let Some(job) = job else { return };
        if job
            .members
            .iter()
            .all(|it| it.state() == MemberState::Joined)
        {
            let hosts = hosts_of(&job.members);
            let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
            self.agents.run_in(job.epoch, &hosts).await;
        }
    }

    async fn rests(&self) {
        trusted(&self.client).await;
        until(async || {
            let jobs = self.client.jobs().await.unwrap();
            let rests = |job: &Job| job.next.is_none() && job.remaining.is_empty();
            jobs.iter().all(rests) && is_whole_but(self.handle().controller(), None).await
        })
        .await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        // A case takes a second or more.
        max_shrink_iters: 40,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(ultima_testing::cases(4, 100))
    })]

    #[test]
    fn switches_and_members_are_consistent_after_random_events(
        seed in any::<u64>(),
        events in prop::collection::vec(event(), 1..24),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut world = World::new(seed).await;
            for event in &events {
                world.happens(event).await;
            }
            world.check_final_state().await;
        });
    }
}
