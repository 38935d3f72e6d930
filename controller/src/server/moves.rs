//! How trees and routes follow what of the fabric is up.

mod progress;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use self::progress::Progress;
use super::changes::{Changes, Turn};
use super::condition::Condition;
use super::controller::{Controller, STUMBLED};
use super::error::{DrainError, JobRequestError};
use super::registry::Wanted;
use super::switch::ManagedSwitch;
use super::tail_drops::Moving;
use crate::fabric::{Health, Part, SwitchId};
use crate::install::Clients;
use crate::job::{Job, JobId};
use crate::moves::{self, Moved, Room, Step};
use crate::p4rt::HURRIED;
use crate::store;

/// How often one that is not primary at most switches looks whether it is again.
const LOOK: Duration = Duration::from_millis(100);

/// The pause before a switch that was too slow for a move is looked at again, where that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What has become of a part that was drained, or is in use again.
#[derive(Clone, Debug)]
pub struct Drained {
    /// Its full name.
    pub part: String,
    /// Switches that are not known to have the new ways: the old ones are kept until they do.
    pub pending: Vec<SwitchId>,
}

/// Doubts all switches where the move is not done to its end, as it panics.
struct DoubtAtPanic<'a>(&'a [ManagedSwitch]);

impl Drop for DoubtAtPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(ManagedSwitch::doubt);
        }
    }
}

impl Controller {
    /// Somebody has seen a part of the fabric come or go: the end of a switch's stream, a port that a switch tells of, telemetry. Trees
    /// and routes follow as soon as it [counts](crate::fabric::damping).
    pub fn see(&self, part: Part, is_there: bool) {
        let mut condition = self.condition();
        let is_news = condition.see(part, is_there, Instant::now());
        self.announce(&condition);
        drop(condition);
        if is_news {
            self.news.send_replace(());
        }
    }

    /// Changes are told when a move is due, long before it is: what is under way ends by then, and the next begins after the move.
    fn announce(&self, condition: &Condition) {
        self.changes.expect(condition.expected());
    }

    /// A part loses what is sent into it.
    pub(super) fn swallow(&self, part: Part) {
        let mut condition = self.condition();
        condition.swallow(part, Instant::now());
        self.announce(&condition);
        drop(condition);
        self.news.send_replace(());
    }

    /// There may be room for jobs that could not move, or nobody any more that a job's old ways are kept for.
    pub(super) fn try_again(&self) {
        if self.registry().is_waiting() {
            self.news.send_replace(());
        }
    }

    /// Moves everything off a part of the fabric, by name, or lets it be used again, when that is done as far as switches are
    /// connected.
    ///
    /// # Errors
    /// There is no such part, some job has no room elsewhere, or it cannot be kept.
    #[tracing::instrument(name = "drain", skip_all, fields(part = name, drained = drained))]
    pub async fn drain(self: &Arc<Self>, name: &str, drained: bool) -> Result<Drained, DrainError> {
        let part = match self.fabric.part_named(name) {
            Ok(part) => part,
            Err(unknown) => return self.forget_drained(name, drained, unknown.into()).await,
        };
        let name = self.fabric.name_of(part);
        let changes = self.change().await?;
        // Its lock is not held while the registry's is waited for.
        let health = self.condition().with(part, drained);
        self.has_room(&name, health)?;
        let change = |drained| store::Change::Drain {
            part: name.clone(),
            drained,
        };
        if let Err(error) = changes.write(&self.journal, change(drained)).await {
            let is_other = self.condition().is_drained(part) != drained;
            return Err(match is_other {
                true => self.take_back(change(!drained), error).await.into(),
                false => error.into(),
            });
        }
        self.condition().drain(part, drained);
        drop(changes);
        tracing::info!(part = name, drained, "drained");
        self.follow(&mut self.news.subscribe()).await?;
        let pending = self.registry().awaited().into_iter().collect();
        Ok(Drained {
            part: name,
            pending,
        })
    }

