//! A rendezvous at the controller, which may change the job's members later.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use ultima_controller::client::Client as ControlClient;
use ultima_host::{Collective, Report};

use super::super::error::Refusal;
use super::super::fingerprint::{Chosen, Fingerprint};
use super::super::{JobError, interface};
use super::addresses::serve;
use super::exchange::{Member, Offer, agree, hear_all};
use super::store::{Client, Protocol};
use super::{Members, Place, Rendezvous, Request, deadline};
use crate::{
    Configure, Context, Go, Link, Metrics, Next, Session, SessionError, Start, Unready, give_up,
};

/// How long a collective of an earlier epoch serves repairs.
const LINGER: Duration = Duration::from_millis(500);
/// The pause between attempts to reach the controller.
const AGAIN: Duration = Duration::from_millis(200);

/// A rendezvous at the controller: it assigns rank, seed and addresses, and may change the job's members.
#[derive(Clone, Debug)]
pub struct Controller {
    address: String,
    job: String,
    host: String,
}

impl Controller {
    /// Creates the rendezvous of the next free rank of `job` on `host`, which is the fabric's name for this
    /// host. `address` is the controller's, or several with commas.
    pub fn new(
        address: impl Into<String>,
        job: impl Into<String>,
        host: impl Into<String>,
    ) -> Self {
        Self {
            address: address.into(),
            job: job.into(),
            host: host.into(),
        }
    }

