//! What a training process calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ultima_wire::Key;

use crate::codec::{Codec, Coding};
use crate::config::{Config, ConfigError};
use crate::core::{Core, StartError};
use crate::driver::port::{PortConfig, PortLink};
use crate::driver::thread::{Command, Handle, Prober, Reply, Report, Stopped};
use crate::driver::udp::{UdpConfig, UdpLink};
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

/// Why a collective cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// As many addresses as ranks are needed.
    #[error(
        "{peers} peers are given for a job of {ranks} ranks; one for each rank is needed, this one included"
    )]
    Peers {
        /// Addresses given.
        peers: usize,
        /// Ranks of the job.
        ranks: u16,
    },
    /// Another length than before under the same id: what is carried, or was started, would belong to nothing.
    #[error(
        "bucket {bucket} had {was} values and now has {is}; it keeps its length until it is waited for, and with recycling from \
         step to step"
    )]
    Length {
        /// The bucket.
        bucket: u16,
        /// Its length in earlier steps.
        was: usize,
        /// Its length now.
        is: usize,
    },
    /// The bucket's operation of another step was not waited for: what it leaves goes into this one.
    #[error("{id} cannot start before {under_way}, of the same bucket, was waited for")]
    UnderWay {
        /// The refused id.
        id: OperationId,
        /// The earlier one.
        under_way: OperationId,
    },
    /// Nothing to wait for.
    #[error("{0} was not started, or was waited for before")]
    NotStarted(OperationId),
    /// The operation cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// What a grid cannot do.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The ranks agreed to stop.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// An exact operation did not get everything in time.
    #[error(transparent)]
    Incomplete(#[from] Incomplete),
    /// The network is gone.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// What a collective's operations took and lost so far.
#[derive(Clone, Debug, Default)]
struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    fn lock(&self) -> MutexGuard<'_, History> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at a collective from any thread, also while an operation runs.
#[derive(Clone)]
pub struct Observer {
    prober: Prober,
    history: SharedHistory,
}

impl Observer {
    /// What was counted so far. Takes no longer than the data thread needs to look up.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn report(&self) -> Result<Report, Stopped> {
        // A round that no check has.
        self.prober.heard(0).map(|(_, report)| report)
    }

    /// What the operations that have ended took and lost, also once the collective has ended.
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }
}

/// One rank's part in a job: averages buckets over all ranks, each by its deadline.
///
/// A thread of its own moves the packets, also between calls. Dropping the collective sends
/// what others wait for and ends it; [`Collective::finish`] also counts what is still on its way.
pub struct Collective {
    data: Handle,
    codec: Codec,
    /// As configured.
    coding: Coding,
    in_use: CodingInUse,
    /// With recycling: what is carried from step to step.
    pub(crate) carry: Option<Carry>,
    /// What was started and not waited for.
    under_way: Vec<UnderWay>,
    /// Results, whose memory the next operations are encoded to.
    spare: Vec<Vec<f32>>,
    history: SharedHistory,
    config: Config,
}

struct UnderWay {
    id: OperationId,
    values: usize,
    coding: Coding,
    span: tracing::Span,
    ended: Option<Result<Ended, StartError>>,
}

struct Ended {
    outcome: Box<Outcome>,
    result: Vec<f32>,
    corrections: Vec<Correction>,
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

impl Collective {
    /// A collective over kernel UDP.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Peers`], or [`Error::Link`] if the socket cannot be set up.
    pub fn over_udp(config: Config, udp: UdpConfig) -> Result<Self, Error> {
        let peers = udp.peers.len();
        Self::new(config, peers, move |max_datagram, key| {
            UdpLink::new(udp, max_datagram, key)
        })
    }

    /// A collective over a virtual switch port.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Peers`], or [`Error::Link`] if no thread can be started.
    pub fn over_port(config: Config, port: PortConfig) -> Result<Self, Error> {
        let peers = port.peers.len();
        Self::new(config, peers, move |max_datagram, key| {
            Ok(PortLink::new(port, max_datagram, key))
        })
    }

