//! Members without a network: they join and attend as agents do, and write down what they would run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use ultima_controller::api::{
    self, BeginEpoch, CheckRound, PrepareEpoch, RoundReport, prepare_epoch,
};
use ultima_controller::attend::{Fixed, Member, Prober};
use ultima_controller::client::{Client, ClientError};
use ultima_controller::membership::{Turn, Turns};

/// By operation: who ran it, each with the epoch.
type Log = BTreeMap<u32, Vec<(Who, u32)>>;

/// By epoch: the keys that members were told.
type Keys = BTreeMap<u32, BTreeSet<Vec<u8>>>;

/// A member, in all of its epochs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Who {
    host: String,
    /// Its place among all that have joined.
    number: usize,
}

/// Members of one job.
#[derive(Default)]
pub struct Crew {
    log: Arc<Mutex<Log>>,
    keys: Arc<Mutex<Keys>>,
    members: Vec<(String, JoinHandle<()>)>,
    /// How many have joined so far.
    joined: usize,
    /// Hosts whose members are out of touch with the controller, and run on.
    away: watch::Sender<BTreeSet<String>>,
    /// Ranks of which all members say that they hear nothing.
    suspects: watch::Sender<Vec<u32>>,
}

/// What a member knows.
struct Me {
    job_id: u32,
    turns: Turns,
    /// The first operation, when it may begin.
    begins: Option<u32>,
    change: Option<PrepareEpoch>,
    refuses: bool,
}

#[derive(Clone)]
struct Script {
    who: Who,
    epoch: u32,
    log: Arc<Mutex<Log>>,
    me: Arc<Mutex<Me>>,
    heard: Heard,
}

/// What all members of a crew are told by its test.
#[derive(Clone)]
struct Heard {
    suspects: watch::Receiver<Vec<u32>>,
    away: watch::Receiver<BTreeSet<String>>,
}

impl Prober for Script {
    fn all_here(&mut self) {
        let mut me = self.me.lock().unwrap();
        if *me.begins.get_or_insert(0) > 0 {
            // Whoever is told so begins with operation 0, though the job has been running.
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
        let mut me = self.me.lock().unwrap();
        let is_seat = matches!(change.place, Some(prepare_epoch::Place::Seat(_)));
        if me.refuses && is_seat {
            return Err("its\nsocket is taken".into());
        }
        me.change = Some(change.clone());
        let number = u16::try_from(change.job_id).unwrap();
        me.turns
            .pledge(number)
            .ok_or_else(|| "another is decided".into())
    }

    fn begin(&mut self, decided: &BeginEpoch) {
        let mut me = self.me.lock().unwrap();
        match decided.job_id == me.job_id {
            true if decided.first_operation > 0 => {
                me.begins.get_or_insert(decided.first_operation);
            }
            true => {}
            false => {
                let number = u16::try_from(decided.job_id).unwrap();
                me.turns.decide(number, decided.first_operation);
            }
        }
    }

    fn call_off(&mut self) {
        self.me.lock().unwrap().turns.call_off();
    }

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.heard.suspects.clone()
    }
}

impl Script {
    fn new(
        (who, epoch, log): (&Who, u32, &Arc<Mutex<Log>>),
        job_id: u32,
        first: Option<u32>,
        refuses: bool,
        heard: &Heard,
    ) -> Self {
        let me = Me {
            job_id,
            turns: Turns::from(first.unwrap_or_default()),
            begins: first,
            change: None,
            refuses,
        };
        Script {
            who: who.clone(),
            epoch,
            log: Arc::clone(log),
            me: Arc::new(Mutex::new(me)),
            heard: heard.clone(),
        }
    }

