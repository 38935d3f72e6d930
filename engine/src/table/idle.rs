//! Idle timeouts: finds entries that no packet has hit for their timeout (P4Runtime §9.1.8).
//!
//! A hit is one store of the time. Each entry with a timeout has an alarm at the earliest time at which it may be idle. When
//! the alarm is due, the entry's last hit is checked, and a later hit moves the alarm. So hits stay cheap, and no step scans all
//! entries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{EntryView, Table};

/// Shortest timeout, in microseconds. Replaces a shorter one.
const SHORTEST_US: u64 = 1_000;
/// Number of obsolete alarms to keep before cleaning up.
const OBSOLETE: usize = 1_024;

/// Alarms: times at which entries may become idle.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    heap: BinaryHeap<Reverse<Alarm>>,
    /// Number of the last alarm.
    number: u64,
    /// Number of entries with a timeout, or slightly more.
    armed: usize,
    /// The current time, in microseconds since the switch started.
    pub(super) now_us: u64,
}

/// An alarm, ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Alarm {
    at_us: u64,
    /// The alarm's number. If the entry has another number, this alarm is obsolete.
    number: u64,
    entry: u32,
    /// The last known hit of the entry.
    since_us: u64,
}

/// Hits and timeout of an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Age {
    /// Time of the last hit or the insertion, in microseconds since the switch started.
    pub(super) last_hit_us: u64,
    /// The timeout as written, in nanoseconds; 0 means none.
    pub(super) timeout_ns: u64,
    /// Number of the entry's alarm.
    alarm: u64,
}

impl Age {
    /// Returns the age of an entry that is inserted now.
    pub(super) fn new(now_us: u64, timeout_ns: u64) -> Age {
        Age {
            last_hit_us: now_us,
            timeout_ns,
            alarm: 0,
        }
    }

    fn timeout_us(self) -> u64 {
        self.timeout_ns.div_ceil(1000).max(SHORTEST_US)
    }
}

impl Table {
    /// True if the table supports idle timeouts.
    pub fn has_idle_timeouts(&self) -> bool {
        self.declared.idle_timeouts
    }

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
                self.arm(at);
            }
        }
    }

    /// Sets the alarm of the entry at this position. Its previous alarm becomes obsolete.
    pub(super) fn arm(&mut self, at: u32) {
        let alarms = &mut self.alarms;
        let Some(entry) = &mut self.entries[at as usize] else {
            return;
        };
        if entry.age.timeout_ns == 0 {
            entry.age.alarm = 0;
            return;
        }
        alarms.number += 1;
        entry.age.alarm = alarms.number;
        alarms.heap.push(Reverse(Alarm {
            at_us: alarms.now_us.saturating_add(entry.age.timeout_us()),
            number: alarms.number,
            entry: at,
            since_us: alarms.now_us,
        }));
        if alarms.heap.len() > 2 * alarms.armed + OBSOLETE {
            self.drop_vain_alarms();
        }
    }

    fn drop_vain_alarms(&mut self) {
        let entries = &self.entries;
        let rings = |alarm: &Reverse<Alarm>| {
            let entry = entries[alarm.0.entry as usize].as_ref();
            entry.is_some_and(|entry| entry.age.alarm == alarm.0.number)
        };
        self.alarms.heap.retain(rings);
        self.alarms.armed = self.alarms.heap.len();
    }

    /// Returns the next time at which an entry may become idle, in microseconds since the switch started.
    pub(crate) fn next_idle_us(&self) -> Option<u64> {
        self.alarms.heap.peek().map(|alarm| alarm.0.at_us)
    }

    /// Returns the next entry that is idle at `now_us`, and restarts its timeout.
    pub(crate) fn pop_idle(&mut self, now_us: u64) -> Option<EntryView> {
        self.set_now(now_us);
        while self.next_idle_us().is_some_and(|at| at <= now_us) {
            let Reverse(mut alarm) = self.alarms.heap.pop()?;
            let Some(entry) = &self.entries[alarm.entry as usize] else {
                continue;
            };
            if entry.age.alarm != alarm.number {
                continue;
            }
            alarm.since_us = alarm.since_us.max(entry.age.last_hit_us);
            let timeout = entry.age.timeout_us();
            let is_idle = now_us.saturating_sub(alarm.since_us) >= timeout;
            if is_idle {
                alarm.since_us = now_us;
            }
            alarm.at_us = alarm.since_us.saturating_add(timeout);
            self.alarms.heap.push(Reverse(alarm));
            if is_idle {
                return Some(self.view(self.live(alarm.entry)));
            }
        }
        None
    }
}
