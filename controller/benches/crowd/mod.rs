//! Members of a job without operations: they keep their session, report suspects on request, and follow their job's epochs.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use ultima_api::client::Client;
use ultima_api::member_session::{Member, Prober};
use ultima_api::v1::prepare_epoch::Place;
use ultima_api::v1::{Attendance, BeginEpoch, CheckRound, JoinResponse, PrepareEpoch, RoundReport};

/// Members on one connection: a server accepts at most 200 calls at once on each.
const OF_A_CONNECTION: usize = 100;

/// All members of a job; they end with it.
pub struct Crowd {
    _members: JoinSet<()>,
    suspects: watch::Sender<Vec<u32>>,
}

struct Silent;

impl Prober for Silent {
    fn all_here(&mut self) {}

    fn begin(&mut self, _: &CheckRound, _: Duration) {}

    fn send(&mut self, _: &CheckRound) {}

    fn report<'a>(&'a mut self, _: &'a CheckRound) -> BoxFuture<'a, RoundReport> {
        async { RoundReport::default() }.boxed()
    }
}

/// A member in one epoch.
struct Follower<'a> {
    /// Its place in the next.
    next: Option<JoinResponse>,
    goes_over: &'a Notify,
    suspects: watch::Receiver<Vec<u32>>,
}

impl Member for Follower<'_> {
    fn prepare(&mut self, change: &PrepareEpoch) -> Result<u32, String> {
        if let Some(Place::Seat(seat)) = &change.place {
            self.next = Some(seat.clone());
        }
        Ok(0)
    }

    fn begin(&mut self, decided: &BeginEpoch) {
        if self
            .next
            .as_ref()
            .is_some_and(|next| next.job_id == decided.job_id)
        {
            self.goes_over.notify_one();
        }
    }

    fn cancel(&mut self) {
        self.next = None;
    }

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.suspects.clone()
    }
}

async fn follow(
    client: Client,
    job: String,
    mut seat: JoinResponse,
    suspects: watch::Receiver<Vec<u32>>,
) {
    loop {
        let attendance = Attendance {
            slot_bytes: 1408,
            ..seat.attendance(&job)
        };
        let goes_over = Notify::new();
        let mut silent = Silent;
        let mut member = Follower {
            next: None,
            goes_over: &goes_over,
            suspects: suspects.clone(),
        };
        tokio::select! {
            _ = client.attend(attendance, &mut silent, &mut member) => return,
            () = goes_over.notified() => {}
        }
        let Some(next) = member.next else { return };
        let token = seat.token;
        seat = JoinResponse { token, ..next };
    }
}

impl Crowd {
    /// Joins all members of a job, and starts their sessions.
    pub async fn join(address: &str, job: &str, hosts: &[String]) -> Self {
        let suspects = watch::Sender::new(Vec::new());
        let mut members = JoinSet::new();
        let no_suspects = watch::Sender::new(Vec::new());
        for hosts in hosts.chunks(OF_A_CONNECTION) {
            let client = Client::connect(address).await.expect("it answers");
            let seats = hosts
                .iter()
                .map(|host| client.join(job, host, Duration::ZERO));
            for seat in try_join_all(seats).await.expect("all have a place") {
                // Only the first member reports suspects.
                let suspects = match seat.rank {
                    0 => suspects.subscribe(),
                    _ => no_suspects.subscribe(),
                };
                members.spawn(follow(client.clone(), job.to_owned(), seat, suspects));
            }
        }
        Crowd {
            _members: members,
            suspects,
        }
    }

    /// The first member reports these ranks as suspects from now on.
    pub fn suspect(&self, ranks: &[u32]) {
        self.suspects.send_replace(ranks.to_vec());
    }
}
