//! Members of a job without a data plane: they join, hold sessions as agents do, and log the operations that they run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use ultima_api::client::{Client, ClientError};
use ultima_api::member_session::{Fixed, Member, Prober};
use ultima_api::operation_gate::{Admission, OperationGate};
use ultima_api::v1::{self, BeginEpoch, CheckRound, PrepareEpoch, RoundReport, prepare_epoch};

/// For each operation, the members that ran it, with the epoch.
type Log = BTreeMap<u32, Vec<(MemberKey, u32)>>;

/// For each epoch, the keys that members received.
type Keys = BTreeMap<u32, BTreeSet<Vec<u8>>>;

/// A member in all of its epochs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemberKey {
    host: String,
    /// Its number in the order of joining.
    number: usize,
}

/// Members of one job.
#[derive(Default)]
pub struct TestAgents {
    log: Arc<Mutex<Log>>,
    keys: Arc<Mutex<Keys>>,
    members: Vec<(String, JoinHandle<()>)>,
    /// The number of joins so far.
    joined: usize,
    /// Hosts whose members run on without a session.
    away: watch::Sender<BTreeSet<String>>,
    /// Ranks that all members report as silent.
    suspects: watch::Sender<Vec<u32>>,
    /// Hosts whose members leave after their operation.
    leaving: watch::Sender<BTreeSet<String>>,
}

/// A member's state in one epoch.
struct EpochState {
    job_id: u32,
    gate: OperationGate,
    /// The first operation, once it may begin.
    begins: Option<u32>,
    change: Option<PrepareEpoch>,
    refuses: bool,
}

#[derive(Clone)]
struct Script {
    who: MemberKey,
    epoch: u32,
    log: Arc<Mutex<Log>>,
    state: Arc<Mutex<EpochState>>,
    settings: Settings,
}

/// The settings of a test for all members.
#[derive(Clone)]
struct Settings {
    suspects: watch::Receiver<Vec<u32>>,
    away: watch::Receiver<BTreeSet<String>>,
    leaving: watch::Receiver<BTreeSet<String>>,
}

impl Prober for Script {
    fn all_here(&mut self) {
        let mut state = self.state.lock().unwrap();
        if *state.begins.get_or_insert(0) > 0 {
            // The member would begin with operation 0 although the job has been running.
            let ran = (self.who.clone(), self.epoch);
            let mut log = self.log.lock().unwrap();
            log.entry(0).or_default().push(ran);
        }
    }

    fn begin(&mut self, _: &CheckRound, _: Duration) {}

    fn send(&mut self, _: &CheckRound) {}

    fn report<'a>(&'a mut self, _: &'a CheckRound) -> BoxFuture<'a, RoundReport> {
        async { RoundReport::default() }.boxed()
    }
}

impl Member for Script {
    fn prepare(&mut self, change: &PrepareEpoch) -> Result<u32, String> {
        let mut state = self.state.lock().unwrap();
        let is_seat = matches!(change.place, Some(prepare_epoch::Place::Seat(_)));
        if state.refuses && is_seat {
            return Err("its\nsocket is taken".into());
        }
        state.change = Some(change.clone());
        let number = u16::try_from(change.job_id).unwrap();
        state
            .gate
            .acknowledge(number)
            .ok_or_else(|| "an earlier change is decided".into())
    }

    fn begin(&mut self, decided: &BeginEpoch) {
        let mut state = self.state.lock().unwrap();
        match decided.job_id == state.job_id {
            true if decided.first_operation > 0 => {
                state.begins.get_or_insert(decided.first_operation);
            }
            true => {}
            false => {
                let number = u16::try_from(decided.job_id).unwrap();
                state.gate.decide(number, decided.first_operation);
                // A member that still waits for others goes over, too.
                state.begins.get_or_insert(decided.first_operation);
            }
        }
    }

    fn cancel(&mut self) {
        self.state.lock().unwrap().gate.cancel();
    }

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.settings.suspects.clone()
    }
}

impl Script {
    fn new(
        who: &MemberKey,
        epoch: u32,
        log: &Arc<Mutex<Log>>,
        job_id: u32,
        first: Option<u32>,
        refuses: bool,
        settings: &Settings,
    ) -> Self {
        let state = EpochState {
            job_id,
            gate: OperationGate::from(first.unwrap_or_default()),
            begins: first,
            change: None,
            refuses,
        };
        Script {
            who: who.clone(),
            epoch,
            log: Arc::clone(log),
            state: Arc::new(Mutex::new(state)),
            settings: settings.clone(),
        }
    }