    fn new<L: Link>(
        config: Config,
        peers: usize,
        connect: impl FnOnce(usize, Option<Key>) -> Result<L, LinkError> + Send + 'static,
    ) -> Result<Self, Error> {
        let core = Core::new(config)?;
        let config = core.config().clone();
        let Config {
            ranks,
            coding,
            seed,
            key,
            recycling,
            ..
        } = config;
        if peers != usize::from(ranks) {
            return Err(Error::Peers { peers, ranks });
        }
        let max_datagram = core.max_datagram();
        let data = Handle::spawn(core, move || connect(max_datagram, key))?;
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

    /// What this rank was configured with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces `bucket` by its mean over all ranks, or what of it is known after t_B at the
    /// latest.
    ///
    /// Every rank calls this with the same ids and as many values; see [`OperationId`] for their
    /// order. With [`Config::recycling`] what this rank carries of earlier operations with the same bucket id goes into
    /// its contribution, and repairs of them are added to the mean.
    ///
    /// # Errors
    /// [`Error::Start`] if the id cannot be used, [`Error::Length`] if the bucket's length changed, both with `bucket`
    /// unchanged; [`Error::Link`] if the network is gone.
    pub fn allreduce(&mut self, id: OperationId, bucket: &mut [f32]) -> Result<Outcome, Error> {
        self.start(id, bucket)?;
        self.wait(id, bucket)
    }

    /// Begins what [`Collective::allreduce`] does and returns at once: several buckets of a step may be under way,
    /// started in any order, on every rank in its own.
    ///
    /// # Errors
    /// [`Error::Length`] if the bucket's length changed, [`Error::Start`] if it is under way, [`Error::UnderWay`] if it is in
    /// another step. Whether the id can be used
    /// [`Collective::wait`] tells.
    pub fn start(&mut self, id: OperationId, bucket: &[f32]) -> Result<(), Error> {
        self.check_free(id)?;
        if let Some(other) = self.under_way.iter().find(|o| o.id.bucket == id.bucket) {
            return Err(Error::UnderWay {
                id,
                under_way: other.id,
            });
        }
        let mut contributions = self.spare.pop().unwrap_or_default();
        let span = spans::allreduce(self.config.rank, id, bucket.len());
        let _entered = span.enter();
        match &mut self.carry {
            Some(carry) => {
                let was = carry.residual(id.bucket).map_or(bucket.len(), <[f32]>::len);
                check_length(id, was, bucket.len())?;
                let contributed = carry.contribute(id.bucket, bucket);
                self.codec.encode(id, contributed, &mut contributions);
            }
            None => self.codec.encode(id, bucket, &mut contributions),
        }
        self.begin(
            (id, Piece::default()),
            contributions,
            bucket.len(),
            span.clone(),
        );
        Ok(())
    }

    /// Begins an operation, or half of one, with values that are encoded: for [`Collective::wait_encoded`].
    ///
    /// # Errors
    /// [`Error::Start`] if the id is under way.
    pub(crate) fn start_part(
        &mut self,
        id: OperationId,
        piece: Piece,
        values: Vec<f32>,
    ) -> Result<(), Error> {
        self.check_free(id)?;
        let len = values.len();
        let span = spans::allreduce(self.config.rank, id, len);
        self.begin((id, piece), values, len, span);
        Ok(())
    }

    fn begin(
        &mut self,
        (id, piece): (OperationId, Piece),
        contributions: Vec<f32>,
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
            ended: None,
        });
    }

