//! The forwarding thread's clock and alarm: nanoseconds since the switch started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

/// Nanoseconds since the switch started.
pub type Nanos = u64;

/// A monotonic clock that starts at 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Duration,
    epoch: Duration,
}

impl Clock {
    /// Starts a clock at 0.
    pub(crate) fn start() -> Self {
        let epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Clock {
            start: monotonic(),
            epoch,
        }
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Nanos {
        nanos(monotonic().saturating_sub(self.start))
    }

    /// Converts a time of this clock to the time of day, since the epoch.
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

/// Converts a duration.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// An alarm for a poller, by timerfd: epoll's timeout counts milliseconds, and both it and `epoll_pwait2` add the thread's
/// timer slack.
///
/// A sleeping thread wakes tens of microseconds late, by a similar time each time. So the alarm is set earlier by the tenth
/// percentile of that lateness. After a wake-up that comes too early, it is set again to the exact time.
pub(crate) struct Alarm {
    timer: TimerFd,
    armed: Option<Nanos>,
    /// Estimated tenth percentile of the lateness of wake-ups.
    lead: Nanos,
}

/// The lead rises by `LEAD_UP` after a wake-up that is later than the lead and falls by `LEAD_DOWN` otherwise. It settles where
/// one wake-up in ten is earlier.
const LEAD_UP: Nanos = 200;
const LEAD_DOWN: Nanos = 1_800;
const MAX_LEAD: Nanos = 100_000;

impl Alarm {
    /// Returns an alarm that is off. Register it edge-triggered: it is never read.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        Ok(Alarm {
            timer,
            armed: None,
            lead: 0,
        })
    }

    /// Sets the alarm to `at` on `clock`, or turns it off. A time in the past rings at once.
    pub(crate) fn set(&mut self, clock: &Clock, at: Option<Nanos>) -> io::Result<()> {
        let early = |at: Nanos| match at.checked_sub(self.lead) {
            Some(early) if early > clock.now() => early,
            _ => at,
        };
        let target = at.map(early);
        if self.armed == target {
            return Ok(());
        }
        match target {
            Some(target) => {
                let time = clock.start.saturating_add(Duration::from_nanos(target));
                self.timer.set(
                    Expiration::OneShot(TimeSpec::from_duration(time)),
                    TimerSetTimeFlags::TFD_TIMER_ABSTIME,
                )?;
            }
            None => self.timer.unset()?,
        }
        self.armed = target;
        Ok(())
    }

    /// Records that the alarm rang at `now`, so that setting it to the same time arms it again.
    pub(crate) fn rang(&mut self, now: Nanos) {
        if let Some(target) = self.armed.take() {
            self.lead = next_lead(self.lead, now.saturating_sub(target));
        }
    }
}

fn next_lead(lead: Nanos, late: Nanos) -> Nanos {
    if late > lead {
        (lead + LEAD_UP).min(MAX_LEAD)
    } else {
        lead.saturating_sub(LEAD_DOWN)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_settles_at_the_tenth_percentile() {
        // Wake-ups 20 to 120 µs late, evenly: a tenth of them are up to 30 µs late.
        let mut lead = 0;
        let mut late = (0u64..).map(|n| 20_000 + n.wrapping_mul(0x9e37_79b9) % 100_001);
        for _ in 0..5_000 {
            lead = next_lead(lead, late.next().expect("endless"));
        }
        assert!((25_000..35_000).contains(&lead), "{lead}");
        for _ in 0..1000 {
            lead = next_lead(lead, 10_000_000);
        }
        assert_eq!(
            lead, MAX_LEAD,
            "a machine that hangs does not spoil it for good"
        );
    }
}
