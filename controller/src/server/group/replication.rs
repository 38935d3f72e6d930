//! The gRPC service `Replication`, by which controllers follow each other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use ultima_api::v1::follow_request::Event;
use ultima_api::v1::replication_server::Replication;
use ultima_api::v1::{self as api, Role};

use super::Shape;
use super::copy;
use super::member::Member;
use crate::p4rt::Term;
use crate::server::controller::Controller;
use crate::server::journal::{Feed, Journal};
use crate::store::History;

/// How long a follower may take to send its first message.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// The controller behind the service.
pub enum Who {
    /// A single controller.
    Alone(Arc<Controller>),
    /// One of several.
    Member(Arc<Member>),
}

/// Serves the calls between the controllers of a group.
pub struct ReplicationService {
    who: Who,
}

impl ReplicationService {
    pub fn new(who: Who) -> Self {
        ReplicationService { who }
    }

    fn member(&self) -> Result<&Arc<Member>, Status> {
        match &self.who {
            Who::Member(member) => Ok(member),
            Who::Alone(_) => Err(Status::failed_precondition(
                "this controller runs alone; start it with --peers to allow standbys",
            )),
        }
    }
}

/// Refuses a controller of another group.
fn check_shape(member: &Member, other: Shape) -> Result<(), Status> {
    match member.shape.refusal_of(other) {
        Some(refusal) => Err(Status::failed_precondition(refusal)),
        None => Ok(()),
    }
}

fn internal(error: impl ToString) -> Status {
    Status::internal(error.to_string())
}

fn standing_of(controller: &Controller) -> Result<api::GetStandingResponse, Status> {
    let journal = &controller.journal;
    let history = journal.history().map_err(internal)?;
    let behind = |stored: History| history.changes.saturating_sub(stored.changes);
    let followers = journal.following().into_iter();
    let followers = followers.map(|(controller, stored)| api::Follower {
        controller,
        behind: stored.map(behind),
    });
    let role = match journal.leads() {
        true => Role::Leader,
        false => Role::Standby,
    };
    let switches = &controller.switches;
    let led = switches.iter().filter(|it| it.client().is_ok()).count();
    Ok(api::GetStandingResponse {
        role: role.into(),
        controller: journal.controller(),
        term: Some(journal.lead.term.into()),
        history: Some(history.into()),
        copies: journal.lead.group.copies,
        controllers: journal.lead.group.controllers,
        fabric: journal.lead.group.fabric,
        program: journal.lead.group.program,
        followers: followers.collect(),
        switches: switches.len() as u32,
        supporting_switches: led as u32,
        problem: match role {
            Role::Leader => String::new(),
            _ => "no longer primary at more than half of the switches".into(),
        },
        ..Default::default()
    })
}

/// The standing of one of several controllers.
pub(super) fn standing_of_member(member: &Member) -> Result<api::GetStandingResponse, Status> {
    if let Some(controller) = member.leader() {
        let mut standing = standing_of(&controller)?;
        if standing.problem.is_empty() {
            standing.problem = member.problem().unwrap_or_default();
        }
        return Ok(standing);
    }
    let store = &member.store;
    Ok(api::GetStandingResponse {
        role: Role::Standby.into(),
        controller: store.controller(),
        term: Some(store.accepted().map_err(internal)?.into()),
        history: Some(store.history().map_err(internal)?.into()),
        leader: member.service().err().flatten().unwrap_or_default(),
        copies: member.shape.copies,
        controllers: member.shape.controllers,
        fabric: member.shape.fabric,
        program: member.shape.program,
        followers: Vec::new(),
        switches: member.switches() as u32,
        supporting_switches: member.vacant() as u32,
        problem: member.problem().unwrap_or_default(),
    })
}

#[tonic::async_trait]
impl Replication for ReplicationService {
    async fn get_standing(
        &self,
        _: Request<api::GetStandingRequest>,
    ) -> Result<Response<api::GetStandingResponse>, Status> {
        let standing = match &self.who {
            Who::Alone(controller) => standing_of(controller),
            Who::Member(member) => standing_of_member(member),
        };
        standing.map(Response::new)
    }

