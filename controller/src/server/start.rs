//! Connecting to the switches and bringing them up when a controller starts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use tokio::time::timeout;
use ultima_planner::fabric::{Element, SwitchId};

use super::condition::Condition;
use super::controller::Controller;
use super::error::{BringUpError, ServeError};
use super::switch::ManagedSwitch;
use crate::p4rt::SwitchClient;

/// The switches that a controller needs to start. It reconnects to the others later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All switches.
    All,
    /// Any switches.
    Any,
    /// Those that answer promptly: it takes over from another controller.
    Prompt,
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
            Needs::Prompt => switch.connect(patience).await,
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
            Needs::Prompt => true,
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
    match (needs, refusal) {
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
            Needs::Prompt => {
                self.bring_up_prompt(clients, patience).await;
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

    /// Continues without those that fail or take longer than `patience`. Their reconnect tasks retry.
    async fn bring_up_prompt(&self, clients: BTreeMap<SwitchId, SwitchClient>, patience: Duration) {
        let desired = &self.desired();
        let brought_up = clients.into_iter().map(|(id, client)| async move {
            let switch = &self.switches[id.0];
            let problem = match timeout(patience, switch.bring_up(client, desired)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("not brought up within {} ms", patience.as_millis()),
            };
            tracing::warn!(
                switch = switch.name(),
                problem,
                "starting without this switch"
            );
            switch.disconnect(problem);
        });
        join_all(brought_up).await;
    }
}
