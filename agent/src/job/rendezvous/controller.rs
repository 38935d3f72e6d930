//! A rendezvous at the controller, which may change the job's members later.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use backon::{ConstantBuilder, Retryable as _};
use tokio::runtime::{Builder, Runtime};
use ultima_api::client::{Client as ControlClient, ClientError};
use ultima_grpc::tls::ClientTls;
use ultima_host::Report;

use super::super::error::Refusal;
use super::super::{JobError, interface};
use super::addresses::serve;
use super::exchange::{Member, Offer, agree, check_mtus, hear_all};
use super::notices::Notices;
use super::store::{Advice, Client, Protocol};
use super::{Members, Place, Rendezvous, Request};
use crate::fingerprint::{Chosen, Fingerprint};
use crate::rank::{EpochMember, JoinTimeout, JoinedRank, ReadyError, ReadyRanks, ready};
use crate::{Context, Departure, Held, Link, Metrics, SessionError, Start, give_up};

/// The time for which the collective of an earlier epoch serves repairs.
const LINGER: Duration = Duration::from_millis(500);
/// The pause between attempts to reach the controller.
const AGAIN: Duration = Duration::from_millis(200);
/// The wait for the controller after which the user gets a notice.
const SILENT: Duration = Duration::from_secs(2);

/// A rendezvous at the controller: it assigns rank, seed and addresses, and may change the job's members.
#[derive(Clone, Debug)]
pub struct Controller {
    address: String,
    tls: Option<ClientTls>,
    job: String,
    host: String,
    /// True if ULTIMA_CONTROLLER has the address.
    is_variable: bool,
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
            tls: None,
            job: job.into(),
            host: host.into(),
            is_variable: false,
        }
    }

    /// Names ULTIMA_CONTROLLER in errors of the address.
    pub(in super::super) fn of_variable(self) -> Self {
        let is_variable = true;
        Self {
            is_variable,
            ..self
        }
    }

    /// Connects over TLS, with a certificate of the agent on that host.
    pub fn tls(self, tls: ClientTls) -> Self {
        let tls = Some(tls);
        Self { tls, ..self }
    }

    /// Connects to the controller. Notices report a long wait.
    async fn connect(&self, until: Instant, notice: fn(&str)) -> Result<ControlClient, JobError> {
        let mut notices = Notices::new(SILENT, until, notice);
        let service = format!("the controller at {}", self.address);
        let connect = || ControlClient::connect_with(&self.address, self.tls.clone());
        let pauses = ConstantBuilder::new().with_delay(AGAIN);
        let connected = connect.retry(pauses.without_max_times());
        let connected = connected.when(|_| Instant::now() + AGAIN < until);
        let connected = connected.notify(|error, _| match error {
            ClientError::NoAnswer { reason, .. } | ClientError::NoneAnswers { reason, .. } => {
                notices.failed(&service, reason);
            }
            other => notices.failed(&service, &other.to_string()),
        });
        let is_variable = self.is_variable;
        connected
            .await
            .map_err(|error| no_controller(error, is_variable))
    }

    /// Compares the number of a job's members with that of the caller's ranks, before this rank joins.
    async fn check_ranks(&self, client: &ControlClient, ranks: usize) -> Result<(), JobError> {
        // An error of this request would also be one of the join, which waits if it is temporary.
        let Ok(job) = client.job(&self.job).await else {
            return Ok(());
        };
        let next = job.next.as_ref().map(|next| next.members.len());
        match next == Some(ranks) {
            true => Ok(()),
            false => self.expect(job.members.len(), ranks),
        }
    }

    fn expect(&self, members: usize, ranks: usize) -> Result<(), JobError> {
        match members == ranks {
            true => Ok(()),
            false => Err(JobError::Members {
                job: self.job.clone(),
                members,
                ranks,
            }),
        }
    }

    async fn open(
        &self,
        request: &Request,
        until: JoinTimeout,
    ) -> Result<(JoinedRank, Context), JobError> {
        let until = until.until;
        let client = self.connect(until.into_std(), request.notice).await?;
        if let Some(ranks) = request.ranks {
            self.check_ranks(&client, ranks).await?;
        }
        let context = Context {
            client,
            host: self.host.clone().into(),
            settings: request.settings,
            shared: Vec::new(),
            metrics: Arc::new(Metrics::default()),
            held: Held::default(),
            notice: request.notice,
        };
        let rank = JoinedRank::join_job(&context, &self.job, Link::Udp, until).await?;
        let membership = &rank.sessions()[0].membership;
        // The job may have been resized since.
        if let Some(ranks) = request.ranks
            && let Err(other) = self.expect(membership.seats.len(), ranks)
        {
            rank.leave(&context.client).await;
            return Err(other);
        }
        // In the first epoch the ranks compare their seeds when all are there, so that none waits for a refused one.
        if membership.epoch > 1
            && let Err(refusal) = check_seed(membership.rank, membership.seed, request.seed)
        {
            rank.leave(&context.client).await;
            return Err(refusal.into());
        }
        Ok((rank, context))
    }
}

