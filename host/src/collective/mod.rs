//! The API for a training process: one rank's operations, blocking. Threads and sockets are in `driver`.

mod agreement;
mod error;
mod exact;
mod observer;

use std::time::Duration;

use crate::codec::{Codec, Coding};
use crate::config::{Config, Gather, ReceiveBuffer};
use crate::core::{Core, StartError};
use crate::driver::port::{PortConfig, PortLink};
use crate::driver::thread::{Command, Departures, Handle, Prober, Reply, Report};
use crate::driver::udp::{self, UdpConfig, UdpLink};
use crate::driver::{Link, LinkError};
use crate::exact::{ExactOutcome, Incomplete};
use crate::memory::Buffer;
use crate::operation::{OperationId, Piece};
use crate::recycling::{Carry, Correction};
use crate::safeguards::CodingInUse;
use crate::spans;
use crate::stats::Outcome;
use crate::trace::Sink;
use crate::values::{Lent, Taken, Values};

pub use error::Error;
pub use observer::Observer;

use observer::SharedHistory;

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
    spare: Vec<Buffer>,
    history: SharedHistory,
    config: Config,
    /// The deadline of later operations.
    deadline: Duration,
}

struct UnderWay {
    id: OperationId,
    values: usize,
    coding: Coding,
    span: tracing::Span,
    place: Place,
    ended: Option<Result<EndedOperation, StartError>>,
}

/// The place of an operation's result.
#[derive(Default)]
enum Place {
    /// The buffer that the caller gives [`Collective::wait`].
    #[default]
    Caller,
    /// Taken values, which are coded or have a residual.
    Taken(Taken),
    /// Taken values that the network gets as they are.
    Network,
}

