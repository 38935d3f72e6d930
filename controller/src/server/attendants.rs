//! Members that stay in touch after they joined, and rounds of checks with them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::membership::Preparation;
use super::news::{Listener, News};

use crate::api::attend_response::Order as Word;
use crate::api::{AllHere, CheckRound, RoundReport};
use crate::job::{JobId, Rank};
use crate::membership::Attendance;

/// How much longer than it listens a member may take for its report.
const ANSWER: Duration = Duration::from_secs(2);

/// Words that wait for a member: a round, and all of a change or two.
const WAITING: usize = 16;

/// What a member is told.
#[derive(Debug)]
pub enum Order {
    /// A round to take part in, and where its report goes.
    Round(CheckRound, oneshot::Sender<RoundReport>),
    /// What becomes of it in the epoch that comes: it is made into a message when the member can be told.
    Prepare(Arc<Preparation>),
    /// Something that it answers by itself, if at all.
    Word(Word),
}

/// The members that attend, by job and rank.
#[derive(Debug, Default)]
pub struct Attendants {
    here: Mutex<Here>,
    /// That anybody comes, goes or says something.
    news: News,
}

/// By job and rank. One whose channel is closed has gone, and is removed with the next look at its job.
type Here = BTreeMap<JobId, BTreeMap<Rank, Attendant>>;

#[derive(Clone, Debug)]
struct Attendant {
    orders: mpsc::Sender<Order>,
    slot_bytes: u32,
    attendance: Attendance,
}

impl Attendants {
    /// A member attends from now on; what it is to do comes out of the receiver, first `words`, and ends when
    /// its job does. A second attendance of the same rank takes the first one's place: the member
    /// has lost its connection and come back.
    pub fn add(
        &self,
        (job, rank): (JobId, Rank),
        slot_bytes: u32,
        words: Vec<Word>,
    ) -> mpsc::Receiver<Order> {
        let (orders, receiver) = mpsc::channel(WAITING);
        for word in words {
            // The channel is new and has room for the few that there are.
            let _ = orders.try_send(Order::Word(word));
        }
        let serial = self.tell_news(job);
        let attendant = Attendant {
            orders,
            slot_bytes,
            attendance: Attendance(serial),
        };
        self.lock().entry(job).or_default().insert(rank, attendant);
        self.tell_news(job);
        receiver
    }

    /// Where all `members` of a job attend, all are told: they begin with operation 0.
    pub fn meet(&self, job: JobId, members: usize) {
        // Only where they may be all: who has gone is found by looking at each.
        let may_be_all = |here: &Here| here.get(&job).is_some_and(|of_job| of_job.len() >= members);
        if !may_be_all(&self.lock()) {
            return;
        }
        self.of_job(job, |here| {
            if here.len() == members {
                for attendant in here.values() {
                    // One that has no room for it has been told before and is in the middle of a round.
                    let _ = (attendant.orders).try_send(Order::Word(Word::AllHere(AllHere {})));
                }
            }
        });
    }

    /// Ends a member's attendance, because it has left.
    pub fn remove(&self, job: JobId, rank: Rank) {
        if let Some(of_job) = self.lock().get_mut(&job) {
            of_job.remove(&rank);
        }
        self.tell_news(job);
    }

    /// Ends all attendances: a server waits for its streams when it stops.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.lock());
        for job in gone.into_keys() {
            self.tell_news(job);
        }
    }

    /// Ends a job's attendances.
    pub fn end(&self, job: JobId) {
        self.lock().remove(&job);
        self.tell_news(job);
    }

    /// Who attends for a job, and since which time.
    pub fn attendances(&self, job: JobId) -> BTreeMap<Rank, Attendance> {
        self.of_job(job, |here| {
            let attendances = here.iter().map(|(rank, it)| (*rank, it.attendance));
            attendances.collect()
        })
    }

    /// Tells a member something, if it attends.
    pub fn tell(&self, job: JobId, rank: Rank, word: Word) {
        self.order(job, rank, Order::Word(word));
    }

    /// Tells a member what becomes of it, if it attends.
    pub fn prepare(&self, job: JobId, rank: Rank, preparation: &Arc<Preparation>) {
        self.order(job, rank, Order::Prepare(Arc::clone(preparation)));
    }

    fn order(&self, job: JobId, rank: Rank, order: Order) {
        let attendant = self
            .lock()
            .get(&job)
            .and_then(|here| here.get(&rank))
            .cloned();
        if let Some(attendant) = attendant
            && attendant.orders.try_send(order).is_err()
        {
            // It takes nothing any more: it is to come back and hear everything again.
            self.remove(job, rank);
        }
    }

    /// Tells all of a job's members something.
    pub fn tell_all(&self, job: JobId, word: &Word) {
        let ranks: Vec<Rank> = self.of_job(job, |here| here.keys().copied().collect());
        for rank in ranks {
            self.tell(job, rank, word.clone());
        }
    }

    /// Of which jobs' members anybody comes, goes or says something.
    pub fn news(&self) -> Listener {
        self.news.listen()
    }

    /// Of a job's members somebody has come, gone or said something, or something was done about them. Returns a number that nobody got before.
    pub fn tell_news(&self, job: JobId) -> u64 {
        self.news.tell(job)
    }

    /// Who attends for a job, and the payload of a full packet that all of them can send.
    pub fn of(&self, job: JobId) -> (Vec<Rank>, u32) {
        self.of_job(job, |here| {
            let payload = here.values().map(|it| it.slot_bytes).min();
            (here.keys().copied().collect(), payload.unwrap_or_default())
        })
    }

    /// Lets these attendants of a job, in rank order, do one round, each what `round` says; returns the reports of those
    /// that answered.
    pub async fn round(
        &self,
        job: JobId,
        ranks: &[Rank],
        round: impl Fn(Rank) -> CheckRound,
    ) -> BTreeMap<Rank, RoundReport> {
        let asked: Vec<(Rank, Attendant)> = self.of_job(job, |here| {
            let asked = here
                .iter()
                .filter(|(rank, _)| ranks.binary_search(rank).is_ok());
            asked.map(|(rank, it)| (*rank, it.clone())).collect()
        });
        let orders = asked.into_iter().map(|(rank, attendant)| {
            let round = round(rank);
            let patience = Duration::from_millis(round.listen_ms.into()) + ANSWER;
            async move {
                let (answer, answered) = oneshot::channel();
                let report = async {
                    attendant
                        .orders
                        .send(Order::Round(round, answer))
                        .await
                        .ok()?;
                    answered.await.ok()
                };
                Some((rank, timeout(patience, report).await.ok()??))
            }
        });
        join_all(orders).await.into_iter().flatten().collect()
    }

    /// Looks at those of a job that are there: those that have gone are not any more.
    fn of_job<T>(&self, job: JobId, look: impl FnOnce(&BTreeMap<Rank, Attendant>) -> T) -> T {
        let mut here = self.lock();
        let Some(of_job) = here.get_mut(&job) else {
            return look(&BTreeMap::new());
        };
        of_job.retain(|_, it| !it.orders.is_closed());
        let looked = look(of_job);
        if of_job.is_empty() {
            here.remove(&job);
        }
        looked
    }

    fn lock(&self) -> MutexGuard<'_, Here> {
        // Nothing panics while it holds the lock.
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