/// The error of a connection, with the advice for a user of the library. `is_variable` as in [`Controller`].
fn no_controller(error: ClientError, is_variable: bool) -> JobError {
    match error {
        ClientError::NoAnswer {
            address,
            reason,
            is_handshake,
        } => JobError::NoController {
            address,
            reason,
            advice: match (is_handshake, is_variable) {
                (true, _) => {
                    "set ULTIMA_TLS_CA, ULTIMA_TLS_CERT and ULTIMA_TLS_KEY, or none of them if it serves without TLS"
                }
                (false, true) => {
                    "check that `ultima controller serve` runs there and that this host reaches it, or correct \
                     ULTIMA_CONTROLLER"
                }
                (false, false) => {
                    "check that `ultima controller serve` runs there and that this host reaches it, or correct the \
                     address in the program"
                }
            },
        },
        other => SessionError::from(other).into(),
    }
}

/// Compares the seed that the user has chosen with the one that the controller drew.
fn check_seed(rank: u16, drawn: u64, chosen: Option<u64>) -> Result<(), Refusal> {
    match chosen {
        Some(has) if has != drawn => Err(Refusal::Seed { rank, has, drawn }),
        _ => Ok(()),
    }
}

/// Waits for the other ranks.
async fn wait_for_all(
    rank: JoinedRank,
    context: &Context,
    job: &str,
    limit: JoinTimeout,
) -> Result<(EpochMember, Start), JobError> {
    let ReadyRanks { begin, removed } = match ready(context, vec![rank], limit).await {
        Ok(ready) => ready,
        Err(ReadyError::Session(error)) => return Err(error.into()),
        Err(late) => {
            let job = job.to_owned();
            return Err(JobError::Late { job, late });
        }
    };
    let member = begin.into_iter().next();
    let member = member.and_then(|(rank, start)| Some((rank.into_member(context, LINGER)?, start)));
    member.ok_or_else(|| JobError::Ended(removed.join("; ")))
}

/// Compares the settings of all ranks, and waits until they receive each other's packets.
fn meet_all(member: &mut EpochMember, request: &Request, until: Instant) -> Result<(), JobError> {
    let membership = member.membership().clone();
    let seats = &membership.seats;
    let collective = member.collective();
    let config = collective.config();
    let (rank, ranks) = (config.rank, config.ranks);
    let member = Member {
        rank,
        ranks,
        prefix: "ultima".into(),
        run: None,
        hosted: true,
    };
    let chosen = Chosen {
        seed: Some(request.seed.unwrap_or(config.seed)),
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
    let compare = "Ranks compare their settings at rank 0's address, over TCP: check that the fabric passes it";
    let advice = Advice {
        absent: compare,
        foreign: compare,
    };
    let ip = at.ip().to_string();
    let mut store = Client::connect(
        &ip,
        at.port(),
        Some(Protocol::V2),
        until,
        advice,
        request.notice,
    )?;
    let left = until.saturating_duration_since(Instant::now());
    agree(&mut store, &member, left, offer, |offers| {
        check_mtus(config, config.slot_bytes, &offers)
    })?;
    drop(server);
    // All ranks may have one seed that is not the controller's.
    check_seed(rank, membership.seed, request.seed)?;
    let addresses: Vec<_> = seats.iter().map(|seat| seat.address.socket).collect();
    hear_all(collective, &addresses, until)
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
        let limit = JoinTimeout::from(request.timeout);
        let until = limit.until.into_std();
        let (rank, context) = runtime.block_on(self.open(request, limit))?;
        let started = wait_for_all(rank, &context, &self.job, limit);
        let (mut member, start) = runtime.block_on(started)?;
        // Ranks that join later find the others running.
        if start.together
            && let Err(error) = meet_all(&mut member, request, until)
        {
            member.end();
            runtime.block_on(give_up(&context.client, member.membership()));
            return Err(error);
        }
        Ok(Place {
            address: member.membership().seat().address.socket,
            first_step: start.first,
            members: Members::Managed(Box::new(Managed {
                member,
                context,
                runtime,
            })),
        })
    }
}

