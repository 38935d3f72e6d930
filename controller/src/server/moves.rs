//! Rerouting: trees and routes follow the elements of the fabric that are up. The plan of a reroute
//! is in [`ultima_planner::moves`], its progress on the switches in `progress`.

mod progress;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use ultima_planner::fabric::{Health, SwitchId};
use ultima_planner::job::{Job, JobId};
use ultima_planner::moves::{self, Moved, Room, Step};
use ultima_planner::names::some_of;

use self::progress::Progress;
use super::changes::Reroute;
use super::controller::Controller;
use super::error::JobRequestError;
use super::own_task::restarted;
use super::registry::record::Wanted;
use super::report::{record_drain, record_health, store_events};
use super::switch::ManagedSwitch;
use super::tail_drops::Rerouting;
use crate::store;

/// The result of a drain or undrain.
#[derive(Clone, Debug)]
pub struct Drained {
    /// The element's full name.
    pub element: String,
    /// Switches that are not known to have the new paths: jobs keep the old ones until then.
    pub pending: Vec<SwitchId>,
}

/// Marks all switches as needing a resync if a reroute panics.
struct DirtyOnPanic<'a>(&'a [ManagedSwitch]);

impl Drop for DirtyOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for switch in self.0 {
                switch.mark_dirty();
                switch.wake();
            }
        }
    }
}

impl Controller {
    /// Drains an element of the fabric, by name, or undrains it. Returns when all connected
    /// switches have the new paths.
    ///
    /// # Errors
    /// The element is unknown, a job has no room elsewhere, or the change cannot be stored.
    #[tracing::instrument(name = "drain", skip_all, fields(element = name, drained = drained))]
    pub async fn drain(
        self: &Arc<Self>,
        name: &str,
        drained: bool,
    ) -> Result<Drained, JobRequestError> {
        let known = self.fabric.element_named(name);
        let element = known.as_ref().ok().copied();
        let name = element.map_or_else(|| name.to_owned(), |element| self.fabric.name_of(element));
        let changes = self.change().await?;
        match known {
            Ok(element) => {
                // Not while the registry's lock is held.
                let health = self.condition().with(element, drained);
                self.has_room(&name, health)?;
            }
            // An element that the fabric file no longer has can only be undrained.
            Err(unknown) if drained || !self.condition().is_unknown(&name) => {
                return Err(unknown.into());
            }
            Err(_) => {}
        }
        let change = store::Change::Drain {
            element: name.clone(),
            drained,
        };
        let stored = self.journal.write(change).await;
        stored.map_err(JobRequestError::DrainNotStored)?;
        let mut pending = Vec::new();
        match element {
            Some(element) => {
                self.condition().drain(element, drained);
                drop(changes);
                tracing::info!(element = name, drained, "administrative state set");
                record_drain(self, element, drained);
                self.follow(&mut self.fabric_changed.subscribe()).await?;
                // Jobs with a member there have another condition.
                self.switches_changed.send_replace(());
                pending.extend(self.registry().awaited());
                // So that the next leader knows since when. Without an answer they are stored with the next ones.
                let _ = timeout(self.timers.change, store_events(self)).await;
            }
            None => self.condition().forget_unknown(&name),
        }
        Ok(Drained {
            element: name,
            pending,
        })
    }

    /// Refuses if a job would have no room in a fabric of this health.
    fn has_room(&self, element: &str, health: Health) -> Result<(), JobRequestError> {
        let registry = self.registry();
        let refit = registry.refit(&self.fabric, self.program().names(), health, self.is_sure());
        match registry.refused(&refit) {
            None => Ok(()),
            Some((job, refusal)) => Err(JobRequestError::NoRoom {
                element: element.to_owned(),
                job: job.to_owned(),
                refusal: Box::new(refusal.clone()),
            }),
        }
    }

    /// Reroutes whenever the fabric changes, while the controller leads.
    pub(super) async fn keep_rerouting(self: &Arc<Self>) {
        let log = || {
            tracing::error!(
                "a reroute has panicked; all switches are resynced before their next use"
            );
        };
        restarted(|| self.reroute_until_deposed(), log).await;
    }

    async fn reroute_until_deposed(self: &Arc<Self>) {
        let mut changes_seen = self.fabric_changed.subscribe();
        // Failures from before this subscription.
        changes_seen.mark_changed();
        loop {
            // A change during a reroute may have been seen there.
            if !self.must_reroute() {
                self.changed(&mut changes_seen).await;
            }
            // A controller that does not lead any more reroutes nothing.
            if self.open().is_err() {
                return;
            }
            if !self.must_reroute() && !self.registry().is_waiting() {
                continue;
            }
            // A reroute that was not begun stays due.
            if let Err(error) = self.follow(&mut changes_seen).await {
                tracing::warn!(%error, "cannot reroute");
                changes_seen.mark_changed();
            }
        }
    }

