//! The content in etcd, as the leader writes and all controllers read it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable as _;
use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::client::{Client, EtcdError, pauses, read_by};
use super::secret::{is_plain, opened};
use super::{Election, Leadership};
use crate::store::change::{text, text_over};
use crate::store::{Change, Store, StoreError, Stored, THIS_FORM, new_id};

/// Time limit for the leader's reads.
const LEADER_READ: Duration = Duration::from_secs(5);
/// Time limit for a standby's read for a client, which may ask another controller.
const STANDBY_READ: Duration = Duration::from_millis(500);
/// Operations of one transaction, at most: etcd's default limit is 128.
const MOST: usize = 100;
/// Bytes of the records in one transaction of updates: etcd's default limit is 1.5 MiB.
const MOST_BYTES: usize = 1 << 20;

/// The store of the controller that leads.
pub(crate) struct Shared {
    client: Arc<Client>,
    pub(super) leadership: Leadership,
    /// The content of etcd; none before it is read.
    known: Mutex<Option<Known>>,
}

/// Omits the records, which may contain keys.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.client).finish()
    }
}

/// The content of etcd.
#[derive(Default)]
struct Known {
    /// The records by id, as JSON.
    jobs: BTreeMap<u16, Vec<u8>>,
    /// The records that should be encrypted, and are not.
    plain: Vec<u16>,
    /// The value of the key `change`; empty if there is none.
    change: Vec<u8>,
    /// True if the key `form` exists.
    has_form: bool,
    /// The create revision of the leader's key; 0 if there is none.
    leader: i64,
}

#[tonic::async_trait]
impl Store for Shared {
    async fn load(&self) -> Result<Stored, StoreError> {
        let (mut known, mut stored) = load(&self.client, LEADER_READ).await?;
        if known.leader != self.revision() {
            self.leadership.end();
            return Err(StoreError::NotLeader);
        }
        if stored.id == 0 {
            stored.id = new_id();
            let id = TxnOp::put(self.client.config.key("id"), stored.id.to_string(), None);
            self.commit(&mut known, Vec::new(), Some(id)).await?;
        }
        // They were stored without a secret.
        for ids in std::mem::take(&mut known.plain).chunks(MOST) {
            let of = |id: &u16| (*id, known.jobs.get(id).cloned());
            let jobs = ids.iter().map(of).collect();
            self.commit(&mut known, jobs, None).await?;
        }
        *self.known.lock().await = Some(known);
        Ok(stored)
    }

    async fn apply(&self, change: &Change) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        if known.is_none() {
            *known = Some(load(&self.client, LEADER_READ).await?.0);
        }
        let known = known.as_mut().expect("it was read");
        let put = |job: &crate::store::JobRecord, text: Vec<u8>| (job.id, Some(text));
        match change {
            Change::Put(jobs) => {
                let last = jobs.last().map(|job| job.id.to_string());
                let last = last.map(|id| TxnOp::put(self.client.config.key("last_id"), id, None));
                let jobs = jobs.iter().map(|job| put(job, text(job))).collect();
                self.commit(known, jobs, last).await
            }
            Change::Update(jobs) => {
                let mut batch = Vec::new();
                let mut bytes = 0;
                for job in jobs {
                    let Some(former) = known.jobs.get(&job.id) else {
                        continue;
                    };
                    let text = text_over(former, job);
                    if batch.len() == MOST || bytes + text.len() > MOST_BYTES {
                        self.commit(known, std::mem::take(&mut batch), None).await?;
                        bytes = 0;
                    }
                    bytes += text.len();
                    batch.push(put(job, text));
                }
                match batch.is_empty() {
                    true => Ok(()),
                    false => self.commit(known, batch, None).await,
                }
            }
            Change::Remove(ids) => {
                let jobs = ids.iter().map(|id| (*id, None)).collect();
                self.commit(known, jobs, None).await
            }
            Change::Drain { element, drained } => {
                let key = self.client.config.key(&format!("drained/{element}"));
                let operation = match drained {
                    true => TxnOp::put(key, "", None),
                    false => TxnOp::delete(key, None),
                };
                self.commit(known, Vec::new(), Some(operation)).await
            }
            Change::Events(events) => {
                let operation = TxnOp::put(self.client.config.key("events"), events.clone(), None);
                self.commit(known, Vec::new(), Some(operation)).await
            }
        }
    }
}

impl Shared {
    /// The store of a controller that leads.
    pub fn new(election: &Election, leadership: Leadership) -> Self {
        Shared {
            client: Arc::clone(&election.client),
            leadership,
            known: Mutex::default(),
        }
    }

    /// The election id of its leader.
    #[cfg(test)]
    pub fn election_id(&self) -> u128 {
        self.leadership.election_id()
    }

    /// Returns when its leader no longer leads.
    #[cfg(test)]
    pub async fn ended(&self) {
        self.leadership.ended().await;
    }

    fn revision(&self) -> i64 {
        // It was an i64.
        i64::try_from(self.leadership.revision()).unwrap_or(i64::MAX)
    }

