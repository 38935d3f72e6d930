//! Digest lists: enabled digests, waiting messages, and messages that await acknowledgement (P4Runtime §9.8).
//!
//! No I/O and no clock: the caller passes messages and the time, and takes lists.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashSet;
use tonic::Code;

use crate::target::Refusal;
use crate::tm::Nanos;
use ultima_engine::{Digest, DigestMessage};

/// Approximate largest size of a list, in bytes, far below the default limit of gRPC clients.
const MAX_LIST_BYTES: usize = 64 << 10;
const MAX_LIST: usize = 1024;
/// Largest number of messages of one digest that await acknowledgement. Beyond it the switch forgets the oldest list, whose
/// messages may be sent again.
const MAX_UNACKNOWLEDGED: usize = 1 << 16;

/// When messages of a digest are sent as a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DigestConfig {
    /// Longest wait of a message for its list to be sent; 0 sends at once.
    pub(crate) max_timeout: Nanos,
    /// Number of messages at which a list is sent; 0 lets the switch choose.
    pub(crate) max_list_size: usize,
    /// Time during which an unacknowledged message is not sent again.
    pub(crate) ack_timeout: Nanos,
}

/// A list to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DigestList {
    /// The digest's P4Info id.
    pub(crate) digest: u32,
    /// The list's number, unique for the switch.
    pub(crate) id: u64,
    /// Distinct messages in the order of their first occurrence.
    pub(crate) messages: Vec<Arc<[u8]>>,
}

/// All digests of a program.
#[derive(Debug)]
pub(crate) struct Digests {
    digests: Arc<[Digest]>,
    enabled: BTreeMap<u32, Enabled>,
    next_list: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Enabled {
    config: DigestConfig,
    /// Largest number of messages in a list, regardless of the configuration.
    room: usize,
    waiting: Vec<Arc<[u8]>>,
    /// Time of the first waiting message.
    since: Nanos,
    /// Unacknowledged lists in the order in which they were sent.
    sent: VecDeque<Sent>,
    unacknowledged: usize,
    /// Waiting and unacknowledged messages.
    known: FxHashSet<Arc<[u8]>>,
}

#[derive(Debug, Clone)]
struct Sent {
    id: u64,
    at: Nanos,
    messages: Vec<Arc<[u8]>>,
}

impl Digests {
    /// Starts with all digests disabled.
    pub(crate) fn new(digests: Arc<[Digest]>) -> Digests {
        Digests {
            digests,
            enabled: BTreeMap::new(),
            next_list: 1,
        }
    }

    /// Returns the program's digests.
    pub(crate) fn all(&self) -> &Arc<[Digest]> {
        &self.digests
    }

    fn find(&self, id: u32) -> Result<&Digest, Refusal> {
        let found = self.digests.iter().find(|digest| digest.id() == id);
        found.ok_or_else(|| {
            let what = format!("there is no digest {id:#010x} in this program");
            Refusal::new(Code::NotFound, what)
        })
    }

    pub(crate) fn enable(&mut self, id: u32, config: DigestConfig) -> Result<(), Refusal> {
        let digest = self.find(id)?;
        if self.enabled.contains_key(&id) {
            let what = format!("digest {} is enabled already", digest.name());
            return Err(Refusal::new(Code::AlreadyExists, what));
        }
        let enabled = Enabled::new(digest, config);
        self.enabled.insert(id, enabled);
        Ok(())
    }

    /// Changes the configuration of an enabled digest.
    pub(crate) fn configure(&mut self, id: u32, config: DigestConfig) -> Result<(), Refusal> {
        self.get(id)?;
        if let Some(enabled) = self.enabled.get_mut(&id) {
            enabled.config = config;
        }
        Ok(())
    }

    /// Disables a digest and drops its waiting messages.
    pub(crate) fn disable(&mut self, id: u32) -> Result<(), Refusal> {
        self.get(id)?;
        self.enabled.remove(&id);
        Ok(())
    }

    pub(crate) fn get(&self, id: u32) -> Result<DigestConfig, Refusal> {
        let name = self.find(id)?.name();
        let missing = || Refusal::new(Code::NotFound, format!("digest {name} is not enabled"));
        let enabled = self.enabled.get(&id).ok_or_else(missing)?;
        Ok(enabled.config)
    }

