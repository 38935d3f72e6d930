//! Members: how they join and leave, and their sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, try_join_all};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tonic::Code;
use ultima_api::client::{Client, ClientError};
use ultima_api::member_session::{Member, Prober};
use ultima_api::v1::{self as api, MemberState};
use ultima_planner::job::JobSpec;

use super::{LONG, refusal, spec, start, start_with};
use crate::target::Target;
use crate::test_agents;
use crate::testbed::until;

#[tokio::test]
async fn members_learn_their_rank_when_all_have_joined() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2", "h1"]))
        .await
        .unwrap();
    let join = |host: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", host, LONG).await.unwrap() })
    };
    let joined = [join("h1"), join("h1"), join("h2")];
    let (mut ranks, mut leaves) = (Vec::new(), BTreeMap::new());
    // A rank without a session would be given out again.
    let mut sessions = JoinSet::new();
    for answer in joined {
        let answer = answer.await.unwrap();
        assert_eq!((answer.job_id, answer.epoch, answer.seed), (1, 1, 7));
        assert_eq!(
            (answer.group_address.as_str(), answer.group_mac.as_str()),
            ("239.85.0.1", "01:00:5e:55:00:01")
        );
        let hosts: Vec<&str> = answer
            .members
            .iter()
            .map(|member| member.host.as_str())
            .collect();
        assert_eq!(hosts, ["h1", "h2", "h1"]);
        assert!(
            answer
                .members
                .iter()
                .all(|member| member.state() == MemberState::Joined)
        );
        ranks.push(answer.rank);
        leaves.insert(answer.rank, answer.leave("train"));
        let (client, attendance) = (client.clone(), answer.attendance("train"));
        sessions.spawn(async move { test_agents::hold_session(&client, attendance).await });
    }
    assert_eq!(ranks[2], 1);
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);

    assert_eq!(
        refusal(client.join("train", "h2", LONG).await),
        (Code::FailedPrecondition, "job train has no free rank on host h2 (1 taken); stop the members that still run (rank 0 on h1, rank 1 on h2, rank 2 on h1) and start all again".into())
    );
    // A rank that is left stays free after the job has begun.
    let leave = async |rank: u32| client.leave(leaves[&rank].clone()).await;
    leave(1).await.unwrap();
    assert_eq!(
        client.job("train").await.unwrap().members[1].state(),
        MemberState::Left
    );
    assert_eq!(
        refusal(client.join("train", "h2", LONG).await).0,
        Code::FailedPrecondition
    );
    leave(0).await.unwrap();
    leave(2).await.unwrap();
    assert_eq!(
        refusal(leave(1).await),
        (
            Code::FailedPrecondition,
            "rank 1 of job train has not joined in epoch 1".into()
        )
    );
    // When all have left, the next members start the job over.
    let joined = try_join_all(["h2", "h1", "h1"].map(join)).await.unwrap();
    assert_eq!(joined[0].rank, 1);
    for answer in joined {
        assert_eq!((answer.job_id, answer.epoch), (2, 2));
    }
    assert_eq!(client.jobs().await.unwrap().len(), 1);
}

#[tokio::test]
async fn members_of_a_sealed_job_receive_its_key_and_the_path_limits() {
    let (_switch, _handle, client) = start_with(
        Target::of_run(),
        (
            "{ ends: [h2, s1/2] }",
            "{ ends: [h2, s1/2], mtu: 1400, a_to_b: { rate: 1G } }",
        ),
    )
    .await;
    let sealed = |name: &str, members: &[&str]| JobSpec {
        sealed: true,
        ..spec(name, members)
    };
    let mut keys = BTreeSet::new();
    for job in [
        sealed("one", &["h1", "h2"]),
        sealed("two", &["h3", "h4"]),
        sealed("again", &["h1", "h2"]),
        spec("open", &["h1", "h2"]),
    ] {
        let created = client.create_job(&job).await.unwrap();
        assert_eq!(created.sealed, job.sealed);
        let mut keys_received = Vec::new();
        for host in &job.members {
            let seat = client.join(&job.name, host, Duration::ZERO).await.unwrap();
            let limits = seat.limits.unwrap();
            // From the narrowest link on any path.
            let rate = u64::from(host == "h2") * 1_000_000_000;
            assert_eq!((limits.rate, limits.mtu), (rate, 1400), "{host}");
            keys_received.push(seat.key);
        }
        assert_eq!(keys_received[0], keys_received[1]);
        assert_eq!(keys_received[0].len(), if job.sealed { 16 } else { 0 });
        // Each join, and each fetch of a key, leaves an event.
        let events = client.events(&format!("job/{}", job.name)).await.unwrap();
        let of = |reason: &str| events.iter().filter(|it| it.reason == reason).count();
        let fetched = if job.sealed { 2 } else { 0 };
        assert_eq!((of("Joined"), of("KeyFetched")), (2, fetched), "{events:?}");
        let shown = client.job(&job.name).await.unwrap();
        assert_eq!(shown.sealed, job.sealed);
        if job.sealed {
            assert!(keys.insert(keys_received.remove(0)), "another job's key");
        }
        if job.name != "two" {
            client.delete_job(&job.name).await.unwrap();
        }
    }
}