    /// Returns when an element's state may have changed.
    async fn changed(&self, changes_seen: &mut watch::Receiver<()>) {
        let due = self.condition().due();
        let wait = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender is a field of `self`.
            _ = changes_seen.changed() => {}
            () = wait => {}
        }
    }

    /// True if the routes do not match the health of the fabric.
    fn must_reroute(&self) -> bool {
        let (health, changes) = {
            let mut condition = self.condition();
            condition.advance(Instant::now());
            (condition.health(), condition.take_changes())
        };
        record_health(self, &changes);
        *self.routes().health() != health
    }

    /// The right to write to all switches. Writes are interrupted for it only if the health has
    /// changed, not for jobs that wait for room or for a switch.
    async fn lock_for_reroute(&self, changes_seen: &mut watch::Receiver<()>) -> Reroute<'_> {
        let switches = self.switches.iter().map(|switch| &switch.writer);
        let mut lock = pin!(self.changes.reroute(switches));
        let health_changed = async {
            while !self.must_reroute() {
                self.changed(changes_seen).await;
            }
        };
        tokio::select! {
            biased;
            () = health_changed => {}
            lock = &mut lock => return lock,
        }
        let _interrupt = self.changes.interrupt();
        lock.await
    }

    /// Makes routes and trees match the elements that are up now.
    ///
    /// # Errors
    /// The controller does not lead or is stopping. Switches that have a part of the reroute are
    /// resynced later.
    async fn follow(
        self: &Arc<Self>,
        changes_seen: &mut watch::Receiver<()>,
    ) -> Result<(), JobRequestError> {
        let _writers = self.lock_for_reroute(changes_seen).await;
        let _dirty = DirtyOnPanic(&self.switches);
        self.open()?;
        let (health, lost) = {
            let mut condition = self.condition();
            condition.advance(Instant::now());
            (condition.health(), condition.down().clone())
        };
        let done = match self.plan_reroute(health, &lost) {
            Some(planned) => self.carry_out(planned).await,
            None => Ok(()),
        };
        self.registry().free_returned();
        done
    }

    /// The reroute for a fabric of this health; none if nothing changes.
    fn plan_reroute(&self, health: Health, lost: &Health) -> Option<PlannedReroute> {
        let names = self.program().names();
        let mut registry = self.registry();
        if *registry.routes().health() == health && !registry.is_waiting() {
            return None;
        }
        let mut before = registry.wanted();
        let refit = registry.refit(&self.fabric, names, health, self.is_sure());
        let moved = registry.adopt(refit);
        let replanned: Vec<JobId> = moved.iter().map(Moved::id).collect();
        // The tasks write the new paths of jobs that are on no switch yet.
        let is_on = |id: JobId, at: &SwitchId| self.switches[at.0].may_have_any(&[id]);
        let (moved, new): (Vec<Moved>, Vec<Moved>) = (moved.into_iter())
            .partition(|moved| moved.before.1.keys().any(|at| is_on(moved.id(), at)));
        let new: BTreeSet<JobId> = new.iter().map(Moved::id).collect();
        before.jobs.retain(|(job, _)| !new.contains(&job.id));
        let moving: Vec<Rerouting> = (moved.iter())
            .filter_map(|moved| registry.get(moved.after.0.id))
            .map(|record| record.tail_drops.begin_reroute())
            .collect();
        let (now, then) = (&*before.routes, &**registry.routes());
        if replanned.is_empty() && now == then {
            return None;
        }
        let room = Room {
            fabric: &self.fabric,
            names,
            ledger: registry.ledger(),
        };
        let steps = moves::steps(room, now, then, lost, &moved);
        Some(PlannedReroute {
            before,
            replanned,
            moved,
            steps,
            _moving: moving,
        })
    }

    #[tracing::instrument(name = "reroute", skip_all, fields(jobs = planned.moved.len()))]
    async fn carry_out(self: &Arc<Self>, planned: PlannedReroute) -> Result<(), JobRequestError> {
        let PlannedReroute {
            before,
            replanned,
            moved,
            steps,
            _moving,
        } = planned;
        let begun = Instant::now();
        let mut progress = Progress::new(self, half_way(before, &moved), &moved, &steps);
        // In parallel: no switch gets a new tree before both are done.
        tokio::join!(self.store_trees(replanned), progress.divide());
        for at in 0..steps.len() {
            if let Err(error) = self.open() {
                progress.abandon(at);
                return Err(error);
            }
            progress.write(at).await;
        }
        progress.end().await;
        let (keeping_old_paths, updates) = (progress.keeping_old_paths.len(), progress.updates);
        self.note_ready();
        self.finish_waiting();
        let down = self.routes();
        let down = down
            .health()
            .down()
            .map(|element| self.fabric.name_of(element));
        let down = down.collect::<Vec<_>>().join(", ");
        for Moved { after, .. } in &moved {
            let message = match down.as_str() {
                "" => "all elements are in use".to_owned(),
                down => format!("not in use: {down}"),
            };
            let registry = self.registry();
            let cut_off = registry.get(after.0.id).map_or(&[][..], |it| &it.cut_off);
            let message = match cut_off {
                [] => message,
                ranks => {
                    let ranks = some_of(ranks.iter().map(|rank| format!("rank {rank}")));
                    format!("{message}; no path to {ranks}, whose old paths are kept")
                }
            };
            self.log.add_of_job(&after.0, "Rerouted", &message);
        }
        self.metrics.rerouted(begun.elapsed(), moved.len());
        tracing::info!(
            down,
            jobs = moved.len(),
            keeping_old_paths,
            updates,
            took = ?begun.elapsed(),
            "trees and routes rerouted"
        );
        Ok(())
    }
}

/// A reroute of jobs and routes.
struct PlannedReroute {
    /// The desired state before it.
    before: Wanted,
    /// The jobs with new plans.
    replanned: Vec<JobId>,
    /// Those of them that switches may have.
    moved: Vec<Moved>,
    steps: Vec<Step>,
    /// Held until the end: drops during the reroute are not counted.
    _moving: Vec<Rerouting>,
}

/// The desired state before the first round: the old trees, in which the rerouted jobs already have
/// the ids for their new ports.
fn half_way(before: Wanted, moved: &[Moved]) -> Wanted {
    let between: BTreeMap<JobId, Arc<Job>> = (moved.iter())
        .map(|moved| (moved.after.0.id, Arc::new(moved.between())))
        .collect();
    let jobs = before.jobs.into_iter();
    let jobs = jobs.map(|(job, plan)| (between.get(&job.id).cloned().unwrap_or(job), plan));
    Wanted {
        jobs: jobs.collect(),
        ..before
    }
}
