//! Following the leader: a standby copies its store and its changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use ultima_api::v1::{self as api, follow_request::Event};

use super::copy::{self, Assembly, CopyError};
use super::member::Member;
use super::peer::{self, Peer};
use crate::store::StoreError;

/// How often a standby without a leader asks the others which of them leads.
const PAUSE: Duration = Duration::from_millis(200);
/// A shorter connection that ends for the same reason as the last one is not logged again.
const BRIEF: Duration = Duration::from_secs(1);

/// The reason why following a leader has ended.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error("{}", .0.message())]
    Status(#[from] Status),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn request(event: Event) -> api::FollowRequest {
    api::FollowRequest { event: Some(event) }
}

impl Member {
    /// Follows the present leader, forever.
    pub(super) async fn follow_the_leader(&self) {
        let mut logged = None;
        loop {
            let standings = peer::standings(&self.peers).await;
            let leaders = self.peers.iter().zip(standings);
            let leader = leaders
                .filter_map(|(peer, standing)| Some((peer, standing.ok()?)))
                .filter(|(_, standing)| standing.is_leader)
                .max_by_key(|(_, standing)| standing.term);
            if let Some((peer, standing)) = leader {
                let begun = Instant::now();
                let followed = self.follow(peer).await;
                self.know_leader(None);
                let (leader, term) = (&peer.address, standing.term);
                match followed {
                    Ok(()) => tracing::info!(leader, %term, "the leader has stepped down"),
                    Err(error) => {
                        let problem = format!("cannot follow the leader at {leader}: {error}");
                        if begun.elapsed() > BRIEF || logged.as_ref() != Some(&problem) {
                            tracing::warn!("{problem}");
                        }
                        self.know_problem(Some(problem.clone()));
                        logged = Some(problem);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Copies a leader's store and changes until it ends or another controller's term is accepted.
    async fn follow(&self, peer: &Peer) -> Result<(), FollowError> {
        let mut granted = self.granted.subscribe();
        let shape = self.shape;
        let first = api::Following {
            controllers: shape.controllers,
            copies: shape.copies,
            fabric: shape.fabric,
            program: shape.program,
            controller: self.store.controller(),
            history: Some(self.store.history()?.into()),
            accepted: Some(self.store.accepted()?.into()),
        };
        let (acknowledge, requests) = mpsc::channel(16);
        // The channel is new and has room for it.
        let _ = acknowledge.try_send(request(Event::Following(first)));
        let mut copies = peer.follow(ReceiverStream::new(requests)).await?;
        self.know_leader(Some(peer.address.clone()));
        tracing::info!(leader = peer.address, "following");
        let mut assembly = Assembly::default();
        loop {
            let copy = tokio::select! {
                // The old leader's changes must not be stored after the new term was accepted.
                _ = granted.changed() => return Ok(()),
                copy = copies.message() => copy?,
            };
            let Some(copy) = copy else { return Ok(()) };
            let piece = assembly.take(copy)?;
            let store = Arc::clone(&self.store);
            let kept = tokio::task::spawn_blocking(move || copy::keep(&store, piece)).await;
            let kept = kept.expect("the store does not panic, and nobody cancels it")?;
            if let Some(at) = kept {
                // If the leader has closed the channel, the next message tells why.
                let _ = acknowledge.send(request(Event::Stored(at.into()))).await;
            }
        }
    }
}