/// The member that never came is the cause, not one that gave up a moment earlier.
#[tokio::test]
async fn a_time_out_names_no_member_that_timed_out_itself() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let job = spec("train", &["h1", "h2", "h3"]);
    client.create_job(&job).await.unwrap();
    let second = {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", "h2", Duration::from_secs(1)).await })
    };
    while client.job("train").await.unwrap().members[1].state() != MemberState::Joined {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = client.join("train", "h1", Duration::from_millis(20)).await;
    for (joined, after) in [(first, "0.02"), (second.await.unwrap(), "1")] {
        let (_, said) = refusal(joined);
        let missing = "1 of 3 members had not joined: rank 2 on h3";
        assert_eq!(said, format!("job train: after {after} s {missing}"));
    }
}

#[tokio::test]
async fn a_member_that_stops_waiting_has_not_joined() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2", "h3"]))
        .await
        .unwrap();
    assert_eq!(
        refusal(client.join("train", "h1", Duration::from_millis(20)).await),
        (
            Code::DeadlineExceeded,
            "job train: after 0.02 s 2 of 3 members had not joined: rank 1 on h2, rank 2 on h3"
                .into()
        )
    );
    // A member whose call is dropped, as when its process dies.
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", "h2", LONG).await })
    };
    let state = |rank: usize| {
        let client = client.clone();
        async move { client.job("train").await.unwrap().members[rank].state() }
    };
    while state(1).await != MemberState::Joined {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.abort();
    while state(1).await != MemberState::Free {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A member that does not wait has joined at once, and may leave again.
    let answer = client.join("train", "h3", Duration::ZERO).await.unwrap();
    assert_eq!((answer.rank, state(2).await), (2, MemberState::Joined));
    client.leave(answer.leave("train")).await.unwrap();
    assert_eq!(state(2).await, MemberState::Free);
}

#[tokio::test]
async fn deleting_a_job_ends_pending_joins() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", "h1", LONG).await })
    };
    while client.job("train").await.unwrap().members[0].state() != MemberState::Joined {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.delete_job("train").await.unwrap();
    assert_eq!(
        refusal(waiting.await.unwrap()),
        (Code::Aborted, "job train was deleted meanwhile".into())
    );
}

#[tokio::test]
async fn hosts_outside_the_job_cannot_join() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    assert_eq!(
        refusal(client.join("train", "h3", LONG).await),
        (
            Code::NotFound,
            "job train has no member on host h3; its members are on h1, h2".into()
        )
    );
    assert_eq!(
        refusal(client.join("train", "h9", LONG).await),
        (
            Code::NotFound,
            "unknown host \"h9\" (the fabric has h1, h2, h3, h4)".into()
        )
    );
    assert_eq!(
        refusal(client.join("tram", "h1", LONG).await).0,
        Code::NotFound
    );
}

/// A member that reports when all are here, and sends nothing.
struct Listener(watch::Sender<bool>);

impl Prober for Listener {
    fn all_here(&mut self) {
        self.0.send_replace(true);
    }

    fn begin(&mut self, _: &api::CheckRound, _: Duration) {}

    fn send(&mut self, _: &api::CheckRound) {}

    fn report<'a>(&'a mut self, round: &'a api::CheckRound) -> BoxFuture<'a, api::RoundReport> {
        let token = round.token;
        async move {
            api::RoundReport {
                token,
                ..api::RoundReport::default()
            }
        }
        .boxed()
    }
}

/// Starts a member's session. Returns its end, and whether all members are here.
fn attend(
    client: &Client,
    attendance: api::Attendance,
) -> (JoinHandle<Result<(), ClientError>>, watch::Receiver<bool>) {
    let recorded = Recorded::attend(client, attendance);
    (recorded.session, recorded.all_here)
}

/// A member that begins no operation, and records the messages about its epoch. Reports of members that left may come
/// between any of the others.
#[derive(Default)]
struct Recorder {
    messages: watch::Sender<Vec<String>>,
    left: watch::Sender<Vec<u32>>,
    suspects: watch::Sender<Vec<u32>>,
}

impl Recorder {
    fn record(&self, message: String) {
        self.messages.send_modify(|all| all.push(message));
    }
}

