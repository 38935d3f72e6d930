//! The data thread: a core, its link and the clock.
//!
//! It keeps receiving between operations, because other ranks start earlier and finish later.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::codec::Coding;
use crate::config::Gather;
use crate::core::{Batch, CheckPacket, Core, Event, HeardInRound, StartError};
use crate::exact::{Exact, ExactOutcome, Incomplete};
use crate::operation::{OperationId, Piece};
use crate::recycling::Correction;
use crate::stats::{Outcome, Totals};
use crate::time::Time;
use crate::trace::Sink;
use crate::values::Values;

use super::colocated::YIELD;
use super::rest::Rest;
use super::{Link, LinkCounters, LinkError};

/// The longest time in which packets are read before a bound is applied: several times that of a full receive buffer.
const READ_FIRST: Duration = Duration::from_millis(20);

/// A command from the caller.
pub(crate) enum Command {
    Start {
        id: OperationId,
        piece: Piece,
        contributions: Values,
    },
    /// Start an exact operation.
    Exact {
        id: OperationId,
        exact: Exact,
        values: Vec<f32>,
        limit: Duration,
    },
    /// All ranks' parameters were replaced by their mean.
    Healed,
    Coding(Coding),
    Gather(Gather),
    Deadline(Duration),
    /// These ranks have left the job.
    Left(Vec<u16>),
    Report,
    /// Record events.
    Trace(Box<dyn Sink>),
    Check(Vec<CheckPacket>),
    AnswerChecks {
        of: Vec<u32>,
        with: u32,
    },
    Heard {
        token: u32,
        answer: Sender<(HeardInRound, Report)>,
    },
    /// Send all ready packets, handle all received ones, end all operations and stop.
    Finish,
}

/// A reply to the caller.
pub(crate) enum Reply {
    /// The link is up.
    Ready,
    Done {
        outcome: Box<Outcome>,
        result: Values,
        corrections: Vec<Correction>,
    },
    /// An exact operation ended.
    Exact {
        id: OperationId,
        ended: Box<Result<(ExactOutcome, Vec<f32>), Incomplete>>,
    },
    Refused(StartError),
    Report(Box<Report>),
}

/// One rank's counters over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The core's counters.
    pub totals: Totals,
    /// The driver's counters.
    pub link: LinkCounters,
    /// The newest step in any other rank's packets.
    pub newest_step: Option<u32>,
}

/// Sends check packets and reports the received ones. Usable from any thread, also during an operation.
#[derive(Clone)]
pub struct Prober {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
}

/// Notes which ranks have left the job. Usable from any thread, also during an operation.
#[derive(Clone)]
pub struct Departures(Prober);

impl Departures {
    /// Notes that `ranks` have left the job: see [`Core::left`].
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn left(&self, ranks: Vec<u16>) -> Result<(), Stopped> {
        self.0.command(Command::Left(ranks))
    }
}

/// The collective has ended, and its data thread with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this rank's collective has ended")]
pub struct Stopped;

impl Prober {
    /// Sends check packets, as fast as pacing allows.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn send(&self, packets: Vec<CheckPacket>) -> Result<(), Stopped> {
        self.command(Command::Check(packets))
    }

    /// From now on, answers each check packet of the rounds `of` with one of the round `with` to its source.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn answer(&self, of: Vec<u32>, with: u32) -> Result<(), Stopped> {
        self.command(Command::AnswerChecks { of, with })
    }

    /// Check packets received in the round `token`, and the counters so far. Returns as soon as the data
    /// thread has answered.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn heard(&self, token: u32) -> Result<(HeardInRound, Report), Stopped> {
        let (answer, answered) = channel();
        self.command(Command::Heard { token, answer })?;
        answered.recv().map_err(|_| Stopped)
    }

    fn command(&self, command: Command) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        // Fails only if the counter is full, and then the thread wakes anyway.
        let _ = self.wake.write(1);
        Ok(())
    }
}

