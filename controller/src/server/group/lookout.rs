//! What the switches say of who leads them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fabric::Fabric;
use crate::p4rt::{Device, ELECTION_ID, Mastership, Observer, Term};
use crate::server::switch::device_of;

/// How long a switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause before a switch that did not is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// What one switch says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Says {
    /// Nothing at present.
    #[default]
    Nothing,
    /// It has a primary.
    Led,
    /// It has none: only this is a reason to take over.
    Vacant,
}

impl Says {
    /// What a switch that tells us this says, and the latest term that it knows of: term 0 of a controller that leads alone.
    fn of(standing: &Mastership) -> (Says, Option<Term>) {
        match standing {
            // Somebody who looks on like us, where nobody has led yet or the highest that is there is made primary.
            Mastership::Primary => (Says::Vacant, None),
            Mastership::Backup { highest, .. } if *highest < ELECTION_ID => (Says::Vacant, None),
            Mastership::Backup { highest, .. } => (Says::Led, term_of(*highest)),
            Mastership::Vacant { highest } => (Says::Vacant, term_of(*highest)),
            Mastership::Lost { .. } => (Says::Nothing, None),
        }
    }
}

/// Whose election id it is, if a controller's: of one that leads alone the switch does not say which.
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

/// Streams to all switches of a fabric that change nothing there. They end with it.
pub struct Lookout {
    seen: Arc<Mutex<Seen>>,
    news: watch::Receiver<()>,
    _observers: JoinSet<()>,
}

impl Lookout {
    /// Begins to look on.
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

    /// How many switches say that they have no primary.
    pub fn vacant(&self) -> usize {
        self.count(Says::Vacant)
    }

    /// Whether more than half of all switches say that they have no primary.
    pub fn is_vacant(&self) -> bool {
        let switches = self.with_seen(|seen| seen.switches.len());
        self.vacant() * 2 > switches
    }

    /// The latest term that a switch has told of: 0 of a controller that leads alone, none where no controller is known to have led.
    pub fn latest(&self) -> Option<Term> {
        self.with_seen(|seen| seen.latest)
    }

    /// Returns when more than half of all switches say whether they have a primary.
    pub async fn wait_for_most(&self) {
        let mut news = self.news.clone();
        // It does not end while this does not.
        let _ = news
            .wait_for(|()| {
                self.with_seen(|seen| {
                    let silent = seen.switches.iter().filter(|says| **says == Says::Nothing);
                    silent.count() * 2 < seen.switches.len()
                })
            })
            .await;
    }

    /// Returns when more than half of all switches have said all the time for that long that they have no primary.
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
        // Nothing panics while it holds the lock.
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells what a switch says, whenever it says something else, for ever.
async fn observe(device: Device, tell: impl Fn((Says, Option<Term>))) {
    loop {
        match Observer::connect(&device, PATIENCE).await {
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
            Err(error) => tracing::debug!(switch = device.name, %error, "says nothing"),
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
