//! Failed members: who is suspected, and who is evicted for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::time::sleep_until;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::job::{JobId, Rank};
use ultima_planner::membership::{ChangeOptions, Lost, SuspicionChange};
use ultima_planner::names::some_of;

use super::super::controller::Controller;
use super::super::error::JobRequestError;
use super::super::lock::lock;
use super::super::notify::pause_after_scan;
use super::super::registry::Registry;
use super::super::registry::record::Stage;
use super::super::report::report_installed;
use super::super::sessions::Sessions;
use super::change::{JOIN_WAIT, evict_all};
use super::follow::in_span;

/// The result of a scan of a job.
#[derive(Debug, Default)]
struct Scan {
    changes: Vec<SuspicionChange>,
    /// Members to evict. The job is excluded from further evictions until this one has ended.
    overdue: Vec<Rank>,
    due: Option<Instant>,
}

/// An eviction in progress. However it ends, dropping it allows the next one and triggers a scan.
struct Evicting {
    registry: Arc<Mutex<Registry>>,
    sessions: Arc<Sessions>,
    id: JobId,
}

impl Drop for Evicting {
    fn drop(&mut self) {
        if let Some(record) = lock(&self.registry).get_mut(self.id) {
            record.is_evicting = false;
        }
        self.sessions.notify(self.id);
    }
}

/// Scans jobs for suspects, each whenever its members' states may have changed.
pub async fn keep_suspecting(controller: Arc<Controller>) {
    let mut events = controller.sessions.listen();
    let mut ids: BTreeSet<JobId> = controller.registry().iter().map(|it| it.job.id).collect();
    // The times at which jobs are scanned even without an event.
    let mut times: BTreeMap<JobId, Instant> = BTreeMap::new();
    loop {
        let begun = Instant::now();
        for id in ids {
            match suspect(&controller, id, begun) {
                Some(due) => times.insert(id, due),
                None => times.remove(&id),
            };
        }
        pause_after_scan(begun.elapsed()).await;
        let wait = async {
            match times.values().min() {
                Some(due) => sleep_until((*due).into()).await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            changed = events.next() => match changed {
                Some(changed) => changed,
                None => return,
            },
            () = wait => Vec::new(),
        };
        let registry = controller.registry();
        let concerned = changed.into_iter().filter_map(|id| registry.current_of(id));
        let now = Instant::now();
        let due = times.iter().filter(|(_, due)| **due <= now);
        ids = concerned.chain(due.map(|(id, _)| *id)).collect();
    }
}

/// Scans one job, reports changes and evicts overdue suspects. Returns the time of the next
/// scan without an event.
fn suspect(controller: &Arc<Controller>, id: JobId, now: Instant) -> Option<Instant> {
    let Scan {
        changes,
        overdue,
        due,
    } = scan(controller, id, now);
    if !changes.is_empty() {
        report_suspects(controller, id, changes);
        controller.seats.keep_later([id]);
    }
    if !overdue.is_empty() {
        let evicting = Evicting {
            registry: Arc::clone(&controller.registry),
            sessions: Arc::clone(&controller.sessions),
            id,
        };
        let evicts = Arc::clone(controller);
        // A task of its own: a slow switch must not delay scans of other jobs.
        controller.in_background(async move {
            let _evicting = evicting;
            evict_suspects(&evicts, id, &overdue).await;
        });
    }
    due
}

#[tracing::instrument(name = "suspect", skip_all, fields(job, id, epoch))]
fn report_suspects(controller: &Controller, id: JobId, changes: Vec<SuspicionChange>) {
    if let Some(record) = controller.registry().get(id) {
        in_span(&record.job);
    }
    for change in changes {
        let (rank, kind) = match change {
            SuspicionChange::Suspected(rank) => (rank, Kind::Suspected),
            SuspicionChange::Cleared(rank) => (rank, Kind::Cleared),
        };
        match kind {
            Kind::Suspected => tracing::info!(rank = rank.0, "member suspected"),
            _ => tracing::info!(rank = rank.0, "member no longer suspected"),
        }
        report_installed(controller, id, Some(rank), kind, "");
    }
}

fn scan(controller: &Controller, id: JobId, now: Instant) -> Scan {
    let mut registry = controller.registry();
    let current = registry.get(id).filter(|it| it.stage == Stage::Current);
    let Some(seen) = current.map(|it| registry.seen(&controller.sessions, it)) else {
        return Scan::default();
    };
    let is_changing = registry.next_of(id).is_some();
    let Some(record) = registry.get_mut(id) else {
        return Scan::default();
    };
    let mut scan = Scan {
        changes: record.suspicion.update(&seen, now),
        ..Scan::default()
    };
    // A change in progress or a requested eviction takes precedence; its end triggers a scan.
    let is_free = !is_changing && record.change.is_none() && !record.is_evicting;
    let bound = record.job.policy.eviction.bound().filter(|_| is_free);
    scan.due = record.suspicion.due(bound, now);
    let Some(bound) = bound else {
        return scan;
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
            scan.due = scan.due.into_iter().chain([not_before]).min();
        }
        None => {
            record.is_evicting = true;
            scan.overdue = overdue;
        }
    }
    scan
}

