//! The API for a training process: one rank's operations, blocking. Threads and sockets are in `driver`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::{Codec, Coding};
use crate::config::{Config, ConfigError, ReceiveBuffer};
use crate::core::{Core, StartError};
use crate::driver::port::{PortConfig, PortLink};
use crate::driver::thread::{Command, Handle, Prober, Reply, Report, Stopped};
use crate::driver::udp::{self, UdpConfig, UdpLink};
use crate::driver::{Link, LinkError};
use crate::exact::{Exact, ExactOutcome, Incomplete};
use crate::hierarchical::GridError;
use crate::history::History;
use crate::operation::{OperationId, Piece};
use crate::recycling::{Carry, Correction};
use crate::safeguards::{CodingInUse, Safeguards, StopError, Verdict};
use crate::spans;
use crate::stats::Outcome;
use crate::trace::Sink;
use crate::values::{Lent, Taken, Values};

/// Errors of a collective.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The number of addresses differs from the number of ranks.
    #[error(
        "{peers} peer addresses for a job of {ranks} ranks: expected one per rank, including this one"
    )]
    Peers {
        /// Addresses given.
        peers: usize,
        /// Ranks of the job.
        ranks: u16,
    },
    /// The bucket's length changed under the same id, so carried or started values no longer match.
    #[error(
        "bucket {bucket} had {was} values and now has {is}: expected the same length until it is waited for, \
         and with recycling in every step"
    )]
    Length {
        /// The bucket.
        bucket: u16,
        /// Its length in earlier steps.
        was: usize,
        /// Its length now.
        is: usize,
    },
    /// The bucket's operation of an earlier step was not waited for. Its residual belongs in this one.
    #[error("{id} cannot start: wait for {under_way} of the same bucket first")]
    UnderWay {
        /// The rejected id.
        id: OperationId,
        /// The earlier operation.
        under_way: OperationId,
    },
    /// There is no operation to wait for.
    #[error("{0} was not started, or was already waited for")]
    NotStarted(OperationId),
    /// The core rejected the operation.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The grid does not support the operation.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The ranks agreed to stop.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// An exact operation missed packets at its limit.
    #[error(transparent)]
    Incomplete(#[from] Incomplete),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Durations and losses of a collective's operations so far.
#[derive(Clone, Debug, Default)]
struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    fn lock(&self) -> MutexGuard<'_, History> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle that reads a collective's counters from any thread, also during an operation.
#[derive(Clone)]
pub struct Observer {
    prober: Prober,
    history: SharedHistory,
}

impl Observer {
    /// Returns the counters so far, as soon as the data thread has answered.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn report(&self) -> Result<Report, Stopped> {
        // No check uses round 0.
        self.prober.heard(0).map(|(_, report)| report)
    }

    /// Durations and losses of finished operations. Also valid after the collective has ended.
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }
}

/// One rank's part in a job: averages buckets over all ranks, each by its deadline.
///
/// A thread of its own moves the packets, also between calls. Dropping the collective sends what others still
/// wait for, then ends the thread. [`Collective::finish`] also counts packets in flight.
pub struct Collective {
    data: Handle,
    codec: Codec,
    /// The configured coding.
    coding: Coding,
    in_use: CodingInUse,
    /// With recycling: the residual to carry from step to step.
    pub(crate) carry: Option<Carry>,
    /// Operations that were started and not waited for.
    under_way: Vec<UnderWay>,
    /// Buffers of earlier results, for the next encodings.
    spare: Vec<Vec<f32>>,
    history: SharedHistory,
    config: Config,
}

struct UnderWay {
    id: OperationId,
    values: usize,
    coding: Coding,
    span: tracing::Span,
    /// The place for the decoded result of [`Collective::start_taken`].
    taken: Option<Taken>,
    ended: Option<Result<Ended, StartError>>,
}

enum Ended {
    Bounded {
        outcome: Box<Outcome>,
        result: Vec<f32>,
        corrections: Vec<Correction>,
    },
    Exact(Box<Result<(ExactOutcome, Vec<f32>), Incomplete>>),
}

fn check_length(id: OperationId, was: usize, is: usize) -> Result<(), Error> {
    match was == is {
        true => Ok(()),
        false => Err(Error::Length {
            bucket: id.bucket,
            was,
            is,
        }),
    }
}

/// The threads for the codec of each of `ranks` on this machine: the cores that their network threads leave, up to 4.
fn codec_threads(ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / ranks).saturating_sub(1).clamp(1, 4)
}

