//! Members that are gone: who is suspected, and who loses its place for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use super::super::attendants::Attendants;
use super::super::controller::{Controller, lock};
use super::super::error::JobRequestError;
use super::super::registry::{Registry, Stage};
use super::follow::in_span;
use super::rest;
use crate::api::membership_event::Kind;
use crate::job::{JobId, Rank};
use crate::membership::{Lost, Terms, Turned};
use crate::names::some_of;

/// How long an eviction that was refused, or called off, is not tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(5);

/// How long members may take to find a controller that has taken over, or was started again: they notice only after some seconds that the
/// one that they attend has gone, and not all at once.
const SETTLE: Duration = Duration::from_secs(10);

/// What one look at a job brings.
#[derive(Debug, Default)]
struct Look {
    turned: Vec<Turned>,
    /// Who is to be evicted. Nobody else is of this job until that has come to an end.
    overdue: Vec<Rank>,
    due: Option<Instant>,
}

/// When to look at jobs again although nothing happens.
#[derive(Debug, Default)]
struct Dues {
    by_job: BTreeMap<JobId, Instant>,
    by_time: BTreeSet<(Instant, JobId)>,
}

impl Dues {
    fn set(&mut self, id: JobId, due: Option<Instant>) {
        let before = match due {
            Some(due) => self.by_job.insert(id, due),
            None => self.by_job.remove(&id),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, id));
        }
        self.by_time.extend(due.map(|due| (due, id)));
    }

    fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// The jobs that it is time for.
    fn due_by(&self, now: Instant) -> impl Iterator<Item = JobId> + '_ {
        let due = self.by_time.iter().take_while(move |(due, _)| *due <= now);
        due.map(|(_, id)| *id)
    }
}

/// Suspects of a job that are being evicted, until this is dropped: however that ends, the job is looked at again then.
struct Evicting {
    registry: Arc<Mutex<Registry>>,
    attendants: Arc<Attendants>,
    id: JobId,
}

impl Drop for Evicting {
    fn drop(&mut self) {
        if let Some(record) = lock(&self.registry).get_mut(self.id) {
            record.is_evicting = false;
        }
        self.attendants.tell_news(self.id);
    }
}