    /// Writes records, or deletes those without a text, and executes one more operation, in one
    /// transaction.
    ///
    /// A transaction without an answer is repeated until the lead ends. It compares the name of the
    /// last change and writes its own, so it is applied once, and not after a later one.
    async fn commit(
        &self,
        known: &mut Known,
        jobs: Vec<(u16, Option<Vec<u8>>)>,
        other: Option<TxnOp>,
    ) -> Result<(), StoreError> {
        let config = &self.client.config;
        let key = |rest: &str| config.key(rest);
        let name = format!("{:016x}", rand::random::<u64>()).into_bytes();
        let mut operations = vec![TxnOp::put(key("change"), name.clone(), None)];
        if !known.has_form {
            operations.push(TxnOp::put(key("form"), THIS_FORM.to_string(), None));
        }
        operations.extend(other);
        operations.extend(jobs.iter().map(|(id, text)| {
            let key = key(&format!("jobs/{id:05}"));
            match text {
                Some(text) => {
                    let secret = config.secret.as_ref();
                    let value = secret.map_or_else(|| text.clone(), |it| it.seal(&key, text));
                    TxnOp::put(key, value, None)
                }
                None => TxnOp::delete(key, None),
            }
        }));
        let leads = Compare::create_revision(key("leader"), CompareOp::Equal, self.revision());
        let is_next = match known.change.is_empty() {
            true => Compare::version(key("change"), CompareOp::Equal, 0),
            false => Compare::value(key("change"), CompareOp::Equal, known.change.clone()),
        };
        let transaction = Txn::new()
            .when([leads, is_next])
            .and_then(operations)
            .or_else(["leader", "change"].map(|of| TxnOp::get(key(of), None)));
        if !self.leadership.holds() {
            return Err(self.lost(false));
        }
        let mut may_be_applied = false;
        let attempt = || self.client.txn(transaction.clone());
        let answer = attempt.retry(pauses()).when(|error| {
            may_be_applied |= error.is_no_answer();
            error.is_no_answer() && self.leadership.holds()
        });
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) if !may_be_applied => return Err(error.into()),
            // An earlier attempt may be applied late: only a new leader knows.
            Err(error) => {
                tracing::warn!(%error, "a transaction may or may not be applied; stepping down");
                return Err(self.lost(true));
            }
        };
        if !answer.succeeded() {
            let [leader, change] = [0, 1].map(|at| read_by(&answer, at));
            let leader = leader.map_or(0, |key| key.create_revision());
            if leader != self.revision() {
                return Err(self.lost(may_be_applied));
            }
            if change.is_none_or(|key| key.value() != name) {
                self.leadership.end();
                let name = config.name();
                return Err(EtcdError::Foreign { name }.into());
            }
        }
        known.change = name;
        known.has_form = true;
        for (id, text) in jobs {
            match text {
                Some(text) => drop(known.jobs.insert(id, text)),
                None => drop(known.jobs.remove(&id)),
            }
        }
        Ok(())
    }

    fn lost(&self, may_be_applied: bool) -> StoreError {
        self.leadership.end();
        match may_be_applied {
            true => StoreError::Unknown,
            false => StoreError::NotLeader,
        }
    }
}

/// Reads the content, for a controller that may not lead.
pub(crate) async fn read(election: &Election) -> Result<Stored, StoreError> {
    Ok(load(&election.client, STANDBY_READ).await?.1)
}

async fn load(client: &Client, limit: Duration) -> Result<(Known, Stored), StoreError> {
    let config = &client.config;
    let prefix = config.key("");
    let all = Some(GetOptions::new().with_prefix());
    let answer = client.get(prefix.clone(), all, Instant::now() + limit);
    let (mut known, mut stored) = (Known::default(), Stored::default());
    for record in answer.await? {
        let create_revision = record.create_revision();
        let (key, value) = record.into_key_value();
        let rest = key.strip_prefix(&*prefix).unwrap_or(&key);
        let rest = String::from_utf8_lossy(rest);
        let text = || String::from_utf8_lossy(&value);
        match &*rest {
            "leader" => known.leader = create_revision,
            "change" => known.change = value,
            "form" if text() == THIS_FORM.to_string() => known.has_form = true,
            "form" => {
                let (name, form) = (config.name(), text().into_owned());
                return Err(StoreError::Form { name, form });
            }
            "id" => stored.id = text().parse().unwrap_or_default(),
            "events" => stored.events = value,
            "last_id" => stored.last_id = text().parse().unwrap_or(u16::MAX),
            rest => {
                if let Some(element) = rest.strip_prefix("drained/") {
                    stored.drained.push(element.to_owned());
                } else if let Some(id) = rest.strip_prefix("jobs/").and_then(|id| id.parse().ok()) {
                    if config.secret.is_some() && is_plain(&value) {
                        known.plain.push(id);
                    }
                    let value = opened(config.secret.as_ref(), &key, value);
                    let value = value.ok_or_else(|| StoreError::Secret {
                        name: config.name(),
                        id,
                    })?;
                    let job = serde_json::from_slice(&value).map_err(|reason| StoreError::Job {
                        name: config.name(),
                        id,
                        reason,
                    });
                    stored.jobs.push(job?);
                    known.jobs.insert(id, value);
                }
            }
        }
    }
    Ok((known, stored))
}
