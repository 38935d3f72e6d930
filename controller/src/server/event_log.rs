//! The recent events of jobs, switches and other elements, for `ultima events`. The leader keeps them in memory, and
//! stores the latest ones every few seconds, for the next leader.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use ultima_api::v1 as api;
use ultima_grpc::transport::one_line;
use ultima_planner::job::Job;

use super::lock::lock;

/// The most events of one object.
const OF_ONE: usize = 512;
/// The most events of all objects.
const OF_ALL: usize = 4096;
/// The most events that are stored: some 80 KB.
const STORED: usize = 512;

/// The events, the latest last. An event that repeats is counted.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Logged>,
    /// The stored fields beside the events that this version does not know.
    others: Vec<u8>,
    last_id: u64,
    /// True if there is an event that is not stored.
    is_new: bool,
}

#[derive(Debug)]
struct Logged {
    event: api::Event,
    /// Its stored fields that this version does not know.
    others: Vec<u8>,
}

/// The stored form, which is that of `ListEventsResponse`.
#[derive(Message)]
struct Stored {
    #[prost(bytes = "vec", repeated, tag = "1")]
    events: Vec<Vec<u8>>,
}

/// The encoded fields of a message that a later version has added: each alone decodes to nothing.
fn unknown_fields<M: Message + Default>(encoded: &[u8]) -> Vec<u8> {
    let (mut rest, mut unknown) = (encoded, Vec::new());
    loop {
        let field = rest;
        let skipped = decode_key(&mut rest).and_then(|(number, kind)| {
            skip_field(kind, number, &mut rest, DecodeContext::default())
        });
        if skipped.is_err() {
            return unknown;
        }
        let field = &field[..field.len() - rest.len()];
        if M::decode(field).is_ok_and(|known| known.encoded_len() == 0) {
            unknown.extend_from_slice(field);
        }
    }
}

impl Logged {
    fn decode(stored: &[u8]) -> Result<Self, DecodeError> {
        Ok(Logged {
            event: api::Event::decode(stored)?,
            others: unknown_fields::<api::Event>(stored),
        })
    }

    fn encode(&self) -> Vec<u8> {
        [&self.others[..], &self.event.encode_to_vec()].concat()
    }
}

impl EventLog {
    /// The events that an earlier leader has stored. Their fields that this version does not know stay in the store.
    pub fn restored(stored: &[u8]) -> Self {
        // They are for people: without them the controller does its work.
        let events = Stored::decode(stored).unwrap_or_default().events;
        let events = events.iter().map(|event| Logged::decode(event));
        let events: VecDeque<Logged> = events.collect::<Result<_, _>>().unwrap_or_default();
        EventLog(Mutex::new(Log {
            last_id: events
                .iter()
                .map(|it| it.event.id)
                .max()
                .unwrap_or_default(),
            others: unknown_fields::<Stored>(stored),
            events,
            is_new: false,
        }))
    }

    /// The latest events, for the store; none if nothing has happened since the last call.
    pub fn to_store(&self) -> Option<Vec<u8>> {
        let log = &mut *lock(&self.0);
        let first = log.events.len().saturating_sub(STORED);
        std::mem::take(&mut log.is_new).then(|| {
            let events = log.events.range(first..).map(Logged::encode).collect();
            [&log.others[..], &Stored { events }.encode_to_vec()].concat()
        })
    }

    /// Has [`to_store`](Self::to_store) return the events again: the store has not applied them.
    pub fn store_again(&self) {
        lock(&self.0).is_new = true;
    }

    /// Adds an event of a job.
    pub fn add_of_job(&self, job: &Job, reason: &str, message: &str) {
        self.add(format!("job/{}", job.name), job.uid, reason, message);
    }