    async fn connect(&self, until: Instant) -> Result<ControlClient, JobError> {
        loop {
            match ControlClient::connect(&self.address).await {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() + AGAIN >= until => {
                    return Err(SessionError::from(error).into());
                }
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    async fn open(
        &self,
        request: &Request,
        until: Instant,
    ) -> Result<(Session, Context), JobError> {
        let client = self.connect(until).await?;
        let context = Context {
            client,
            host: self.host.clone().into(),
            settings: request.settings,
            metrics: Arc::new(Metrics::default()),
            notice: |line| tracing::info!("{line}"),
        };
        let configure: Configure = Arc::new(|config| config);
        let session = Session::join(&context, &self.job, Link::Udp, &configure).await?;
        Ok((session, context))
    }
}

/// Waits for the other ranks.
async fn ready(
    session: &mut Session,
    context: &Context,
    request: &Request,
) -> Result<Start, JobError> {
    let (rank, seed) = (session.membership.rank, session.membership.seed);
    if let Some(has) = request.seed.filter(|has| *has != seed) {
        return Err(JobError::Refused(Refusal::Mismatch {
            rank,
            field: "seed".into(),
            has: has.to_string(),
            expected: format!("{seed}, which the controller drew"),
        }));
    }
    let ready = timeout(request.timeout, session.ready(context)).await;
    match ready {
        Ok(Ok(start)) => Ok(start),
        Ok(Err(Unready::LeftOut(why) | Unready::Over(why))) => Err(JobError::Ended(why)),
        Err(_) => {
            let job = &session.membership.job;
            Err(JobError::Ended(format!(
                "not all ranks of job {job} joined within {:?}; `ultima job get {job}` shows which did",
                request.timeout
            )))
        }
    }
}

/// Compares the settings of all ranks, and waits until they receive each other's packets.
fn meet_all(session: &Session, until: Instant) -> Result<(), JobError> {
    let config = session.collective.config();
    let (rank, ranks) = (config.rank, config.ranks);
    let seats = &session.membership.seats;
    let member = Member {
        rank,
        ranks,
        prefix: "ultima".into(),
        run: None,
        hosted: true,
    };
    let chosen = Chosen {
        seed: Some(config.seed),
        slot_bytes: Some(config.slot_bytes),
        run: None,
    };
    let own = seats[usize::from(rank)].address.socket;
    let offer = Offer {
        address: own,
        mtu: interface::mtu(*own.ip()),
        receive_buffer: 0,
        fingerprint: Fingerprint::new(config, &chosen),
    };
    let at = seats[0].address.socket;
    let server = match rank {
        0 => Some(serve(at)?),
        _ => None,
    };
    let advice = "Ranks compare their settings at rank 0's address, over TCP: check that the fabric passes it";
    let ip = at.ip().to_string();
    let mut store = Client::connect(&ip, at.port(), Some(Protocol::V2), (until, advice))?;
    let left = until.saturating_duration_since(Instant::now());
    agree(&mut store, &member, left, offer, |_| Ok(()))?;
    drop(server);
    let addresses: Vec<_> = seats.iter().map(|seat| seat.address.socket).collect();
    hear_all(&session.collective, &addresses, until)
}

impl Rendezvous for Controller {
    fn meet(self: Box<Self>, request: &Request) -> Result<Place, JobError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("ultima-session")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| JobError::Io {
            what: "start the session's thread",
            error,
        })?;
        // A caller may be a task of another runtime, where blocking is not allowed.
        let request = request.clone();
        let meeting = thread::Builder::new()
            .name("ultima-rendezvous".into())
            .spawn(move || self.meet_on(runtime, &request));
        let meeting = meeting.map_err(|error| JobError::Io {
            what: "start the rendezvous' thread",
            error,
        })?;
        match meeting.join() {
            Ok(place) => place,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Controller {
    fn meet_on(&self, runtime: Runtime, request: &Request) -> Result<Place, JobError> {
        let until = deadline(request.timeout);
        let (mut session, context) = runtime.block_on(self.open(request, until))?;
        let started = runtime.block_on(ready(&mut session, &context, request));
        // Ranks that join later find the others running.
        let started = started.and_then(|start| match start.together {
            true => meet_all(&session, until).map(|()| start),
            false => Ok(start),
        });
        let start = match started {
            Ok(start) => start,
            Err(error) => {
                session.end();
                runtime.block_on(give_up(&context.client, &session.membership));
                return Err(error);
            }
        };
        Ok(Place {
            address: session.membership.seat().address.socket,
            first_step: start.first,
            members: Members::Managed(Box::new(Managed {
                session,
                context,
                ending: Vec::new(),
                runtime,
            })),
        })
    }
}

/// A rank whose members the controller may change.
pub(super) struct Managed {
    session: Session,
    context: Context,
    /// Collectives of earlier epochs, which still serve repairs.
    ending: Vec<JoinHandle<()>>,
    runtime: Runtime,
}

impl Managed {
    pub(super) fn collective(&mut self) -> &mut Collective {
        &mut self.session.collective
    }

    /// See [`Place::enter`].
    pub(super) fn enter(&mut self, step: u32) -> Result<bool, String> {
        // The session's contact with the controller runs there.
        let _inside = self.runtime.enter();
        let mut changed = false;
        loop {
            self.session.quiet.wait();
            match self.session.epochs.go(step) {
                Go::Begin => return Ok(changed),
                Go::Over(Next::Place(next)) => {
                    let before = self.session.go_over(next, step, &self.context);
                    self.ending.push(thread::spawn(move || {
                        // Its counters end with it.
                        let _ = before.collective.finish(LINGER);
                    }));
                    changed = true;
                }
                Go::Over(Next::LeftOut(why)) => {
                    return Err(format!("this rank leaves before step {step}: {why}"));
                }
                Go::Nowhere(why) => return Err(why),
            }
        }
    }

    /// See [`Place::finish`].
    pub(super) fn finish(self, linger: Duration) -> Result<Report, JobError> {
        let Managed {
            session,
            context,
            ending,
            runtime,
        } = self;
        session.end();
        let Session {
            collective,
            membership,
            ..
        } = session;
        let report = collective.finish(linger);
        runtime.block_on(give_up(&context.client, &membership));
        for ended in ending {
            // It only receives, and has nothing to report.
            let _ = ended.join();
        }
        Ok(report?)
    }
}
