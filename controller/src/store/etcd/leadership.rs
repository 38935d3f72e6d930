//! The election: one controller at a time holds the key `leader`, for as long as it renews its lease.

use std::sync::Arc;
use std::time::Duration;

use backon::Retryable as _;
use etcd_client::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Client, EtcdError, pauses, read_by};
use super::{Config, Leader};
use crate::p4rt::election_id_of;

/// The interval at which a standby reads the leader's key.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for a stopping leader to end its lease.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which another controller must lead before its start counts as a success.
const STABLE: Duration = Duration::from_secs(1);
/// Time limit for a standby's request with all its attempts.
const REQUEST_LIMIT: Duration = Duration::from_secs(3);

/// The election as a candidate sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The leader; none while there is none, or etcd does not answer.
    pub leader: Option<Leader>,
    /// Why nothing is known, on one line.
    pub problem: Option<String>,
    /// True if etcd has answered the last request.
    pub is_known: bool,
}

/// A candidate in the election.
#[derive(Debug)]
pub(crate) struct Election {
    pub(super) client: Arc<Client>,
    /// Its value of the key.
    candidate: Leader,
    view: watch::Sender<View>,
}

/// The lead of one controller. It ends [in time](Self::holds) before its lease can, unless etcd has
/// renewed the lease.
#[derive(Clone, Debug)]
pub struct Leadership {
    revision: u64,
    /// The end of the lease, as far as is known, less a margin; none once the lead has ended.
    until: Arc<watch::Sender<Option<Instant>>>,
    /// True once the lease is ended, too, if etcd answers.
    released: Arc<watch::Sender<bool>>,
}

impl Leadership {
    /// The create revision of the leader's key.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The leader's P4Runtime election id.
    pub fn election_id(&self) -> u128 {
        election_id_of(self.revision)
    }

    /// True while no other controller can lead. It is measured on the monotonic clock, from before
    /// the request that etcd answered.
    pub fn holds(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    /// The time until which it holds; none if it has ended.
    pub(super) fn until(&self) -> Option<Instant> {
        *self.until.borrow()
    }

    /// Ends it: another controller leads, or the store's content is not known.
    pub(crate) fn end(&self) {
        self.until.send_replace(None);
    }

    /// Ends it and its lease, so that another controller need not wait for the lease's end.
    pub async fn resign(&self) {
        self.end();
        let mut released = self.released.subscribe();
        let _ = timeout(RESIGN_TIMEOUT, released.wait_for(|released| *released)).await;
    }

    /// Returns when it has ended.
    pub async fn ended(&self) {
        let mut changes = self.until.subscribe();
        loop {
            let Some(until) = *changes.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = sleep_until(until) => if !self.holds() { return },
                // The sender is a field of `self`.
                _ = changes.changed() => {}
            }
        }
    }
}

impl Election {
    /// An election of a controller with this value of the key.
    ///
    /// # Errors
    /// The address of a member of etcd is malformed.
    pub fn new(config: Config, candidate: Leader) -> Result<Self, EtcdError> {
        Ok(Election {
            client: Arc::new(Client::new(config)?),
            candidate,
            view: watch::Sender::default(),
        })
    }

    /// The current view of the election.
    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// True if another controller leads.
    pub fn follows(&self, view: &View) -> bool {
        let leader = view.leader.as_ref();
        leader.is_some_and(|leader| leader.address != self.candidate.address)
    }

    fn set_view(&self, leader: Option<Leader>, problem: Option<String>, is_known: bool) {
        self.view.send_replace(View {
            leader,
            problem,
            is_known,
        });
    }

    /// Waits until there is no leader, and leads. Renews the lease in the background until the lead
    /// ends, or all its copies are dropped.
    pub async fn win(&self) -> Leadership {
        // It may have led before.
        self.set_view(None, None, false);
        loop {
            let seen = match self.run().await {
                Ok(Ok(leadership)) => {
                    self.set_view(Some(self.candidate.clone()), None, true);
                    return leadership;
                }
                Ok(Err(leader)) => Ok(Some(leader)),
                Err(error) => Err(error),
            };
            self.record_read(seen);
            sleep(READ_INTERVAL).await;
        }
    }

    /// Stands by for this time without trying to lead. Returns early, and true, once another controller has led for a second:
    /// it does not fail as this one did.
    pub async fn pause(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut since = None;
        self.set_view(None, None, false);
        while Instant::now() < end {
            let seen = self.leader(Instant::now() + REQUEST_LIMIT).await;
            let leads = matches!(seen, Ok(Some(_)));
            self.record_read(seen);
            since = leads.then(|| since.unwrap_or_else(Instant::now));
            if since.is_some_and(|since| since.elapsed() >= STABLE) {
                return true;
            }
            sleep(READ_INTERVAL).await;
        }
        false
    }