async fn evict_suspects(controller: &Arc<Controller>, id: JobId, ranks: &[Rank]) {
    let seconds = {
        let registry = controller.registry();
        registry
            .get(id)
            .map_or(0, |record| record.job.policy.eviction.seconds())
    };
    let why = format!("it was suspected for {seconds} s");
    let gone = ranks.iter().map(|rank| (*rank, why.clone())).collect();
    let options = ChangeOptions {
        join: JOIN_WAIT,
        // A member that does not answer during the eviction gets its own time as a suspect.
        lost: Lost::Cancel,
    };
    let error = match evict_all(controller, id, gone, options).await {
        // They came back while this waited.
        Ok(_) | Err(JobRequestError::SameMembers { .. }) => return,
        Err(error) => error,
    };
    tracing::warn!(%error, "suspected members were not evicted");
    if let Some(record) = controller.registry().get_mut(id) {
        record.unchanged = Some(format!("suspected members were not evicted: {error}"));
        record.evict_not_before = Some(Instant::now() + controller.timers.eviction_retry);
    }
}

/// Why overdue suspects are not evicted.
fn unsure(kept: &[Rank]) -> String {
    format!(
        "suspected members were not evicted: at most half of the members have a session with the controller, and these receive packets from rank {}",
        some_of(kept)
    )
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::{self, Health};
    use ultima_planner::job::JobSpec;
    use ultima_planner::program::Program;
    use ultima_planner::routing::Routes;

    use super::*;

    /// A job whose eviction never ends could not evict its suspects later.
    #[tokio::test]
    async fn an_eviction_ends_even_if_its_task_panics_or_is_aborted() {
        let text = include_str!("../../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let program = Program::v1model().unwrap();
        let mut registry = Registry::new(&fabric, Routes::new(&fabric, Health::default()));
        let spec = JobSpec::new("train", ["h1", "h2"]);
        let (job, plan) = registry.propose(&fabric, program.names(), &spec).unwrap();
        let id = registry.reserve(&fabric, (job, plan)).0.id;
        registry.add(id, None);
        let registry = Arc::new(Mutex::new(registry));
        let sessions = Arc::<Sessions>::default();
        let mut events = sessions.listen();
        for panics in [true, false] {
            lock(&registry).get_mut(id).unwrap().is_evicting = true;
            let evicting = Evicting {
                registry: Arc::clone(&registry),
                sessions: Arc::clone(&sessions),
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
            assert_eq!(
                events.next().await,
                Some(vec![id]),
                "the job is scanned again"
            );
        }
    }
}
