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
enum Says {
    /// No answer at present.
    #[default]
    Nothing,
    /// It has a primary.
    Led,
    /// It has no primary. Only this is a reason to take over.
    Vacant,
}

impl Says {
    /// Interprets an arbitration answer. Also returns the latest term known to the switch: term 0
    /// for a controller that leads alone.
    fn of(standing: &Mastership) -> (Says, Option<Term>) {
        match standing {
            // Another observer is its primary: no controller has led yet, or the switch promotes
            // the highest bidder.
            Mastership::Primary => (Says::Vacant, None),
            Mastership::Backup { highest, .. } if *highest < ELECTION_ID => (Says::Vacant, None),
            Mastership::Backup { highest, .. } => (Says::Led, term_of(*highest)),
            Mastership::Vacant { highest } => (Says::Vacant, term_of(*highest)),
            Mastership::Lost { .. } => (Says::Nothing, None),
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
    switches: Vec<Says>,
    /// The latest term of all, if there was one.
    latest: Option<Term>,
}

/// Observing connections to all switches of a fabric. Dropping it closes them.
pub struct Lookout {
    seen: Arc<Mutex<Seen>>,
    news: watch::Receiver<()>,
    _observers: JoinSet<()>,
}

impl Lookout {
    /// Connects to all switches.
    pub fn start(fabric: &Fabric) -> Self {
        let seen = Arc::new(Mutex::new(Seen {
            switches: vec![Says::default(); fabric.switches().len()],
            latest: None,
        }));
        let (told, news) = watch::channel(());
        let mut observers = JoinSet::new();
        for (at, switch) in fabric.switches().iter().enumerate() {
            let (seen, told) = (Arc::clone(&seen), told.clone());
            let device = device_of(switch);
            observers.spawn(async move {
                observe(device, |(says, term)| {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.switches[at] = says;
                    seen.latest = seen.latest.max(term);
                    drop(seen);
                    told.send_replace(());
                })
                .await
            });
        }
        Lookout {
            seen,
            news,
            _observers: observers,
        }
    }

    /// The number of switches that report no primary.
    pub fn vacant(&self) -> usize {
        self.count(Says::Vacant)
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
        let mut news = self.news.clone();
        // The sender lives as long as this.
        let _ = news
            .wait_for(|()| {
                self.with_seen(|seen| {
                    let silent = seen.switches.iter().filter(|says| **says == Says::Nothing);
                    silent.count() * 2 < seen.switches.len()
                })
            })
            .await;
    }

    /// Returns when more than half of all switches have reported no primary for the whole time
    /// `grace`.
    pub async fn wait_for_vacancy(&self, grace: Duration) {
        let mut news = self.news.clone();
        loop {
            while !self.is_vacant() {
                if news.changed().await.is_err() {
                    std::future::pending().await
                }
            }
            let filled = async {
                while self.is_vacant() {
                    if news.changed().await.is_err() {
                        std::future::pending().await
                    }
                }
            };
            if timeout(grace, filled).await.is_err() {
                return;
            }
        }
    }

    fn count(&self, what: Says) -> usize {
        self.with_seen(|seen| seen.switches.iter().filter(|says| **says == what).count())
    }

    fn with_seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        // No thread panics while it holds the lock.
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Observes a switch and reports each change, forever.
async fn observe(device: Device, tell: impl Fn((Says, Option<Term>))) {
    loop {
        match Observer::connect(&device, CONNECT_TIMEOUT).await {
            Ok(observer) => {
                let mut standing = observer.standing();
                loop {
                    let says = standing.borrow_and_update().clone();
                    tell(Says::of(&says));
                    if matches!(says, Mastership::Lost { .. }) || standing.changed().await.is_err()
                    {
                        break;
                    }
                }
            }
            Err(error) => tracing::debug!(switch = device.name, %error, "no answer"),
        }
        tell((Says::Nothing, None));
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
        for (standing, says, latest) in [
            (Mastership::Primary, Says::Vacant, None),
            (backup(17), Says::Vacant, None),
            (backup(ELECTION_ID), Says::Led, Some(Term::default())),
            (backup(u128::MAX), Says::Led, None),
            (backup(id), Says::Led, Some(term)),
            (Mastership::Vacant { highest: id }, Says::Vacant, Some(term)),
            (Mastership::Vacant { highest: 0 }, Says::Vacant, None),
            (lost, Says::Nothing, None),
        ] {
            assert_eq!(Says::of(&standing), (says, latest), "{standing:?}");
        }
    }
}