/// Calls the caller's function after each reply, and when the thread has ended.
#[derive(Clone, Default)]
struct Bell(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Bell {
    fn ring(&self) {
        if let Some(ring) = self.0.get() {
            ring();
        }
    }
}

/// Rings a last time, so that the caller learns that there are no more replies.
struct LastRing(Bell);

impl Drop for LastRing {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The caller's end of a data thread.
pub(crate) struct Handle {
    prober: Prober,
    replies: Receiver<Reply>,
    bell: Bell,
    thread: Option<JoinHandle<Result<(), LinkError>>>,
}

impl Handle {
    /// Starts a thread that drives `core` over the link that `connect` creates on that thread: message
    /// headers for batches hold pointers and cannot move between threads. Returns when the link is up or has
    /// failed.
    pub(crate) fn spawn<L: Link>(
        core: Core,
        connect: impl FnOnce() -> Result<L, LinkError> + Send + 'static,
    ) -> Result<Self, LinkError> {
        let (commands, command_queue) = channel();
        let (reply_queue, replies) = channel();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(|e| LinkError::io("make an eventfd", e))?;
        let wake = Arc::new(wake);
        let woken = wake.clone();
        let bell = Bell::default();
        let last_ring = LastRing(bell.clone());
        let run = move || {
            let link = connect()?;
            let data = DataThread {
                rest: Rest::new(core.config()).filter(|_| !link.has_queues()),
                link,
                batch: Batch::new(core.max_datagram()),
                core,
                clock: Instant::now(),
                commands: command_queue,
                replies: reply_queue,
                wake: woken,
                last_ring,
            };
            data.answer(Reply::Ready);
            data.run()
        };
        let thread = std::thread::Builder::new()
            .name("ultima-data".into())
            .spawn(run)
            .map_err(|e| LinkError::io("start the data thread", e))?;
        let mut handle = Self {
            prober: Prober { commands, wake },
            replies,
            bell,
            thread: Some(thread),
        };
        // The first reply, unless the link cannot be created.
        handle.reply().map(|_| handle)
    }

    /// Sends a command. A thread that has stopped reports the reason at the next [`Handle::reply`].
    pub(crate) fn command(&self, command: Command) {
        let _ = self.prober.command(command);
    }

    pub(crate) fn prober(&self) -> Prober {
        self.prober.clone()
    }

    pub(crate) fn departures(&self) -> Departures {
        Departures(self.prober())
    }

    /// Waits for the thread's next reply.
    pub(crate) fn reply(&mut self) -> Result<Reply, LinkError> {
        self.replies.recv().map_err(|_| self.stopped())
    }

    /// Returns the thread's next reply if there is one.
    pub(crate) fn try_reply(&mut self) -> Result<Option<Reply>, LinkError> {
        match self.replies.try_recv() {
            Ok(reply) => Ok(Some(reply)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.stopped()),
        }
    }

    /// Calls `ring` on the data thread after each reply. The first call counts.
    pub(crate) fn on_reply(&self, ring: Box<dyn Fn() + Send + Sync>) {
        let _ = self.bell.0.set(ring);
    }

    /// The reason that the thread has stopped without a command.
    fn stopped(&mut self) -> LinkError {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(Ok(()))) | None => LinkError::io(
                "go on",
                std::io::Error::other("the data thread has stopped"),
            ),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.command(Command::Finish);
        if let Some(thread) = self.thread.take() {
            // Its error was reported, or no caller is left.
            let _ = thread.join();
        }
    }
}

/// The result of sending a batch.
struct SendResult {
    /// True if it had datagrams.
    any: bool,
    /// True if some of them must wait.
    blocked: bool,
}

struct DataThread<L> {
    core: Core,
    link: L,
    batch: Batch,
    /// None if it never rests.
    rest: Option<Rest>,
    clock: Instant,
    commands: Receiver<Command>,
    replies: Sender<Reply>,
    wake: Arc<EventFd>,
    /// After `replies`, because fields are dropped in their order.
    last_ring: LastRing,
}

impl<L: Link> DataThread<L> {
    fn run(mut self) -> Result<(), LinkError> {
        let ended = self.drive();
        if let Err(error) = &ended {
            tracing::warn!(rank = self.core.config().rank, %error, "the collective stops");
        }
        ended
    }

    fn drive(&mut self) -> Result<(), LinkError> {
        // After the command to stop: the time limit for sending the rest, even to ranks that still need it.
        let mut bound = None;
        loop {
            self.expire()?;
            if self.execute()? && bound.is_none() {
                bound = Some(self.now() + self.core.config().t_b);
            }
            // A rank that sends requests meanwhile is present, and may need more.
            let stop_at = bound.max(bound.and_then(|_| self.core.needed_until()));
            let SendResult { any: sent, blocked } = self.transmit()?;
            let came = self.receive()?;
            while let Some(event) = self.core.poll_event() {
                match event {
                    Event::Done { outcome, result } => {
                        let corrections = self.core.take_corrections(outcome.id.bucket);
                        self.answer(Reply::Done {
                            outcome,
                            result,
                            corrections,
                        });
                    }
                    // The outcome has them by cause and by hops; nothing here reacts to a single one.
                    Event::SlotTrimmed(_) => {}
                    Event::Exact { id, ended } => self.answer(Reply::Exact { id, ended }),
                }
            }
            let needed = self.core.has_unsent() || self.core.is_needed();
            let idle = !came && !sent && !blocked && !needed;
            if stop_at.is_some_and(|stop_at| idle || self.now() >= stop_at) {
                self.core.shut_down(self.now());
                self.answer(Reply::Report(Box::new(self.report())));
                return Ok(());
            }
            if !came && (!sent || blocked) {
                self.wait(blocked, stop_at)?;
            }
        }
    }

    /// Executes the caller's commands. Returns true for a command to stop.
    fn execute(&mut self) -> Result<bool, LinkError> {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Start {
                    id,
                    piece,
                    contributions,
                }) => {
                    // A start applies bounds, too.
                    self.expire()?;
                    let started = self.core.start_with(self.now(), id, piece, contributions);
                    if let Err(refused) = started {
                        self.answer(Reply::Refused(refused));
                    }
                }
                Ok(Command::Exact {
                    id,
                    exact,
                    values,
                    limit,
                }) => {
                    self.expire()?;
                    let started = self.core.start_exact(self.now(), id, exact, values, limit);
                    if let Err(refused) = started {
                        self.answer(Reply::Refused(refused));
                    }
                }
                Ok(Command::Healed) => self.core.healed(),
                Ok(Command::Coding(coding)) => self.core.set_coding(coding),
                Ok(Command::Gather(gather)) => self.core.set_gather(gather),
                Ok(Command::Deadline(deadline)) => self.core.set_deadline(deadline),
                Ok(Command::Left(ranks)) => self.core.left(self.now(), &ranks),
                Ok(Command::Report) => self.answer(Reply::Report(Box::new(self.report()))),
                Ok(Command::Trace(sink)) => self.core.trace(sink),
                Ok(Command::Check(packets)) => {
                    packets
                        .into_iter()
                        .for_each(|packet| self.core.check(packet));
                }
                Ok(Command::AnswerChecks { of, with }) => self.core.answer_checks(of, with),
                Ok(Command::Heard { token, answer }) => {
                    // A caller that no longer listens needs no answer.
                    let _ = answer.send((self.core.heard(token), self.report()));
                }
                Ok(Command::Finish) | Err(TryRecvError::Disconnected) => return Ok(true),
                Err(TryRecvError::Empty) => return Ok(false),
            }
        }
    }

    /// Sends a batch of the core's datagrams.
    fn transmit(&mut self) -> Result<SendResult, LinkError> {
        if self.batch.is_empty() {
            let now = self.now();
            self.batch.set_carrier(self.link.carrier());
            self.core.poll_transmit(now, &mut self.batch);
        }
        let any = !self.batch.is_empty();
        let blocked = !self.link.send(&mut self.batch, &self.core)?;
        Ok(SendResult { any, blocked })
    }

    /// Applies bounds that have passed, after the packets that have arrived: the scheduler may have stopped this thread
    /// meanwhile. A flood of packets delays a bound by twice [`READ_FIRST`] at most.
    fn expire(&mut self) -> Result<(), LinkError> {
        let now = self.now();
        if self.core.poll_timeout().is_none_or(|due| due > now) {
            return Ok(());
        }
        let until = now + READ_FIRST.min(self.core.config().t_b / 16);
        while self.receive()? {
            self.transmit()?;
            if self.now() >= until {
                break;
            }
        }
        self.core.handle_timeout(now);
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, LinkError> {
        let now = self.now();
        self.link.receive(&mut |carrier, datagram| {
            if let Some(rest) = &mut self.rest {
                rest.received();
            }
            self.core.handle(now, carrier, datagram);
        })
    }

    /// Sleeps until there is something to do, at most until `stop_at`.
    fn wait(&mut self, blocked: bool, stop_at: Option<Time>) -> Result<(), LinkError> {
        let timer = self.core.poll_timeout();
        let transmit = self.core.poll_transmit_at().filter(|_| !blocked);
        // Only while an operation is in progress, and if no packet is to leave before.
        let soon = timer.is_some() && transmit.is_none_or(|at| at.since(self.now()) > YIELD);
        if !self.link.sleep(soon) {
            return Ok(());
        }
        let now = self.now();
        let rest = self.rest.as_mut().filter(|_| !blocked);
        let rest = rest.and_then(|rest| rest.at(now, self.core.awaits()));
        // In a rest, paced packets wait as long as their burst allows.
        let delay = rest.map_or(Duration::ZERO, |_| self.core.burst_delay());
        let timeout = timer
            .into_iter()
            .chain(transmit.map(|at| at + delay))
            .chain(stop_at)
            .chain(rest.map(|rest| now + rest))
            .min()
            .map(|at| TimeSpec::from_duration(at.since(now)));
        let mut fds = [
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.link.fd(), PollFlags::POLLIN),
            PollFd::new(self.link.out_fd(), PollFlags::POLLOUT),
        ];
        let fds = match rest {
            Some(_) => &mut fds[..1],
            None => &mut fds[..2 + usize::from(blocked)],
        };
        match ppoll(fds, timeout, None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(LinkError::io("wait for the network", error)),
        }
        if fds[0].any() == Some(true) {
            // Resets the counter. The commands are in the queue.
            let _ = self.wake.read();
        }
        Ok(())
    }

    fn report(&self) -> Report {
        Report {
            totals: self.core.totals(),
            link: self.link.counters(),
            newest_step: self.core.newest_step(),
        }
    }

    /// Sends a reply. A caller that no longer listens needs none.
    fn answer(&self, reply: Reply) {
        let _ = self.replies.send(reply);
        self.last_ring.0.ring();
    }

    fn now(&self) -> Time {
        Time::ZERO + self.clock.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::codec::Coding;
    use crate::config::Config;
    use crate::core::Carrier;
    use crate::driver::HandleDatagram;
    use crate::operation::Part;
    use crate::stats::ClosedBy;

    const T_B: Duration = Duration::from_secs(1);
    /// Values of an operation, several batches of datagrams for the other rank.
    const LEN: usize = 1 << 20;

    /// A link with datagrams that have arrived.
    struct Arrived {
        datagrams: VecDeque<Vec<u8>>,
        /// True if they never end.
        is_flood: bool,
        /// Batches that were sent.
        sent: u32,
        wake: Arc<EventFd>,
    }

    impl Link for Arrived {
        fn fd(&self) -> BorrowedFd<'_> {
            self.wake.as_fd()
        }

        fn out_fd(&self) -> BorrowedFd<'_> {
            self.wake.as_fd()
        }

        fn send(&mut self, batch: &mut Batch, _: &Core) -> Result<bool, LinkError> {
            self.sent += u32::from(!batch.is_empty());
            batch.note_sent(batch.unsent().len());
            Ok(true)
        }

        fn carrier(&self) -> Carrier {
            Carrier::Sockets
        }

        fn receive(&mut self, handle: &mut HandleDatagram) -> Result<bool, LinkError> {
            let datagram = self.datagrams.pop_front();
            let datagrams = datagram.iter();
            datagrams.for_each(|datagram| handle(Carrier::Sockets, datagram));
            Ok(datagram.is_some() || self.is_flood)
        }

        fn counters(&self) -> LinkCounters {
            LinkCounters::default()
        }
    }

    fn core(rank: u16) -> Core {
        let config = Config {
            coding: Coding::Identity,
            ..Config::new(1, 1, rank, 2, 7, T_B)
        };
        Core::new(config).expect("valid")
    }

    fn id(step: u32) -> OperationId {
        OperationId { step, bucket: 0 }
    }

    /// A thread that has started an operation long ago, and the caller's ends.
    fn late(link: Arrived, len: usize) -> (DataThread<Arrived>, Sender<Command>, Receiver<Reply>) {
        let mut core = core(0);
        let values = vec![1.0; len];
        core.start(Time::ZERO, id(0), values).expect("starts");
        let (commands, queue) = channel();
        let (replies, answers) = channel();
        let data = DataThread {
            batch: Batch::new(core.max_datagram()),
            rest: Rest::new(core.config()),
            core,
            wake: Arc::clone(&link.wake),
            link,
            clock: Instant::now().checked_sub(2 * T_B).expect("a past"),
            commands: queue,
            replies,
            last_ring: LastRing(Bell::default()),
        };
        (data, commands, answers)
    }

    fn link() -> Arrived {
        Arrived {
            datagrams: VecDeque::new(),
            is_flood: false,
            sent: 0,
            wake: Arc::new(EventFd::new().expect("an eventfd")),
        }
    }

    /// The other rank's packets have arrived before the bound, but the scheduler had stopped this thread.
    #[test]
    fn a_start_reads_packets_before_it_applies_bounds() {
        let mut other = core(1);
        other
            .start(Time::ZERO, id(0), vec![3.0; 100])
            .expect("starts");
        let mut buf = vec![0; other.max_datagram()];
        let mut link = link();
        while let Some(sent) = other.next_datagram(Time::ZERO, &mut buf) {
            link.datagrams.push_back(buf[..sent.len].to_vec());
        }
        let (mut data, commands, _answers) = late(link, 100);
        commands.send(Command::Healed).expect("it listens");
        let start = Command::Start {
            id: id(1),
            piece: Part::Whole.into(),
            contributions: vec![1.0; 100].into(),
        };
        commands.send(start).expect("it listens");
        assert!(!data.execute().expect("no error"));
        let Some(Event::Done { outcome, .. }) = data.core.poll_event() else {
            panic!("t_B has passed");
        };
        assert_eq!(outcome.shard_closed_by, ClosedBy::Complete);
    }

    #[test]
    fn packets_leave_during_a_flood() {
        let link = Arrived {
            is_flood: true,
            ..link()
        };
        let (mut data, ..) = late(link, LEN);
        data.expire().expect("no error");
        assert!(data.link.sent > 0, "{}", data.link.sent);
    }
}
