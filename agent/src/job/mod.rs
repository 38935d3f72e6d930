//! The API to embed: a [`Job`] averages a training process's gradients with those of the other ranks.
//!
//! Calls take `&self`, from any thread, and return at once with a [`Pending`]. A thread of the job encodes and
//! decodes, another one moves packets. Operations have no ids here: **every rank makes the same calls in the
//! same order.**
//!
//! ```
//! use std::thread;
//! use ultima_agent::job::{Addresses, Job, JobError};
//!
//! # fn free() -> std::net::SocketAddr {
//! #     // The ranks meet over TCP, on the same port.
//! #     let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
//! #     std::iter::repeat_with(free).find(|at| std::net::TcpListener::bind(at).is_ok()).unwrap()
//! # }
//! let addresses = [free(), free()]; // one per rank, the same list on all
//! let ranks = [0, 1].map(|rank| {
//!     thread::spawn(move || -> Result<f32, JobError> {
//!         let job = Job::builder().rendezvous(Addresses::new(rank, addresses)).start()?;
//!         let gradient = vec![rank as f32; 1000];
//!         let mean = job.all_reduce(gradient).wait()?; // or .await
//!         println!("{:?} after {:?}", mean.outcome.closed_by, mean.outcome.duration);
//!         Ok(mean.values[0])
//!     })
//! });
//! for rank in ranks {
//!     assert!((rank.join().unwrap().unwrap() - 0.5).abs() < 1e-6);
//! }
//! ```
//!
//! With torchrun, [`Job::from_env`] needs no arguments.
//!
//! # Steps and buckets
//!
//! Each [`Job::all_reduce`] is a step of its own: it starts when all earlier operations have ended. The
//! buckets of a step ([`Job::all_reduce_bucket`]) are in progress at the same time. With
//! [`Settings::recycling`](crate::Settings::recycling), what an operation could not deliver is part of the
//! bucket's next operation, so a bucket has the same tensors in every step.
//!
//! A coded bucket of several MB is averaged in up to 16 parts, two at a time, so that coding and the network overlap.
//! Each part is an operation of its own in counters, metrics and telemetry: part *p* of bucket *b* is bucket
//! 4095 *p* + *b* there. The caller's [`Outcome`](ultima_host::Outcome) includes all parts.

mod builder;
mod env;
pub(crate) mod error;
mod interface;
mod misfits;
mod parts;
mod pending;
pub mod rendezvous;
mod sequence;
mod worker;

use std::net::SocketAddrV4;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ultima_host::{Config, Exact, ExactOutcome, Observer, OperationId, Report, Taken};

use parts::BUCKETS;
use sequence::Sequence;
use worker::{Kind, Message, Operation};

pub use crate::fingerprint::Fingerprint;
pub use builder::JobBuilder;
pub use error::{JobError, Refusal};
pub use pending::{Pending, Reduced};
pub use rendezvous::{Addresses, Controller, Rendezvous, TcpStore};
pub use ultima_host::{Coding, Element, Gather, Preset};

/// One rank's part in a job.
///
/// Dropping it waits until its operations have ended, sends what other ranks still need, and ends its
/// threads.
pub struct Job {
    /// Locked while an operation is handed over, so that operations arrive in the order of their ids.
    sequence: Mutex<Sequence>,
    messages: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    config: Config,
    address: SocketAddrV4,
    observer: Observer,
    exact_limit: Duration,
}

impl Job {
    /// Starts the job that the environment describes, such as torchrun's: [`JobBuilder::from_env`].
    ///
    /// # Errors
    /// [`JobError`].
    pub fn from_env() -> Result<Self, JobError> {
        JobBuilder::from_env()?.start()
    }

    /// Returns a builder without a rendezvous.
    pub fn builder() -> JobBuilder {
        JobBuilder::default()
    }

    /// This rank.
    pub fn rank(&self) -> u16 {
        self.config.rank
    }

    /// Ranks of the job.
    pub fn ranks(&self) -> u16 {
        self.config.ranks
    }

    /// The address that this rank sends from.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// The configuration at the start, with what the ranks agreed on: seed, slot size, epoch. A controller may
    /// change ranks and epoch later.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Averages `values` over all ranks, as a step of its own. Every rank calls it with as many values; if one does not, the
    /// result is [`JobError::OtherOperation`], but for lengths that differ by a multiple of 15 and by less than a packet.
    ///
    /// The result is the mean of the contributions that arrived before the deadline; its
    /// [`Outcome`](ultima_host::Outcome) has what is missing. With recycling this is bucket 0.
    pub fn all_reduce(&self, values: Vec<f32>) -> Pending {
        self.bounded(Sequence::step, Taken::Owned(values))
    }

    /// Averages `values`, as one of several buckets that are in progress at the same time. A bucket that
    /// returns begins the next step: call this once for each bucket of a step, in any order.
    /// Its number is below 4095, else the result is [`JobError::Bucket`].
    pub fn all_reduce_bucket(&self, bucket: u16, values: Vec<f32>) -> Pending {
        self.bucket(bucket, Taken::Owned(values))
    }

    /// [`Job::all_reduce_bucket`] without a copy: the result replaces `values`, and [`Reduced::values`] is empty.
    /// After an error, a part of them may be averaged. The job drops `values` when the operation ends, also if its
    /// [`Pending`] was dropped before.
    pub fn all_reduce_lent(&self, bucket: u16, values: Box<dyn AsMut<[f32]> + Send>) -> Pending {
        self.bucket(bucket, Taken::Lent(values))
    }