impl Collective {
    /// Creates a collective over kernel UDP.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Peers`], or [`Error::Link`] if the socket cannot be set up.
    pub fn over_udp(mut config: Config, udp: UdpConfig) -> Result<Self, Error> {
        let peers = udp.peers.len();
        let buffer = UdpConfig::receive_buffer(&udp.socket, config.ranks)?;
        config.receive_buffer = Some(ReceiveBuffer::of_socket(buffer, &config));
        config.send_run = udp::send_run(&config);
        let threads = codec_threads(udp.local_ranks()?);
        let mut collective = Self::new(config, peers, move |max_datagram| {
            UdpLink::new(udp, max_datagram)
        })?;
        collective.codec = collective.codec.with_threads(threads);
        Ok(collective)
    }

    /// Creates a collective over a virtual switch port.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Peers`], or [`Error::Link`] if no thread can be started.
    pub fn over_port(config: Config, port: PortConfig) -> Result<Self, Error> {
        let peers = port.peers.len();
        Self::new(config, peers, move |max_datagram| {
            Ok(PortLink::new(port, max_datagram))
        })
    }

    fn new<L: Link>(
        config: Config,
        peers: usize,
        connect: impl FnOnce(usize) -> Result<L, LinkError> + Send + 'static,
    ) -> Result<Self, Error> {
        let core = Core::new(config)?;
        let config = core.config().clone();
        let Config {
            ranks,
            coding,
            seed,
            recycling,
            ..
        } = config;
        if peers != usize::from(ranks) {
            return Err(Error::Peers { peers, ranks });
        }
        let max_datagram = core.max_datagram();
        let data = Handle::spawn(core, move || connect(max_datagram))?;
        Ok(Self {
            data,
            codec: Codec::new(coding, seed),
            coding,
            in_use: CodingInUse::new(true),
            carry: recycling.map(|_| Carry::default()),
            under_way: Vec::new(),
            spare: Vec::new(),
            history: SharedHistory::default(),
            config,
        })
    }

    /// The threads that code large buckets.
    pub(crate) fn codec_threads(&self) -> usize {
        self.codec.threads()
    }

    /// This rank's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces `bucket` by its mean over all ranks, or by the part of it that arrived within t_B.
    ///
    /// Every rank calls this with the same ids and the same number of values; see [`OperationId`] for the
    /// order of ids. With [`Config::recycling`], the contribution includes the residual of earlier operations
    /// with the same bucket id, and the mean includes their repairs.
    ///
    /// # Errors
    /// [`Error::Start`] if the id cannot be used, [`Error::Length`] if the bucket's length changed; both
    /// leave `bucket` unchanged. [`Error::Link`] if the link failed; without coding and recycling, parts of `bucket` may
    /// then be replaced.
    pub fn allreduce(&mut self, id: OperationId, bucket: &mut [f32]) -> Result<Outcome, Error> {
        if self.sends_values_as_they_are() {
            return self.allreduce_in_place(id, bucket);
        }
        self.start(id, bucket)?;
        self.wait(id, bucket)
    }

    /// True if the network gets the caller's values: neither coded nor with a residual.
    fn sends_values_as_they_are(&self) -> bool {
        self.codec.coding() == Coding::Identity && self.carry.is_none()
    }

    /// [`Collective::allreduce`] without a copy of the bucket.
    fn allreduce_in_place(
        &mut self,
        id: OperationId,
        bucket: &mut [f32],
    ) -> Result<Outcome, Error> {
        self.check_idle(id)?;
        let len = bucket.len();
        let span = spans::allreduce(self.config.rank, id, len);
        // SAFETY: this function does not use `bucket`, and returns when the data thread has dropped the values: it drops
        // them before it reports the end of the operation, or has ended, see `Handle::reply`.
        let lent = unsafe { Lent::new(bucket) };
        self.begin((id, Piece::default()), Values::Lent(lent), len, span);
        self.wait_taken(id).map(|(outcome, _)| outcome)
    }