    type ClaimStream = ReceiverStream<Result<api::Copy, Status>>;

    async fn claim(
        &self,
        request: Request<api::ClaimRequest>,
    ) -> Result<Response<Self::ClaimStream>, Status> {
        let member = self.member()?;
        let api::ClaimRequest {
            term,
            history,
            controllers,
            copies,
            fabric,
            program,
        } = request.into_inner();
        let shape = Shape {
            controllers,
            copies,
            fabric,
            program,
        };
        check_shape(member, shape)?;
        let term = Term::from(term.unwrap_or_default());
        let known = History::from(history.unwrap_or_default());
        let leader = member.leader();
        if leader.as_ref().is_some_and(|it| it.journal.leads()) {
            return Err(Status::failed_precondition("this controller leads"));
        }
        let accepted = member.in_store(move |store| store.accept(term)).await;
        if !accepted.map_err(internal)? {
            let accepted = member.store.accepted().map_err(internal)?;
            let text = format!("this controller has accepted term {accepted}");
            return Err(Status::failed_precondition(text));
        }
        member.granted.send_replace(());
        if let Some(controller) = leader {
            controller.journal.outrank(term);
        }
        let snapshot = member.in_store(|store| store.snapshot()).await;
        let (history, stored) = snapshot.map_err(internal)?;
        let (copies, stream) = mpsc::channel(16);
        if history > known {
            tokio::spawn(async move {
                for copy in copy::contents(history, &stored) {
                    if copies.send(Ok(copy)).await.is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    type FollowStream = ReceiverStream<Result<api::Copy, Status>>;

    async fn follow(
        &self,
        request: Request<Streaming<api::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let member = self.member()?;
        let mut requests = request.into_inner();
        let first = timeout(FIRST_WORD, requests.message()).await;
        let first =
            first.map_err(|_| Status::deadline_exceeded("no Following arrived within 5 s"))?;
        let Some(Event::Following(following)) = first?.and_then(|request| request.event) else {
            return Err(Status::invalid_argument(
                "the first message must be a Following",
            ));
        };
        let not_leader = || Status::unavailable("this controller does not lead");
        let api::Following {
            controllers,
            copies,
            fabric,
            program,
            ..
        } = following;
        let shape = Shape {
            controllers,
            copies,
            fabric,
            program,
        };
        check_shape(member, shape)?;
        if following.controller == member.store.controller() {
            return Err(Status::failed_precondition(
                "the follower has the number of this controller; give each controller its own --state",
            ));
        }
        let controller = member.leader().ok_or_else(not_leader)?;
        let journal = Arc::clone(&controller.journal);
        let accepted = Term::from(following.accepted.unwrap_or_default());
        if accepted > journal.lead.term {
            journal.outrank(accepted);
            return Err(not_leader());
        }
        let (who, known) = (following.controller, following.history.unwrap_or_default());
        let feed = journal.follow(who, known.into()).await;
        let feed = feed.map_err(|error| Status::unavailable(error.to_string()))?;
        let (copies, stream) = mpsc::channel(16);
        tokio::spawn(send(feed, copies));
        tokio::spawn(hear(journal, who, requests));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Sends a follower the snapshot and then every change, until either side ends.
async fn send(feed: Feed, copies: mpsc::Sender<Result<api::Copy, Status>>) {
    let Feed { all, mut changes } = feed;
    if let Some((history, stored)) = all {
        for copy in copy::contents(history, &stored) {
            if copies.send(Ok(copy)).await.is_err() {
                return;
            }
        }
    }
    loop {
        let entry = tokio::select! {
            entry = changes.recv() => entry,
            () = copies.closed() => None,
        };
        let Some(entry) = entry else { return };
        if copies.send(Ok(copy::changed(&entry))).await.is_err() {
            return;
        }
    }
}

/// Receives a follower's acknowledgements until it ends.
async fn hear(journal: Arc<Journal>, who: u32, mut requests: Streaming<api::FollowRequest>) {
    while let Ok(Some(request)) = requests.message().await {
        if let Some(Event::Stored(at)) = request.event {
            journal.stored(who, at.into());
        }
    }
}