impl Member for Recorder {
    fn prepare(&mut self, _: &api::PrepareEpoch) -> Result<u32, String> {
        self.record("prepare".into());
        Ok(0)
    }

    fn begin(&mut self, _: &api::BeginEpoch) {
        self.record("begin".into());
    }

    fn cancel(&mut self) {
        self.record("cancel".into());
    }

    fn left(&mut self, ranks: &[u32]) {
        self.left.send_modify(|left| left.extend(ranks));
    }

    fn cannot_begin(&mut self, reason: &str) {
        self.record(format!("{CANNOT_BEGIN}{reason}"));
    }

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.suspects.subscribe()
    }
}

const CANNOT_BEGIN: &str = "cannot begin: ";

/// A recorder's session.
struct Recorded {
    session: JoinHandle<Result<(), ClientError>>,
    all_here: watch::Receiver<bool>,
    messages: watch::Receiver<Vec<String>>,
    left: watch::Receiver<Vec<u32>>,
}

impl Recorded {
    fn attend(client: &Client, attendance: api::Attendance) -> Self {
        let client = client.clone();
        let (mut recorder, (here, all_here)) = (Recorder::default(), watch::channel(false));
        let (messages, left) = (recorder.messages.subscribe(), recorder.left.subscribe());
        let session = tokio::spawn(async move {
            client
                .attend(attendance, &mut Listener(here), &mut recorder)
                .await
        });
        Self {
            session,
            all_here,
            messages,
            left,
        }
    }

    /// Waits until the last messages begin like this; returns all.
    async fn until(&mut self, last: &[&str]) -> Vec<String> {
        let is_last = |all: &Vec<String>| {
            let of_last = all.iter().rev().zip(last.iter().rev());
            all.len() >= last.len()
                && of_last
                    .into_iter()
                    .all(|(one, begin)| one.starts_with(begin))
        };
        let all = self.messages.wait_for(is_last).await.unwrap();
        all.clone()
    }
}

#[tokio::test]
async fn members_learn_which_others_were_refused_or_have_left() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let hosts = ["h1", "h2", "h3"];
    client.create_job(&spec("train", &hosts)).await.unwrap();
    let mut seats = Vec::new();
    for host in hosts {
        seats.push(client.join("train", host, Duration::ZERO).await.unwrap());
    }
    let attendance = |rank: usize, element: &str| api::Attendance {
        slot_bytes: 1408,
        settings: [("element".into(), element.into())].into(),
        ..seats[rank].attendance("train")
    };
    let attend = |rank| Recorded::attend(&client, attendance(rank, "f32"));
    let mut first = attend(0);
    until(async || client.check("train").await.unwrap().attending.len() == 1).await;
    let (refused, _) = self::attend(&client, attendance(1, "bf16"));
    assert_eq!(refusal(refused.await.unwrap()).0, Code::InvalidArgument);
    // It attends after the refusal.
    let mut third = attend(2);
    for member in [&mut first, &mut third] {
        let messages = member.until(&[CANNOT_BEGIN]).await;
        let expected = "rank 1 on h2 was refused: it has element bf16, the others have f32: \
                        start all ranks with the same settings";
        assert_eq!(messages.last().unwrap()[CANNOT_BEGIN.len()..], *expected);
    }
    // With the others' settings it is admitted.
    let mut second = attend(1);
    for member in [&mut first, &mut second, &mut third] {
        member.all_here.wait_for(|is_set| *is_set).await.unwrap();
    }
    client.leave(seats[2].leave("train")).await.unwrap();
    // One member attends again.
    second.session.abort();
    second = attend(1);
    for member in [&mut first, &mut second] {
        let left = member.left.wait_for(|left| !left.is_empty()).await.unwrap();
        assert_eq!(*left, [2]);
    }
    let messages = second.messages.borrow();
    let cannot_begin = messages.iter().any(|one| one.starts_with(CANNOT_BEGIN));
    assert!(!cannot_begin, "operations had begun: {messages:?}");
}

/// All members have joined. One of them leaves before it attends.
#[tokio::test]
async fn a_member_that_leaves_before_operations_begin_is_reported() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let one = client.join("train", "h1", Duration::ZERO).await.unwrap();
    let other = client.join("train", "h2", Duration::ZERO).await.unwrap();
    client.leave(other.leave("train")).await.unwrap();
    let mut member = Recorded::attend(&client, one.attendance("train"));
    let messages = member.until(&[CANNOT_BEGIN]).await;
    let expected = "rank 1 on h2 left before the first operation";
    assert_eq!(messages.last().unwrap()[CANNOT_BEGIN.len()..], *expected);
}