    fn start_session(&self, client: &Client, seat: &v1::JoinResponse) -> JoinHandle<()> {
        let (client, mut script) = (client.clone(), self.clone());
        let attendance = v1::Attendance {
            slot_bytes: 1408,
            ..seat.attendance("train")
        };
        tokio::spawn(async move {
            let away = &script.settings.away;
            let (mut leaves, mut returns) = (away.clone(), away.clone());
            let host = script.who.host.clone();
            loop {
                let mut other = script.clone();
                tokio::select! {
                    // The member reconnects, whatever the result.
                    _ = client.attend(attendance.clone(), &mut script, &mut other) => {}
                    _ = leaves.wait_for(|away| away.contains(&host)) => {}
                }
                let _ = returns.wait_for(|away| !away.contains(&host)).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

/// Holds one session, as a program that stays in its epoch.
pub async fn hold_session(client: &Client, attendance: v1::Attendance) -> Result<(), ClientError> {
    let who = MemberKey {
        host: String::new(),
        number: 0,
    };
    let settings = TestAgents::default().settings();
    let mut script = Script::new(
        &who,
        attendance.epoch,
        &Arc::default(),
        0,
        None,
        false,
        &settings,
    );
    client
        .attend(attendance, &mut script, &mut Fixed::default())
        .await
}

/// Aborts a task when dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for TestAgents {
    fn drop(&mut self) {
        self.members.iter().for_each(|(_, member)| member.abort());
    }
}

impl TestAgents {
    /// Adds a member on `host`, which runs all operations that it may. As an agent does, it waits until the job is ready.
    pub async fn join(&mut self, client: &Client, host: &str) {
        while let Err(error) = self.try_join(client, host).await {
            assert!(error.is_for_now(), "{error}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Adds a member if the job has room for it.
    pub async fn try_join(&mut self, client: &Client, host: &str) -> Result<(), ClientError> {
        self.start(client, host, false).await
    }

    /// Adds a member that refuses to change over to a new epoch.
    pub async fn join_refusing(&mut self, client: &Client, host: &str) {
        self.start(client, host, true).await.unwrap();
    }

    async fn start(
        &mut self,
        client: &Client,
        host: &str,
        refuses: bool,
    ) -> Result<(), ClientError> {
        let seat = client.join("train", host, Duration::ZERO).await?;
        self.joined += 1;
        let who = MemberKey {
            host: host.to_owned(),
            number: self.joined,
        };
        let work = work(
            client.clone(),
            who,
            seat,
            self.log.clone(),
            self.keys.clone(),
            refuses,
            self.settings(),
        );
        self.members.push((host.to_owned(), tokio::spawn(work)));
        Ok(())
    }

    fn settings(&self) -> Settings {
        Settings {
            suspects: self.suspects.subscribe(),
            away: self.away.subscribe(),
            leaving: self.leaving.subscribe(),
        }
    }

    /// The hosts of running members.
    pub fn hosts(&self) -> Vec<String> {
        let here = self.members.iter().filter(|(_, it)| !it.is_finished());
        here.map(|(host, _)| host.clone()).collect()
    }

    /// All members report these ranks as silent from now on.
    pub fn suspect(&self, ranks: &[u32]) {
        self.suspects.send_replace(ranks.to_vec());
    }

    /// Lets a member leave after its operation, and waits until it has.
    pub async fn leave(&mut self, host: &str) {
        self.leaving.send_replace([host.to_owned()].into());
        self.ended(host).await;
        self.leaving.send_replace(BTreeSet::new());
    }

    /// Aborts a member.
    pub fn kill(&mut self, host: &str) {
        self.take(host).abort();
    }

    /// AbortOnDrop a member's session; the member runs on.
    pub fn disconnect(&self, host: &str) {
        self.away.send_modify(|away| {
            away.insert(host.to_owned());
        });
    }

    /// Lets a member reopen its session.
    pub fn reconnect(&self, host: &str) {
        self.away.send_modify(|away| {
            away.remove(host);
        });
    }

    /// Waits until a member ends.
    pub async fn ended(&mut self, host: &str) {
        self.take(host).await.unwrap();
    }

    fn take(&mut self, host: &str) -> JoinHandle<()> {
        let at = self.members.iter().position(|(it, _)| it == host).unwrap();
        self.members.remove(at).1
    }

    /// Waits until these hosts have run an operation in `epoch`.
    pub async fn run_in(&self, epoch: u32, hosts: &[&str]) {
        let all = |log: &Log| {
            let ran = |host: &&str| {
                log.values()
                    .flatten()
                    .any(|(who, of)| who.host == **host && *of == epoch)
            };
            hosts.iter().all(ran)
        };
        while !all(&self.log.lock().unwrap()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The keys that members received when they joined or changed over.
    pub fn keys(&self) -> Keys {
        self.keys.lock().unwrap().clone()
    }

    /// The operations that a host's members ran, in order.
    pub fn operations(&self, host: &str) -> Vec<u32> {
        let log = self.log.lock().unwrap();
        let ran = |ran: &[(MemberKey, u32)]| ran.iter().any(|(who, _)| who.host == host);
        let all = log.iter().filter(|(_, members)| ran(members));
        all.map(|(operation, _)| *operation).collect()
    }

    /// Asserts that staying members ran each operation in one epoch. Removed members may have run more in their last epoch.
    pub fn agree(&self) {
        let log = self.log.lock().unwrap();
        let mut last: BTreeMap<&MemberKey, u32> = BTreeMap::new();
        for (who, epoch) in log.values().flatten() {
            let last = last.entry(who).or_default();
            *last = (*last).max(*epoch);
        }
        for (operation, ran) in &*log {
            let newest = ran.iter().map(|(_, epoch)| *epoch).max();
            for (who, epoch) in ran {
                let agrees = Some(*epoch) == newest || last[who] == *epoch;
                assert!(agrees, "operation {operation}: {ran:?}");
            }
        }
    }

    /// Returns the first operation of each epoch. Asserts that no operation ran in two epochs.
    pub fn epochs(&self) -> BTreeMap<u32, u32> {
        let mut first = BTreeMap::new();
        for (operation, ran) in &*self.log.lock().unwrap() {
            let (_, epoch) = ran[0];
            assert!(
                ran.iter().all(|(_, of)| *of == epoch),
                "{operation}: {ran:?}"
            );
            first.entry(epoch).or_insert(*operation);
        }
        first
    }
}

async fn work(
    client: Client,
    who: MemberKey,
    mut seat: v1::JoinResponse,
    log: Arc<Mutex<Log>>,
    keys: Arc<Mutex<Keys>>,
    refuses: bool,
    settings: Settings,
) {
    let record_key = |seat: &v1::JoinResponse| {
        let mut keys = keys.lock().unwrap();
        let of_epoch = keys.entry(seat.epoch).or_default();
        of_epoch.insert(seat.key.clone());
    };
    record_key(&seat);
    let (mut epoch, token) = (seat.epoch, seat.token);
    let mut script = Script::new(&who, epoch, &log, seat.job_id, None, refuses, &settings);
    let mut session = AbortOnDrop(script.start_session(&client, &seat));
    let mut next = None;
    loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        if settings.leaving.borrow().contains(&who.host) {
            drop(session);
            client.leave(seat.leave("train")).await.unwrap();
            return;
        }
        let admission = {
            let mut state = script.state.lock().unwrap();
            let Some(operation) = next.or(state.begins) else {
                continue;
            };
            next = Some(operation);
            (operation, state.gate.admit(operation), state.change.clone())
        };
        match admission {
            (operation, Admission::Begin, _) => {
                let mut log = log.lock().unwrap();
                log.entry(operation).or_default().push((who.clone(), epoch));
                next = Some(operation + 1);
            }
            (_, Admission::Wait, _) => {}
            (
                operation,
                Admission::NextEpoch,
                Some(PrepareEpoch {
                    place: Some(prepare_epoch::Place::Seat(next_seat)),
                    ..
                }),
            ) => {
                record_key(&next_seat);
                seat = v1::JoinResponse { token, ..next_seat };
                epoch = seat.epoch;
                // Operation 0 waits until all are here.
                next = (operation > 0).then_some(operation);
                script = Script::new(&who, epoch, &log, seat.job_id, next, refuses, &settings);
                session = AbortOnDrop(script.start_session(&client, &seat));
            }
            (_, Admission::NextEpoch, _) => {
                drop(session);
                // The epoch may have ended already.
                let _ = client.leave(seat.leave("train")).await;
                return;
            }
        }
    }
}