/// A rank whose members the controller may change.
pub(super) struct Managed {
    member: EpochMember,
    context: Context,
    runtime: Runtime,
}

impl Managed {
    pub(super) fn member(&mut self) -> &mut EpochMember {
        &mut self.member
    }

    /// See [`Place::enter`].
    pub(super) fn enter(&mut self, step: u32) -> Result<bool, String> {
        // The session's contact with the controller runs there.
        let _inside = self.runtime.enter();
        self.member
            .enter(step)
            .map_err(|departure| match departure {
                Departure::LeftOut(why) => format!("this rank leaves before step {step}: {why}"),
                Departure::Ended(why) | Departure::CannotBegin(why) => why,
            })
    }

    /// See [`Place::finish`].
    pub(super) fn finish(self, linger: Duration) -> Result<Report, JobError> {
        let Managed {
            member,
            context,
            runtime,
        } = self;
        let membership = member.membership().clone();
        let reports = member.finish(linger);
        runtime.block_on(give_up(&context.client, &membership));
        // Counters of earlier epochs ended with them.
        let last = reports?.pop();
        Ok(last.expect("the current epoch has a report"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Mutex;

    use super::*;
    use crate::Settings;
    use crate::job::rendezvous::Local;

    #[test]
    fn a_seed_that_the_controller_did_not_draw_is_refused() {
        assert_eq!(check_seed(0, 9, None), Ok(()));
        assert_eq!(check_seed(0, 9, Some(9)), Ok(()));
        let error = check_seed(0, 9, Some(1)).unwrap_err().to_string();
        let expected = "rank 0 has seed 1, but the controller drew 9 for the job: set no seed (seed, ULTIMA_SEED)";
        assert_eq!(error, expected);
    }

    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn a_missing_controller_is_reported_during_the_wait() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let request = Request {
            settings: Settings::new(Duration::from_secs(1)),
            seed: None,
            seal: true,
            local: Local::Routed,
            timeout: SILENT + Duration::from_secs(1),
            ranks: None,
            notice: |line| NOTICES.lock().expect("no panic").push(line.to_owned()),
        };
        let controller = Controller::new(&address, "train", "h1");
        let met = Box::new(controller.clone().of_variable()).meet(&request);
        let error = met.err().expect("an error").to_string();
        let notices = NOTICES.lock().expect("no panic").clone();
        let [notice] = &notices[..] else {
            panic!("one notice: {notices:?}");
        };
        let begins = format!("waiting for the controller at {address}: Connection refused");
        assert!(notice.starts_with(&begins), "{notice}");
        assert!(error.contains("Connection refused"), "{error}");
        assert!(
            error.contains("correct ULTIMA_CONTROLLER") && !error.contains("--"),
            "{error}"
        );
        let timeout = Duration::from_millis(100);
        let met = Box::new(controller).meet(&Request { timeout, ..request });
        let error = met.err().expect("an error").to_string();
        assert!(
            error.ends_with("or correct the address in the program"),
            "{error}"
        );
    }
}