    /// Adds an event of an object such as `job/train`; the `uid` is that of a job.
    pub fn add(&self, object: String, uid: u64, reason: &str, message: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_millis() as u64);
        let message = one_line(message);
        let Log {
            events,
            last_id,
            is_new,
            ..
        } = &mut *lock(&self.0);
        *is_new = true;
        let is_same = |Logged { event: it, .. }: &Logged| {
            (it.uid, &it.object) == (uid, &object)
                && (&*it.reason, &it.message) == (reason, &message)
        };
        let logged = match events.iter().rposition(is_same) {
            Some(at) => events.remove(at),
            None => None,
        };
        let mut logged = logged.unwrap_or_else(|| {
            *last_id += 1;
            let event = api::Event {
                id: *last_id,
                object,
                reason: reason.to_owned(),
                message,
                count: 0,
                first_ms: now,
                last_ms: now,
                uid,
            };
            Logged {
                event,
                others: Vec::new(),
            }
        });
        let event = &mut logged.event;
        event.count = event.count.saturating_add(1);
        event.last_ms = now;
        let is_of_it = |it: &&Logged| it.event.object == event.object;
        if events.iter().filter(is_of_it).count() >= OF_ONE {
            let first = events.iter().position(|it| is_of_it(&it));
            first.and_then(|first| events.remove(first));
        } else if events.len() >= OF_ALL {
            events.pop_front();
        }
        events.push_back(logged);
    }

    /// The events of an object, or of all objects without a name.
    pub fn of(&self, object: &str) -> Vec<api::Event> {
        let log = lock(&self.0);
        let events = log.events.iter().map(|it| &it.event);
        let is_wanted = |it: &&api::Event| object.is_empty() || it.object == object;
        events.filter(is_wanted).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_counted_and_old_ones_make_room() {
        let log = EventLog::default();
        let job = |number: usize| format!("job/{number}");
        log.add(job(0), 1, "Joined", "rank 0 on h1");
        log.add(job(0), 1, "Left", "rank 0\non h1");
        log.add(job(0), 1, "Joined", "rank 0 on h1");
        let events = log.of("job/0");
        let of = |event: &api::Event| (event.id, event.reason.clone(), event.count);
        let expected = [(2, "Left".to_owned(), 1), (1, "Joined".to_owned(), 2)];
        assert!(events.iter().map(of).eq(expected), "{events:?}");
        assert!(events.iter().all(|it| it.last_ms >= it.first_ms));
        assert_eq!(events[0].message.lines().count(), 1);

        // Another job of the same name.
        log.add(job(0), 2, "Joined", "rank 0 on h1");
        let events = log.of("job/0");
        let counts = events.iter().map(|it| (it.uid, it.count));
        assert!(counts.eq([(1, 1), (1, 2), (2, 1)]), "{events:?}");

        for number in 0..2 * OF_ONE {
            log.add(job(1), 1, "Joined", &format!("rank {number} on h1"));
        }
        let events = log.of("job/1");
        assert_eq!(events.len(), OF_ONE);
        assert_eq!(events[0].message, format!("rank {OF_ONE} on h1"));
        assert_eq!(log.of("job/0").len(), 3, "of another object");
        for number in 0..OF_ALL {
            log.add(job(2 + number), 1, "Created", &"x".repeat(5000));
        }
        let all = log.of("");
        assert_eq!((all.len(), all[0].object.as_str()), (OF_ALL, "job/2"));
        assert!(all[0].message.len() < 512, "a client may have chosen it");
    }

    #[test]
    fn the_latest_events_are_stored_once() {
        let log = EventLog::default();
        assert_eq!(log.to_store(), None);
        for number in 0..STORED + 10 {
            log.add(
                "job/train".replace("train", &number.to_string()),
                1,
                "Created",
                "",
            );
        }
        let stored = log.to_store().expect("new events");
        assert_eq!(log.to_store(), None);
        log.store_again();
        assert_eq!(log.to_store().as_ref(), Some(&stored));
        assert_eq!(log.to_store(), None);
        let restored = EventLog::restored(&stored);
        assert_eq!(restored.of(""), log.of("")[10..]);
        assert_eq!(restored.to_store(), None);
        restored.add("job/other".to_owned(), 1, "Created", "");
        let ids = [&log, &restored].map(|log| log.of("").last().map(|it| it.id));
        assert!(ids[0] < ids[1], "{ids:?}");
        assert_eq!(EventLog::restored(b"\xff").of(""), []);
    }

    /// The events of a later version, whose log has a field 7, and whose event has the fields 100 and 101.
    #[derive(Clone, PartialEq, Message)]
    struct LaterLog {
        #[prost(message, repeated, tag = "1")]
        events: Vec<LaterEvent>,
        #[prost(uint32, tag = "7")]
        form: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    struct LaterEvent {
        #[prost(uint64, tag = "1")]
        id: u64,
        #[prost(string, tag = "2")]
        object: String,
        #[prost(string, tag = "3")]
        reason: String,
        #[prost(uint64, tag = "5")]
        count: u64,
        #[prost(string, tag = "100")]
        cause: String,
        #[prost(uint64, repeated, tag = "101")]
        ranks: Vec<u64>,
    }

    #[test]
    fn fields_of_a_later_version_stay_in_the_store() {
        let event = |id: u64, object: &str| LaterEvent {
            id,
            object: object.into(),
            reason: "Created".into(),
            count: 1,
            cause: "drain".into(),
            ranks: vec![0, 3],
        };
        let mut later = LaterLog {
            events: vec![event(4, "job/a"), event(5, "job/b")],
            form: 2,
        };
        let mut stored = later.encode_to_vec();
        // One event repeats. A second round trip adds nothing.
        for count in 2..4 {
            let log = EventLog::restored(&stored);
            log.add("job/a".to_owned(), 0, "Created", "");
            let length = stored.len();
            stored = log.to_store().expect("a new event");
            if count == 3 {
                assert_eq!(stored.len(), length);
            }
            later.events.sort_by_key(|event| event.object == "job/a");
            later.events[1].count = count;
            assert_eq!(LaterLog::decode(&*stored), Ok(later.clone()));
        }
    }
}