    /// Makes the next bucket the first one of a new step. Without this call, a step ends when one of its buckets
    /// returns. Every rank calls it at the same place.
    pub fn begin_step(&self) {
        self.lock().end_step();
    }

    /// Averages `values` exactly: with the same bits on every rank, and nothing missing. Waits for every rank
    /// and repairs losses, so it suits small tensors.
    ///
    /// The result is [`Incomplete`](ultima_host::Incomplete) if a rank is missing after
    /// [`JobBuilder::exact_limit`].
    pub fn all_reduce_exact(&self, values: Vec<f32>) -> Pending<ExactOutcome> {
        self.exact(Exact::Mean, values)
    }

    /// Sends the values of rank `root` to all ranks, bit by bit. The other ranks' values only set the length.
    pub fn broadcast(&self, root: u16, values: Vec<f32>) -> Pending<ExactOutcome> {
        self.exact(Exact::Broadcast { root }, values)
    }

    /// Concatenates all ranks' values in the order of ranks. All ranks have as many.
    pub fn all_gather(&self, values: Vec<f32>) -> Pending<ExactOutcome> {
        self.exact(Exact::AllGather, values)
    }

    /// Ends when every rank has called it.
    pub fn barrier(&self) -> Pending<ExactOutcome> {
        // One value has one owner, which hears every rank and answers every rank.
        self.exact(Exact::Sum, vec![0.0])
    }

    /// Sets the factor by which gradients are multiplied from the next call on: the loss scale of mixed precision
    /// training, a positive number, 1 at first. With recycling, residuals of earlier operations are converted to
    /// it. Every rank sets it before the same call.
    pub fn set_loss_scale(&self, scale: f32) {
        self.lock().terms.loss_scale = scale;
    }

    /// Sets the deadline from the next AllReduce on, such as a multiple of the usual time. It is at most that of the start; a
    /// longer one is that. Every rank sets it before the same call.
    pub fn set_deadline(&self, deadline: Duration) {
        self.lock().terms.deadline = deadline.min(self.config.t_b);
    }

    /// Sets how this rank sends its results from the next call on: by the switch's multicast, or in a packet for each rank.
    /// Ranks on different hosts may differ; those of one host set it before the same call.
    ///
    /// # Errors
    /// [`JobError::NoGroup`].
    pub fn set_gather(&self, gather: Gather) -> Result<(), JobError> {
        if gather == Gather::Multicast && self.config.gather == Gather::Unicast {
            return Err(JobError::NoGroup);
        }
        self.lock().terms.gather = gather;
        Ok(())
    }

    /// Returns a handle that reads the job's counters, also during an operation and after the job.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Returns the counters so far, once earlier calls have been handled.
    ///
    /// # Errors
    /// [`JobError`] if the link failed.
    pub fn report(&self) -> Result<Report, JobError> {
        let (answer, answered) = channel();
        self.send(Message::Report(answer))?;
        answered.recv().map_err(|_| stopped())?
    }

    /// Waits until all operations have ended, receives for `linger`, ends the job and returns its counters.
    ///
    /// # Errors
    /// [`JobError`] if the link failed.
    pub fn finish(self, linger: Duration) -> Result<Report, JobError> {
        let (answer, answered) = channel();
        self.send(Message::Finish {
            linger,
            report: Some(answer),
        })?;
        answered.recv().map_err(|_| stopped())?
    }

    fn bucket(&self, bucket: u16, values: Taken) -> Pending {
        match bucket < BUCKETS {
            true => self.bounded(|sequence| sequence.bucket(bucket), values),
            false => {
                let (pending, completer) = Pending::new();
                completer.complete(Err(JobError::Bucket(bucket)));
                pending
            }
        }
    }

    fn bounded(&self, id: impl FnOnce(&mut Sequence) -> OperationId, values: Taken) -> Pending {
        let (pending, completer) = Pending::new();
        self.start(id, values, Kind::Bounded(completer));
        pending
    }

    fn exact(&self, exact: Exact, values: Vec<f32>) -> Pending<ExactOutcome> {
        let (pending, completer) = Pending::new();
        let kind = Kind::Exact(exact, self.exact_limit, completer);
        self.start(Sequence::step, Taken::Owned(values), kind);
        pending
    }

    fn start(&self, id: impl FnOnce(&mut Sequence) -> OperationId, values: Taken, kind: Kind) {
        let mut sequence = self.lock();
        let id = id(&mut sequence);
        let operation = Operation {
            id,
            values,
            terms: sequence.terms,
            kind,
        };
        // A thread that has stopped drops the operation, which ends its `Pending` with an error.
        let _ = self.send(Message::Start(operation));
    }

    fn send(&self, message: Message) -> Result<(), JobError> {
        self.messages.send(message).map_err(|_| stopped())
    }

    fn lock(&self) -> MutexGuard<'_, Sequence> {
        // Nothing panics while it holds the lock.
        self.sequence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.send(Message::Finish {
            linger: Duration::ZERO,
            report: None,
        });
        if let Some(thread) = self.thread.take() {
            // Its panic has ended all operations with an error.
            let _ = thread.join();
        }
    }
}

fn stopped() -> JobError {
    JobError::Ended("its thread has stopped".into())
}
