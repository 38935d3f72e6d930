//! Observing which controller is primary at each switch, without taking part in the arbitration.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fabric::Fabric;
use crate::p4rt::{Device, ELECTION_ID, Mastership, Observer, Term};
use crate::server::switch::device_of;

/// Timeout of a connection to a switch.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before a switch is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// A switch's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Primacy {
    /// No answer at present.
    #[default]
    Unknown,
    /// It has a primary.
    Led,
    /// It has no primary. Only this is a reason to take over.
    Vacant,
}

impl Primacy {
    /// Interprets an arbitration answer. Also returns the latest term known to the switch: term 0
    /// for a controller that leads alone.
    fn of(standing: &Mastership) -> (Primacy, Option<Term>) {
        match standing {
            // Another observer is its primary: no controller has led yet, or the switch promotes
            // the highest bidder.
            Mastership::Primary => (Primacy::Vacant, None),
            Mastership::Backup { highest, .. } if *highest < ELECTION_ID => (Primacy::Vacant, None),
            Mastership::Backup { highest, .. } => (Primacy::Led, term_of(*highest)),
            Mastership::Vacant { highest } => (Primacy::Vacant, term_of(*highest)),
            Mastership::Lost { .. } => (Primacy::Unknown, None),
        }
    }
}

/// The term of an election id, if it is a controller's. The id of a single controller does not tell
/// which.
fn term_of(election_id: u128) -> Option<Term> {
    match election_id {
        ELECTION_ID => Some(Term::default()),
        election_id => Term::of(election_id),
    }
}

#[derive(Debug)]
struct Seen {
    switches: Vec<Primacy>,
    /// The latest term of all, if there was one.
    latest: Option<Term>,
}

/// Observing connections to all switches of a fabric. Dropping it closes them.
pub struct Lookout {
    seen: Arc<Mutex<Seen>>,
    changed: watch::Receiver<()>,
    _observers: JoinSet<()>,
}

impl Lookout {
    /// Connects to all switches.
    pub fn start(fabric: &Fabric) -> Self {
        let seen = Arc::new(Mutex::new(Seen {
            switches: vec![Primacy::default(); fabric.switches().len()],
            latest: None,
        }));
        let (notify, changed) = watch::channel(());
        let mut observers = JoinSet::new();
        for (at, switch) in fabric.switches().iter().enumerate() {
            let (seen, notify) = (Arc::clone(&seen), notify.clone());
            let device = device_of(switch);
            observers.spawn(async move {
                observe(device, |(primacy, term)| {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.switches[at] = primacy;
                    seen.latest = seen.latest.max(term);
                    drop(seen);
                    notify.send_replace(());
                })
                .await
            });
        }
        Lookout {
            seen,
            changed,
            _observers: observers,
        }
    }

    /// The number of switches that report no primary.
    pub fn vacant(&self) -> usize {
        self.count(Primacy::Vacant)
    }

    /// True if more than half of all switches report no primary.
    pub fn is_vacant(&self) -> bool {
        let switches = self.with_seen(|seen| seen.switches.len());
        self.vacant() * 2 > switches
    }

    /// The latest term that a switch has reported: 0 of a controller that leads alone, none if no
    /// controller has led.
    pub fn latest(&self) -> Option<Term> {
        self.with_seen(|seen| seen.latest)
    }

    /// Returns when more than half of all switches report whether they have a primary.
    pub async fn wait_for_most(&self) {
        let mut changed = self.changed.clone();
        // The sender lives as long as this.
        let _ = changed
            .wait_for(|()| {
                self.with_seen(|seen| {
                    let silent = seen
                        .switches
                        .iter()
                        .filter(|primacy| **primacy == Primacy::Unknown);
                    silent.count() * 2 < seen.switches.len()
                })
            })
            .await;
    }

    /// Returns when more than half of all switches have reported no primary for the whole time
    /// `grace`.
    pub async fn wait_for_vacancy(&self, grace: Duration) {
        let mut changed = self.changed.clone();
        loop {
            while !self.is_vacant() {
                if changed.changed().await.is_err() {
                    std::future::pending().await
                }
            }
            let filled = async {
                while self.is_vacant() {
                    if changed.changed().await.is_err() {
                        std::future::pending().await
                    }
                }
            };
            if timeout(grace, filled).await.is_err() {
                return;
            }
        }
    }

    fn count(&self, what: Primacy) -> usize {
        self.with_seen(|seen| {
            seen.switches
                .iter()
                .filter(|primacy| **primacy == what)
                .count()
        })
    }

    fn with_seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        // No thread panics while it holds the lock.
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Observes a switch and reports each change, forever.
async fn observe(device: Device, tell: impl Fn((Primacy, Option<Term>))) {
    loop {
        match Observer::connect(&device, CONNECT_TIMEOUT).await {
            Ok(observer) => {
                let mut standing = observer.standing();
                loop {
                    let primacy = standing.borrow_and_update().clone();
                    tell(Primacy::of(&primacy));
                    if matches!(primacy, Mastership::Lost { .. })
                        || standing.changed().await.is_err()
                    {
                        break;
                    }
                }
            }
            Err(error) => tracing::debug!(switch = device.name, %error, "no answer"),
        }
        tell((Primacy::Unknown, None));
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_switch_that_says_so_has_no_primary() {
        let backup = |highest| Mastership::Backup {
            message: String::new(),
            highest,
        };
        let term = Term { number: 2, by: 9 };
        let id = term.election_id();
        let lost = Mastership::Lost {
            reason: String::new(),
        };
        for (standing, primacy, latest) in [
            (Mastership::Primary, Primacy::Vacant, None),
            (backup(17), Primacy::Vacant, None),
            (backup(ELECTION_ID), Primacy::Led, Some(Term::default())),
            (backup(u128::MAX), Primacy::Led, None),
            (backup(id), Primacy::Led, Some(term)),
            (
                Mastership::Vacant { highest: id },
                Primacy::Vacant,
                Some(term),
            ),
            (Mastership::Vacant { highest: 0 }, Primacy::Vacant, None),
            (lost, Primacy::Unknown, None),
        ] {
            assert_eq!(Primacy::of(&standing), (primacy, latest), "{standing:?}");
        }
    }
}
