//! Calls to the members of an etcd cluster: one after the other, until one answers.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable as _};
use etcd_client::{ConnectOptions, GetOptions, KeyValue, Txn, TxnOpResponse, TxnResponse};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_grpc::transport::{self, one_line, root_cause};

use super::Config;

/// Timeout of one attempt at one member.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest answer: all jobs.
const MAX_ANSWER: usize = 256 << 20;

/// Error of etcd.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum EtcdError {
    /// A member's address is malformed.
    #[error("{name}: {endpoint}: {reason}; expected HOST:PORT")]
    Endpoint {
        /// The cluster.
        name: String,
        /// The member.
        endpoint: String,
        reason: String,
    },
    /// No member answers. It is not known whether etcd has executed the call, and another attempt may succeed.
    #[error(
        "{name} does not answer: {reason}; check that etcd runs and that most of its members are connected"
    )]
    NoAnswer {
        /// The cluster.
        name: String,
        /// The last member's reason.
        reason: String,
    },
    /// etcd rejects the request.
    #[error("{name} rejects the request: {reason}{}", advice(.reason))]
    Rejected {
        /// The cluster.
        name: String,
        /// etcd's message.
        reason: String,
    },
    /// The password's file cannot be read.
    #[error("cannot read the password of etcd's user from {}: {reason}", path.display())]
    Password {
        path: PathBuf,
        reason: std::io::Error,
    },
    /// Another program writes to the same keys.
    #[error("{name}: another program has changed the keys; give each fabric a prefix of its own")]
    Foreign {
        /// The cluster.
        name: String,
    },
}

/// The advice for a rejection if etcd's message has none.
fn advice(reason: &str) -> &'static str {
    match reason {
        it if it.contains("too many operations") => "; start etcd with a larger --max-txn-ops",
        it if it.contains("too large") => "; start etcd with a larger --max-request-bytes",
        it if it.contains("space exceeded") => {
            "; compact and defragment etcd, or raise its --quota-backend-bytes"
        }
        _ => "",
    }
}

impl EtcdError {
    /// True if another attempt may succeed.
    pub(super) fn is_no_answer(&self) -> bool {
        matches!(self, EtcdError::NoAnswer { .. })
    }
}

/// The pauses between attempts.
pub(super) fn pauses() -> ConstantBuilder {
    ConstantBuilder::new().with_delay(PAUSE).without_max_times()
}

/// Makes a call.
type Ask<M, A> = fn(etcd_client::Client, M) -> BoxFuture<'static, Result<A, etcd_client::Error>>;

/// A client of an etcd cluster. The one of etcd-client spreads calls over the members; this one stays with a member until it
/// fails, and then asks the next one, so that a member that is stopped costs one attempt.
pub(super) struct Client {
    pub config: Config,
    members: Vec<Channel>,
    /// The index of the member to ask.
    at: AtomicUsize,
    /// The session with a member, by its index.
    session: Mutex<Option<(usize, etcd_client::Client)>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.config.name()).finish()
    }
}

impl Client {
    /// Connects with the first call.
    ///
    /// # Errors
    /// An address is malformed.
    pub fn new(config: Config) -> Result<Self, EtcdError> {
        let member = |endpoint: &String| {
            let made = transport::endpoint(endpoint, config.tls.as_ref());
            let made = made.map_err(|error| EtcdError::Endpoint {
                name: config.name(),
                endpoint: endpoint.clone(),
                reason: root_cause(&error),
            })?;
            Ok(made
                .connect_timeout(ATTEMPT)
                .tcp_nodelay(true)
                .connect_lazy())
        };
        Ok(Client {
            members: config
                .endpoints
                .iter()
                .map(member)
                .collect::<Result<_, _>>()?,
            config,
            at: AtomicUsize::new(0),
            session: Mutex::default(),
        })
    }

    /// Reads a key, or with options a range of keys, linearizably.
    pub async fn get(
        &self,
        key: Vec<u8>,
        options: Option<GetOptions>,
        deadline: Instant,
    ) -> Result<Vec<KeyValue>, EtcdError> {
        self.until(deadline, (key, options), |client, (key, options)| {
            let mut kv = client.kv_client().max_decoding_message_size(MAX_ANSWER);
            async move { Ok(kv.get(key, options).await?.take_kvs()) }.boxed()
        })
        .await
    }

    /// Executes a transaction: one attempt.
    pub async fn txn(&self, transaction: Txn) -> Result<TxnResponse, EtcdError> {
        self.attempt(transaction, |client, transaction| {
            async move { client.kv_client().txn(transaction).await }.boxed()
        })
        .await
    }

    /// Grants a lease. Returns its id and its time to live.
    pub async fn grant(&self, deadline: Instant) -> Result<(i64, Duration), EtcdError> {
        let seconds = self.config.lease.as_secs();
        // A command line has no more.
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let lease = self.until(deadline, ttl, |client, ttl| {
            async move { client.lease_client().grant(ttl, None).await }.boxed()
        });
        let lease = lease.await?;
        let ttl = u64::try_from(lease.ttl()).unwrap_or(0);
        Ok((lease.id(), Duration::from_secs(ttl)))
    }

