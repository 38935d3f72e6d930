//! A job's epochs in the registry: the current one, and one before or after it.

use std::collections::BTreeMap;
use std::time::Instant;

use ultima_p4runtime::names::Names;
use ultima_planner::fabric::{Fabric, HostId};
use ultima_planner::job::{Epoch, Job, JobId, JobSpec, Rank, Refusal};
use ultima_planner::membership::{Origin, Seen, SessionId, View};
use ultima_planner::plan::JobPlan;

use super::super::registry::Registry;
use super::super::registry::record::{Record, Stage};
use crate::server::error::JobRequestError;
use crate::server::seats::{Attempt, Joiner, Seat, Seats};
use crate::server::sessions::Sessions;

/// An epoch as a member names it. After a cancelled change, the next epoch has the same number and another job id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRef {
    pub epoch: u32,
    /// The job's id in that epoch; 0 if the member does not know it.
    pub job_id: u32,
}

impl Registry {
    /// Plans another epoch of a job with members on these hosts.
    ///
    /// # Errors
    /// The job does not fit, or no epoch or id is left.
    pub fn propose_next(
        &self,
        fabric: &Fabric,
        names: &Names,
        job: &Job,
        hosts: &[HostId],
    ) -> Result<(Job, JobPlan), JobRequestError> {
        let next = next_spec(fabric, job, hosts)?;
        let (ledger, routes) = (&self.ledger, &self.routes);
        let proposed = ledger.propose(fabric, routes, names, &next.0, next.1, job.seed);
        proposed.map_err(|refusal: Refusal| JobRequestError::Refused {
            name: job.name.clone(),
            refusal: Box::new(refusal),
        })
    }

    /// The seats of a new epoch: joined for members that stay and keep their tokens, free for new ones.
    pub fn seats_of(&self, job: &Job, origin: &Origin) -> Seats {
        let before = self.get(origin.of).map(|before| &before.seats);
        let seat = |was: &Option<Rank>| match was {
            Some(was) => {
                let attempt = before.map(|before| before.attempt(*was));
                (Seat::Joined, attempt.unwrap_or_default())
            }
            None => (Seat::Free, Attempt::default()),
        };
        Seats::restored(job, origin.succession.was().iter().map(seat))
    }

    /// Makes the next epoch the current one, from operation `first` on.
    pub fn decide(&mut self, coming: JobId, first: u32) {
        let Some(origin) = self.jobs.get_mut(&coming).and_then(|it| it.origin.as_mut()) else {
            return;
        };
        origin.first = Some(first);
        let of = origin.of;
        let losses = self.jobs.get_mut(&of).map(|before| {
            before.stage = Stage::Leaving;
            std::mem::take(&mut before.losses)
        });
        if let Some(record) = self.jobs.get_mut(&coming) {
            record.stage = Stage::Current;
            record.losses = losses.unwrap_or_default();
        }
    }

    /// Determines, after a restore, which epochs are over and which changes are still in progress.
    pub(super) fn find_leaving(&mut self) {
        let before = |record: &Record| {
            let of = record.origin.as_ref()?.of;
            // Ids are reused at some time: another job may have got this one.
            let is_its =
                |it: &&Record| it.job.name == record.job.name && it.job.epoch < record.job.epoch;
            self.jobs.get(&of).filter(is_its).map(|_| of)
        };
        let all = self.jobs.values();
        let known: Vec<(JobId, Option<JobId>)> = all.map(|it| (it.job.id, before(it))).collect();
        for (id, before) in known {
            let Some(record) = self.jobs.get_mut(&id) else {
                continue;
            };
            let is_decided = record.stage == Stage::Current;
            match before {
                None => record.change = None,
                Some(before) => {
                    if is_decided && let Some(record) = self.jobs.get_mut(&before) {
                        record.stage = Stage::Leaving;
                    }
                }
            }
        }
    }

    /// Ends the change to this epoch.
    pub fn end_change(&mut self, id: JobId) {
        if let Some(record) = self.jobs.get_mut(&id) {
            record.change = None;
        }
    }

