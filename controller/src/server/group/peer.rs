//! A client for another controller of the group.

use std::time::Duration;

use futures_util::future::join_all;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use ultima_api::client;
use ultima_api::v1::replication_client::ReplicationClient;
use ultima_api::v1::{self as api, Role};
use ultima_grpc::tls::ClientTls;

use super::Shape;
use super::copy::{Assembly, CopyError, MAX_MESSAGE, Piece};
use crate::p4rt::Term;
use crate::store::{History, Stored};

/// Timeout of a request for its standing.
const ANSWER: Duration = Duration::from_millis(500);
/// Timeout of a claim, including the transfer of its store.
const CLAIM: Duration = Duration::from_secs(3);
/// Interval of keepalive pings on an idle connection, and the timeout for their answers.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Another controller.
pub struct Peer {
    /// Its address.
    pub address: String,
    rpc: ReplicationClient<Channel>,
}

/// Another controller's standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub is_leader: bool,
    pub controller: u32,
    pub term: Term,
    pub history: History,
    pub shape: Shape,
}

/// The reason why a claim is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It refuses, or does not answer.
    #[error("{}", .0.message())]
    Status(#[from] Status),
    /// It sends something other than its store.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

fn within<T>(timeout: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

impl Peer {
    /// The controller at `address`, over TLS if `tls` is given. Connects with the first request.
    ///
    /// # Errors
    /// The address is malformed.
    pub fn new(address: String, tls: Option<&ClientTls>) -> Result<Self, tonic::transport::Error> {
        let endpoint = client::endpoint(&address, tls)?
            .connect_timeout(ANSWER)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        let rpc = ReplicationClient::new(endpoint.connect_lazy());
        Ok(Peer {
            address,
            rpc: rpc
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        })
    }

    /// Asks for its standing.
    pub async fn standing(&self) -> Result<Standing, Status> {
        let request = within(ANSWER, api::GetStandingRequest {});
        let standing = self.rpc.clone().get_standing(request).await?.into_inner();
        Ok(Standing {
            is_leader: standing.role() == Role::Leader,
            controller: standing.controller,
            term: standing.term.unwrap_or_default().into(),
            history: standing.history.unwrap_or_default().into(),
            shape: Shape {
                controllers: standing.controllers,
                copies: standing.copies,
                fabric: standing.fabric,
                program: standing.program,
            },
        })
    }

    /// Asks it to accept a term. Returns its store if that is later than `history`.
    pub async fn claim(
        &self,
        term: Term,
        history: History,
        shape: Shape,
    ) -> Result<Option<(History, Stored)>, ClaimError> {
        let request = api::ClaimRequest {
            term: Some(term.into()),
            history: Some(history.into()),
            controllers: shape.controllers,
            copies: shape.copies,
            fabric: shape.fabric,
            program: shape.program,
        };
        let mut copies = (self.rpc.clone().claim(within(CLAIM, request)).await?).into_inner();
        let mut assembly = Assembly::default();
        while let Some(copy) = copies.message().await? {
            match assembly.take(copy)? {
                Piece::All(at, stored) => return Ok(Some((at, stored))),
                Piece::More => {}
                Piece::Change(..) => return Err(CopyError::Disorder("a change").into()),
            }
        }
        match assembly.is_empty() {
            true => Ok(None),
            false => Err(CopyError::Disorder("an incomplete store").into()),
        }
    }

    /// Begins to follow it.
    pub async fn follow(
        &self,
        requests: impl tokio_stream::Stream<Item = api::FollowRequest> + Send + 'static,
    ) -> Result<Streaming<api::Copy>, Status> {
        Ok(self.rpc.clone().follow(requests).await?.into_inner())
    }
}

/// The standings of all peers, in the order of `peers`.
pub async fn standings(peers: &[Peer]) -> Vec<Result<Standing, Status>> {
    join_all(peers.iter().map(Peer::standing)).await
}