/// Operations may begin in the next epoch.
#[tokio::test]
async fn members_do_not_stop_for_one_that_leaves_during_a_change() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let hosts = ["h1", "h2", "h3"];
    client.create_job(&spec("train", &hosts)).await.unwrap();
    let mut seats = Vec::new();
    for host in hosts {
        seats.push(client.join("train", host, Duration::ZERO).await.unwrap());
    }
    let attend = |rank: usize| Recorded::attend(&client, seats[rank].attendance("train"));
    let mut members = [attend(0), attend(1)];
    until(async || client.check("train").await.unwrap().attending.len() == 2).await;
    let resize = async |hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let resized = client.resize_job("train", None, &hosts, LONG, false);
        resized.await.unwrap();
    };
    // The change waits for h4. After it, the job is without h3.
    resize(&["h1", "h2", "h4"]).await;
    client.leave(seats[2].leave("train")).await.unwrap();
    client.cancel_change("train", 2).await.unwrap();
    for member in &mut members {
        let messages = member.until(&["cancel", "cancel", CANNOT_BEGIN]).await;
        assert_eq!(messages.len(), 3, "{messages:?}");
    }
    // The members that stay are notified of the next epoch, and one of them attends again in this one.
    resize(&["h1", "h2"]).await;
    for member in &mut members {
        member.until(&["prepare", "begin"]).await;
    }
    members[0].session.abort();
    let messages = attend(0).until(&["begin"]).await;
    assert_eq!(messages, ["prepare", "begin"]);
}

#[tokio::test]
async fn sessions_last_until_members_leave_or_the_controller_stops() {
    let (_switch, handle, client) = start(Target::of_run()).await;
    let job = client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let attend = |seat: &api::JoinResponse| {
        let attendance = api::Attendance {
            slot_bytes: 1408,
            ..seat.attendance("train")
        };
        attend(&client, attendance)
    };
    let unjoined = api::JoinResponse {
        epoch: job.epoch,
        job_id: job.id,
        ..api::JoinResponse::default()
    };
    let (early, _) = attend(&unjoined);
    assert_eq!(refusal(early.await.unwrap()).0, Code::FailedPrecondition);

    let mut seats = Vec::new();
    for host in ["h1", "h2"] {
        seats.push(client.join("train", host, Duration::ZERO).await.unwrap());
    }
    let (one, mut one_reported) = attend(&seats[0]);
    let (other, mut other_reported) = attend(&seats[1]);
    for reported in [&mut one_reported, &mut other_reported] {
        reported.wait_for(|is_set| *is_set).await.unwrap();
    }
    client.leave(seats[1].leave("train")).await.unwrap();
    other.await.unwrap().unwrap();
    handle.stop().await;
    // Either the stream ends in order, or the connection breaks first.
    let _ = one.await.unwrap();
}

/// Also one that joins a running job, whose members are still in the epoch before.
#[tokio::test]
async fn a_member_with_other_settings_is_refused() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let hosts = ["h1", "h2"];
    client.create_job(&spec("train", &hosts)).await.unwrap();
    let attendance = |seat: &api::JoinResponse, element: &str| api::Attendance {
        slot_bytes: 1408,
        settings: [("element".into(), element.into())].into(),
        ..seat.attendance("train")
    };
    let attend = |attendance| attend(&client, attendance);
    let mut members = Vec::new();
    for host in hosts {
        let seat = client.join("train", host, Duration::ZERO).await.unwrap();
        if !members.is_empty() {
            let (attending, _) = attend(attendance(&seat, "bf16"));
            let refused = attending.await.unwrap();
            assert!(refused.as_ref().is_err_and(ClientError::is_invalid));
            let (_, said) = refusal(refused);
            let expected = "rank 1 of job train has element bf16, its other members have f32: \
                            start all ranks with the same settings";
            assert_eq!(said, expected);
        }
        members.push(attend(attendance(&seat, "f32")));
        until(async || {
            let attending = client.check("train").await.unwrap().attending;
            attending.len() == members.len()
        })
        .await;
    }
    for (_, all_here) in &mut members {
        all_here.wait_for(|is_set| *is_set).await.unwrap();
    }

    let more = ["h1", "h2", "h3"].map(str::to_owned);
    let resizes = client.resize_job("train", None, &more, Duration::from_secs(60), false);
    resizes.await.unwrap();
    let seat = client
        .join("train", "h3", Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(seat.epoch, 2);
    let (attending, _) = attend(attendance(&seat, "bf16"));
    let (code, said) = refusal(attending.await.unwrap());
    assert_eq!(code, Code::InvalidArgument);
    assert!(
        said.contains("has element bf16, its other members have f32"),
        "{said}"
    );
}