    /// The epoch that follows this one, while its change is in progress.
    pub fn next_of(&self, id: JobId) -> Option<&Record> {
        let name = &self.jobs.get(&id)?.job.name;
        self.all_of(name).find(|record| {
            let origin = record.origin.as_ref().filter(|_| record.change.is_some());
            origin.is_some_and(|origin| origin.of == id)
        })
    }

    /// The current epoch of the job that has this id in any of its epochs.
    pub fn current_of(&self, id: JobId) -> Option<JobId> {
        let record = self.jobs.get(&id)?;
        match record.stage {
            Stage::Current => Some(id),
            Stage::Coming => record.origin.as_ref().map(|origin| origin.of),
            Stage::Leaving => self.next_of(id).map(|next| next.job.id),
        }
    }

    /// All installed epochs of a job, the current one last.
    pub fn epochs_of(&self, name: &str) -> Vec<JobId> {
        let of = |stage: Stage| {
            let records = self.all_of(name);
            records
                .filter(move |record| record.stage == stage)
                .map(|record| record.job.id)
        };
        let others = of(Stage::Coming).chain(of(Stage::Leaving));
        others.chain(of(Stage::Current)).collect()
    }

    /// A job in this epoch, if it is installed.
    pub fn in_epoch(&self, name: &str, epoch: u32) -> Option<&Record> {
        let is = |record: &&Record| u32::from(record.job.epoch.0) == epoch;
        self.all_of(name).find(is)
    }

    /// The epoch of a job that a member names, if it is installed.
    pub fn numbered(&self, name: &str, EpochRef { epoch, job_id }: EpochRef) -> Option<&Record> {
        let record = self.in_epoch(name, epoch);
        record.filter(|record| u32::from(record.job.id.0) == job_id)
    }

    /// The epoch in which a member on `host` gets a rank: the one in which this attempt already has
    /// a rank, then the next one if it has a free rank there, else the current one.
    pub fn open_to(
        &self,
        name: &str,
        Joiner { host, attempt }: Joiner,
    ) -> Result<&Record, JobRequestError> {
        let current = self.named(name)?;
        let is_free = |record: &Record| {
            record.stage == Stage::Coming
                && (record.seats.free())
                    .any(|rank| record.job.members[usize::from(rank.0)].host == host)
        };
        let has = |record: &Record| record.seats.has(host, attempt);
        Ok(match self.next_of(current.job.id) {
            Some(next) if has(next) => next,
            _ if has(current) => current,
            Some(next) if is_free(next) => next,
            _ => current,
        })
    }

    /// True if an epoch of a job is being committed.
    pub fn is_committing(&self, name: &str) -> bool {
        (self.reserved.values()).any(|it| it.job.name == name)
    }

    /// True if a member may get its rank of this epoch now. While another epoch is being committed, the members that it keeps
    /// are known, so a rank that is taken now would be lost with this one.
    pub fn gives_ranks(&self, record: &Record, Joiner { host, attempt }: Joiner) -> bool {
        let is_known = record.seats.has(host, attempt);
        record.is_ready && (is_known || !self.is_committing(&record.job.name))
    }

    /// The epochs whose changes are in progress.
    pub fn changing(&self) -> Vec<JobId> {
        let changing = self.jobs.values().filter(|it| it.change.is_some());
        changing.map(|record| record.job.id).collect()
    }

    /// The members' sessions, for a change.
    pub fn view(&self, sessions: &Sessions, next: &Record) -> View {
        let Some(origin) = &next.origin else {
            return View::default();
        };
        let left = self.jobs.get(&origin.of).map(|before| {
            let seats = before.seats.by_rank();
            // A change keeps only members that have joined.
            seats
                .filter(|(_, seat)| *seat != Seat::Joined)
                .map(|(rank, _)| rank)
                .collect()
        });
        View {
            old: sessions.ids(origin.of),
            new: sessions.ids(next.job.id),
            left: left.unwrap_or_default(),
        }
    }

