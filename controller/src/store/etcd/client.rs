//! Calls to the members of an etcd cluster: one after the other, until one answers.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable as _};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use ultima_grpc::transport::{self, one_line, root_cause};

use super::Config;
use super::v3::auth_client::AuthClient;
use super::v3::kv_client::KvClient;
use super::v3::lease_client::LeaseClient;
use super::v3::{self, request_op};

/// Timeout of one attempt at one member.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest answer: all jobs.
const MAX_ANSWER: usize = 256 << 20;

/// Error of etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A member's address is malformed.
    #[error("{name}: {endpoint}: {reason}; expected HOST:PORT")]
    Endpoint {
        /// The cluster.
        name: String,
        /// The member.
        endpoint: String,
        /// The reason.
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
        /// The file.
        path: PathBuf,
        /// The reason.
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
type Ask<M, A> = fn(Channel, Request<M>) -> BoxFuture<'static, Result<Response<A>, Status>>;

/// A client of an etcd cluster.
pub(super) struct Client {
    pub config: Config,
    members: Vec<Channel>,
    /// The index of the member to ask.
    at: AtomicUsize,
    /// The token of the user's session.
    token: Mutex<Option<AsciiMetadataValue>>,
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
            token: Mutex::default(),
        })
    }

    /// Reads a range of keys, linearizably.
    pub async fn range(
        &self,
        request: v3::RangeRequest,
        deadline: Instant,
    ) -> Result<v3::RangeResponse, EtcdError> {
        self.until(deadline, request, |channel, request| {
            let mut rpc = KvClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            async move { rpc.range(request).await }.boxed()
        })
        .await
    }

    /// Executes a transaction: one attempt.
    pub async fn txn(&self, request: v3::TxnRequest) -> Result<v3::TxnResponse, EtcdError> {
        self.attempt(request, |channel, request| {
            async move { KvClient::new(channel).txn(request).await }.boxed()
        })
        .await
    }

    /// Grants a lease. Returns its id and its time to live.
    pub async fn grant(&self, deadline: Instant) -> Result<(i64, Duration), EtcdError> {
        let seconds = self.config.lease.as_secs();
        // A command line has no more.
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let request = v3::LeaseGrantRequest { ttl };
        let lease = self.until(deadline, request, |channel, request| {
            async move { LeaseClient::new(channel).lease_grant(request).await }.boxed()
        });
        let lease = lease.await?;
        Ok((lease.id, seconds_of(lease.ttl)))
    }

    /// Renews a lease. Returns its time to live; zero if it has ended.
    pub async fn keep_alive(&self, id: i64, deadline: Instant) -> Result<Duration, EtcdError> {
        let request = v3::LeaseKeepAliveRequest { id };
        let lease = self.until(deadline, request, |channel, request| {
            let ask = async move {
                let mut rpc = LeaseClient::new(channel);
                let answers = rpc
                    .lease_keep_alive(request.map(tokio_stream::once))
                    .await?;
                let answer = answers.into_inner().message().await?;
                let ended = || Status::unavailable("the stream has ended");
                Ok(Response::new(answer.ok_or_else(ended)?))
            };
            ask.boxed()
        });
        Ok(seconds_of(lease.await?.ttl))
    }

    /// Ends a lease, and with it its keys.
    pub async fn revoke(&self, id: i64, deadline: Instant) -> Result<(), EtcdError> {
        let request = v3::LeaseRevokeRequest { id };
        let revoked = self.until(deadline, request, |channel, request| {
            async move { LeaseClient::new(channel).lease_revoke(request).await }.boxed()
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

    async fn attempt<M, A>(&self, message: M, ask: Ask<M, A>) -> Result<A, EtcdError> {
        let at = self.at.load(Ordering::Relaxed);
        let attempted = self.attempt_at(at, message, ask).await;
        if attempted.as_ref().is_err_and(EtcdError::is_no_answer) {
            self.at.store(at + 1, Ordering::Relaxed);
        }
        attempted
    }

    /// Asks the member with this index.
    async fn attempt_at<M, A>(
        &self,
        at: usize,
        message: M,
        ask: Ask<M, A>,
    ) -> Result<A, EtcdError> {
        let channel = self.members[at % self.members.len()].clone();
        self.log_in(&channel, at).await?;
        let request = self.request(message).await;
        let status = match timeout(ATTEMPT, ask(channel, request)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(format!("no answer within {ATTEMPT:?}")),
        };
        let (name, reason) = (self.config.name(), self.reason(at, &status));
        match status.code() {
            // The session has ended, or etcd's users have changed since its token was signed.
            Code::Unauthenticated => *self.token.lock().await = None,
            Code::InvalidArgument if status.message().contains("auth store is old") => {
                *self.token.lock().await = None;
            }
            Code::InvalidArgument
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::Unimplemented
            | Code::NotFound => return Err(EtcdError::Rejected { name, reason }),
            _ => {}
        }
        Err(EtcdError::NoAnswer { name, reason })
    }

    fn reason(&self, at: usize, status: &Status) -> String {
        let endpoint = &self.config.endpoints[at % self.members.len()];
        let cause = std::error::Error::source(status).map(root_cause);
        let cause = cause.unwrap_or_else(|| one_line(status.message()));
        format!("{endpoint}: {cause}")
    }

    /// Begins a session of the user, if there is one.
    async fn log_in(&self, channel: &Channel, at: usize) -> Result<(), EtcdError> {
        let Some((name, file)) = &self.config.user else {
            return Ok(());
        };
        let mut token = self.token.lock().await;
        if token.is_some() {
            return Ok(());
        }
        let password = fs::read_to_string(file).map_err(|reason| EtcdError::Password {
            path: file.clone(),
            reason,
        })?;
        let request = v3::AuthenticateRequest {
            name: name.clone(),
            password: password.trim_end_matches(['\r', '\n']).to_owned(),
        };
        let mut rpc = AuthClient::new(channel.clone());
        let status = match timeout(ATTEMPT, rpc.authenticate(request)).await {
            Ok(Ok(session)) => {
                // Tokens are ASCII.
                *token = MetadataValue::try_from(session.into_inner().token).ok();
                return Ok(());
            }
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("no answer to Authenticate"),
        };
        let (name, reason) = (self.config.name(), self.reason(at, &status));
        Err(match status.code() {
            Code::InvalidArgument | Code::FailedPrecondition => {
                EtcdError::Rejected { name, reason }
            }
            _ => EtcdError::NoAnswer { name, reason },
        })
    }

    /// A request with the session's token, for a member that belongs to the majority of the cluster.
    async fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &*self.token.lock().await {
            metadata.insert("token", token.clone());
        }
        request
    }
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

/// An operation that reads a key.
pub(super) fn read_of(key: Vec<u8>) -> v3::RequestOp {
    let range = v3::RangeRequest {
        key,
        range_end: Vec::new(),
    };
    let request = Some(request_op::Request::RequestRange(range));
    v3::RequestOp { request }
}

/// An operation that writes a key; with a lease the key ends with it.
pub(super) fn put_of(key: Vec<u8>, value: Vec<u8>, lease: i64) -> v3::RequestOp {
    let put = v3::PutRequest { key, value, lease };
    let request = Some(request_op::Request::RequestPut(put));
    v3::RequestOp { request }
}

/// An operation that deletes a key.
pub(super) fn delete_of(key: Vec<u8>) -> v3::RequestOp {
    let delete = v3::DeleteRangeRequest { key };
    let request = Some(request_op::Request::RequestDeleteRange(delete));
    v3::RequestOp { request }
}

/// The keys that the operations of a transaction have read, in the order of the operations.
pub(super) fn reads_of(answer: v3::TxnResponse) -> impl Iterator<Item = Option<v3::KeyValue>> {
    use v3::response_op::Response;
    answer.responses.into_iter().map(|it| match it.response {
        Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    })
}
