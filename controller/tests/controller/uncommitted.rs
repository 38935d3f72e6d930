//! Changes of a job's members while nothing can be committed.

use std::time::Duration;

use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_api::v1::membership_event::Kind;

use crate::bed::{until, until_event};
use crate::crew::{self, Crew};
use crate::group::{self, Bed};

const WAIT: Duration = Duration::from_secs(60);

/// Two rejections in sequence: every commit that was pending before the first one has been rejected by then.
async fn refused_twice(client: &Client) {
    for _ in 0..2 {
        let error = client.create_job(&group::spec("other")).await.unwrap_err();
        assert!(error.to_string().contains("follow after 1 s"), "{error}");
    }
}

/// The next epoch is cancelled by then, and reported so.
#[tokio::test]
async fn an_interrupted_deletion_reports_the_cancelled_change() {
    let bed = Bed::with_short_ack_timeout(2).await;
    let [leader, _follower] = bed.pair().await;
    let client = leader.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    for host in ["h1", "h2", "h3"] {
        client.join("train", host, Duration::ZERO).await.unwrap();
    }
    let mut watch = client.watch_job("train").await.unwrap();
    let members = ["h1", "h2", "h3", "h3"].map(String::from);
    let resized = client.resize_job(("train", None), &members, (WAIT, false));
    resized.await.unwrap();
    // The store has deleted the job, and one switch is slow.
    bed.switches[0].state().stalls_writes = true;
    let deleting = client.clone();
    let deleting = tokio::spawn(async move { deleting.delete_job("train").await });
    until(async || bed.switches[0].state().stalled_writes > 0).await;
    bed.part_peers(0, 1);
    leader.followers(0).await;
    bed.switches[0].state().stalls_writes = false;
    let error = deleting.await.unwrap().unwrap_err().to_string();
    let says = "job train was not deleted, but its change to epoch 2 is cancelled: ";
    assert!(error.contains(says), "{error}");
    until_event(&mut watch, Kind::Cancelled).await;
    let job = client.job("train").await.unwrap();
    assert_eq!((job.epoch, &job.next), (1, &None));
    let unchanged = "epoch 2 was cancelled: deleting the job failed: ";
    assert!(job.unchanged.starts_with(unchanged), "{}", job.unchanged);
}

#[tokio::test]
async fn decisions_that_cannot_be_committed_are_retried() {
    let bed = Bed::with_short_ack_timeout(2).await;
    let [leader, _follower] = bed.pair().await;
    let client = leader.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    let mut crew = Crew::default();
    for host in ["h1", "h2"] {
        crew.join(&client, host).await;
    }
    // A member that never changes over.
    let seat = client.join("train", "h3", Duration::ZERO).await.unwrap();
    let attendance = api::Attendance {
        slot_bytes: 1408,
        ..seat.attendance("train")
    };
    let attends = client.clone();
    let third = tokio::spawn(async move { crew::attend(&attends, attendance).await });
    crew.run_in(1, &["h1", "h2"]).await;
    let mut watch = client.watch_job("train").await.unwrap();
    let resize = async |hosts: &[&str], join: Duration| {
        let members: Vec<String> = hosts.iter().map(|host| (*host).into()).collect();
        let resized = client
            .resize_job(("train", None), &members, (join, false))
            .await;
        resized.unwrap()
    };

    // An epoch is cancelled.
    resize(&["h1", "h2", "h3", "h3"], Duration::from_millis(200)).await;
    bed.part_peers(0, 1);
    refused_twice(&client).await;
    assert_eq!(client.job("train").await.unwrap().next.unwrap().epoch, 2);
    bed.heal_peers(0, 1);
    until_event(&mut watch, Kind::Cancelled).await;
    leader.followers(1).await;

    // An epoch ends.
    resize(&["h1", "h2"], WAIT).await;
    until_event(&mut watch, Kind::Decided).await;
    crew.run_in(2, &["h1", "h2"]).await;
    bed.part_peers(0, 1);
    third.abort();
    refused_twice(&client).await;
    bed.heal_peers(0, 1);
    until_event(&mut watch, Kind::Fenced).await;
    crew.epochs();
}
