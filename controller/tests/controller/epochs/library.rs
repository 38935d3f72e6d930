//! A training's ranks, which meet at the controller with the library.

use std::time::Instant;

use ultima_agent::job::rendezvous::Controller;
use ultima_agent::job::{JobBuilder, JobError};
use ultima_testing::skipped;
use ultima_testing::veth::Veth;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_training_with_another_number_of_ranks_is_refused_before_it_joins() {
    let site = Site::start().await;
    let spec = spec(&["h1", "h2", "h3", "h4"], Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let address = site.handle.as_ref().unwrap().address().to_string();
    let begun = Instant::now();
    let start = move || {
        let rendezvous = Controller::new(address, "train", "h1");
        let builder = JobBuilder::default().rendezvous(rendezvous);
        builder.ranks(3).timeout(WAIT).start()
    };
    let started = tokio::task::spawn_blocking(start).await.unwrap();
    let error = started.err().expect("an error");
    assert!(begun.elapsed() < WAIT / 2);
    assert!(matches!(error, JobError::Members { .. }), "{error}");
    let says = "job train has 4 members, this training 3 ranks: start as many processes as the job has members";
    assert_eq!(error.to_string(), says);
    let members = site.job().await.members;
    assert!(members.iter().all(|it| it.state() == MemberState::Free));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_members_that_times_out_names_them() {
    let Some(veth) = Veth::new() else {
        return skipped("only root may add namespaces");
    };
    let own = format!("ip: {},", Veth::address(0));
    let site = Site::start_with(&TWO.replace("ip: 10.0.0.1,", &own)).await;
    let spec = spec(&["h1", "h2"], Eviction::Never);
    site.client.create_job(&spec).await.unwrap();
    let address = site.handle.as_ref().unwrap().address().to_string();
    let start = move || {
        veth.enter(0);
        let rendezvous = Controller::new(address, "train", "h1");
        let builder = JobBuilder::default().rendezvous(rendezvous);
        builder.ranks(2).timeout(Duration::from_secs(1)).start()
    };
    // The thread stays in the namespace.
    let starting = std::thread::spawn(start);
    while !starting.is_finished() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let started = starting.join().expect("no panic");
    let error = started.err().expect("an error");
    assert!(matches!(error, JobError::Late { .. }), "{error}");
    let begins = "job train: not all members joined within 1s: rank 1 on h2; check";
    assert!(error.to_string().starts_with(begins), "{error}");
    let ends = "allow more time (timeout, ULTIMA_TIMEOUT)";
    assert!(error.to_string().ends_with(ends), "{error}");
}
