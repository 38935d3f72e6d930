//! Encoding a store's contents and changes as messages, and decoding them.

use ultima_api::v1::{self as api, copy::Part};

use crate::p4rt::Term;
use crate::server::journal::Entry;
use crate::store::{Change, History, JobRecord, Store, StoreError, Stored};

/// The largest message: a change may concern all jobs.
pub const MAX_MESSAGE: usize = 64 << 20;

impl From<Term> for api::Term {
    fn from(Term { number, by }: Term) -> Self {
        api::Term {
            number,
            controller: by,
        }
    }
}

impl From<api::Term> for Term {
    fn from(api::Term { number, controller }: api::Term) -> Self {
        Term {
            number,
            by: controller,
        }
    }
}

impl From<History> for api::History {
    fn from(History { term, changes }: History) -> Self {
        let term = Some(term.into());
        api::History { term, changes }
    }
}

impl From<api::History> for History {
    fn from(api::History { term, changes }: api::History) -> Self {
        let term = term.unwrap_or_default().into();
        History { term, changes }
    }
}

fn message(part: Part) -> api::Copy {
    api::Copy { part: Some(part) }
}

/// A store's contents, as messages.
pub fn contents(history: History, stored: &Stored) -> impl Iterator<Item = api::Copy> + '_ {
    let contents = Part::Contents(api::Contents {
        history: Some(history.into()),
        last_id: stored.last_id.into(),
        drained: stored.drained.clone(),
        // Job ids have 16 bits.
        jobs: stored.jobs.len() as u32,
    });
    let jobs = stored.jobs.iter().map(|job| Part::Job(json(job)));
    std::iter::once(contents).chain(jobs).map(message)
}

/// A change, as a message.
pub fn changed(entry: &Entry) -> api::Copy {
    message(Part::Changed(api::Changed {
        history: Some(entry.at.into()),
        change: json(&entry.change),
    }))
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records and changes are numbers, names and lists of these")
}

/// A message that is not part of a store's contents.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The message is malformed, or of another version.
    #[error("cannot decode the message: {0}; run the same version on all controllers")]
    Unreadable(#[from] serde_json::Error),
    /// The message has impossible contents, or is out of order.
    #[error("unexpected message: {0}; run the same version on all controllers")]
    Disorder(&'static str),
    /// It cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Incomplete: more messages follow.
    More,
    /// The whole store.
    All(History, Stored),
    /// A change.
    Change(History, Change),
}

/// Assembles a store's contents from messages.
#[derive(Debug, Default)]
pub struct Assembly(Option<(History, u32, Stored)>);

impl Assembly {
    /// Takes the next message.
    ///
    /// # Errors
    /// The message is malformed or out of order.
    pub fn take(&mut self, message: api::Copy) -> Result<Piece, CopyError> {
        match (message.part, self.0.take()) {
            (Some(Part::Contents(contents)), None) => {
                let too_large = |_| CopyError::Disorder("a job id of more than 16 bits");
                let stored = Stored {
                    last_id: u16::try_from(contents.last_id).map_err(too_large)?,
                    jobs: Vec::new(),
                    drained: contents.drained,
                };
                let at = contents.history.unwrap_or_default().into();
                if contents.jobs > u16::MAX.into() {
                    return Err(CopyError::Disorder("more jobs than there are ids"));
                }
                Ok(self.put_together(at, contents.jobs, stored))
            }
            (Some(Part::Job(job)), Some((at, missing, mut stored))) => {
                let job: JobRecord = serde_json::from_slice(&job)?;
                stored.jobs.push(job);
                Ok(self.put_together(at, missing - 1, stored))
            }
            (Some(Part::Changed(changed)), None) => {
                let at = changed.history.unwrap_or_default().into();
                Ok(Piece::Change(at, serde_json::from_slice(&changed.change)?))
            }
            (None, _) => Err(CopyError::Disorder("unknown content")),
            (Some(_), _) => Err(CopyError::Disorder("pieces out of order")),
        }
    }

    /// True if no contents are incomplete.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn put_together(&mut self, at: History, missing: u32, stored: Stored) -> Piece {
        match missing {
            0 => Piece::All(at, stored),
            missing => {
                self.0 = Some((at, missing, stored));
                Piece::More
            }
        }
    }
}