    /// The members' sessions, for the failure detector. A member that is still in the previous
    /// epoch counts.
    pub fn seen(&self, sessions: &Sessions, record: &Record) -> Seen {
        let joined = record
            .seats
            .by_rank()
            .filter(|(_, seat)| *seat == Seat::Joined);
        let mut with_session: BTreeMap<Rank, SessionId> = sessions.ids(record.job.id);
        if let (Some(_), Some(origin)) = (&record.change, &record.origin) {
            let before = sessions.ids(origin.of).into_iter();
            let still = before.filter_map(|(old, at)| Some((origin.succession.becomes(old)?, at)));
            with_session.extend(still);
        }
        Seen {
            joined: joined.map(|(rank, _)| rank).collect(),
            with_session: with_session.into_keys().collect(),
        }
    }

    /// The members of an epoch that have no session now although they should, and when each is suspected for it.
    pub fn absent(&self, sessions: &Sessions, record: &Record) -> BTreeMap<Rank, Instant> {
        // The last scan may be older than the latest session.
        let mut suspicion = record.suspicion.clone();
        suspicion.update(&self.seen(sessions, record), Instant::now());
        suspicion.absent().clone()
    }
}

/// The specification of a job with members on these hosts, and its next epoch.
///
/// # Errors
/// No epoch is left.
pub fn next_spec(
    fabric: &Fabric,
    job: &Job,
    hosts: &[HostId],
) -> Result<(JobSpec, Epoch), JobRequestError> {
    let name = || job.name.clone();
    let epoch = job.epoch.0.checked_add(1).map(Epoch);
    let epoch = epoch.ok_or_else(|| JobRequestError::LastEpoch { name: name() })?;
    let host = |id: &HostId| fabric.host(*id).name.clone();
    let spec = JobSpec {
        name: name(),
        members: hosts.iter().map(host).collect(),
        gather: job.gather(),
        seed: Some(job.seed),
        policy: job.policy,
        sealed: job.key.is_some(),
        created_at: job.created_at,
        request: job.request,
        uid: job.uid,
        client: job.client.clone(),
    };
    Ok((spec, epoch))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use proptest::sample::Index;
    use ultima_planner::fabric::{self, Health};
    use ultima_planner::membership::{ChangeOptions, Lost, Succession};
    use ultima_planner::program::Program;
    use ultima_planner::routing::Routes;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Create(u8),
        Delete(Index),
        /// A new epoch of a job without a change in progress.
        Change(Index),
        Decide(Index),
        /// The end of a decided change, or the cancellation of another.
        End(Index),
    }

    fn event() -> impl Strategy<Value = Event> {
        let any = any::<Index>;
        prop_oneof![
            2 => (0..4u8).prop_map(Event::Create),
            1 => any().prop_map(Event::Delete),
            4 => any().prop_map(Event::Change),
            3 => any().prop_map(Event::Decide),
            3 => any().prop_map(Event::End),
        ]
    }

    struct World {
        fabric: Fabric,
        program: Program,
        registry: Registry,
    }

    impl World {
        /// A world whose ids wrap around after a few jobs.
        fn new() -> Self {
            let text = include_str!("../../../../topologies/star4.yaml");
            let fabric = fabric::parse(text, "star4.yaml").unwrap();
            let routes = Routes::new(&fabric, Health::default());
            let mut world = World {
                registry: Registry::new(&fabric, routes),
                program: Program::v1model().unwrap(),
                fabric,
            };
            let (job, plan) = world.propose("last");
            let job = Job {
                id: JobId(u16::MAX - 2),
                ..job
            };
            world.add((job, plan), None);
            world
        }

        fn add(&mut self, proposed: (Job, JobPlan), origin: Option<Origin>) {
            let (job, _) = self.registry.reserve(&self.fabric, proposed);
            self.registry.add(job.id, origin);
        }

        fn propose(&self, name: &str) -> (Job, JobPlan) {
            let spec = JobSpec::new(name, ["h1", "h2"]);
            let names = self.program.names();
            self.registry.propose(&self.fabric, names, &spec).unwrap()
        }

        fn happens(&mut self, event: &Event) {
            let registry = &self.registry;
            let one_of =
                |at: &Index, ids: Vec<JobId>| (!ids.is_empty()).then(|| ids[at.index(ids.len())]);
            let jobs = || registry.iter().map(|it| it.job.id);
            match event {
                Event::Create(number) => {
                    let name = format!("job{number}");
                    if registry.named(&name).is_err() {
                        self.add(self.propose(&name), None);
                    }
                }
                Event::Delete(at) => {
                    let Some(id) = one_of(at, jobs().collect()) else {
                        return;
                    };
                    let name = registry.get(id).unwrap().job.name.clone();
                    for id in registry.epochs_of(&name) {
                        self.registry.remove(&self.fabric, id);
                    }
                }
                Event::Change(at) => {
                    let is_free = |id: &JobId| {
                        let record = registry.get(*id).unwrap();
                        record.change.is_none() && registry.next_of(*id).is_none()
                    };
                    let Some(id) = one_of(at, jobs().filter(is_free).collect()) else {
                        return;
                    };
                    let of = Arc::clone(&registry.get(id).unwrap().job);
                    let hosts: Vec<HostId> = of.members.iter().map(|it| it.host).collect();
                    let names = self.program.names();
                    let next = registry.propose_next(&self.fabric, names, &of, &hosts);
                    // Ids may have run out.
                    let Ok(next) = next else { return };
                    let why = |_: Rank| String::new();
                    let origin = Origin {
                        of: id,
                        succession: Arc::new(Succession::new(&hosts, |_| true, &hosts, why)),
                        options: ChangeOptions {
                            join: Duration::ZERO,
                            lost: Lost::Cancel,
                        },
                        has_begun: true,
                        first: None,
                    };
                    self.add(next, Some(origin));
                }
                Event::Decide(at) => {
                    let coming = |id: &JobId| registry.get(*id).unwrap().stage == Stage::Coming;
                    let coming = registry.changing().into_iter().filter(coming);
                    if let Some(id) = one_of(at, coming.collect()) {
                        self.registry.decide(id, 7);
                    }
                }
                Event::End(at) => {
                    let Some(id) = one_of(at, registry.changing()) else {
                        return;
                    };
                    let next = registry.get(id).unwrap();
                    let (stage, of) = (next.stage, next.origin.as_ref().unwrap().of);
                    match stage {
                        Stage::Coming => self.registry.remove(&self.fabric, id),
                        Stage::Current | Stage::Leaving => {
                            self.registry.remove(&self.fabric, of);
                            self.registry.end_change(id);
                        }
                    }
                }
            }
        }

        /// Compares the registry's indexes with a scan of all records.
        fn look(&self) {
            let all = &self.registry.jobs;
            let mut changing: Vec<JobId> = (all.iter())
                .filter(|(_, it)| it.change.is_some())
                .map(|(id, _)| *id)
                .collect();
            for (id, record) in all {
                let follows = |it: &&Record| {
                    it.change.is_some() && it.origin.as_ref().is_some_and(|it| it.of == *id)
                };
                let next = all.values().find(follows).map(|it| it.job.id);
                let known = self.registry.next_of(*id).map(|it| it.job.id);
                assert_eq!(known, next, "{id:?}");
                let name = &record.job.name;
                let current = self.registry.named(name).unwrap().job.id;
                assert_eq!(self.registry.current_of(*id), Some(current), "{id:?}");
                let epoch = u32::from(record.job.epoch.0);
                let found = self.registry.in_epoch(name, epoch).unwrap();
                assert_eq!(found.job.id, *id);
                let of_name = all.values().filter(|it| it.job.name == *name);
                let mut epochs = self.registry.epochs_of(name);
                epochs.sort_unstable();
                assert!(of_name.map(|it| it.job.id).eq(epochs));
            }
            for name in (0..4).map(|number| format!("job{number}")) {
                let is_there = all.values().any(|it| it.job.name == name);
                assert_eq!(self.registry.named(&name).is_ok(), is_there);
            }
            let mut known = self.registry.changing();
            known.sort_unstable();
            changing.sort_unstable();
            assert_eq!(known, changing);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(16, 1000)))]
        #[test]
        fn indexes_match_a_scan_of_all_records(
            events in prop::collection::vec(event(), 0..60),
        ) {
            let mut world = World::new();
            for event in &events {
                world.happens(event);
                world.look();
            }
            // As after a restore.
            world.registry.find_leaving();
            world.look();
        }
    }
}
