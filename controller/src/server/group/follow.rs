//! Copying what the primary promises.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::copy::{self, Assembly, CopyError};
use super::member::Member;
use super::peer::{self, Peer};
use crate::api::{self, follow_request::Event};
use crate::store::StoreError;

/// How often the others are asked which of them is primary.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a controller does not follow another any more.
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
    /// Follows whichever of the others is primary, for ever.
    pub(super) async fn follow_the_primary(&self) {
        loop {
            let standings = peer::standings(&self.peers).await;
            let primaries = self.peers.iter().zip(standings);
            let primary = primaries
                .filter_map(|(peer, standing)| Some((peer, standing?)))
                .filter(|(_, standing)| standing.is_primary)
                .max_by_key(|(_, standing)| standing.term);
            if let Some((peer, standing)) = primary {
                tracing::info!(primary = peer.address, term = %standing.term, "following");
                let followed = self.follow(peer).await;
                self.know_primary(None);
                match followed {
                    Ok(()) => tracing::info!(primary = peer.address, "it leads no more"),
                    Err(error) => {
                        tracing::warn!(primary = peer.address, %error, "following no more");
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Copies what a primary has and changes, until it ends.
    async fn follow(&self, peer: &Peer) -> Result<(), FollowError> {
        let first = api::Following {
            controller: self.store.controller(),
            history: Some(self.store.history()?.into()),
            accepted: Some(self.store.accepted()?.into()),
        };
        let (told, requests) = mpsc::channel(16);
        // The channel is new and has room for it.
        let _ = told.try_send(request(Event::Following(first)));
        let mut copies = peer.follow(ReceiverStream::new(requests)).await?;
        self.know_primary(Some(peer.address.clone()));
        let mut assembly = Assembly::default();
        while let Some(copy) = copies.message().await? {
            let piece = assembly.take(copy)?;
            let store = Arc::clone(&self.store);
            let kept = tokio::task::spawn_blocking(move || copy::keep(&store, piece)).await;
            let kept = kept.expect("the store does not panic, and nobody cancels it")?;
            if let Some(at) = kept {
                // Where nobody listens any more the next message says why.
                let _ = told.send(request(Event::Stored(at.into()))).await;
            }
        }
        Ok(())
    }
}
