//! Finds the leader among several controllers, for every call.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::body::Body;
use tonic::codegen::{Service, StdError, http};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use ultima_grpc::tls::ClientTls;

use crate::dial::dial;
use crate::error::{ClientError, LEADER};
use crate::v1::leadership_client::LeadershipClient;
use crate::v1::{GetStandingRequest, GetStandingResponse, Role};

/// Time limit for finding a leader while controllers answer.
const FIND: Duration = Duration::from_secs(10);
/// Pause before all controllers are asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a controller's answer about its role.
const ANSWER: Duration = Duration::from_secs(2);
/// Time to wait for controllers that do not answer, once another has answered.
const SILENCE: Duration = Duration::from_secs(1);

/// Sends calls to the leader. After a failed call, the next one looks for the leader again.
#[derive(Clone, Debug)]
pub struct Route {
    addresses: Arc<[String]>,
    tls: Option<ClientTls>,
    /// True if a standby may answer the reads that it serves while no controller leads.
    reads_at_standbys: bool,
    known: Arc<AsyncMutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    leader: Option<Channel>,
    /// The leader's address, as a standby reported it.
    hint: Option<String>,
}

impl Route {
    /// Finds the leader among the controllers at `addresses`.
    ///
    /// # Errors
    /// No controller answers, or none leads in time.
    pub async fn find(addresses: Vec<String>, tls: Option<ClientTls>) -> Result<Self, ClientError> {
        let route = Route::over(addresses, tls, false);
        route.leader().await?;
        Ok(route)
    }

    /// The same, but a standby answers the reads that it serves while no controller leads. Returns the address of such a
    /// standby.
    ///
    /// # Errors
    /// No controller answers.
    pub async fn find_to_read(
        addresses: Vec<String>,
        tls: Option<ClientTls>,
    ) -> Result<(Self, Option<String>), ClientError> {
        let route = Route::over(addresses, tls, true);
        let standby = route.reader().await?.standby;
        Ok((route, standby))
    }

    fn over(addresses: Vec<String>, tls: Option<ClientTls>, reads_at_standbys: bool) -> Self {
        Route {
            addresses: addresses.into(),
            tls,
            reads_at_standbys,
            known: Arc::default(),
        }
    }

    /// The addresses, for errors.
    pub fn addresses(&self) -> String {
        self.addresses.join(", ")
    }

    /// True if there are several addresses.
    pub fn is_to_several(&self) -> bool {
        self.addresses.len() > 1
    }

    async fn leader(&self) -> Result<Channel, ClientError> {
        let mut known = self.known.lock().await;
        if let Some(leader) = &known.leader {
            return Ok(leader.clone());
        }
        let found = self.look(known.hint.take(), false).await?;
        known.leader = Some(found.channel.clone());
        Ok(found.channel)
    }

    /// The leader, or a standby if no controller leads now.
    async fn reader(&self) -> Result<Found, ClientError> {
        let mut known = self.known.lock().await;
        if let Some(leader) = &known.leader {
            return Ok(Found::leader(leader.clone()));
        }
        let found = self.look(known.hint.take(), true).await?;
        if found.standby.is_none() {
            known.leader = Some(found.channel.clone());
        }
        Ok(found)
    }

