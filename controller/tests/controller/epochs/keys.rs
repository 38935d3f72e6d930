//! The keys of ranks that a member left: no member gets one that a former member knows.

use std::time::Instant;

use ultima_controller::store::{Change, Embedded, Store as _};

use super::*;

/// The keys of two epochs, which differ; all members of each epoch have received the same one.
pub fn assert_renewed(agents: &TestAgents) {
    let keys = agents.keys();
    let all: Vec<&Vec<u8>> = keys.values().flatten().collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_eq!(all.len(), 2, "{keys:?}");
    assert!(all.iter().all(|key| key.len() == 16) && all[0] != all[1]);
}

#[tokio::test]
async fn a_member_that_left_a_running_job_joins_the_next_epoch_with_another_key() {
    let site = Site::start().await;
    let mut agents = site.run(&["h1", "h2", "h3"], Eviction::Never).await;
    let mut watch = site.client.watch_job("train").await.unwrap();
    let held: usize = site.held().iter().map(BTreeMap::len).sum();
    agents.leave("h3").await;
    let refused = agents.try_join(&site.client, "h3").await;
    assert_eq!(refusal(refused).0, Code::FailedPrecondition);
    site.resize(&["h1", "h2", "h3"], WAIT).await.unwrap();
    agents.join(&site.client, "h3").await;
    agents.run_in(2, &["h1", "h2", "h3"]).await;
    until_event(&mut watch, Kind::Fenced).await;
    assert_renewed(&agents);

    // The others had no break: they ran all operations, in epoch 1 also those without h3.
    assert_eq!(agents.epochs()[&2], site.job().await.first_operation);
    for host in ["h1", "h2"] {
        let ran = agents.operations(host);
        assert!(
            ran.iter().copied().eq(0..ran.len() as u32),
            "{host}: {ran:?}"
        );
    }
    // Switches admit no packet of the earlier epoch, and so none with its key.
    let now: usize = site.held().iter().map(BTreeMap::len).sum();
    assert_eq!(now, held);
}

