//! The forwarding thread, which alone accesses ports, queues and programs.
//!
//! The control plane sends it closures through a [`Handle`] and waits for their results. The thread runs them in order
//! between two packets, after frames that can leave at once have left. So a packet sees all changes of a closure or none.

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

use crate::clock::Alarm;
use crate::datapath::{ControllerLink, Datapath, LINK_EVENTS, NewPort};
use crate::idle_poll::IdlePoll;
use crate::pipeline::Pipeline;
use crate::port::mmsg::RxBatch;
use crate::stats::StatsKey;

/// The most commands in a row before the ports are served.
const COMMAND_TURN: usize = 64;

/// Token of the waker among the polled descriptors; smaller tokens belong to the datapath.
const WAKE: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

enum Command {
    Run(Box<dyn FnOnce(&mut Datapath) + Send>),
    Stop,
}

/// Why a command has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    /// The forwarding thread has ended.
    #[error("the switch has stopped forwarding")]
    Stopped,
    /// The command panicked. Forwarding goes on.
    #[error(
        "the request failed inside the switch and may be done in part: the log has the reason; set the pipeline config again"
    )]
    Panicked,
}

/// Sends commands to the forwarding thread.
#[derive(Clone)]
pub(crate) struct Handle {
    commands: Sender<Command>,
    waker: Arc<EventFd>,
}

pub(crate) struct Answer<R>(oneshot::Receiver<Result<R, CommandError>>);

impl<R> Answer<R> {
    pub(crate) async fn wait(self) -> Result<R, CommandError> {
        self.0.await.unwrap_or(Err(CommandError::Stopped))
    }
}

impl Handle {
    /// Sends a closure. Closures run in the order in which they are sent. A panic ends the closure, not the thread.
    pub(crate) fn send<R: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Answer<R> {
        let (answer, receiver) = oneshot::channel();
        self.post(Command::Run(Box::new(move |datapath| {
            let result = catch_unwind(AssertUnwindSafe(|| action(datapath)));
            // The caller may have stopped waiting.
            let _ = answer.send(result.map_err(|_| CommandError::Panicked));
        })));
        Answer(receiver)
    }

    /// Ends the thread after the commands sent before.
    pub(crate) fn stop(&self) {
        self.post(Command::Stop);
    }

    fn post(&self, command: Command) {
        // A failure drops the command with the result's sender, so waiting returns `Stopped`.
        if self.commands.send(command).is_ok() {
            // The counter overflows only after 2^64 commands without a read.
            let _ = self.waker.write(1);
        }
    }

    /// Sends a closure and waits for its result.
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Result<R, CommandError> {
        self.send(action).wait().await
    }
}

/// The thread's state.
pub(crate) struct Forwarder {
    datapath: Datapath,
    poller: Arc<Epoll>,
    alarm: Alarm,
    waker: Arc<EventFd>,
    commands: Receiver<Command>,
    running: bool,
    batch: RxBatch,
    idle_poll: IdlePoll,
}

impl Forwarder {
    /// Builds the thread's state and the handle to it.
    pub(crate) fn new(
        ports: Vec<NewPort>,
        controllers: ControllerLink,
        stats_key: Option<StatsKey>,
        pipeline: Option<Pipeline>,
        poll: Duration,
    ) -> io::Result<(Forwarder, Handle)> {
        let poller = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        let waker = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
        )?);
        poller.add(waker.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let alarm = Alarm::new()?;
        let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        poller.add(alarm.as_fd(), EpollEvent::new(edge, ALARM))?;
        let (sender, commands) = channel();
        let handle = Handle {
            commands: sender,
            waker: waker.clone(),
        };
        let forwarder = Forwarder {
            datapath: Datapath::new(ports, controllers, stats_key, pipeline, poller.clone())?,
            poller,
            alarm,
            waker,
            commands,
            running: true,
            batch: RxBatch::new(),
            idle_poll: IdlePoll::new(poll),
        };
        Ok((forwarder, handle))
    }

    /// Returns the datapath before forwarding starts.
    pub(crate) fn datapath(&mut self) -> &mut Datapath {
        &mut self.datapath
    }

    /// Forwards until it is stopped.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        let clock = self.datapath.clock();
        let mut busy = false;
        while self.running {
            let awake = busy || self.idle_poll.idle(clock.now());
            let timeout = if awake {
                EpollTimeout::ZERO
            } else {
                self.alarm.set(&clock, self.datapath.next_due())?;
                EpollTimeout::NONE
            };
            let count = match self.poller.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => 0,
                Err(errno) => return Err(errno.into()),
            };
            if count > 0 {
                self.idle_poll.busy(clock.now());
            }
            let events = &events[..count];
            busy = events.iter().any(|event| event.data() == WAKE);
            if busy {
                self.idle_poll.commanded(clock.now());
                // Frames that can leave at once leave first, so that ingress and egress of one packet see the
                // same state. This ends: queues are bounded, and nothing is received meanwhile. A frame that
                // arrives after a command was sent sees its effect.
                while self.datapath.serve_ports() {}
                self.run_commands();
            }
            for event in events {
                match event.data() {
                    WAKE => {}
                    ALARM => self.alarm.rang(clock.now()),
                    LINK_EVENTS => self.datapath.links_changed(),
                    port => self
                        .datapath
                        .port_event(port, event.events(), &mut self.batch),
                }
            }
            self.datapath.watch_ports();
            busy |= self.datapath.serve_ports();
            self.datapath.notify_due();
            self.datapath.flush_captures(false);
        }
        self.datapath.flush_captures(true);
        self.datapath.tracer().end_log();
        Ok(())
    }

    fn run_commands(&mut self) {
        // Read the waker before the commands: a command that arrives in between wakes the thread again.
        let _ = self.waker.read();
        for _ in 0..COMMAND_TURN {
            match self.commands.try_recv() {
                Ok(Command::Run(action)) => action(&mut self.datapath),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    self.running = false;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
        // More commands may wait.
        let _ = self.waker.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify;

    #[tokio::test]
    async fn a_panic_in_a_command_does_not_end_forwarding() {
        let controllers = ControllerLink {
            cpu_port: None,
            notifier: notify::queues(Arc::default()).0,
        };
        let (forwarder, handle) =
            Forwarder::new(Vec::new(), controllers, None, None, Duration::ZERO)
                .expect("a forwarder");
        let thread = std::thread::spawn(|| forwarder.run());
        let failed: Result<(), _> = handle.call(|_| panic!("as a defect would")).await;
        assert_eq!(failed, Err(CommandError::Panicked));
        assert_eq!(handle.call(|_| 5).await, Ok(5));
        handle.stop();
        thread.join().expect("no panic").expect("no error");
        assert_eq!(handle.call(|_| 5).await, Err(CommandError::Stopped));
    }
}