impl Controller {
    /// Looks at who is there, of each job whenever that may have changed.
    pub(in super::super) async fn keep_suspecting(self: Arc<Self>) {
        let mut news = self.attendants.news();
        let all = |registry: &Registry| registry.iter().map(|it| it.job.id).collect();
        let mut ids: BTreeSet<JobId> = all(&self.registry());
        if !ids.is_empty() {
            sleep(SETTLE).await;
            ids = all(&self.registry());
        }
        let mut dues = Dues::default();
        loop {
            let begun = Instant::now();
            for id in ids {
                dues.set(id, self.suspect(id, begun));
            }
            rest(begun.elapsed()).await;
            let wait = async {
                match dues.first() {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            let told = tokio::select! {
                told = news.next() => match told {
                    Some(told) => told,
                    None => return,
                },
                () = wait => Vec::new(),
            };
            let registry = self.registry();
            let concerned = told.into_iter().filter_map(|id| registry.current_of(id));
            ids = concerned.chain(dues.due_by(Instant::now())).collect();
        }
    }

    /// Looks at one job, says what has turned out, and evicts who is to be; when to look again although nothing happens.
    fn suspect(self: &Arc<Self>, id: JobId, now: Instant) -> Option<Instant> {
        let Look {
            turned,
            overdue,
            due,
        } = self.look_for_suspects(id, now);
        if !turned.is_empty() {
            self.tell_of_suspects(id, turned);
        }
        if !overdue.is_empty() {
            let controller = Arc::clone(self);
            let evicting = Evicting {
                registry: Arc::clone(&self.registry),
                attendants: Arc::clone(&self.attendants),
                id,
            };
            // On a task of its own: a switch that is slow for this job is no reason not to look at others.
            self.in_background(async move {
                let _evicting = evicting;
                controller.evict_suspects(id, &overdue).await;
            });
        }
        due
    }

    #[tracing::instrument(name = "suspect", skip_all, fields(job, id, epoch))]
    fn tell_of_suspects(&self, id: JobId, turned: Vec<Turned>) {
        if let Some(record) = self.registry().get(id) {
            in_span(&record.job);
        }
        for turned in turned {
            let (rank, kind) = match turned {
                Turned::Suspected(rank) => (rank, Kind::Suspected),
                Turned::Cleared(rank) => (rank, Kind::Cleared),
            };
            let is_suspected = kind == Kind::Suspected;
            tracing::info!(rank = rank.0, is_suspected, "a member");
            self.tell_of_member(id, rank, kind, "");
        }
    }

    fn look_for_suspects(&self, id: JobId, now: Instant) -> Look {
        let mut registry = self.registry();
        let current = registry.get(id).filter(|it| it.stage == Stage::Current);
        let Some(seen) = current.map(|it| registry.seen(&self.attendants, it)) else {
            return Look::default();
        };
        let is_changing = registry.next_of(id).is_some();
        let Some(record) = registry.get_mut(id) else {
            return Look::default();
        };
        let mut look = Look {
            turned: record.suspicion.look(&seen, now),
            ..Look::default()
        };
        // A change that is on its way comes first, and so does an eviction that is asked for; its end is news.
        let is_free = !is_changing && record.change.is_none() && !record.is_evicting;
        let bound = record.job.eviction.bound().filter(|_| is_free);
        look.due = record.suspicion.due(bound, now);
        let Some(bound) = bound else {
            return look;
        };
        let kept = record.suspicion.unsure(bound, now);
        if !kept.is_empty() {
            record.unchanged = Some(unsure(&kept));
        }
        let overdue = record.suspicion.overdue(bound, now);
        let not_before = record.evict_not_before.filter(|it| now < *it);
        match not_before {
            _ if overdue.is_empty() => {}
            Some(not_before) => {
                look.due = look.due.into_iter().chain([not_before]).min();
            }
            None => {
                record.is_evicting = true;
                look.overdue = overdue;
            }
        }
        look
    }

    async fn evict_suspects(self: &Arc<Self>, id: JobId, ranks: &[Rank]) {
        let seconds = {
            let registry = self.registry();
            registry
                .get(id)
                .map_or(0, |record| record.job.eviction.seconds())
        };
        let why = format!("it was suspected for {seconds} s");
        let gone = ranks.iter().map(|rank| (*rank, why.clone())).collect();
        let terms = Terms {
            join: super::JOIN_WAIT,
            // Who does not answer either has its own time before it is evicted.
            lost: Lost::CallOff,
        };
        let error = match self.evict_all(id, gone, terms).await {
            // They have come back while this waited.
            Ok(_) | Err(JobRequestError::SameMembers { .. }) => return,
            Err(error) => error,
        };
        tracing::warn!(%error, "suspected members keep their places");
        if let Some(record) = self.registry().get_mut(id) {
            record.unchanged = Some(format!("suspected members keep their places: {error}"));
            record.evict_not_before = Some(Instant::now() + AGAIN);
        }
    }
}

/// Why suspects are not evicted although it is time.
fn unsure(kept: &[Rank]) -> String {
    format!(
        "suspected members keep their places: no more than half of the members are in touch with the controller, and those hear rank {}",
        some_of(kept)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{self, Health};
    use crate::job::JobSpec;
    use crate::program::Program;
    use crate::routing::Routes;

    /// Who is suspected of a job whose eviction nobody ends would keep its place for ever.
    #[tokio::test]
    async fn an_eviction_ends_however_its_task_does() {
        let text = include_str!("../../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let program = Program::v1model().unwrap();
        let mut registry = Registry::new(&fabric, Routes::new(&fabric, Health::default()));
        let spec = JobSpec::new("train", ["h1", "h2"]);
        let (job, plan) = registry.propose(&fabric, program.names(), &spec).unwrap();
        let id = registry.add(&fabric, job, plan).job.id;
        let registry = Arc::new(Mutex::new(registry));
        let attendants = Arc::<Attendants>::default();
        let mut news = attendants.news();
        for panics in [true, false] {
            lock(&registry).get_mut(id).unwrap().is_evicting = true;
            let evicting = Evicting {
                registry: Arc::clone(&registry),
                attendants: Arc::clone(&attendants),
                id,
            };
            let task = tokio::spawn(async move {
                let _evicting = evicting;
                assert!(!panics, "on purpose");
                std::future::pending::<()>().await;
            });
            if !panics {
                task.abort();
            }
            assert_eq!(task.await.unwrap_err().is_panic(), panics);
            assert!(!lock(&registry).get(id).unwrap().is_evicting);
            assert_eq!(news.next().await, Some(vec![id]), "it is looked at again");
        }
    }

    #[test]
    fn a_job_is_looked_at_when_it_was_last_said_to() {
        let (mut dues, start) = (Dues::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let of = |dues: &Dues, seconds| dues.due_by(at(seconds)).collect::<Vec<_>>();
        let [one, two] = [1, 2].map(JobId);
        dues.set(one, Some(at(5)));
        dues.set(two, Some(at(3)));
        assert_eq!((dues.first(), of(&dues, 4)), (Some(at(3)), vec![two]));
        assert_eq!(of(&dues, 5), [two, one]);
        dues.set(two, Some(at(7)));
        assert_eq!((dues.first(), of(&dues, 6)), (Some(at(5)), vec![one]));
        // The same once more.
        dues.set(two, Some(at(7)));
        dues.set(one, None);
        assert_eq!((dues.first(), of(&dues, 7)), (Some(at(7)), vec![two]));
        dues.set(two, None);
        dues.set(two, None);
        assert_eq!((dues.first(), of(&dues, 9)), (None, vec![]));
    }
}