#[tokio::test]
async fn a_rank_that_is_left_before_all_have_joined_gets_another_key() {
    let site = Site::start().await;
    let hosts = ["h1", "h2", "h3", "h4"];
    let spec = spec(&hosts, Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let mut agents = TestAgents::default();
    agents.join(&site.client, "h1").await;
    // It waits for the others in a call, and gets its rank in the next epoch.
    let waiting = tokio::spawn({
        let client = site.client.clone();
        async move { client.join("train", "h2", WAIT).await.unwrap() }
    });
    let state = async |rank: usize| site.job().await.members[rank].state();
    until(async || state(1).await == MemberState::Joined).await;
    agents.join(&site.client, "h3").await;
    agents.leave("h3").await;
    assert_eq!(state(2).await, MemberState::Free);
    agents.join(&site.client, "h3").await;
    agents.join(&site.client, "h4").await;
    let seat = waiting.await.unwrap();
    assert_eq!((seat.epoch, seat.rank), (2, 1));
    assert_renewed(&agents);
    assert!(agents.keys()[&2].contains(&seat.key));
    // The job begins in epoch 2 when the last member has a session.
    let attending = tokio::spawn({
        let client = site.client.clone();
        async move { test_agents::hold_session(&client, seat.attendance("train")).await }
    });
    agents.run_in(2, &["h1", "h3", "h4"]).await;
    assert!(agents.epochs().into_keys().eq([2]));
    attending.abort();
}

#[tokio::test]
async fn a_newcomer_that_leaves_before_its_epoch_begins_takes_no_valid_key() {
    let site = Site::start().await;
    let mut agents = site.run(&["h1", "h2"], Eviction::Never).await;
    site.resize(&["h1", "h2", "h3", "h4"], WAIT).await.unwrap();
    let mut newcomers = TestAgents::default();
    // The change begins again with the same members, and does not use up another epoch.
    for _ in 0..3 {
        newcomers.join(&site.client, "h3").await;
        newcomers.leave("h3").await;
    }
    for host in ["h3", "h4"] {
        agents.join(&site.client, host).await;
    }
    agents.run_in(2, &["h1", "h2", "h3", "h4"]).await;
    assert_renewed(&agents);
    let known = newcomers.keys();
    assert_eq!(known[&2].len(), 3, "{known:?}");
    assert!(known[&2].is_disjoint(&agents.keys()[&2]), "{known:?}");
}

#[tokio::test]
async fn a_waiting_join_goes_on_in_the_epoch_that_replaces_its_own() {
    let site = Site::start().await;
    let mut agents = site.run(&["h1", "h2"], Eviction::Never).await;
    agents.leave("h2").await;
    let hosts = ["h1", "h2", "h3", "h4"];
    site.resize(&hosts, WAIT).await.unwrap();
    let waiting = tokio::spawn({
        let client = site.client.clone();
        async move { client.join("train", "h3", WAIT).await.unwrap() }
    });
    let state = async || site.job().await.next.map(|next| next.members[2].state());
    until(async || state().await == Some(MemberState::Joined)).await;
    let mut newcomer = TestAgents::default();
    newcomer.join(&site.client, "h4").await;
    newcomer.leave("h4").await;
    for host in ["h4", "h2"] {
        agents.join(&site.client, host).await;
    }
    let seat = waiting.await.unwrap();
    assert_eq!((seat.epoch, seat.rank), (2, 2));
    assert!(agents.keys()[&2].contains(&seat.key));
    assert!(newcomer.keys()[&2].is_disjoint(&agents.keys()[&2]));
}

/// Members of a grid do not change over, so a row or column gets another epoch when it has no member.
#[tokio::test]
async fn a_grids_line_that_all_have_left_gets_another_key() {
    let site = Site::start().await;
    for line in ["grid.row0", "grid.column0"] {
        let spec = JobSpec {
            name: line.to_owned(),
            ..spec(&["h1", "h2"], Eviction::Never)
        };
        site.client.create_job(&spec).await.unwrap();
    }
    let join = async |host| site.client.join("grid.row0", host, Duration::ZERO).await;
    let leave = async |seat: &JoinResponse| {
        let left = site.client.leave(seat.leave("grid.row0")).await;
        left.unwrap();
    };
    let first = join("h1").await.unwrap();
    let other = join("h2").await.unwrap();
    let attendance = other.attendance("grid.row0");
    let client = site.client.clone();
    let _session =
        tokio::spawn(async move { test_agents::hold_session(&client, attendance).await });
    leave(&first).await;
    // The other one would have to change over.
    assert_eq!(refusal(join("h1").await).0, Code::FailedPrecondition);
    leave(&other).await;
    let second = join("h1").await.unwrap();
    assert_eq!((second.epoch, second.rank), (2, 0));
    assert_ne!(second.key, first.key);
    leave(&second).await;
    let third = join("h1").await.unwrap();
    assert_eq!((third.epoch, third.rank), (3, 0));
    assert!(third.key != first.key && third.key != second.key);
}

/// A member that joins and leaves again and again must not use up the epochs of its job.
#[tokio::test]
async fn joins_wait_longer_with_each_epoch() {
    let site = Site::start().await;
    let spec = spec(&["h1", "h2"], Eviction::Never);
    let begun = Instant::now();
    site.client.create_job(&spec).await.unwrap();
    for epoch in 1..=12 {
        let seat = site.client.join("train", "h1", Duration::ZERO).await;
        let seat = seat.unwrap();
        assert_eq!(seat.epoch, epoch);
        site.client.leave(seat.leave("train")).await.unwrap();
    }
    // 10 ms after the first epoch, 20 ms after the second, and so on.
    assert!(begun.elapsed() >= Duration::from_millis((1..12).sum::<u64>() * 10));
}

/// A job in a late epoch, whose next one must wait for some seconds.
#[tokio::test]
async fn a_rank_that_was_left_often_is_given_out_later() {
    let mut site = Site::start().await;
    let spec = spec(&["h1", "h2"], Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let join = async |site: &Site, wait| site.client.join("train", "h1", wait).await;
    let seat = join(&site, Duration::ZERO).await.unwrap();
    site.client.leave(seat.leave("train")).await.unwrap();
    site.handle.take().unwrap().stop().await;
    let store = loop {
        match Embedded::open(&site.state) {
            // As in `serve`.
            Err(StoreError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            opened => break opened.unwrap(),
        }
    };
    let mut jobs = store.load().await.unwrap().jobs;
    jobs[0].epoch = 60_000;
    store.apply(&Change::Update(jobs)).await.unwrap();
    drop(store);
    let (handle, client) = serve(&site.text, &site.state, &site.socket).await;
    (site.handle, site.client) = (Some(handle), client);

    let (code, says) = refusal(join(&site, Duration::ZERO).await);
    assert_eq!(code, Code::Unavailable);
    let begins = "job train: a rank on host h1 is given out again in ";
    assert!(says.starts_with(begins), "{says}");
    // A join that waits long enough ends with its job.
    let waiting = tokio::spawn({
        let client = site.client.clone();
        async move { client.join("train", "h1", 10 * WAIT).await }
    });
    for _ in 0..3 {
        site.job().await;
    }
    assert!(!waiting.is_finished());
    site.client.delete_job("train").await.unwrap();
    assert_eq!(refusal(waiting.await.unwrap()).0, Code::NotFound);
}
