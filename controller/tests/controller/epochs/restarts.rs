//! Trainings that start again after members were killed.

use super::keys::assert_renewed;
use super::*;

/// Waits until a member is suspected.
async fn until_suspected(site: &Site, rank: usize) {
    until(async || site.job().await.members[rank].state() == MemberState::Suspected).await;
}

#[tokio::test]
async fn a_job_whose_last_member_was_killed_starts_again_in_another_epoch() {
    let site = Site::start().await;
    let all = ["h1", "h2", "h3", "h4"];
    let spec = spec(&all, Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let mut agents = TestAgents::default();
    // The test holds h2's session, and so is its member.
    let killed = loop {
        match site.client.join("train", "h2", Duration::ZERO).await {
            Ok(seat) => break seat,
            Err(error) => assert!(error.is_for_now(), "{error}"),
        }
    };
    let attendance = killed.attendance("train");
    let session = tokio::spawn({
        let (client, attendance) = (site.client.clone(), attendance.clone());
        async move { test_agents::hold_session(&client, attendance).await }
    });
    for host in ["h1", "h3", "h4"] {
        agents.join(&site.client, host).await;
    }
    agents.run_in(1, &["h1", "h3", "h4"]).await;
    session.abort();
    for host in ["h1", "h3", "h4"] {
        agents.leave(host).await;
    }
    // Members join before the lost one is suspected, and wait for it.
    let mut again = TestAgents::default();
    for host in all {
        again.join(&site.client, host).await;
    }
    again.run_in(2, &all).await;
    assert!(again.keys()[&2].iter().all(|key| *key != killed.key));
    assert_eq!(again.epochs(), [(2, 0)].into());
    // The lost member was alive: it gets the reason that it has no place.
    let attended = test_agents::hold_session(&site.client, attendance).await;
    let error = attended.unwrap_err();
    assert!(error.is_over(), "{error}");
    let why = "the rank has no place there: it had no session with the controller, and its place was given to a new member";
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test]
async fn a_member_that_was_killed_before_all_had_joined_gets_a_place_again() {
    let site = Site::start().await;
    let all = ["h1", "h2", "h3"];
    let spec = spec(&all, Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let mut agents = TestAgents::default();
    for host in ["h1", "h2"] {
        agents.join(&site.client, host).await;
    }
    agents.kill("h1");
    until_suspected(&site, 0).await;
    for host in ["h1", "h3"] {
        agents.join(&site.client, host).await;
    }
    agents.run_in(2, &all).await;
    assert_renewed(&agents);
}

#[tokio::test]
async fn the_advice_for_a_lost_rank_works_while_others_run() {
    let site = Site::start().await;
    let mut agents = site.run(&["h1", "h2", "h3"], Eviction::Never).await;
    let join = async || refusal(site.client.join("train", "h1", Duration::ZERO).await);
    let begins = "job train has no free rank on host h1 (1 taken); ";
    let (code, says) = join().await;
    assert_eq!(code, Code::FailedPrecondition);
    let running = "stop the members that still run (rank 0 on h1, rank 1 on h2, rank 2 on h3) and start all again";
    assert_eq!(says, format!("{begins}{running}"));
    agents.leave("h1").await;
    let (_, says) = join().await;
    let resize = "`ultima job resize train --members h1,h2,h3`";
    let left = format!(
        "stop the members that still run (rank 1 on h2, rank 2 on h3) and start all again, or replace those that left with {resize}"
    );
    assert_eq!(says, format!("{begins}{left}"));
    agents.kill("h2");
    until_suspected(&site, 1).await;
    let (_, says) = join().await;
    let lost = format!(
        "rank 1 on h2 is lost: stop the members that still run (rank 2 on h3) and start all again, or replace it in the running job with {resize}"
    );
    assert_eq!(says, format!("{begins}{lost}"));

    site.resize(&["h1", "h2", "h3"], WAIT).await.unwrap();
    for host in ["h1", "h2"] {
        agents.join(&site.client, host).await;
    }
    agents.run_in(2, &["h1", "h2", "h3"]).await;
    agents.agree();
}

/// Kills all members of a job of two, and restarts the controller. `is_noticed`: the controller has suspected them before.
async fn starts_again_after_a_restart_of_the_controller(is_noticed: bool) {
    let mut site = Site::start().await;
    let all = ["h1", "h2"];
    let mut agents = site.run(&all, Eviction::Never).await;
    for host in all {
        agents.kill(host);
    }
    if is_noticed {
        for rank in [0, 1] {
            until_suspected(&site, rank).await;
        }
    }
    site.restart().await;
    if is_noticed {
        let job = site.job().await;
        let mut states = job.members.iter().map(Member::state);
        assert!(states.all(|state| state == MemberState::Suspected));
    }
    let mut again = TestAgents::default();
    for host in all {
        again.join(&site.client, host).await;
    }
    again.run_in(2, &all).await;
    assert_eq!(again.epochs(), [(2, 0)].into());
}

#[tokio::test]
async fn a_job_whose_members_were_killed_starts_again_after_a_restart_of_the_controller() {
    starts_again_after_a_restart_of_the_controller(true).await;
}

#[tokio::test]
async fn a_job_whose_members_were_killed_while_the_controller_restarts_starts_again() {
    starts_again_after_a_restart_of_the_controller(false).await;
}
