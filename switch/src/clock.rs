//! Time as the forwarding thread knows it: nanoseconds since the switch started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

use crate::tm::Nanos;

/// The monotonic clock, from the moment of its creation on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Duration,
    epoch: Duration,
}

impl Clock {
    /// A clock that shows 0 now.
    pub(crate) fn start() -> Self {
        let epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Clock {
            start: monotonic(),
            epoch,
        }
    }

    /// What it shows.
    pub(crate) fn now(&self) -> Nanos {
        nanos(monotonic().saturating_sub(self.start))
    }

    /// The time of day at which it showed `at`, since the epoch.
    pub(crate) fn time_of_day(&self, at: Nanos) -> Duration {
        self.epoch + Duration::from_nanos(at)
    }
}

fn monotonic() -> Duration {
    // Linux has had this clock since 2.6; the call cannot fail for it.
    clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map(Duration::from)
        .unwrap_or_default()
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// An alarm that a poller reports. A timerfd: epoll's own timeout counts milliseconds, and both it
/// and `epoll_pwait2` add the thread's timer slack.
pub(crate) struct Alarm {
    timer: TimerFd,
    armed: Option<Nanos>,
}

impl Alarm {
    /// An alarm that is off. Register it edge-triggered: it is never read.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Alarm {
            timer: TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?,
            armed: None,
        })
    }

    /// Rings at `at` on `clock`, at once when that is past; or not at all.
    pub(crate) fn set(&mut self, clock: &Clock, at: Option<Nanos>) -> io::Result<()> {
        if self.armed == at {
            return Ok(());
        }
        match at {
            Some(at) => {
                let time = clock.start.saturating_add(Duration::from_nanos(at));
                self.timer.set(
                    Expiration::OneShot(TimeSpec::from_duration(time)),
                    TimerSetTimeFlags::TFD_TIMER_ABSTIME,
                )?;
            }
            None => self.timer.unset()?,
        }
        self.armed = at;
        Ok(())
    }

    /// It rang: setting it to the same moment must arm it again.
    pub(crate) fn rang(&mut self) {
        self.armed = None;
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
