//! The memberships of a process, which it gives up when it ends early.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use ultima_api::client::Client;

use crate::{Membership, give_up};

/// The time that [`Held::give_up`] waits for the controller.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The memberships of a process in their jobs' latest epochs.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<Mutex<Vec<(Client, Membership)>>>);

impl Held {
    pub(crate) fn add(&self, client: &Client, membership: &Membership) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The seat of an earlier epoch has the same token.
        all.retain(|(_, it)| (&it.job, it.token) != (&membership.job, membership.token));
        all.push((client.clone(), membership.clone()));
    }

    /// Gives all ranks back, within two seconds. Does nothing for those that have left.
    pub async fn give_up(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let left = join_all(
            all.iter()
                .map(|(client, membership)| give_up(client, membership)),
        );
        if timeout(TIMEOUT, left).await.is_err() {
            tracing::debug!("the controller does not answer: it will suspect this process's ranks");
        }
    }
}