    /// Waits for the end of what [`Collective::start`] began and writes the mean to `bucket`.
    ///
    /// # Errors
    /// [`Error::NotStarted`], [`Error::Length`] if `bucket` is not as long as what was started, which then is still to be
    /// waited for; [`Error::Start`] if the id could not be used, with `bucket` unchanged; [`Error::Link`] if the network
    /// is gone.
    pub fn wait(&mut self, id: OperationId, bucket: &mut [f32]) -> Result<Outcome, Error> {
        let at = self.position(id)?;
        check_length(id, self.under_way[at].values, bucket.len())?;
        let (UnderWay { coding, span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        let Ended {
            outcome,
            result,
            corrections,
        } = ended?;
        self.codec.decode_as(coding, id, &result, bucket);
        if let Some(carry) = &mut self.carry {
            carry.settle(&mut self.codec, id.bucket, &corrections, bucket);
        }
        self.spare.push(result);
        if let Some(on) = self.in_use.heard(outcome.coded_otherwise) {
            tracing::info!(rank = self.config.rank, %id, on, "the others code otherwise since a vote that was missed here");
            self.code(on);
        }
        self.history.lock().add(&outcome);
        spans::ended(&outcome);
        Ok(*outcome)
    }

    /// Waits for what [`Collective::start_part`] began; the result is as it came, encoded.
    ///
    /// # Errors
    /// As [`Collective::wait`].
    pub(crate) fn wait_encoded(&mut self, id: OperationId) -> Result<(Outcome, Vec<f32>), Error> {
        let at = self.position(id)?;
        let (UnderWay { span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        let Ended {
            outcome, result, ..
        } = ended?;
        self.history.lock().add(&outcome);
        spans::ended(&outcome);
        Ok((*outcome, result))
    }

    fn position(&self, id: OperationId) -> Result<usize, Error> {
        let at = self.under_way.iter().position(|o| o.id == id);
        at.ok_or(Error::NotStarted(id))
    }

    /// Waits until what is `at` that place has ended, and takes it from there.
    fn await_end(&mut self, at: usize) -> Result<(UnderWay, Result<Ended, StartError>), LinkError> {
        loop {
            if let Some(ended) = self.under_way[at].ended.take() {
                return Ok((self.under_way.remove(at), ended));
            }
            // Reports that nobody asked for any more.
            self.listen()?;
        }
    }

    fn check_free(&self, id: OperationId) -> Result<(), Error> {
        match self.under_way.iter().any(|o| o.id == id) {
            true => Err(StartError::Repeated(id).into()),
            false => Ok(()),
        }
    }

    /// The data thread's next word, unless it is of an operation that is under way: that one keeps it.
    fn listen(&mut self) -> Result<Option<Reply>, LinkError> {
        let (id, ended) = match self.data.reply()? {
            Reply::Done {
                outcome,
                result,
                corrections,
            } => {
                let id = outcome.id;
                let ended = Ended {
                    outcome,
                    result,
                    corrections,
                };
                (id, Ok(ended))
            }
            Reply::Refused(error) if self.check_free(error.id()).is_err() => {
                (error.id(), Err(error))
            }
            reply => return Ok(Some(reply)),
        };
        if let Some(operation) = self.under_way.iter_mut().find(|o| o.id == id) {
            operation.ended = Some(ended);
        }
        Ok(None)
    }

    /// Replaces `values` by their mean over all ranks, every contribution in and the same bits on every rank: for small
    /// tensors, as it waits for everyone, `limit` long. What is lost is asked for again.
    ///
    /// Ids are [`Collective::allreduce`]'s: every rank calls the same function with the same id, limit and number of
    /// values. Nothing is carried, and nothing coded: the mean is the sum in the order of ranks, divided.
    ///
    /// # Errors
    /// [`Error::Incomplete`] says who is missing after `limit`, [`Error::Start`] why the id cannot be used, both with
    /// `values` unchanged; [`Error::Link`] if the network is gone.
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

    /// Replaces `values`, on every rank, by those of `root`, bit by bit.
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

    /// Every rank's `part`, one behind the other by rank; parts are equally long.
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
        // One value has one owner, who hears all and tells all.
        let (outcome, _) = self.exact(id, Exact::Sum, vec![0.0], limit)?;
        Ok(outcome)
    }

    /// Votes with all ranks on the update that this step averaged, `lost` of whose packets did not come here
    /// ([`Outcome::lost_share`]), and on the `parameters`; tells what was agreed. Called on every rank where
    /// [`Safeguards::is_due`]; with [`Verdict::skip`] every rank calls [`Collective::skip`], with [`Verdict::heal`]
    /// [`Collective::heal`], and where [`Verdict::code`] says something [`Collective::code`].
    ///
    /// # Errors
    /// [`Error::Stop`], on every rank; and as [`Collective::allreduce_exact`]: then nothing was agreed here, although others
    /// may have all votes. Where coding was decided in that vote, this rank codes as the others do from the operation on
    /// after one in which it saw them do otherwise; what else rules remember the next vote brings.
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

    /// How far all ranks' `parameters` are from each other, as [`safeguards::Sketch::spread`] has it.
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

    /// Updates are Hadamard-coded from the next operation on, as configured, or not at all: what all ranks do where a
    /// [`Verdict`] says so, before they start anything else.
    pub fn code(&mut self, on: bool) {
        self.in_use.agreed(on);
        let coding = match on {
            true => self.coding,
            false => Coding::Identity,
        };
        self.codec.set_coding(coding);
        self.data.command(Command::Coding(coding));
    }

    /// All ranks skip the update of `bucket` that [`Collective::allreduce`] gave, which becomes zero: with
    /// [`Config::recycling`] the next one brings it, without it is gone.
    pub fn skip(&mut self, bucket: u16, update: &mut [f32]) {
        if let Some(carry) = &mut self.carry {
            carry.skip(bucket, update);
        }
        update.fill(0.0);
    }

    /// Replaces every rank's `parameters` by their mean, so that all are equal, bit by bit. With [`Config::recycling`] what
    /// this rank would still have applied for itself goes into its contributions. No operation may be under way.
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
        self.check_free(id)?;
        let _span = spans::exact(self.config.rank, id, values.len()).entered();
        self.data.command(Command::Exact {
            id,
            exact,
            values,
            limit,
        });
        loop {
            match self.listen()? {
                Some(Reply::Exact {
                    id: ended_id,
                    ended,
                }) if ended_id == id => return Ok((*ended)?),
                Some(Reply::Refused(error)) => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// With [`Config::recycling`]: what this rank carries into its next operation of `bucket`, one value for each of the
    /// gradient's. None before the first one.
    pub fn residual(&self, bucket: u16) -> Option<&[f32]> {
        self.carry.as_ref()?.residual(bucket)
    }

    /// A handle to check the ways to the other ranks with, also while an operation runs.
    pub fn prober(&self) -> Prober {
        self.data.prober()
    }

    /// Tells `sink` what happens from now on, packet by packet, on the data thread; it is dropped with the collective.
    pub fn trace(&mut self, sink: Box<dyn Sink>) {
        self.data.command(Command::Trace(sink));
    }

    /// A handle to look on with.
    pub fn observer(&self) -> Observer {
        Observer {
            prober: self.data.prober(),
            history: self.history.clone(),
        }
    }

    /// What happened so far.
    ///
    /// # Errors
    /// [`Error::Link`] if the network is gone.
    pub fn report(&mut self) -> Result<Report, Error> {
        self.data.command(Command::Report);
        self.await_report()
    }

    /// Goes on receiving for `linger`, then ends and tells what happened in all. With a `linger`
    /// that outlasts the other ranks' last operation and the way of its packets, every datagram for
    /// this rank is counted.
    ///
    /// # Errors
    /// [`Error::Link`] if the network is gone.
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