enum EndedOperation {
    Bounded {
        outcome: Box<Outcome>,
        result: Values,
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
        let room = ReceiveBuffer::of_socket(buffer, &config);
        let is_loopback = udp.is_loopback()?;
        config.receive_buffer = Some(match is_loopback {
            true => room,
            false => room.behind_port(&config),
        });
        config.congestion_window &= !is_loopback;
        config.send_run = udp::send_run(&config);
        let threads = codec_threads(udp.local_ranks()?);
        let link = config.clone();
        let mut collective = Self::new(config, peers, move |_| UdpLink::new(udp, &link))?;
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
            deadline: config.t_b,
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
        self.begin(id, Piece::whole(len), lent.into(), len, span);
        self.set_place(Place::Network);
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
            self.begin(id, Piece::whole(len), bucket.into(), len, span);
            self.set_place(Place::Network);
            return Ok(());
        }
        self.start(id, bucket.as_mut_slice())?;
        self.set_place(Place::Taken(bucket));
        Ok(())
    }

    /// Sets the place of the result of the operation that was started last.
    fn set_place(&mut self, place: Place) {
        if let Some(started) = self.under_way.last_mut() {
            started.place = place;
        }
    }

    /// Waits for the end of an operation that [`Collective::start_taken`] started. The mean has replaced its values, and
    /// is returned if they were [`Taken::Owned`]; the vector is empty otherwise.
    ///
    /// # Errors
    /// As [`Collective::wait`]; the values are dropped.
    pub fn wait_taken(&mut self, id: OperationId) -> Result<(Outcome, Vec<f32>), Error> {
        let at = self.position(id)?;
        match std::mem::take(&mut self.under_way[at].place) {
            Place::Taken(mut bucket) => {
                let outcome = self.wait(id, bucket.as_mut_slice())?;
                Ok((outcome, bucket.into_vec()))
            }
            Place::Network => {
                let (outcome, result) = self.wait_encoded(id)?;
                self.follow_coding(&outcome);
                Ok((outcome, result.into_vec()))
            }
            Place::Caller => Err(Error::NotStarted(id)),
        }
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
            id,
            Piece::whole(bucket.len()),
            contributions.into(),
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
        values: Buffer,
    ) -> Result<(), Error> {
        self.check_free(id)?;
        let len = values.len();
        let span = spans::allreduce(self.config.rank, id, len);
        self.begin(id, piece, values.into(), len, span);
        Ok(())
    }

    fn begin(
        &mut self,
        id: OperationId,
        piece: Piece,
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
            place: Place::Caller,
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
        if !matches!(self.under_way[at].place, Place::Caller) {
            return Err(Error::NotStarted(id));
        }
        let (UnderWay { coding, span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        let EndedOperation::Bounded {
            outcome,
            result,
            corrections,
        } = ended?
        else {
            return Err(Error::NotStarted(id));
        };
        self.codec.decode_as(coding, id, &result, bucket);
        if let Some(carry) = &mut self.carry {
            carry.apply(&mut self.codec, id, &corrections, bucket);
        }
        self.spare.push(result.into_buffer());
        self.follow_coding(&outcome);
        self.history.add(&outcome);
        spans::ended(&outcome);
        Ok(*outcome)
    }

    /// Waits for the end of an operation that [`Collective::start_part`] started, and returns the encoded
    /// result.
    ///
    /// # Errors
    /// As [`Collective::wait`].
    pub(crate) fn wait_encoded(&mut self, id: OperationId) -> Result<(Outcome, Values), Error> {
        let at = self.position(id)?;
        let (UnderWay { span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        let EndedOperation::Bounded {
            outcome, result, ..
        } = ended?
        else {
            return Err(Error::NotStarted(id));
        };
        self.history.add(&outcome);
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
    fn await_end(
        &mut self,
        at: usize,
    ) -> Result<(UnderWay, Result<EndedOperation, StartError>), LinkError> {
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
                let ended = EndedOperation::Bounded {
                    outcome,
                    result,
                    corrections,
                };
                (id, Ok(ended))
            }
            Reply::Exact { id, ended } => (id, Ok(EndedOperation::Exact(ended))),
            Reply::Refused(error) => (error.id(), Err(error)),
            reply => return Some(reply),
        };
        if let Some(operation) = self.under_way.iter_mut().find(|o| o.id == id) {
            operation.ended = Some(ended);
        }
        None
    }

    /// Sets the factor by which gradients are multiplied from the next [`Collective::start`] on: the loss scale of mixed
    /// precision training, a positive number, 1 at first. With [`Config::recycling`], residuals of earlier operations are
    /// converted to it. Every rank sets the same scale before the same operation.
    pub fn set_loss_scale(&mut self, scale: f32) {
        if let Some(carry) = &mut self.carry {
            carry.set_scale(scale);
        }
    }

    /// Sets the deadline of operations from the next [`Collective::start`] on, at most [`Config::t_b`]; [`Config::t_s`] becomes the
    /// same share of it. Every rank sets it before the same operation.
    pub fn set_deadline(&mut self, deadline: Duration) {
        if self.deadline != deadline {
            self.deadline = deadline;
            self.data.command(Command::Deadline(deadline));
        }
    }

    /// Sets how this rank delivers aggregates from the next [`Collective::start`] on. Multicast needs a group, so a job that was
    /// configured without one keeps [`Gather::Unicast`]. Ranks may differ, but [`Config::colocated`] ones change it between
    /// the same two operations.
    pub fn set_gather(&mut self, gather: Gather) {
        if self.config.gather != gather {
            self.config.gather = gather;
            self.data.command(Command::Gather(gather));
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

    /// Returns a handle for notes of ranks that have left the job, also during an operation.
    pub fn departures(&self) -> Departures {
        self.data.departures()
    }

    /// Records packets and events to `sink` from now on. The data thread calls it, and drops it with the
    /// collective.
    pub fn trace(&mut self, sink: Box<dyn Sink>) {
        self.data.command(Command::Trace(sink));
    }

    /// Returns a handle that reads this collective's counters.
    pub fn observer(&self) -> Observer {
        Observer::new(self.data.prober(), self.history.clone())
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
