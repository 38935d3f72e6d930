//! The job's thread: it encodes, starts and decodes operations, so that the caller's thread does not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ultima_host::{Error, Exact, ExactOutcome, OperationId, Outcome, Report, Taken};

use super::JobError;
use super::misfits;
use super::parts::Parts;
use super::pending::{Completer, Reduced};
use super::rendezvous::Place;
use super::sequence::Terms;

/// A message to the thread.
pub(super) enum Message {
    Start(Operation),
    /// Return the counters so far.
    Report(Sender<Result<Report, JobError>>),
    /// An operation may have ended.
    Wake,
    /// End when all operations have ended. Before that, receive for this long.
    Finish {
        linger: Duration,
        report: Option<Sender<Result<Report, JobError>>>,
    },
}

/// A caller's operation.
pub(super) struct Operation {
    pub(super) id: OperationId,
    pub(super) values: Taken,
    pub(super) terms: Terms,
    pub(super) kind: Kind,
}

/// The kind of an operation, with the caller's end of its result.
pub(super) enum Kind {
    Bounded(Completer<Outcome>),
    Exact(Exact, Duration, Completer<ExactOutcome>),
}

impl Kind {
    fn fail(self, error: JobError) {
        match self {
            Kind::Bounded(completer) => completer.complete(Err(error)),
            Kind::Exact(_, _, completer) => completer.complete(Err(error)),
        }
    }
}

/// An operation in progress, with the caller's end of its result.
struct Started {
    work: Work,
    kind: Kind,
}

/// What the collective does for an operation.
enum Work {
    Whole(OperationId),
    Parts(Box<Parts>),
}

impl Started {
    fn id(&self) -> OperationId {
        match &self.work {
            Work::Whole(id) => *id,
            Work::Parts(parts) => parts.id(),
        }
    }

    /// Does what is possible without waiting. Returns true at the end of the operation.
    fn advance(&mut self, place: &mut Place) -> Result<bool, Error> {
        match &mut self.work {
            Work::Whole(id) => place.collective().has_ended(*id),
            Work::Parts(parts) => parts.advance(place.collective()),
        }
    }

    fn pace(&self) -> Option<Duration> {
        match &self.work {
            Work::Whole(_) => None,
            Work::Parts(parts) => parts.pace(),
        }
    }

    /// Decodes the result of an operation that has ended, and hands it over.
    fn finish(self, place: &mut Place) {
        let collective = place.collective();
        let id = self.id();
        match self.kind {
            Kind::Bounded(completer) => {
                // Lent values are dropped before the caller hears of the end.
                let ended = match self.work {
                    Work::Whole(id) => (collective.wait_taken(id))
                        .map(|(outcome, values)| Reduced { values, outcome }),
                    Work::Parts(parts) => parts.into_result(),
                };
                let checked = ended.map_err(JobError::from).and_then(|reduced| {
                    place.suspect(&reduced.outcome.suspected);
                    misfits::check(place.collective().config(), &reduced.outcome)?;
                    Ok(reduced)
                });
                completer.complete(checked);
            }
            Kind::Exact(_, _, completer) => {
                let ended = collective.wait_exact(id);
                let result = ended.map(|(outcome, values)| Reduced { values, outcome });
                completer.complete(result.map_err(JobError::from));
            }
        }
    }
}

/// The thread's state.
pub(super) struct Worker {
    place: Place,
    messages: Receiver<Message>,
    /// Operations that are not started, in the callers' order.
    queue: VecDeque<Operation>,
    started: Vec<Started>,
    /// See [`Parts::pace`].
    pace: Option<Duration>,
    /// With recycling, the length of each bucket, which may not change.
    lens: BTreeMap<u16, usize>,
    /// The reason that no operation can start any more.
    failed: Option<String>,
    finish: Option<Finish>,
    wake: Arc<Wake>,
}

struct Finish {
    linger: Duration,
    report: Option<Sender<Result<Report, JobError>>>,
}

/// Sends [`Message::Wake`], once until the thread has read it.
struct Wake {
    sent: AtomicBool,
    messages: Sender<Message>,
}

impl Wake {
    fn wake(&self) {
        if !self.sent.swap(true, Ordering::AcqRel) {
            // A thread that has ended needs no wake-up.
            let _ = self.messages.send(Message::Wake);
        }
    }
}

impl Worker {
    pub(super) fn new(
        place: Place,
        messages: Receiver<Message>,
        to_itself: Sender<Message>,
    ) -> Self {
        let wake = Arc::new(Wake {
            sent: AtomicBool::new(false),
            messages: to_itself,
        });
        let mut worker = Self {
            place,
            messages,
            queue: VecDeque::new(),
            started: Vec::new(),
            pace: None,
            lens: BTreeMap::new(),
            failed: None,
            finish: None,
            wake,
        };
        worker.listen();
        worker
    }

