//! How trees and routes follow what of the fabric is up.

#[cfg(test)]
mod tests;

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::join_all;
use tokio::time::sleep_until;

use super::condition::Condition;
use super::controller::Controller;
use super::error::{BringUpError, DrainError};
use crate::fabric::{Part, SwitchId};
use crate::install::{Clients, Untranslatable};
use crate::moves::{self, Change, Moved, Round};
use crate::p4rt::SwitchClient;
use crate::store;

impl Controller {
    /// Somebody has seen a part of the fabric come or go: the end of a switch's stream, a port that a switch tells of, telemetry. Trees
    /// and routes follow as soon as it [counts](crate::fabric::damping).
    pub fn see(&self, part: Part, is_there: bool) {
        self.condition().see(part, is_there, Instant::now());
        self.news.notify_one();
    }

    /// Moves everything off a part of the fabric, by name, or lets it be used again. Returns its full name when that is done,
    /// as far as switches are connected.
    ///
    /// # Errors
    /// There is no such part, or it cannot be kept.
    pub async fn drain(&self, name: &str, drained: bool) -> Result<String, DrainError> {
        let part = self.fabric.part_named(name)?;
        let name = self.fabric.name_of(part);
        let changes = self.change().await?;
        let change = |drained| store::Change::Drain {
            part: name.clone(),
            drained,
        };
        if let Err(error) = self.journal.write(change(drained)).await {
            if self.condition().is_drained(part) != drained {
                self.take_back(change(!drained)).await;
            }
            return Err(error.into());
        }
        self.condition().drain(part, drained);
        drop(changes);
        tracing::info!(part = name, drained, "drained");
        self.follow().await;
        Ok(name)
    }

    /// Follows what happens to the fabric.
    pub(super) async fn keep_moving(&self) {
        loop {
            let due = self.condition().due();
            let wait = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.news.notified() => {}
                () = wait => {}
            }
            self.follow().await;
        }
    }

    /// Makes routes and trees what they should be for what is up now.
    async fn follow(&self) {
        // One that is being stopped changes nothing more.
        let Ok(_changes) = self.change().await else {
            return;
        };
        let (health, lost) = {
            let mut condition = self.condition();
            condition.pass(Instant::now());
            (condition.health(), condition.lost().clone())
        };
        let names = self.program().names();
        let (before, after, moved) = {
            let mut registry = self.registry();
            let before = Arc::clone(registry.routes());
            if *before.health() == health && !registry.is_waiting() {
                return;
            }
            let moved = registry.refit_all(&self.fabric, names, health);
            (before, Arc::clone(registry.routes()), moved)
        };
        if moved.is_empty() && before == after {
            return;
        }
        let begun = Instant::now();
        self.keep_moved(&moved).await;
        let rounds = moves::rounds(&self.fabric, (&before, &after), &lost, &moved);
        let mut updates = 0;
        for round in rounds {
            updates += round.values().map(Vec::len).sum::<usize>();
            self.write_round(round).await;
        }
        let clients = self.connected();
        self.divide_again(&clients).await;
        for (id, client) in &clients {
            if self.switches[id.0].is_in_doubt() {
                self.put_right(*id, client).await;
            }
        }
        let down = after.health().down().map(|part| self.fabric.name_of(part));
        self.metrics.moved(begun.elapsed(), moved.len());
        tracing::info!(
            down = down.collect::<Vec<_>>().join(", "),
            jobs = moved.len(),
            updates,
            took = ?begun.elapsed(),
            "trees and routes moved"
        );
    }

    /// Keeps which trees jobs have now. Where that fails they move all the same: a controller that starts with the old ones
    /// moves them again.
    async fn keep_moved(&self, moved: &[Moved]) {
        let ids = moved.iter().map(|moved| moved.after.0.id);
        if let Err(error) = self.seats.keep_jobs(ids).await {
            tracing::warn!(%error, "trees are not kept");
        }
    }

    /// The switches that are connected.
    fn connected(&self) -> Clients {
        let client = |id| Some((id, self.client(id).ok()?));
        self.fabric.switch_ids().filter_map(client).collect()
    }

    /// Writes a round on all its switches that are connected; the others get everything when they are. A switch on which something
    /// fails is looked at and put right before the next round.
    async fn write_round(&self, round: Round) {
        let clients = self.connected();
        let writes = round.into_iter().filter_map(|(id, changes)| {
            let client = clients.get(&id)?;
            Some(async move {
                if let Err(error) = self.write_changes(id, client, changes).await {
                    tracing::warn!(%error, "a move is put right");
                    self.put_right(id, client).await;
                }
            })
        });
        join_all(writes).await;
    }

    /// Makes a switch hold at once what it should in the end.
    async fn put_right(&self, id: SwitchId, client: &SwitchClient) {
        let switch = &self.switches[id.0];
        if let Err(error) = self.reconcile(switch, client).await {
            tracing::warn!(switch = switch.name(), %error, "not put right");
        }
    }

    async fn write_changes(
        &self,
        id: SwitchId,
        client: &SwitchClient,
        changes: Vec<Change>,
    ) -> Result<(), BringUpError> {
        let names = self.program().names();
        let updates = changes
            .iter()
            .filter_map(|change| change.update(names).transpose());
        let updates = updates.collect::<Result<Vec<_>, Untranslatable>>()?;
        self.switches[id.0].change(client, names, updates).await
    }

    pub(super) fn condition(&self) -> MutexGuard<'_, Condition> {
        // Nothing panics while it holds the lock, and no change has a half.
        self.condition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