    /// As [`Collective::start`], with values that the operation takes until [`Collective::wait_taken`] returns. Without
    /// coding and recycling no value is copied.
    ///
    /// # Errors
    /// As [`Collective::start`]; the values are dropped.
    pub fn start_taken(&mut self, id: OperationId, mut bucket: Taken) -> Result<(), Error> {
        let len = bucket.as_mut_slice().len();
        if self.sends_values_as_they_are() {
            self.check_idle(id)?;
            let span = spans::allreduce(self.config.rank, id, len);
            self.begin((id, Piece::default()), bucket.into(), len, span);
            return Ok(());
        }
        self.start(id, bucket.as_mut_slice())?;
        if let Some(started) = self.under_way.last_mut() {
            started.taken = Some(bucket);
        }
        Ok(())
    }

    /// Waits for the end of an operation that [`Collective::start_taken`] started. The mean has replaced its values, and
    /// is returned if they were [`Taken::Owned`]; the vector is empty otherwise.
    ///
    /// # Errors
    /// As [`Collective::wait`]; the values are dropped.
    pub fn wait_taken(&mut self, id: OperationId) -> Result<(Outcome, Vec<f32>), Error> {
        let at = self.position(id)?;
        if let Some(mut bucket) = self.under_way[at].taken.take() {
            let outcome = self.wait(id, bucket.as_mut_slice())?;
            return Ok((outcome, bucket.into_vec()));
        }
        let (outcome, result) = self.wait_encoded(id)?;
        self.follow_coding(&outcome);
        Ok((outcome, result))
    }

    /// Starts an [`Collective::allreduce`] and returns at once. Several buckets of a step may be in progress,
    /// and every rank may start them in a different order.
    ///
    /// # Errors
    /// [`Error::Length`] if the bucket's length changed, [`Error::Start`] if the id is in progress,
    /// [`Error::UnderWay`] if the bucket is in progress in another step. [`Collective::wait`] reports an id
    /// that the core rejects.
    pub fn start(&mut self, id: OperationId, bucket: &[f32]) -> Result<(), Error> {
        self.check_idle(id)?;
        let mut contributions = self.spare.pop().unwrap_or_default();
        let span = spans::allreduce(self.config.rank, id, bucket.len());
        let _entered = span.enter();
        match &mut self.carry {
            Some(carry) => {
                let was = carry.residual(id.bucket).map_or(bucket.len(), <[f32]>::len);
                check_length(id, was, bucket.len())?;
                let contributed = carry.contribute(id, bucket);
                self.codec.encode(id, contributed, &mut contributions);
            }
            None => self.codec.encode(id, bucket, &mut contributions),
        }
        self.begin(
            (id, Piece::default()),
            Values::Stored(contributions),
            bucket.len(),
            span.clone(),
        );
        Ok(())
    }

    /// Starts an operation, or half of one, with encoded values, for [`Collective::wait_encoded`].
    ///
    /// # Errors
    /// [`Error::Start`] if the id is in progress.
    pub(crate) fn start_part(
        &mut self,
        id: OperationId,
        piece: Piece,
        values: Vec<f32>,
    ) -> Result<(), Error> {
        self.check_free(id)?;
        let len = values.len();
        let span = spans::allreduce(self.config.rank, id, len);
        self.begin((id, piece), Values::Stored(values), len, span);
        Ok(())
    }

    fn begin(
        &mut self,
        (id, piece): (OperationId, Piece),
        contributions: Values,
        values: usize,
        span: tracing::Span,
    ) {
        self.data.command(Command::Start {
            id,
            piece,
            contributions,
        });
        self.under_way.push(UnderWay {
            id,
            values,
            coding: self.codec.coding(),
            span,
            taken: None,
            ended: None,
        });
    }