    /// Has the collective's thread wake this one.
    fn listen(&mut self) {
        let wake = self.wake.clone();
        self.place.collective().on_end(move || wake.wake());
    }

    /// Runs until the job is dropped and all its operations have ended.
    pub(super) fn run(mut self) {
        loop {
            let idle = self.queue.is_empty() && self.started.is_empty();
            if idle && let Some(finish) = self.finish.take() {
                return self.end(finish);
            }
            match self.receive() {
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(message) = self.messages.try_recv() {
                self.handle(message);
            }
            // The network first: decoding takes time too.
            self.begin();
            while self.complete() {
                self.begin();
            }
        }
    }

    /// Waits for the next message, until a part is due.
    fn receive(&self) -> Result<Message, RecvTimeoutError> {
        let due = self
            .started
            .iter()
            .filter_map(|started| match &started.work {
                Work::Whole(_) => None,
                Work::Parts(parts) => parts.due(),
            });
        match due.min() {
            Some(due) => {
                (self.messages).recv_timeout(due.saturating_duration_since(Instant::now()))
            }
            None => self.messages.recv().map_err(RecvTimeoutError::from),
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Start(operation) => self.queue.push_back(operation),
            Message::Wake => self.wake.sent.store(false, Ordering::Release),
            Message::Report(answer) => {
                let report = match &self.failed {
                    Some(why) => Err(JobError::Ended(why.clone())),
                    None => self.place.collective().report().map_err(JobError::from),
                };
                // A caller that no longer listens needs no answer.
                let _ = answer.send(report);
            }
            Message::Finish { linger, report } => self.finish = Some(Finish { linger, report }),
        }
    }

    /// Completes operations that have ended. Returns true if any has.
    fn complete(&mut self) -> bool {
        let before = self.started.len();
        let mut at = 0;
        while at < self.started.len() {
            match self.started[at].advance(&mut self.place) {
                Ok(true) => {
                    let ended = self.started.remove(at);
                    self.pace = ended.pace().or(self.pace);
                    ended.finish(&mut self.place);
                }
                Ok(false) => at += 1,
                Err(error) => self.fail(error.to_string()),
            }
        }
        self.started.len() < before
    }

    /// Starts the next operations. One of a new step waits for all before it.
    fn begin(&mut self) {
        while let Some(next) = self.queue.front() {
            let step = next.id.step;
            match self.started.first() {
                Some(started) if started.id().step != step => return,
                Some(_) => {}
                None if self.failed.is_none() => match self.place.enter(step) {
                    Ok(false) => {}
                    Ok(true) => self.listen(),
                    Err(error) => self.fail(error),
                },
                None => {}
            }
            let Some(operation) = self.queue.pop_front() else {
                return;
            };
            if let Some(why) = &self.failed {
                operation.kind.fail(JobError::Ended(why.clone()));
                continue;
            }
            self.start(operation);
        }
    }

    fn start(&mut self, operation: Operation) {
        let collective = self.place.collective();
        let Operation {
            id,
            mut values,
            terms,
            kind,
        } = operation;
        if matches!(kind, Kind::Bounded(_)) && collective.config().recycling.is_some() {
            let (bucket, is) = (id.bucket, values.as_mut_slice().len());
            let was = *self.lens.entry(bucket).or_insert(is);
            if was != is {
                return kind.fail(Error::Length { bucket, was, is }.into());
            }
        }
        terms.apply(collective);
        let started = match &kind {
            Kind::Bounded(_) => {
                let coding = collective.config().coding;
                match Parts::of(id, values, terms, coding, self.pace) {
                    Ok(mut parts) => {
                        parts.start(collective);
                        Ok(Work::Parts(Box::new(parts)))
                    }
                    Err(values) => {
                        let started = collective.start_taken(id, values);
                        started.map(|()| Work::Whole(id))
                    }
                }
            }
            Kind::Exact(exact, limit, _) => {
                let started = collective.start_exact(id, *exact, values.into_vec(), *limit);
                started.map(|()| Work::Whole(id))
            }
        };
        match started {
            Ok(work) => self.started.push(Started { work, kind }),
            Err(error) => kind.fail(error.into()),
        }
    }

    /// Ends all operations, because the link or the membership has ended.
    fn fail(&mut self, why: String) {
        let started = self.started.drain(..).map(|started| started.kind);
        let waiting = self.queue.drain(..).map(|operation| operation.kind);
        for kind in started.chain(waiting) {
            kind.fail(JobError::Ended(why.clone()));
        }
        self.failed = Some(why);
    }

    fn end(self, finish: Finish) {
        let report = match self.failed {
            Some(why) => Err(JobError::Ended(why)),
            None => self.place.finish(finish.linger),
        };
        if let Some(answer) = finish.report {
            let _ = answer.send(report);
        }
    }
}
