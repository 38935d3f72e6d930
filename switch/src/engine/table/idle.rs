//! Idle timeouts: which entries no packet has hit for as long as the controller asked (P4Runtime
//! §9.1.8).
//!
//! A packet's hit is one store. An alarm stands for the moment at which an entry may have become
//! idle; only when it goes off is it looked up when the entry was last hit, and if that was later
//! than the alarm knew, the alarm is put off. So neither hits nor entries without a timeout cost
//! more than that, and nothing ever goes through all entries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{EntryView, Table};

/// The shortest timeout that is kept; one that is set shorter is taken for this. Microseconds.
const SHORTEST_US: u64 = 1_000;
/// Alarms that may be there in vain beside those of live entries.
const IN_VAIN: usize = 1_024;

/// When entries may become idle.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    heap: BinaryHeap<Reverse<Alarm>>,
    /// Of the last alarm set.
    number: u64,
    /// Live entries with a timeout, or a few more.
    armed: usize,
    /// Now, microseconds since the switch started.
    pub(super) now_us: u64,
}

/// In order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Alarm {
    at_us: u64,
    /// The entry's own number of its alarm; another stands for an alarm set since.
    number: u64,
    entry: u32,
    /// The moment from which on the entry has not been hit, as far as the alarm knows.
    since_us: u64,
}

/// What an entry of a table with idle timeouts knows of its hits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Age {
    /// When it was last hit, or else inserted. Microseconds since the switch started.
    pub(super) last_hit_us: u64,
    /// The timeout as it was written, nanoseconds; 0 for none.
    pub(super) timeout_ns: u64,
    /// The number of its alarm.
    alarm: u64,
}

impl Age {
    /// Of an entry that is inserted now.
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
    /// Whether the program supports idle timeouts for its entries.
    pub fn has_idle_timeouts(&self) -> bool {
        self.declared.idle_timeouts
    }

    /// What is written from now on is written at this time.
    pub(in crate::engine) fn set_now(&mut self, now_us: u64) {
        self.alarms.now_us = now_us;
    }

    /// All entries count as hit now: packets begin to run through the table.
    pub(in crate::engine) fn start(&mut self, now_us: u64) {
        self.set_now(now_us);
        for at in 0..self.entries.len() as u32 {
            if let Some(entry) = &mut self.entries[at as usize] {
                entry.age.last_hit_us = now_us;
                self.arm(at);
            }
        }
    }

    /// Sets the alarm of the entry at this place, from now on. The one before is in vain.
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
        if alarms.heap.len() > 2 * alarms.armed + IN_VAIN {
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

    /// When an entry may next become idle, microseconds since the switch started.
    pub(in crate::engine) fn next_idle_us(&self) -> Option<u64> {
        self.alarms.heap.peek().map(|alarm| alarm.0.at_us)
    }

    /// The next entry that has become idle by `now_us`. Its timeout starts anew.
    pub(in crate::engine) fn pop_idle(&mut self, now_us: u64) -> Option<EntryView> {
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