    /// Looks for the leader. With `or_standby`, a standby will do if none of the known controllers leads.
    async fn look(&self, hint: Option<String>, or_standby: bool) -> Result<Found, ClientError> {
        let deadline = Instant::now() + FIND;
        let mut hints = BTreeSet::from_iter(hint);
        // Not a retry of one call: each round asks the controllers that the last one has named, too.
        loop {
            let candidates: BTreeSet<String> = (self.addresses.iter().cloned())
                .chain(std::mem::take(&mut hints))
                .collect();
            // Asks all at once, so that a silent controller does not delay the others' answers.
            let mut asked: FuturesUnordered<_> = candidates
                .iter()
                .map(|it| ask(it, self.tls.as_ref()))
                .collect();
            let mut last = None;
            let mut standby = None;
            let (mut is_answered, mut problem) = (false, String::new());
            let asked_at = Instant::now();
            loop {
                // Before a standby serves, the leader that it names has all the time for its answer.
                let timeout = match or_standby && !hints.is_empty() {
                    true => ANSWER,
                    false => SILENCE,
                };
                let silence = async {
                    match is_answered {
                        true => sleep_until(asked_at + timeout).await,
                        false => std::future::pending().await,
                    }
                };
                let answer = tokio::select! {
                    answer = asked.next() => answer,
                    () = silence => None,
                };
                match answer {
                    None => break,
                    Some(Ok((_, channel, Standing::Leader))) => return Ok(Found::leader(channel)),
                    Some(Ok((address, channel, Standing::Other(standing)))) => {
                        is_answered = true;
                        let reads = standing.role() != Role::Starting && !standing.cannot_read;
                        hints.extend(Some(standing.leader).filter(|leader| !leader.is_empty()));
                        if reads {
                            let standby_address = Some(address.to_owned());
                            standby = Some(Found {
                                channel,
                                standby: standby_address,
                            });
                        }
                        if !standing.problem.is_empty() {
                            problem = standing.problem;
                        }
                    }
                    Some(Err(error)) => last = Some(error),
                }
            }
            if !is_answered {
                return Err(match last {
                    Some(ClientError::NoAnswer {
                        reason,
                        is_handshake,
                        ..
                    }) if self.is_to_several() => ClientError::NoneAnswers {
                        addresses: self.addresses(),
                        reason,
                        is_handshake,
                    },
                    Some(last) => last,
                    None => self.no_leader(problem),
                });
            }
            // A reported leader that was not asked yet may lead.
            if let Some(standby) = standby
                && or_standby
                && hints.is_subset(&candidates)
            {
                return Ok(standby);
            }
            if Instant::now() >= deadline {
                return Err(self.no_leader(problem));
            }
            sleep(PAUSE).await;
        }
    }

    /// The error of controllers that answer and do not lead, with the problem of one of them.
    fn no_leader(&self, problem: String) -> ClientError {
        ClientError::NoLeader {
            addresses: self.addresses(),
            problem,
        }
    }

    /// Forgets the leader after a failed call or an answer from a standby.
    async fn forget(&self, hint: Option<String>) {
        *self.known.lock().await = Known { leader: None, hint };
    }
}

/// A controller that serves a call.
struct Found {
    channel: Channel,
    /// Its address if it is a standby.
    standby: Option<String>,
}

impl Found {
    fn leader(channel: Channel) -> Self {
        let standby = None;
        Found { channel, standby }
    }
}

enum Standing {
    Leader,
    Other(GetStandingResponse),
}

async fn ask<'a>(
    address: &'a str,
    tls: Option<&ClientTls>,
) -> Result<(&'a str, Channel, Standing), ClientError> {
    let channel = dial(address, tls).await?;
    let answer = match standing(channel.clone()).await {
        Ok(standing) if standing.role() == Role::Leader => Standing::Leader,
        Ok(standing) => Standing::Other(standing),
        // A server without a group has no leader to find.
        Err(status) if status.code() == Code::Unimplemented => Standing::Leader,
        Err(status) => return Err(ClientError::of(status, address)),
    };
    Ok((address, channel, answer))
}

/// Asks the controller behind `channel` for its role.
pub async fn standing(channel: Channel) -> Result<GetStandingResponse, Status> {
    let mut request = Request::new(GetStandingRequest {});
    request.set_timeout(ANSWER);
    let standing = LeadershipClient::new(channel).get_standing(request).await;
    standing.map(tonic::Response::into_inner)
}

impl Service<http::Request<Body>> for Route {
    type Response = http::Response<Body>;
    type Error = StdError;
    type Future = BoxFuture<'static, Result<Self::Response, StdError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let route = self.clone();
        Box::pin(async move {
            let mut server = match route.reads_at_standbys {
                true => route.reader().await?.channel,
                false => route.leader().await?,
            };
            let answered = async {
                std::future::poll_fn(|context| server.poll_ready(context)).await?;
                server.call(request).await
            };
            match answered.await {
                Ok(response) => {
                    if let Some(hint) = response.headers().get(LEADER) {
                        let hint = hint.to_str().ok().filter(|hint| !hint.is_empty());
                        route.forget(hint.map(str::to_owned)).await;
                        let status = Status::from_header_map(response.headers());
                        let is_refusal = status.is_some_and(|it| it.code() == Code::Unavailable);
                        if !is_refusal && !route.reads_at_standbys {
                            let mut status =
                                Status::unavailable("this controller does not lead any more");
                            let none = MetadataValue::from_static("");
                            status.metadata_mut().insert(LEADER, none);
                            return Ok(status.into_http());
                        }
                    }
                    Ok(response)
                }
                Err(error) => {
                    route.forget(None).await;
                    Err(error.into())
                }
            }
        })
    }
}