    /// Forgets a part that was drained and is not in the fabric's file any more.
    async fn forget_drained(
        &self,
        name: &str,
        drained: bool,
        unknown: DrainError,
    ) -> Result<Drained, DrainError> {
        let changes = self.change().await?;
        if drained || !self.condition().knew(name) {
            return Err(unknown);
        }
        let change = |drained| store::Change::Drain {
            part: name.to_owned(),
            drained,
        };
        if let Err(error) = changes.write(&self.journal, change(false)).await {
            return Err(self.take_back(change(true), error).await.into());
        }
        self.condition().forget(name);
        Ok(Drained {
            part: name.to_owned(),
            pending: Vec::new(),
        })
    }

    /// Whether all jobs could move to where they should be if this were how the fabric stood.
    fn has_room(&self, part: &str, health: Health) -> Result<(), DrainError> {
        let registry = self.registry();
        let refit = registry.refit(&self.fabric, self.program().names(), health);
        match registry.refused(&refit) {
            None => Ok(()),
            Some((job, refusal)) => Err(DrainError::NoRoom {
                part: part.to_owned(),
                job: job.to_owned(),
                refusal: Box::new(refusal.clone()),
            }),
        }
    }

    /// Follows what happens to the fabric.
    pub(super) async fn keep_moving(self: &Arc<Self>) {
        let mut news = self.news.subscribe();
        // What has happened before.
        news.mark_changed();
        loop {
            // What has come about during a move is not told of again.
            if !self.is_to_move() {
                self.changed(&mut news).await;
            }
            // One that does not lead moves nothing, and looks again when it may: what is due stays due.
            while self.open().is_err() {
                self.changes.expect(None);
                sleep(LOOK).await;
            }
            if !self.is_to_move() && !self.registry().is_waiting() {
                continue;
            }
            // Whatever it stumbles over, the next change is not to find nobody there.
            let followed = AssertUnwindSafe(self.follow(&mut news));
            match followed.catch_unwind().await {
                Ok(Ok(())) => {}
                // What was not begun is due still.
                Ok(Err(error)) => {
                    tracing::warn!(%error, "nothing moves");
                    news.mark_changed();
                }
                Err(_) => {
                    tracing::error!(
                        "a move has panicked; switches are looked at before they are used again"
                    );
                    // What made it panic may be there still.
                    sleep(STUMBLED).await;
                }
            }
        }
    }

