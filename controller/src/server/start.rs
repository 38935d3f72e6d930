//! How a controller gets its switches when it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep_until;

use super::condition::Condition;
use super::controller::Controller;
use super::error::{BringUpError, ServeError};
use super::switch::{ManagedSwitch, is_most};
use crate::fabric::{Part, SwitchId};
use crate::p4rt::SwitchClient;

/// Without which switches a controller does not begin. It comes back to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All of them.
    All,
    /// More than half, by which it leads.
    Most,
    /// None in particular.
    Any,
}

/// Connects to all switches that are there. Those that do not answer are down before anything is planned: jobs that have left them are not sent
/// back.
pub async fn connect(
    switches: &[ManagedSwitch],
    needs: Needs,
    patience: Duration,
    condition: &mut Condition,
) -> Result<BTreeMap<SwitchId, SwitchClient>, ServeError> {
    let asked = switches.iter().map(|switch| async move {
        match needs {
            Needs::Most => switch.connect(patience).await,
            // Nobody comes back to it before it has been brought up.
            Needs::All | Needs::Any => switch.connect_first(patience).await,
        }
    });
    let (mut clients, mut refusal) = (BTreeMap::new(), None);
    for (switch, client) in switches.iter().zip(join_all(asked).await) {
        let error = match client {
            Ok(client) => {
                clients.insert(switch.id, client);
                continue;
            }
            Err(error) => error,
        };
        let goes_on = match needs {
            Needs::All => false,
            Needs::Most => true,
            Needs::Any => error.is_of_one_switch(),
        };
        if !goes_on {
            return Err(error.into());
        }
        tracing::warn!(%error, "going on without it");
        match error.is_silence() {
            true => condition.lose(Part::Transit(switch.id), Instant::now()),
            false => refusal = refusal.or(Some(error)),
        }
    }
    let (led, switches) = (clients.len(), switches.len());
    match (needs, refusal) {
        (Needs::Most, _) if led * 2 <= switches => Err(ServeError::NoMajority { led, switches }),
        // Where all that answer refuse, somebody else has them.
        (Needs::Any, Some(refusal)) if clients.is_empty() => Err(refusal.into()),
        _ => Ok(clients),
    }
}

impl Controller {
    /// Makes these switches hold what they should.
    pub(super) async fn bring_up(
        &self,
        clients: BTreeMap<SwitchId, SwitchClient>,
        needs: Needs,
        patience: Duration,
    ) -> Result<(), BringUpError> {
        match needs {
            Needs::Most => {
                self.bring_up_most(clients, patience).await;
                Ok(())
            }
            Needs::All => self.bring_up_each(clients, patience, false).await,
            Needs::Any => self.bring_up_each(clients, patience, true).await,
        }
    }

    /// What fails and may pass is tried again, for as long as `patience` says. One that does not come up all the same may be left to
    /// whoever keeps it up.
    async fn bring_up_each(
        &self,
        clients: BTreeMap<SwitchId, SwitchClient>,
        patience: Duration,
        goes_on: bool,
    ) -> Result<(), BringUpError> {
        let desired = &self.desired();
        let brought_up = clients.into_iter().map(|(id, client)| async move {
            let switch = &self.switches[id.0];
            match switch.bring_up_first(client, desired, patience).await {
                Err(error) if goes_on && error.is_of_one_switch() => {
                    tracing::warn!(switch = switch.name(), %error, "not brought up yet");
                    switch.disconnect(error.to_string());
                    Ok(())
                }
                brought_up => brought_up,
            }
        });
        try_join_all(brought_up).await?;
        Ok(())
    }

    /// For who leads by majority: goes on without one that fails or has taken longer than `patience`, once it leads at more than
    /// half of them. Whoever keeps it up comes back to it.
    async fn bring_up_most(&self, clients: BTreeMap<SwitchId, SwitchClient>, patience: Duration) {
        let desired = &self.desired();
        let mut missing: BTreeSet<SwitchId> = clients.keys().copied().collect();
        let mut rest: FuturesUnordered<_> =
            (clients.into_iter())
                .map(|(id, client)| async move {
                    (id, self.switches[id.0].bring_up(client, desired).await)
                })
                .collect();
        let deadline = Instant::now() + patience;
        loop {
            let slow = async {
                match is_most(&self.switches) {
                    true => sleep_until(deadline.into()).await,
                    false => std::future::pending().await,
                }
            };
            let (id, brought_up) = tokio::select! {
                next = rest.next() => match next {
                    Some(next) => next,
                    None => return,
                },
                () = slow => break,
            };
            missing.remove(&id);
            if let Err(error) = brought_up {
                let switch = &self.switches[id.0];
                tracing::warn!(switch = switch.name(), %error, "not brought up yet");
                switch.disconnect(error.to_string());
            }
        }
        for id in missing {
            let switch = &self.switches[id.0];
            tracing::warn!(
                switch = switch.name(),
                "takes too long; going on without it"
            );
            switch.disconnect(format!(
                "not what it should be after {} ms",
                patience.as_millis()
            ));
        }
    }
}