    /// Notes a read of the leader's key.
    fn record_read(&self, seen: Result<Option<Leader>, EtcdError>) {
        match seen {
            Ok(leader) => {
                let problem = leader.as_ref().and_then(|it| self.mismatch(it));
                self.set_view(leader, problem, true);
            }
            Err(error) => {
                let problem = error.to_string();
                if self.view.borrow().problem.as_ref() != Some(&problem) {
                    tracing::warn!("{problem}");
                }
                self.set_view(None, Some(problem), false);
            }
        }
    }

    /// Reads the leader's key.
    async fn leader(&self, deadline: Instant) -> Result<Option<Leader>, EtcdError> {
        let key = self.client.config.key("leader");
        let keys = self.client.get(key, None, deadline).await?;
        Ok(keys.first().map(leader_of))
    }

    /// Why this controller should not follow that leader: it would rewrite the switches.
    fn mismatch(&self, leader: &Leader) -> Option<String> {
        let (what, flag) = match self.candidate.fabric == leader.fabric {
            false => ("fabric", "--fabric"),
            true if self.candidate.program != leader.program => ("program", "--program"),
            true => return None,
        };
        Some(format!(
            "the {what} differs from that of the leader at {}; start all controllers in one version with the same {flag}, the leader last",
            leader.address
        ))
    }

    /// Reads the key, and creates it if there is none. Returns the leader if there is one.
    async fn run(&self) -> Result<Result<Leadership, Leader>, EtcdError> {
        let client = &self.client;
        let key = client.config.key("leader");
        let deadline = Instant::now() + REQUEST_LIMIT;
        if let Some(leader) = self.leader(deadline).await? {
            return Ok(Err(leader));
        }
        // The lease's time begins at etcd after this.
        let asked = Instant::now();
        let (lease, ttl) = client.grant(deadline).await?;
        let value = serde_json::to_vec(&self.candidate).expect("numbers and a name");
        let options = PutOptions::new().with_lease(lease);
        let transaction = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key.clone(), value, Some(options))])
            .or_else([TxnOp::get(key, None)]);
        let is_early = |error: &EtcdError| error.is_no_answer() && Instant::now() < deadline;
        let attempt = || client.txn(transaction.clone());
        let answer = attempt.retry(pauses()).when(is_early).await?;
        let revision = match answer.succeeded() {
            true => answer.header().map_or(0, |header| header.revision()),
            false => {
                let leader = read_by(&answer, 0);
                match leader {
                    // An attempt whose answer was lost.
                    Some(key) if key.lease() == lease => key.create_revision(),
                    key => {
                        // Best effort: it ends by itself.
                        let _ = client.revoke(lease, deadline).await;
                        return Ok(Err(key.as_ref().map(leader_of).unwrap_or_default()));
                    }
                }
            }
        };
        let until = watch::Sender::new(Some(asked + ttl - margin(ttl)));
        let leadership = Leadership {
            revision: u64::try_from(revision).unwrap_or_default(),
            until: Arc::new(until),
            released: Arc::default(),
        };
        tokio::spawn(renew(Arc::clone(client), lease, ttl, leadership.clone()));
        Ok(Ok(leadership))
    }
}

fn leader_of(key: &KeyValue) -> Leader {
    serde_json::from_slice(key.value()).unwrap_or_default()
}

/// The time between the end of the lead and the end of the lease: it covers the stop, and clocks that run at different
/// speeds.
fn margin(ttl: Duration) -> Duration {
    ttl / 10
}

/// Renews a lease until the lead ends or nothing else has it, and ends the lease then.
async fn renew(client: Arc<Client>, lease: i64, ttl: Duration, leadership: Leadership) {
    // One is held here.
    while let Some(until) = leadership
        .until()
        .filter(|_| Arc::strong_count(&leadership.until) > 1)
    {
        tokio::select! {
            () = sleep(ttl / 3) => {}
            () = leadership.ended() => break,
        }
        let asked = Instant::now();
        // The lease outlives a key that was deleted by hand, and another controller may lead then.
        let renewed = async {
            let keys = client.get(client.config.key("leader"), None, until).await?;
            match keys.first().is_some_and(|key| key.lease() == lease) {
                true => client.keep_alive(lease, until).await,
                false => Ok(false),
            }
        };
        match renewed.await {
            Ok(true) => {
                leadership.until.send_if_modified(|known| {
                    let is_held = known.is_some();
                    if is_held {
                        *known = Some(asked + ttl - margin(ttl));
                    }
                    is_held
                });
            }
            Ok(false) => {
                tracing::warn!("the leader's key or its lease is gone; stepping down");
                break;
            }
            Err(error) => tracing::warn!(%error, "cannot renew the lease"),
        }
        if Instant::now() >= until && !leadership.holds() {
            break;
        }
    }
    leadership.end();
    // Best effort: it ends by itself.
    let _ = client.revoke(lease, Instant::now() + RESIGN_TIMEOUT).await;
    leadership.released.send_replace(true);
}