    /// Returns when something may count as something else than before.
    async fn changed(&self, news: &mut watch::Receiver<()>) {
        let due = self.condition().due();
        let wait = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender is ours.
            _ = news.changed() => {}
            () = wait => {}
        }
    }

    /// Whether something is up or down of which the routes do not know.
    fn is_to_move(&self) -> bool {
        let health = {
            let mut condition = self.condition();
            condition.pass(Instant::now());
            condition.health()
        };
        if *self.routes().health() != health {
            return true;
        }
        let mut condition = self.condition();
        // Unless something has happened just now.
        if condition.health() == health {
            condition.settle();
            self.announce(&condition);
        }
        false
    }

    /// The turn to move. Others make way for it only where something is to move; what waits for room, or for a switch, waits for its turn, too.
    async fn turn_to_move(&self, news: &mut watch::Receiver<()>) -> Turn<'_> {
        let must_move = async {
            while !self.is_to_move() {
                self.changed(news).await;
            }
        };
        // The place in the queue is given back before another one is asked for.
        let turn = tokio::select! {
            biased;
            () = must_move => None,
            turn = self.changes.take() => Some(turn),
        };
        match turn {
            Some(turn) => turn.into(),
            None => self.changes.take_for_move().await,
        }
    }

    /// Makes routes and trees what they should be for what is up now.
    ///
    /// # Errors
    /// This controller does not lead, or is being stopped. What had been begun by then is [put right](Self::put_right) as soon as it may be.
    async fn follow(
        self: &Arc<Self>,
        news: &mut watch::Receiver<()>,
    ) -> Result<(), JobRequestError> {
        let _turn = self.turn_to_move(news).await;
        let _doubt = DoubtAtPanic(&self.switches);
        self.open()?;
        let (health, lost) = {
            let mut condition = self.condition();
            condition.pass(Instant::now());
            condition.settle();
            self.announce(&condition);
            (condition.health(), condition.lost().clone())
        };
        match self.plan_move(health, &lost) {
            Some(planned) => self.make(planned).await,
            None => Ok(()),
        }
    }

    /// What is to be moved where this is how the fabric stands; none if nothing is.
    fn plan_move(&self, health: Health, lost: &Health) -> Option<PlannedMove> {
        let names = self.program().names();
        let mut registry = self.registry();
        if *registry.routes().health() == health && !registry.is_waiting() {
            return None;
        }
        let before = registry.wanted();
        let refit = registry.refit(&self.fabric, names, health);
        let moved = registry.become_of(refit);
        let moving: Vec<Moving> = (moved.iter())
            .filter_map(|moved| registry.get(moved.after.0.id))
            .map(|record| record.tail_drops.begin_move())
            .collect();
        let routes = (&*before.routes, &**registry.routes());
        if moved.is_empty() && routes.0 == routes.1 {
            return None;
        }
        let room = Room {
            fabric: &self.fabric,
            names,
            ledger: registry.ledger(),
        };
        let steps = moves::steps(room, routes, lost, &moved);
        Some(PlannedMove {
            before,
            moved,
            steps,
            _moving: moving,
        })
    }

    #[tracing::instrument(name = "move", skip_all, fields(jobs = planned.moved.len()))]
    async fn make(self: &Arc<Self>, planned: PlannedMove) -> Result<(), JobRequestError> {
        let PlannedMove {
            before,
            moved,
            steps,
            _moving,
        } = planned;
        let begun = Instant::now();
        let mut progress = Progress::new(self, half_way(before, &moved));
        // Neither waits for the other: no switch has a new tree before both are done.
        tokio::join!(self.keep_moved(&moved), progress.divide());
        let mut lingering = Lingering::default();
        for (at, step) in steps.iter().enumerate() {
            for id in step.waits_for() {
                self.wait_for_switches(&mut lingering, id, &moved, &steps[..at]);
            }
            if let Err(error) = self.open() {
                let of_steps = steps[at..].iter().flat_map(Step::switches);
                let of_jobs = moved.iter().flat_map(Moved::switches);
                self.put_right_later(progress.abandon(of_steps.chain(of_jobs)));
                return Err(error);
            }
            progress
                .write(step.without(|id| lingering.contains(&id)))
                .await;
        }
        let updates = progress.updates();
        self.put_right_later(progress.end().await);
        let is_unsure = |id: &SwitchId| self.is_unsure(*id);
        if !lingering.is_empty() && !self.registry().awaited().iter().any(is_unsure) {
            self.news.send_replace(());
        }
        let down = self.routes();
        let down = down.health().down().map(|part| self.fabric.name_of(part));
        self.metrics.moved(begun.elapsed(), moved.len());
        tracing::info!(
            down = down.collect::<Vec<_>>().join(", "),
            jobs = moved.len(),
            lingering = lingering.len(),
            updates,
            took = ?begun.elapsed(),
            "trees and routes moved"
        );
        Ok(())
    }

    /// Where it is not known that all switches of a job have its new ways, it keeps the old ones as they are after these steps.
    fn wait_for_switches(
        &self,
        lingering: &mut Lingering,
        id: JobId,
        moved: &[Moved],
        done: &[Step],
    ) {
        let mut jobs = moved.iter().filter(|moved| moved.after.0.id == id);
        let Some(moved) = jobs.next().filter(|_| !lingering.contains(&id)) else {
            return;
        };
        let mut unsure = moved.switches();
        unsure.retain(|id| self.is_unsure(*id));
        if unsure.is_empty() {
            return;
        }
        let plan = done.iter().filter_map(|step| step.of(id));
        let plan = plan.fold((*moved.before.1).clone(), moves::applied);
        let names = unsure.iter().map(|id| self.switches[id.0].name());
        let names = names.collect::<Vec<_>>().join(", ");
        tracing::warn!(
            job = moved.after.0.name,
            switches = names,
            "old ways are kept"
        );
        self.registry()
            .linger(&self.fabric, (moved.between(), plan), unsure);
        lingering.insert(id);
    }

    /// Whether it is not known that a switch holds what was written to it last.
    fn is_unsure(&self, id: SwitchId) -> bool {
        self.client(id).is_err() || self.switches[id.0].is_in_doubt()
    }

    /// Keeps which trees jobs have now. Where that fails, or takes long, they move all the same: a controller that starts with the old ones
    /// moves them again.
    async fn keep_moved(&self, moved: &[Moved]) {
        let ids = moved.iter().map(|moved| moved.after.0.id);
        match timeout(HURRIED, self.seats.keep_jobs(ids)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "trees are not kept"),
            Err(_) => tracing::warn!("trees are kept later: the store is busy for {HURRIED:?}"),
        }
    }

    /// The switches that are connected.
    fn connected(&self) -> Clients {
        let client = |id| Some((id, self.client(id).ok()?));
        self.fabric.switch_ids().filter_map(client).collect()
    }

    /// Puts switches [right](Self::put_right) in the background.
    fn put_right_later(self: &Arc<Self>, switches: BTreeSet<SwitchId>) {
        for id in switches {
            let controller = Arc::clone(self);
            self.in_background(async move { controller.put_right(id).await });
        }
    }

    /// Makes a switch hold what it should that a move has left behind, however long that takes; unless it goes, or somebody else does it.
    async fn put_right(&self, id: SwitchId) {
        let switch = &self.switches[id.0];
        // Several moves may have left it behind: one of these is enough.
        let Some(putting_right) = switch.begin_to_put_right() else {
            return;
        };
        loop {
            let changes = self.changes.take().await;
            if self.open().is_err() {
                drop(changes);
                sleep(LOOK).await;
                continue;
            }
            if self.is_right(switch, &changes).await {
                // Before the next move, which may leave it behind again.
                drop(putting_right);
                return;
            }
            drop(changes);
            sleep(AGAIN).await;
        }
    }

    /// Makes a switch hold what it should; whether nobody has to do that any more.
    async fn is_right(&self, switch: &ManagedSwitch, changes: &Changes<'_>) -> bool {
        let Ok(client) = switch.client() else {
            return true;
        };
        if !switch.is_in_doubt() {
            // Somebody else has put it right.
            self.try_again();
            return true;
        }
        let client = changes.client(&client);
        let put_right = switch.reconcile(&client, &self.desired()).await;
        match &put_right {
            Ok(_) => self.try_again(),
            Err(error) => tracing::warn!(switch = switch.name(), %error, "not put right"),
        }
        put_right.is_ok()
    }

    pub(super) fn condition(&self) -> MutexGuard<'_, Condition> {
        // Nothing panics while it holds the lock, and no change has a half.
        self.condition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Jobs and routes that move.
struct PlannedMove {
    /// What switches were to hold until now.
    before: Wanted,
    moved: Vec<Moved>,
    steps: Vec<Step>,
    /// What is dropped meanwhile is known to be so.
    _moving: Vec<Moving>,
}

/// Jobs whose old ways stay.
type Lingering = BTreeSet<JobId>;

/// What switches hold before any round is written, where jobs that move have the numbers of their new ports already.
fn half_way(before: Wanted, moved: &[Moved]) -> Wanted {
    let between: BTreeMap<JobId, Arc<Job>> = (moved.iter())
        .map(|moved| (moved.after.0.id, Arc::new(moved.between())))
        .collect();
    let jobs = before.jobs.into_iter();
    let jobs = jobs.map(|job| between.get(&job.id).cloned().unwrap_or(job));
    Wanted {
        jobs: jobs.collect(),
        ..before
    }
}