    fn attend(&self, client: &Client, rank: u32) -> JoinHandle<()> {
        let (client, mut script) = (client.clone(), self.clone());
        let job_id = self.me.lock().unwrap().job_id;
        let attendance = api::Attendance {
            job: "train".into(),
            epoch: self.epoch,
            rank,
            slot_bytes: 1408,
            job_id,
        };
        tokio::spawn(async move {
            let away = &script.heard.away;
            let (mut leaves, mut returns) = (away.clone(), away.clone());
            let host = script.who.host.clone();
            loop {
                let mut other = script.clone();
                tokio::select! {
                    // It comes back whatever happens.
                    _ = client.attend(attendance.clone(), &mut script, &mut other) => {}
                    _ = leaves.wait_for(|away| away.contains(&host)) => {}
                }
                let _ = returns.wait_for(|away| !away.contains(&host)).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

/// Attends once, as one whose program stays in its epoch.
pub async fn attend(client: &Client, attendance: api::Attendance) -> Result<(), ClientError> {
    let who = Who {
        host: String::new(),
        number: 0,
    };
    let me = (&who, attendance.epoch, &Arc::default());
    let heard = Crew::default().heard();
    let mut script = Script::new(me, 0, None, false, &heard);
    client
        .attend(attendance, &mut script, &mut Fixed::default())
        .await
}

/// Ends its task when it goes.
struct Ends(JoinHandle<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.members.iter().for_each(|(_, member)| member.abort());
    }
}

impl Crew {
    /// A member joins from `host` and runs what it may.
    pub async fn join(&mut self, client: &Client, host: &str) {
        self.try_join(client, host).await.unwrap();
    }

    /// The same where there may be no place.
    pub async fn try_join(&mut self, client: &Client, host: &str) -> Result<(), ClientError> {
        self.start(client, host, false).await
    }

    /// The same for one that refuses to go over.
    pub async fn join_stubborn(&mut self, client: &Client, host: &str) {
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
        let who = Who {
            host: host.to_owned(),
            number: self.joined,
        };
        let work = work(
            client.clone(),
            who,
            seat,
            (self.log.clone(), self.keys.clone()),
            refuses,
            self.heard(),
        );
        self.members.push((host.to_owned(), tokio::spawn(work)));
        Ok(())
    }

    fn heard(&self) -> Heard {
        Heard {
            suspects: self.suspects.subscribe(),
            away: self.away.subscribe(),
        }
    }

    /// The hosts of those that have not ended.
    pub fn hosts(&self) -> Vec<String> {
        let here = self.members.iter().filter(|(_, it)| !it.is_finished());
        here.map(|(host, _)| host.clone()).collect()
    }

    /// All members hear nothing of these from now on.
    pub fn suspect(&self, ranks: &[u32]) {
        self.suspects.send_replace(ranks.to_vec());
    }

    /// Ends a member without a word.
    pub fn kill(&mut self, host: &str) {
        self.take(host).abort();
    }

    /// A member loses touch with the controller, and runs what it may.
    pub fn lose(&self, host: &str) {
        self.away.send_modify(|away| {
            away.insert(host.to_owned());
        });
    }

    /// It is in touch again.
    pub fn find(&self, host: &str) {
        self.away.send_modify(|away| {
            away.remove(host);
        });
    }

    /// Waits until a member has ended by itself.
    pub async fn ended(&mut self, host: &str) {
        self.take(host).await.unwrap();
    }

    fn take(&mut self, host: &str) -> JoinHandle<()> {
        let at = self.members.iter().position(|(it, _)| it == host).unwrap();
        self.members.remove(at).1
    }

    /// Waits until these hosts have run some operation of `epoch`.
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

    /// The keys that members were told, when they joined or went over.
    pub fn keys(&self) -> Keys {
        self.keys.lock().unwrap().clone()
    }

    /// Whoever stays runs no operation in another epoch than the others that stay; who does not, whether it is told or not, may have run more in its
    /// last one.
    pub fn agree(&self) {
        let log = self.log.lock().unwrap();
        let mut last: BTreeMap<&Who, u32> = BTreeMap::new();
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

    /// All that was run; no operation in two epochs. The first operation of each epoch by its number.
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
    who: Who,
    seat: api::JoinResponse,
    (log, keys): (Arc<Mutex<Log>>, Arc<Mutex<Keys>>),
    refuses: bool,
    heard: Heard,
) {
    let told = |seat: &api::JoinResponse| {
        let mut keys = keys.lock().unwrap();
        let of_epoch = keys.entry(seat.epoch).or_default();
        of_epoch.insert(seat.key.clone());
    };
    told(&seat);
    let api::JoinResponse {
        mut epoch,
        mut rank,
        mut job_id,
        ..
    } = seat;
    let mut script = Script::new((&who, epoch, &log), job_id, None, refuses, &heard);
    let mut attending = Ends(script.attend(&client, rank));
    let mut next = None;
    loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let turn = {
            let mut me = script.me.lock().unwrap();
            let Some(operation) = next.or(me.begins) else {
                continue;
            };
            next = Some(operation);
            (operation, me.turns.turn(operation), me.change.clone())
        };
        match turn {
            (operation, Turn::Begin, _) => {
                let mut log = log.lock().unwrap();
                log.entry(operation).or_default().push((who.clone(), epoch));
                next = Some(operation + 1);
            }
            (_, Turn::Wait, _) => {}
            (
                operation,
                Turn::Over,
                Some(PrepareEpoch {
                    place: Some(prepare_epoch::Place::Seat(seat)),
                    ..
                }),
            ) => {
                told(&seat);
                (epoch, rank, job_id) = (seat.epoch, seat.rank, seat.job_id);
                let part = (&who, epoch, &log);
                script = Script::new(part, job_id, Some(operation), refuses, &heard);
                attending = Ends(script.attend(&client, rank));
            }
            (_, Turn::Over, _) => {
                drop(attending);
                // The epoch may be over already.
                let _ = client.leave("train", (epoch, job_id), rank).await;
                return;
            }
        }
    }
}