/// Stores a leader's message. Returns the store's position after a complete one.
pub fn keep(store: &Store, piece: Piece) -> Result<Option<History>, CopyError> {
    let at = match piece {
        Piece::More => return Ok(None),
        Piece::All(at, stored) => {
            store.replace(at.term, at, &stored)?;
            at
        }
        Piece::Change(at, change) => {
            if !store.follow(at, &change)? {
                return Err(CopyError::Disorder("a change after a gap"));
            }
            at
        }
    };
    Ok(Some(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(number: u64) -> Term {
        Term { number, by: 1 }
    }

    fn drain(part: &str) -> Change {
        Change::Drain {
            part: part.into(),
            drained: true,
        }
    }

    /// Copies the contents of `from`.
    fn send(from: &Store, to: &Store) -> Result<Option<History>, CopyError> {
        let (history, stored) = from.snapshot()?;
        let mut assembly = Assembly::default();
        let mut kept = None;
        for message in contents(history, &stored) {
            kept = keep(to, assembly.take(message)?)?;
        }
        Ok(kept)
    }

    #[test]
    fn a_follower_has_what_the_leader_has() {
        let [leader, standby] = [(); 2].map(|()| Store::in_memory().unwrap());
        leader.commit(term(1), &drain("s1")).unwrap();
        assert_eq!(
            send(&leader, &standby).unwrap(),
            Some(leader.history().unwrap())
        );
        let mut assembly = Assembly::default();
        let change = drain("s2");
        let at = leader.commit(term(1), &change).unwrap();
        let message = changed(&Entry { at, change });
        let piece = assembly.take(message.clone()).unwrap();
        assert_eq!(keep(&standby, piece).unwrap(), Some(at));
        assert_eq!(standby.snapshot().unwrap(), leader.snapshot().unwrap());
        // A missing change is detected.
        leader.commit(term(1), &drain("s3")).unwrap();
        let change = drain("s4");
        let at = leader.commit(term(1), &change).unwrap();
        let piece = assembly.take(changed(&Entry { at, change })).unwrap();
        assert!(matches!(keep(&standby, piece), Err(CopyError::Disorder(_))));
    }

    #[test]
    fn changes_of_an_earlier_term_are_refused() {
        let [old, standby] = [(); 2].map(|()| Store::in_memory().unwrap());
        old.commit(term(1), &drain("s1")).unwrap();
        assert!(standby.accept(term(2)).unwrap());
        let before = standby.snapshot().unwrap();
        assert!(matches!(
            send(&old, &standby),
            Err(CopyError::Store(StoreError::Outdated { .. }))
        ));
        assert_eq!(standby.snapshot().unwrap(), before);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let take = |parts: Vec<Part>| {
            let mut assembly = Assembly::default();
            let mut taken = parts.into_iter().map(|part| assembly.take(message(part)));
            taken.find_map(Result::err).map(|error| error.to_string())
        };
        let contents = |jobs, last_id| {
            Part::Contents(api::Contents {
                jobs,
                last_id,
                ..api::Contents::default()
            })
        };
        for (parts, says) in [
            (vec![contents(1 << 16, 1)], "more jobs than there are ids"),
            (vec![contents(0, 1 << 16)], "a job id of more than 16 bits"),
            (vec![contents(1, 1), contents(1, 1)], "pieces out of order"),
            (vec![Part::Job(b"{}".to_vec())], "pieces out of order"),
            (
                vec![contents(1, 1), Part::Job(b"{}".to_vec())],
                "missing field",
            ),
        ] {
            let error = take(parts).unwrap();
            assert!(error.contains(says), "{error}");
        }
        assert!(Assembly::default().take(api::Copy::default()).is_err());
    }
}