    /// Renews a lease for its time to live. Returns false if it has ended.
    pub async fn keep_alive(&self, id: i64, deadline: Instant) -> Result<bool, EtcdError> {
        self.until(deadline, id, |client, id| {
            let renewed = async move {
                match client.lease_client().keep_alive(id).await {
                    Ok(_) => Ok(true),
                    Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                    Err(error) => Err(error),
                }
            };
            renewed.boxed()
        })
        .await
    }

    /// Ends a lease, and with it its keys.
    pub async fn revoke(&self, id: i64, deadline: Instant) -> Result<(), EtcdError> {
        let revoked = self.until(deadline, id, |client, id| {
            async move { client.lease_client().revoke(id).await }.boxed()
        });
        revoked.await.map(drop)
    }

    /// Asks one member after the other until one answers or the deadline passes.
    async fn until<M: Clone, A>(
        &self,
        deadline: Instant,
        message: M,
        ask: Ask<M, A>,
    ) -> Result<A, EtcdError> {
        let is_early =
            |error: &EtcdError| error.is_no_answer() && Instant::now() + PAUSE < deadline;
        let attempt = || self.attempt(message.clone(), ask);
        attempt.retry(pauses()).when(is_early).await
    }

    /// Asks the member at hand. The next attempt is for the next one if there is no answer.
    async fn attempt<M, A>(&self, message: M, ask: Ask<M, A>) -> Result<A, EtcdError> {
        let at = self.at.load(Ordering::Relaxed);
        let asked = async {
            let client = self.session(at).await?;
            Ok(in_time(ask(client, message)).await?)
        };
        let status = match asked.await {
            Ok(answer) => return Ok(answer),
            Err(Failed::Unusable(error)) => return Err(error),
            Err(Failed::Etcd(etcd_client::Error::GRpcStatus(status))) => status,
            Err(Failed::Etcd(error)) => Status::unknown(error.to_string()),
        };
        let (name, reason) = (self.config.name(), self.reason(at, &status));
        match status.code() {
            // etcd's users have changed since the session began.
            Code::InvalidArgument if status.message().contains("auth store is old") => {}
            Code::InvalidArgument
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::Unimplemented
            | Code::NotFound => return Err(EtcdError::Rejected { name, reason }),
            _ => {}
        }
        // It may have ended at etcd.
        self.session.lock().await.take_if(|(of, _)| *of == at);
        self.at.store(at + 1, Ordering::Relaxed);
        Err(EtcdError::NoAnswer { name, reason })
    }

    fn reason(&self, at: usize, status: &Status) -> String {
        let endpoint = &self.config.endpoints[at % self.members.len()];
        let cause = std::error::Error::source(status).map(root_cause);
        let cause = cause.unwrap_or_else(|| one_line(status.message()));
        format!("{endpoint}: {cause}")
    }

    /// The options of sessions: only members that belong to the majority of the cluster answer.
    fn options(&self) -> Result<ConnectOptions, EtcdError> {
        let options = ConnectOptions::new().with_require_leader(true);
        let Some((name, file)) = &self.config.user else {
            return Ok(options);
        };
        let password = fs::read_to_string(file).map_err(|reason| EtcdError::Password {
            path: file.clone(),
            reason,
        })?;
        Ok(options.with_user(name, password.trim_end_matches(['\r', '\n'])))
    }

    /// The session with the member of this index. A new one begins with the user's login, if there is a user.
    async fn session(&self, at: usize) -> Result<etcd_client::Client, Failed> {
        let mut session = self.session.lock().await;
        match &*session {
            Some((of, client)) if *of == at => Ok(client.clone()),
            _ => {
                let options = self.options().map_err(Failed::Unusable)?;
                let channel = self.members[at % self.members.len()].clone();
                let channel = etcd_client::Channel::Tonic(channel);
                let begun = etcd_client::Client::from_channel(channel, Some(options));
                let client = in_time(begun).await?;
                *session = Some((at, client.clone()));
                Ok(client)
            }
        }
    }
}

/// The reason that an attempt failed.
enum Failed {
    Etcd(etcd_client::Error),
    /// The same at every member.
    Unusable(EtcdError),
}

impl From<etcd_client::Error> for Failed {
    fn from(error: etcd_client::Error) -> Self {
        Failed::Etcd(error)
    }
}

/// Waits for a member for [`ATTEMPT`].
async fn in_time<A>(
    asked: impl Future<Output = Result<A, etcd_client::Error>>,
) -> Result<A, etcd_client::Error> {
    let late = |_| Status::deadline_exceeded(format!("no answer within {ATTEMPT:?}"));
    match timeout(ATTEMPT, asked).await.map_err(late) {
        Ok(answer) => answer,
        Err(late) => Err(etcd_client::Error::GRpcStatus(late)),
    }
}

/// The key that the operation of this index has read in a transaction.
pub(super) fn read_by(answer: &TxnResponse, at: usize) -> Option<KeyValue> {
    match answer.op_responses().into_iter().nth(at)? {
        TxnOpResponse::Get(mut read) => read.take_kvs().pop(),
        _ => None,
    }
}
