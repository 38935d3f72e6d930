//! Members that are gone: who is suspected, and who loses its place for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use super::super::controller::Controller;
use super::super::error::JobRequestError;
use crate::api::membership_event::Kind;
use crate::job::{JobId, Rank};
use crate::membership::{Lost, Terms, Turned};
use crate::names::some_of;

/// How long an eviction that was refused, or called off, is not tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(5);

/// How long members may take to find a controller that has taken over, or was started again: they notice only after some seconds that the
/// one that they attend has gone, and not all at once.
const SETTLE: Duration = Duration::from_secs(10);

/// What one look at all jobs brings.
#[derive(Default)]
struct Look {
    turned: Vec<(JobId, Turned)>,
    overdue: Vec<(JobId, Vec<Rank>)>,
    due: Option<Instant>,
}

impl Controller {
    /// Looks at who is there, whenever that may have changed.
    pub(in super::super) async fn keep_suspecting(self: Arc<Self>) {
        let mut news = self.attendants.news();
        let has_jobs = self.registry().iter().next().is_some();
        if has_jobs {
            sleep(SETTLE).await;
        }
        loop {
            news.borrow_and_update();
            let Look {
                turned,
                overdue,
                due,
            } = self.look_for_suspects(Instant::now());
            for (id, turned) in turned {
                let (rank, kind) = match turned {
                    Turned::Suspected(rank) => (rank, Kind::Suspected),
                    Turned::Cleared(rank) => (rank, Kind::Cleared),
                };
                self.tell_of_member(id, rank, kind, "");
            }
            for (id, ranks) in overdue {
                self.evict_suspects(id, &ranks).await;
            }
            let wait = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = news.changed() => if changed.is_err() { return },
                () = wait => {}
            }
        }
    }

    fn look_for_suspects(&self, now: Instant) -> Look {
        let mut look = Look::default();
        let mut registry = self.registry();
        let ids: Vec<JobId> = registry.iter().map(|record| record.job.id).collect();
        for id in ids {
            let Some(seen) = registry
                .get(id)
                .map(|it| registry.seen(&self.attendants, it))
            else {
                continue;
            };
            let is_changing = registry.next_of(id).is_some();
            let Some(record) = registry.get_mut(id) else {
                continue;
            };
            let turned = record.suspicion.look(&seen, now);
            look.turned
                .extend(turned.into_iter().map(|turned| (id, turned)));
            // A change that is on its way comes first; its end is news.
            let is_free = !is_changing && record.change.is_none();
            let bound = record.job.eviction.bound().filter(|_| is_free);
            let mut due = record.suspicion.due(bound, now);
            if let Some(bound) = bound {
                let overdue = record.suspicion.overdue(bound, now);
                let kept = record.suspicion.unsure(bound, now);
                if !kept.is_empty() {
                    record.unchanged = Some(unsure(&kept));
                }
                match record
                    .evict_not_before
                    .filter(|not_before| now < *not_before)
                {
                    Some(not_before) if !overdue.is_empty() => due = Some(not_before),
                    _ if !overdue.is_empty() => look.overdue.push((id, overdue)),
                    _ => {}
                }
            }
            look.due = [look.due, due].into_iter().flatten().min();
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
