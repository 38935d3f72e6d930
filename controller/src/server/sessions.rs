//! Members' sessions with the controller: who has one, and orders and rounds of checks for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::{AllHere, CheckRound, RoundReport};
use ultima_planner::job::{JobId, Rank};
use ultima_planner::membership::SessionId;

use super::lock::lock;
use super::membership::preparation::Preparation;
use super::notify::{Listener, Notifier};

/// Time for a member's report after the round's listening time.
const ANSWER: Duration = Duration::from_secs(2);

/// Orders that wait for a member: a check round, and all messages of one or two changes.
const WAITING: usize = 16;

/// An order for a member.
#[derive(Debug)]
pub enum Order {
    /// A check round, and the channel for its report.
    Round(CheckRound, oneshot::Sender<RoundReport>),
    /// A change of members: it becomes a message when the member can receive it.
    Prepare(Arc<Preparation>),
    /// Any other message.
    Message(Message),
}

/// A member of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberId {
    pub job: JobId,
    pub rank: Rank,
}

/// The members with sessions, by job and rank.
#[derive(Debug, Default)]
pub struct Sessions {
    here: Mutex<Here>,
    /// Notified when a member opens or closes a session, or reports something.
    notifier: Notifier,
}

/// By job and rank. A member whose channel is closed has gone; it is removed when its job is next
/// accessed.
type Here = BTreeMap<JobId, BTreeMap<Rank, Session>>;

#[derive(Clone, Debug)]
struct Session {
    orders: mpsc::Sender<Order>,
    attributes: Attributes,
    id: SessionId,
}

/// The properties that a member reports when it opens a session.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// Payload of its full packets, in bytes.
    pub slot_bytes: u32,
    /// Settings that must be equal at all members, by name. Empty if it does not say.
    pub settings: HashMap<String, String>,
}

/// A setting of a member that differs from that of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The setting's name.
    pub field: String,
    /// The member's value.
    pub has: String,
    /// The other members' value.
    pub expected: String,
}

impl Attributes {
    /// The first setting, by name, that is not as `expected`. A difference of versions explains others, and one of sizes is often
    /// explained by another one.
    fn mismatch(&self, expected: &Self) -> Option<Mismatch> {
        if self.settings.is_empty() || expected.settings.is_empty() {
            return None;
        }
        let names = self.settings.keys().chain(expected.settings.keys());
        let differs = |name: &&String| self.settings.get(*name) != expected.settings.get(*name);
        let field = names
            .filter(differs)
            .min_by_key(|name| (*name != "protocol", name.ends_with("size"), *name))?;
        let value = |of: &Self| {
            of.settings
                .get(field)
                .map_or("none", |value| value)
                .to_owned()
        };
        Some(Mismatch {
            field: field.clone(),
            has: value(self),
            expected: value(expected),
        })
    }
}

impl Attributes {
    /// A difference of the packets' length, if both members report it.
    fn other_slot(&self, expected: &Self) -> Option<Mismatch> {
        let (has, expected) = (self.slot_bytes, expected.slot_bytes);
        (has != expected && has > 0 && expected > 0).then(|| Mismatch {
            field: "slot size".to_owned(),
            has: has.to_string(),
            expected: expected.to_string(),
        })
    }
}

impl Sessions {
    /// Opens a session. The receiver delivers `messages` first, and then the member's orders until its
    /// job ends. A second session of the same rank replaces the first: the member has reconnected.
    pub fn add(
        &self,
        MemberId { job, rank }: MemberId,
        attributes: Attributes,
        messages: Vec<Message>,
    ) -> mpsc::Receiver<Order> {
        let (orders, receiver) = mpsc::channel(WAITING);
        for message in messages {
            // The channel is new and has room for these few messages.
            let _ = orders.try_send(Order::Message(message));
        }
        let serial = self.notify(job);
        let session = Session {
            orders,
            attributes,
            id: SessionId(serial),
        };
        self.lock().entry(job).or_default().insert(rank, session);
        self.notify(job);
        receiver
    }

    /// Compares a member's settings with those of a member with a session in `job`, another than `rank`.
    pub fn mismatch(
        &self,
        job: JobId,
        rank: Option<Rank>,
        attributes: &Attributes,
    ) -> Option<Mismatch> {
        self.of_job(job, |here| {
            let (_, other) = here.iter().find(|(other, _)| Some(**other) != rank)?;
            let settings = attributes.mismatch(&other.attributes);
            // It depends on the number of ranks, so each epoch may have another one.
            settings.or_else(|| {
                attributes
                    .other_slot(&other.attributes)
                    .filter(|_| rank.is_some())
            })
        })
    }

