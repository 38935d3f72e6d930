//! Members that stay in touch after they joined, and rounds of checks with them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

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
    /// Something that it answers by itself, if at all.
    Word(Word),
}

/// The members that attend, by job and rank.
#[derive(Debug, Default)]
pub struct Attendants {
    here: Mutex<BTreeMap<(JobId, Rank), Attendant>>,
    /// Changes when anybody comes, goes or says something.
    news: watch::Sender<u64>,
}

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
        let serial = self.tell_news();
        let attendant = Attendant {
            orders,
            slot_bytes,
            attendance: Attendance(serial),
        };
        self.lock().insert((job, rank), attendant);
        self.tell_news();
        receiver
    }

    /// Where all `members` of a job attend, all are told: they begin with operation 0.
    pub fn meet(&self, job: JobId, members: usize) {
        let attendants = self.of_job(job);
        if attendants.len() == members {
            for (_, attendant) in attendants {
                // One that has no room for it has been told before and is in the middle of a round.
                let _ = (attendant.orders).try_send(Order::Word(Word::AllHere(AllHere {})));
            }
        }
    }

    /// Ends a member's attendance, because it has left.
    pub fn remove(&self, job: JobId, rank: Rank) {
        self.lock().remove(&(job, rank));
        self.tell_news();
    }

    /// Ends all attendances: a server waits for its streams when it stops.
    pub fn clear(&self) {
        self.lock().clear();
        self.tell_news();
    }

    /// Ends a job's attendances.
    pub fn end(&self, job: JobId) {
        self.lock().retain(|(of, _), _| *of != job);
        self.tell_news();
    }

    /// Who attends for a job, and since which time.
    pub fn attendances(&self, job: JobId) -> BTreeMap<Rank, Attendance> {
        let attendants = self.of_job(job).into_iter();
        attendants.map(|(rank, it)| (rank, it.attendance)).collect()
    }

    /// Tells a member something, if it attends.
    pub fn tell(&self, job: JobId, rank: Rank, word: Word) {
        let attendant = self.lock().get(&(job, rank)).cloned();
        if let Some(attendant) = attendant
            && attendant.orders.try_send(Order::Word(word)).is_err()
        {
            // It takes nothing any more: it is to come back and hear everything again.
            self.remove(job, rank);
        }
    }

    /// Tells all of a job's members something.
    pub fn tell_all(&self, job: JobId, word: &Word) {
        for (rank, _) in self.of_job(job) {
            self.tell(job, rank, word.clone());
        }
    }

    /// Changes when anybody comes, goes or says something.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Somebody has come, gone or said something. Returns a number that nobody got before.
    pub fn tell_news(&self) -> u64 {
        let mut number = 0;
        self.news.send_modify(|news| {
            *news += 1;
            number = *news;
        });
        number
    }

    /// Who attends for a job, and the payload of a full packet that all of them can send.
    pub fn of(&self, job: JobId) -> (Vec<Rank>, u32) {
        let attendants = self.of_job(job);
        let payload = attendants.iter().map(|(_, a)| a.slot_bytes).min();
        let ranks = attendants.into_iter().map(|(rank, _)| rank).collect();
        (ranks, payload.unwrap_or_default())
    }

    /// Lets these attendants of a job, in rank order, do one round, each what `round` says; returns the reports of those
    /// that answered.
    pub async fn round(
        &self,
        job: JobId,
        ranks: &[Rank],
        round: impl Fn(Rank) -> CheckRound,
    ) -> BTreeMap<Rank, RoundReport> {
        let attendants = self.of_job(job).into_iter();
        let asked = attendants.filter(|(rank, _)| ranks.binary_search(rank).is_ok());
        let orders = asked.map(|(rank, attendant)| {
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

    fn of_job(&self, job: JobId) -> Vec<(Rank, Attendant)> {
        let mut attendants = self.lock();
        let range = (job, Rank(0))..=(job, Rank(u16::MAX));
        // Those that have gone are not there. Only this job's are looked at: it is asked for every job whenever anything happens.
        let gone = |(_, it): &(&(JobId, Rank), &Attendant)| it.orders.is_closed();
        let gone: Vec<(JobId, Rank)> = (attendants.range(range.clone()))
            .filter(gone)
            .map(|(who, _)| *who)
            .collect();
        for who in gone {
            attendants.remove(&who);
        }
        let of_job = attendants.range(range);
        of_job.map(|((_, rank), a)| (*rank, a.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(JobId, Rank), Attendant>> {
        // Nothing panics while it holds the lock.
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
