//! Idle timeouts: finds entries that no packet has hit for their timeout (P4Runtime §9.1.8).
//!
//! A hit is one store of the time. Each entry with a timeout has an alarm at the earliest time at which it may be idle. When
//! the alarm is due, the entry's last hit is checked, and a later hit moves the alarm. So hits stay cheap, and no step scans all
//! entries.

use std::collections::BTreeSet;

use super::{EntryView, Table};

/// Shortest timeout, in microseconds. Replaces a shorter one.
const SHORTEST_US: u64 = 1_000;

/// Alarms: times at which entries may become idle.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    /// The time of each entry's alarm, and the entry's position.
    due: BTreeSet<(u64, u32)>,
    /// The current time, in microseconds since the switch started.
    pub(super) now_us: u64,
}

/// Hits and timeout of an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Age {
    /// Time of the last hit or the insertion, in microseconds since the switch started.
    pub(super) last_hit_us: u64,
    /// The timeout as written, in nanoseconds; 0 means none.
    pub(super) timeout_ns: u64,
    /// Time of the entry's last notification, or of the last change of its timeout.
    restarted_us: u64,
    alarm_us: Option<u64>,
}

impl Age {
    /// Returns the age of an entry that is inserted now.
    pub(super) fn new(now_us: u64, timeout_ns: u64) -> Age {
        Age {
            last_hit_us: now_us,
            timeout_ns,
            ..Age::default()
        }
    }

    fn timeout_us(self) -> u64 {
        self.timeout_ns.div_ceil(1000).max(SHORTEST_US)
    }
}

impl Table {
    /// Sets the time of reads and writes of the control plane.
    pub(crate) fn set_now(&mut self, now_us: u64) {
        self.alarms.now_us = now_us;
    }

    /// Starts processing packets: all entries count as hit now.
    pub(crate) fn start(&mut self, now_us: u64) {
        self.set_now(now_us);
        for at in 0..self.entries.len() as u32 {
            if let Some(entry) = &mut self.entries[at as usize] {
                entry.age.last_hit_us = now_us;
                self.restart(at);
            }
        }
    }

    /// Starts the timeout of the entry at this position, if it has one.
    pub(super) fn restart(&mut self, at: u32) {
        let now_us = self.alarms.now_us;
        if let Some(entry) = &mut self.entries[at as usize] {
            entry.age.restarted_us = now_us;
            let due_us = now_us.saturating_add(entry.age.timeout_us());
            let has_timeout = entry.age.timeout_ns > 0;
            self.set_alarm(at, has_timeout.then_some(due_us));
        }
    }

    /// Replaces the alarm of the entry at this position.
    pub(super) fn set_alarm(&mut self, at: u32, due_us: Option<u64>) {
        if let Some(entry) = &mut self.entries[at as usize] {
            let before = std::mem::replace(&mut entry.age.alarm_us, due_us);
            if let Some(before) = before {
                self.alarms.due.remove(&(before, at));
            }
            self.alarms.due.extend(due_us.map(|due_us| (due_us, at)));
        }
    }

    /// Returns the next time at which an entry may become idle, in microseconds since the switch started.
    pub(crate) fn next_idle_us(&self) -> Option<u64> {
        self.alarms.due.first().map(|(due_us, _)| *due_us)
    }

    /// Returns the next entry that is idle at `now_us`, and restarts its timeout.
    pub(crate) fn pop_idle(&mut self, now_us: u64) -> Option<EntryView> {
        self.set_now(now_us);
        while let Some((due_us, at)) = self.alarms.due.first().copied()
            && due_us <= now_us
        {
            let age = self.live(at).age;
            let since_us = age.restarted_us.max(age.last_hit_us);
            if now_us.saturating_sub(since_us) >= age.timeout_us() {
                self.restart(at);
                return Some(self.view(self.live(at)));
            }
            self.set_alarm(at, Some(since_us.saturating_add(age.timeout_us())));
        }
        None
    }
}
