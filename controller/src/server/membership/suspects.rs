//! Members that are gone: who is suspected, and who loses its place for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use super::super::controller::Controller;
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
    of: BTreeMap<JobId, Instant>,
    by_time: BTreeSet<(Instant, JobId)>,
}

impl Dues {
    fn set(&mut self, id: JobId, due: Option<Instant>) {
        let before = match due {
            Some(due) => self.of.insert(id, due),
            None => self.of.remove(&id),
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
    fn of(&self, now: Instant) -> impl Iterator<Item = JobId> + '_ {
        let due = self.by_time.iter().take_while(move |(due, _)| *due <= now);
        due.map(|(_, id)| *id)
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
            ids = concerned.chain(dues.of(Instant::now())).collect();
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
            // On a task of its own: a switch that is slow for this job is no reason not to look at others.
            self.in_background(async move {
                controller.evict_suspects(id, &overdue).await;
                if let Some(record) = controller.registry().get_mut(id) {
                    record.is_evicting = false;
                }
                controller.attendants.tell_news(id);
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

    #[test]
    fn a_job_is_looked_at_when_it_was_last_said_to() {
        let (mut dues, start) = (Dues::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let of = |dues: &Dues, seconds| dues.of(at(seconds)).collect::<Vec<_>>();
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
