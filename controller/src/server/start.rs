//! Connecting to the switches and bringing them up when a controller starts.

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
use crate::fabric::{Element, SwitchId};
use crate::p4rt::SwitchClient;

/// The switches that a controller needs to start. It reconnects to the others later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All switches.
    All,
    /// More than half, by which it leads.
    Most,
    /// Any switches.
    Any,
}

/// Connects to all switches. Those that do not answer count as down before anything is planned, so
/// jobs that were rerouted around them stay so.
pub async fn connect(
    switches: &[ManagedSwitch],
    needs: Needs,
    patience: Duration,
    condition: &mut Condition,
) -> Result<BTreeMap<SwitchId, SwitchClient>, ServeError> {
    let asked = switches.iter().map(|switch| async move {
        match needs {
            Needs::Most => switch.connect(patience).await,
            // Nothing else retries before the switch has been brought up.
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
        tracing::warn!(%error, "starting without this switch");
        match error.is_silence() {
            true => condition.lose(Element::Transit(switch.id), Instant::now()),
            false => refusal = refusal.or(Some(error)),
        }
    }
    let (led, switches) = (clients.len(), switches.len());
    match (needs, refusal) {
        (Needs::Most, _) if led * 2 <= switches => Err(ServeError::NoMajority { led, switches }),
        // If all that answer refuse, another controller has them.
        (Needs::Any, Some(refusal)) if clients.is_empty() => Err(refusal.into()),
        _ => Ok(clients),
    }
}

impl Controller {
    /// Makes these switches match the desired state.
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

    /// Brings up each switch and retries temporary failures for as long as `patience`. With
    /// `goes_on`, a switch that still fails is left to its reconnect task.
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

    /// For a controller that leads by majority: once it is primary at more than half of the
    /// switches, it continues without those that fail or take longer than `patience`. Their
    /// reconnect tasks retry.
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
                "bring-up takes too long; starting without this switch"
            );
            switch.disconnect(format!("not brought up within {} ms", patience.as_millis()));
        }
    }
}