    /// If all `members` of a job have a session, notifies them that operations begin, and returns true.
    pub fn meet(&self, job: JobId, members: usize) -> bool {
        // Cheap check first: only a scan finds the members that have gone.
        let may_be_all = |here: &Here| here.get(&job).is_some_and(|of_job| of_job.len() >= members);
        if !may_be_all(&self.lock()) {
            return false;
        }
        self.of_job(job, |here| {
            let are_all = here.len() == members;
            if are_all {
                for session in here.values() {
                    // A full channel means that the member was notified before, and is in a check
                    // round.
                    let _ = (session.orders).try_send(Order::Message(Message::AllHere(AllHere {})));
                }
            }
            are_all
        })
    }

    /// Ends a member's session, because it has left.
    pub fn remove(&self, job: JobId, rank: Rank) {
        if let Some(of_job) = self.lock().get_mut(&job) {
            of_job.remove(&rank);
        }
        self.notify(job);
    }

    /// Ends all sessions, because a stopping server waits for their streams.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.lock());
        for job in gone.into_keys() {
            self.notify(job);
        }
    }

    /// Ends the sessions of a job.
    pub fn end(&self, job: JobId) {
        self.lock().remove(&job);
        self.notify(job);
    }

    /// The members of a job with a session, and a number for each session.
    pub fn ids(&self, job: JobId) -> BTreeMap<Rank, SessionId> {
        self.of_job(job, |here| {
            let ids = here.iter().map(|(rank, it)| (*rank, it.id));
            ids.collect()
        })
    }

    /// Sends a member a message, if it has a session.
    pub fn send(&self, job: JobId, rank: Rank, message: Message) {
        self.order(job, rank, Order::Message(message));
    }

    /// Announces a change to a member, if it has a session.
    pub fn prepare(&self, job: JobId, rank: Rank, preparation: &Arc<Preparation>) {
        self.order(job, rank, Order::Prepare(Arc::clone(preparation)));
    }

    fn order(&self, job: JobId, rank: Rank, order: Order) {
        let session = self
            .lock()
            .get(&job)
            .and_then(|here| here.get(&rank))
            .cloned();
        if let Some(session) = session
            && session.orders.try_send(order).is_err()
        {
            // The member reads too slowly. It must reconnect, and then receives everything again.
            self.remove(job, rank);
        }
    }

    /// Sends all members of a job a message.
    pub fn send_to_all(&self, job: JobId, message: &Message) {
        let ranks: Vec<Rank> = self.of_job(job, |here| here.keys().copied().collect());
        for rank in ranks {
            self.send(job, rank, message.clone());
        }
    }

    /// Subscribes to notifications about jobs' members.
    pub fn listen(&self) -> Listener {
        self.notifier.listen()
    }

    /// Notifies that a job's members have done something, or something was done to them. Returns a
    /// unique number.
    pub fn notify(&self, job: JobId) -> u64 {
        self.notifier.notify(job)
    }

    /// The members of a job with a session, and the payload of a full packet that all of them can
    /// send.
    pub fn of(&self, job: JobId) -> (Vec<Rank>, u32) {
        self.of_job(job, |here| {
            let payload = here.values().map(|it| it.attributes.slot_bytes).min();
            (here.keys().copied().collect(), payload.unwrap_or_default())
        })
    }

    /// Runs a round with these members of a job, in rank order; `round` makes each one's task.
    /// Returns the reports of those that answered.
    pub async fn round(
        &self,
        job: JobId,
        ranks: &[Rank],
        round: impl Fn(Rank) -> CheckRound,
    ) -> BTreeMap<Rank, RoundReport> {
        let asked: Vec<(Rank, Session)> = self.of_job(job, |here| {
            let asked = here
                .iter()
                .filter(|(rank, _)| ranks.binary_search(rank).is_ok());
            asked.map(|(rank, it)| (*rank, it.clone())).collect()
        });
        let orders = asked.into_iter().map(|(rank, session)| {
            let round = round(rank);
            let limit = Duration::from_millis(round.listen_ms.into()) + ANSWER;
            async move {
                let (answer, answered) = oneshot::channel();
                let report = async {
                    session
                        .orders
                        .send(Order::Round(round, answer))
                        .await
                        .ok()?;
                    answered.await.ok()
                };
                Some((rank, timeout(limit, report).await.ok()??))
            }
        });
        join_all(orders).await.into_iter().flatten().collect()
    }

    /// Accesses the sessions of a job, without those that have gone.
    fn of_job<T>(&self, job: JobId, look: impl FnOnce(&BTreeMap<Rank, Session>) -> T) -> T {
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
        lock(&self.here)
    }
}