    /// Waits for the end of an operation that [`Collective::start`] started, and writes the mean to `bucket`.
    ///
    /// # Errors
    /// [`Error::NotStarted`]. [`Error::Length`] if the length of `bucket` differs from the started one's; the
    /// operation can still be waited for. [`Error::Start`] if the core rejected the id; `bucket` is
    /// unchanged. [`Error::Link`] if the link failed.
    pub fn wait(&mut self, id: OperationId, bucket: &mut [f32]) -> Result<Outcome, Error> {
        let at = self.position(id)?;
        check_length(id, self.under_way[at].values, bucket.len())?;
        let (UnderWay { coding, span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        let Ended::Bounded {
            outcome,
            result,
            corrections,
        } = ended?
        else {
            return Err(Error::NotStarted(id));
        };
        self.codec.decode_as(coding, id, &result, bucket);
        if let Some(carry) = &mut self.carry {
            carry.settle(&mut self.codec, id, &corrections, bucket);
        }
        self.spare.push(result);
        self.follow_coding(&outcome);
        self.history.lock().add(&outcome);
        spans::ended(&outcome);
        Ok(*outcome)
    }

    /// Waits for the end of an operation that [`Collective::start_part`] started, and returns the encoded
    /// result.
    ///
    /// # Errors
    /// As [`Collective::wait`].
    pub(crate) fn wait_encoded(&mut self, id: OperationId) -> Result<(Outcome, Vec<f32>), Error> {
        let at = self.position(id)?;
        let (UnderWay { span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        let Ended::Bounded {
            outcome, result, ..
        } = ended?
        else {
            return Err(Error::NotStarted(id));
        };
        self.history.lock().add(&outcome);
        spans::ended(&outcome);
        Ok((*outcome, result))
    }

    /// Follows the others' coding if this rank missed the vote on it.
    fn follow_coding(&mut self, outcome: &Outcome) {
        if let Some(on) = self.in_use.heard(outcome.coded_otherwise) {
            let (rank, id) = (self.config.rank, outcome.id);
            tracing::info!(rank, %id, on, "follow the others' coding: this rank missed the vote on it");
            self.code(on);
        }
    }

    fn position(&self, id: OperationId) -> Result<usize, Error> {
        let at = self.under_way.iter().position(|o| o.id == id);
        at.ok_or(Error::NotStarted(id))
    }

    /// Waits until the operation at index `at` has ended, and removes it.
    fn await_end(&mut self, at: usize) -> Result<(UnderWay, Result<Ended, StartError>), LinkError> {
        loop {
            if let Some(ended) = self.under_way[at].ended.take() {
                return Ok((self.under_way.remove(at), ended));
            }
            // Reports that no caller waits for any more.
            self.listen()?;
        }
    }

    /// Checks that neither the id nor its bucket is in progress.
    fn check_idle(&self, id: OperationId) -> Result<(), Error> {
        self.check_free(id)?;
        match self.under_way.iter().find(|o| o.id.bucket == id.bucket) {
            None => Ok(()),
            Some(other) => Err(Error::UnderWay {
                id,
                under_way: other.id,
            }),
        }
    }

    fn check_free(&self, id: OperationId) -> Result<(), Error> {
        match self.under_way.iter().any(|o| o.id == id) {
            true => Err(StartError::Repeated(id).into()),
            false => Ok(()),
        }
    }

    /// True if [`Collective::wait`] or [`Collective::wait_exact`] would return at once. It never blocks.
    ///
    /// # Errors
    /// [`Error::NotStarted`], [`Error::Link`] if the link failed.
    pub fn has_ended(&mut self, id: OperationId) -> Result<bool, Error> {
        let at = self.position(id)?;
        while let Some(reply) = self.data.try_reply()? {
            self.file(reply);
        }
        Ok(self.under_way[at].ended.is_some())
    }

    /// Calls `wake` on the data thread whenever an operation may have ended, and when the link has failed.
    /// It must not block. The first call counts.
    pub fn on_end(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.data.on_reply(Box::new(wake));
    }

    /// Returns the data thread's next reply, unless it belongs to an operation in progress, which keeps it.
    fn listen(&mut self) -> Result<Option<Reply>, LinkError> {
        let reply = self.data.reply()?;
        Ok(self.file(reply))
    }

    /// Stores a reply with its operation in progress. Returns any other reply.
    fn file(&mut self, reply: Reply) -> Option<Reply> {
        let (id, ended) = match reply {
            Reply::Done {
                outcome,
                result,
                corrections,
            } => {
                let id = outcome.id;
                let ended = Ended::Bounded {
                    outcome,
                    result,
                    corrections,
                };
                (id, Ok(ended))
            }
            Reply::Exact { id, ended } => (id, Ok(Ended::Exact(ended))),
            Reply::Refused(error) => (error.id(), Err(error)),
            reply => return Some(reply),
        };
        if let Some(operation) = self.under_way.iter_mut().find(|o| o.id == id) {
            operation.ended = Some(ended);
        }
        None
    }

    /// Replaces `values` by their exact mean over all ranks, with the same bits on every rank. It waits up to
    /// `limit` for every rank and repairs losses, so it suits small tensors.
    ///
    /// Ids are shared with [`Collective::allreduce`]. Every rank calls the same function with the same id,
    /// limit and number of values. There is no recycling and no coding: the mean is the sum in the order of
    /// ranks, divided.
    ///
    /// # Errors
    /// [`Error::Incomplete`] names the missing ranks after `limit`, [`Error::Start`] says why the id cannot
    /// be used; both leave `values` unchanged. [`Error::Link`] if the link failed.
    pub fn allreduce_exact(
        &mut self,
        id: OperationId,
        values: &mut [f32],
        limit: Duration,
    ) -> Result<ExactOutcome, Error> {
        let (outcome, mean) = self.exact(id, Exact::Mean, values.to_vec(), limit)?;
        values.copy_from_slice(&mean);
        Ok(outcome)
    }

    /// Replaces `values` on every rank by those of `root`, bit by bit.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn broadcast(
        &mut self,
        id: OperationId,
        root: u16,
        values: &mut [f32],
        limit: Duration,
    ) -> Result<ExactOutcome, Error> {
        let broadcast = Exact::Broadcast { root };
        let (outcome, result) = self.exact(id, broadcast, values.to_vec(), limit)?;
        values.copy_from_slice(&result);
        Ok(outcome)
    }

    /// Returns every rank's `part`, concatenated in the order of ranks. All parts have the same length.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn all_gather(
        &mut self,
        id: OperationId,
        part: &[f32],
        limit: Duration,
    ) -> Result<(ExactOutcome, Vec<f32>), Error> {
        self.exact(id, Exact::AllGather, part.to_vec(), limit)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn barrier(&mut self, id: OperationId, limit: Duration) -> Result<ExactOutcome, Error> {
        // One value has one owner, which hears every rank and answers every rank.
        let (outcome, _) = self.exact(id, Exact::Sum, vec![0.0], limit)?;
        Ok(outcome)
    }

    /// Votes with all ranks on this step's update and returns the verdict. `lost` is the share of its packets
    /// that did not arrive here ([`Outcome::lost_share`]).
    ///
    /// Every rank calls this if [`Safeguards::is_due`]. With [`Verdict::skip`] every rank calls
    /// [`Collective::skip`], with [`Verdict::heal`] [`Collective::heal`], and with [`Verdict::code`]
    /// [`Collective::code`].
    ///
    /// # Errors
    /// [`Error::Stop`] on every rank, and those of [`Collective::allreduce_exact`]: then this rank has no
    /// verdict, although others may have one. If that vote decided on coding, this rank follows the others
    /// one operation after it first received their packets. The next vote brings all other state of the
    /// rules.
    pub fn agree(
        &mut self,
        id: OperationId,
        safeguards: &mut Safeguards,
        (lost, parameters): (f64, &[f32]),
        limit: Duration,
    ) -> Result<Verdict, Error> {
        let vote = safeguards.vote(id, lost, parameters);
        let gathered = self.all_gather(id, &vote, limit);
        if matches!(gathered, Err(Error::Incomplete(_))) && safeguards.decides_coding(id.step) {
            self.in_use.missed();
        }
        let (_, votes) = gathered?;
        let ranks = votes.len() / vote.len();
        Ok(safeguards.count(id, &votes, ranks as u16)?)
    }

    /// The distance of all ranks' `parameters` from each other: [`safeguards::Sketch::spread`].
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    ///
    /// [`safeguards::Sketch::spread`]: crate::safeguards::Sketch::spread
    pub fn spread(
        &mut self,
        id: OperationId,
        safeguards: &Safeguards,
        parameters: &[f32],
        limit: Duration,
    ) -> Result<f64, Error> {
        let (_, digests) = self.all_gather(id, &safeguards.digest(id, parameters), limit)?;
        Ok(Safeguards::spread(&digests))
    }

    /// Switches the configured coding on or off from the next operation. All ranks call this when a
    /// [`Verdict`] asks for it, before they start another operation.
    pub fn code(&mut self, on: bool) {
        self.in_use.agreed(on);
        let coding = match on {
            true => self.coding,
            false => Coding::Identity,
        };
        self.codec.set_coding(coding);
        self.data.command(Command::Coding(coding));
    }

    /// Skips the update of `bucket` that [`Collective::allreduce`] returned: sets it to zero. With
    /// [`Config::recycling`] the next update includes it; without, it is lost.
    pub fn skip(&mut self, bucket: u16, update: &mut [f32]) {
        if let Some(carry) = &mut self.carry {
            carry.skip(bucket, update);
        }
        update.fill(0.0);
    }

    /// Sets the factor by which gradients are multiplied from the next [`Collective::start`] on: the loss scale of mixed
    /// precision training, a positive number, 1 at first. With [`Config::recycling`], residuals of earlier operations are
    /// converted to it. Every rank sets the same scale before the same operation.
    pub fn set_loss_scale(&mut self, scale: f32) {
        if let Some(carry) = &mut self.carry {
            carry.set_scale(scale);
        }
    }

    /// Replaces every rank's `parameters` by their mean, so that all are equal bit by bit.
    ///
    /// With [`Config::recycling`], corrections that only this rank would still have applied go into its
    /// contributions. No operation may be in progress.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn heal(
        &mut self,
        id: OperationId,
        parameters: &mut [f32],
        limit: Duration,
    ) -> Result<ExactOutcome, Error> {
        let outcome = self.allreduce_exact(id, parameters, limit)?;
        self.data.command(Command::Healed);
        if let Some(carry) = &mut self.carry {
            carry.heal();
        }
        Ok(outcome)
    }

    fn exact(
        &mut self,
        id: OperationId,
        exact: Exact,
        values: Vec<f32>,
        limit: Duration,
    ) -> Result<(ExactOutcome, Vec<f32>), Error> {
        self.start_exact(id, exact, values, limit)?;
        self.wait_exact(id)
    }

    /// Starts an exact operation and returns at once. See [`Collective::allreduce_exact`].
    ///
    /// # Errors
    /// [`Error::Start`] if the id is in progress. [`Collective::wait_exact`] reports an id that the core
    /// rejects.
    pub fn start_exact(
        &mut self,
        id: OperationId,
        exact: Exact,
        values: Vec<f32>,
        limit: Duration,
    ) -> Result<(), Error> {
        self.check_free(id)?;
        let (len, span) = (
            values.len(),
            spans::exact(self.config.rank, id, values.len()),
        );
        let _entered = span.enter();
        self.data.command(Command::Exact {
            id,
            exact,
            values,
            limit,
        });
        self.under_way.push(UnderWay {
            id,
            values: len,
            coding: Coding::Identity,
            span: span.clone(),
            taken: None,
            ended: None,
        });
        Ok(())
    }

    /// Waits for the end of an operation that [`Collective::start_exact`] started, and returns its result.
    ///
    /// # Errors
    /// [`Error::NotStarted`], and those of [`Collective::allreduce_exact`].
    pub fn wait_exact(&mut self, id: OperationId) -> Result<(ExactOutcome, Vec<f32>), Error> {
        let at = self.position(id)?;
        let (UnderWay { span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        match ended? {
            Ended::Exact(ended) => Ok((*ended)?),
            Ended::Bounded { .. } => Err(Error::NotStarted(id)),
        }
    }

    /// With [`Config::recycling`]: the residual that this rank adds to its next operation of `bucket`, one
    /// value per entry. None before the first operation.
    pub fn residual(&self, bucket: u16) -> Option<&[f32]> {
        self.carry.as_ref()?.residual(bucket)
    }

    /// Returns a handle that sends check packets to other ranks, also during an operation.
    pub fn prober(&self) -> Prober {
        self.data.prober()
    }

    /// Records packets and events to `sink` from now on. The data thread calls it, and drops it with the
    /// collective.
    pub fn trace(&mut self, sink: Box<dyn Sink>) {
        self.data.command(Command::Trace(sink));
    }

    /// Returns a handle that reads this collective's counters.
    pub fn observer(&self) -> Observer {
        Observer {
            prober: self.data.prober(),
            history: self.history.clone(),
        }
    }

    /// Returns the counters so far.
    ///
    /// # Errors
    /// [`Error::Link`] if the link failed.
    pub fn report(&mut self) -> Result<Report, Error> {
        self.data.command(Command::Report);
        self.await_report()
    }

    /// Keeps receiving for `linger`, then ends and returns all counters. If `linger` outlasts the other
    /// ranks' last operation and its packets, every datagram to this rank is counted.
    ///
    /// # Errors
    /// [`Error::Link`] if the link failed.
    pub fn finish(mut self, linger: Duration) -> Result<Report, Error> {
        std::thread::sleep(linger);
        self.data.command(Command::Finish);
        self.await_report()
    }

    fn await_report(&mut self) -> Result<Report, Error> {
        loop {
            if let Some(Reply::Report(report)) = self.listen()? {
                return Ok(*report);
            }
        }
    }
}