    /// Iterates over enabled digests by P4Info id.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = (u32, DigestConfig)> {
        self.enabled
            .iter()
            .map(|(id, enabled)| (*id, enabled.config))
    }

    /// Adds a packet's message. Returns a list if one is complete.
    pub(crate) fn learn(&mut self, message: DigestMessage, now: Nanos) -> Option<DigestList> {
        let enabled = self.enabled.get_mut(&message.digest)?;
        enabled.forget_expired(now);
        let values = Arc::<[u8]>::from(message.values);
        if !enabled.known.insert(values.clone()) {
            return None;
        }
        if enabled.waiting.is_empty() {
            enabled.since = now;
        }
        enabled.waiting.push(values);
        let full = enabled.waiting.len() >= enabled.longest();
        (full || enabled.config.max_timeout == 0)
            .then(|| enabled.send(message.digest, &mut self.next_list, now))
    }

    pub(crate) fn due(&mut self, now: Nanos) -> Option<DigestList> {
        let mut enabled = self.enabled.iter_mut();
        let (id, enabled) =
            enabled.find(|(_, enabled)| enabled.next_due().is_some_and(|due| due <= now))?;
        Some(enabled.send(*id, &mut self.next_list, now))
    }

    /// Returns the time at which the next list is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.enabled.values().filter_map(Enabled::next_due).min()
    }

    /// Handles a controller's acknowledgement. Ignores a list that the switch has forgotten.
    pub(crate) fn acknowledge(&mut self, digest: u32, list: u64) -> Result<(), Refusal> {
        self.find(digest)?;
        if let Some(enabled) = self.enabled.get_mut(&digest)
            && let Ok(at) = enabled.sent.binary_search_by_key(&list, |sent| sent.id)
            && let Some(sent) = enabled.sent.remove(at)
        {
            enabled.forget(&sent);
        }
        Ok(())
    }

    /// Forgets unacknowledged lists, so that a new primary receives their messages again.
    pub(crate) fn forget_sent(&mut self) {
        for enabled in self.enabled.values_mut() {
            while let Some(sent) = enabled.sent.pop_front() {
                enabled.forget(&sent);
            }
        }
    }
}

impl Enabled {
    fn new(digest: &Digest, config: DigestConfig) -> Enabled {
        // Encoding adds a few bytes for tags and lengths.
        let bytes = digest.bytes() * 2 + 32;
        Enabled {
            config,
            room: (MAX_LIST_BYTES / bytes).clamp(1, MAX_LIST),
            waiting: Vec::new(),
            since: 0,
            sent: VecDeque::new(),
            unacknowledged: 0,
            known: FxHashSet::default(),
        }
    }

    fn longest(&self) -> usize {
        match self.config.max_list_size {
            0 => self.room,
            size => size.min(self.room),
        }
    }

    fn next_due(&self) -> Option<Nanos> {
        let waits = !self.waiting.is_empty();
        waits.then(|| self.since.saturating_add(self.config.max_timeout))
    }

    fn send(&mut self, digest: u32, next_list: &mut u64, now: Nanos) -> DigestList {
        let id = *next_list;
        *next_list += 1;
        let messages = std::mem::take(&mut self.waiting);
        let sent = Sent {
            id,
            at: now,
            messages: messages.clone(),
        };
        self.unacknowledged += messages.len();
        if self.config.ack_timeout == 0 {
            self.forget(&sent);
        } else {
            self.sent.push_back(sent);
            while self.unacknowledged > MAX_UNACKNOWLEDGED
                && let Some(oldest) = self.sent.pop_front()
            {
                self.forget(&oldest);
            }
        }
        DigestList {
            digest,
            id,
            messages,
        }
    }

    fn forget_expired(&mut self, now: Nanos) {
        let timeout = self.config.ack_timeout;
        let old = |sent: &Sent| now.saturating_sub(sent.at) >= timeout;
        while self.sent.front().is_some_and(old)
            && let Some(sent) = self.sent.pop_front()
        {
            self.forget(&sent);
        }
    }

    fn forget(&mut self, sent: &Sent) {
        self.unacknowledged -= sent.messages.len();
        for message in &sent.messages {
            self.known.remove(message);
        }
    }
}

#[cfg(test)]
mod tests;
