//! Counters and telemetry.

use std::time::Duration;

use ultima_api::v1 as api;

use super::{spec, start};
use crate::target::Target;

#[tokio::test]
async fn counters_start_at_zero() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let zero = Some(api::Count::default());
    let expected = api::SwitchCounters {
        switch: "s1".into(),
        received: zero,
        rejected: zero,
        replicated: zero,
        unicast: zero,
        delivered: zero,
        own_copy: zero,
        unknown_rank: zero,
        reflected: zero,
        late: zero,
        trimmed: zero,
        cut_sealed: zero,
        undeliverable: zero,
        problem: String::new(),
    };
    assert_eq!(client.counters("train").await.unwrap(), [expected]);
}

#[tokio::test]
async fn telemetry_is_sent_at_the_requested_interval() {
    let (_switch, handle, client) = start(Target::of_run()).await;
    let every = Duration::from_millis(100);
    let refused = async |job: Option<&str>, every: Duration| {
        let watch = client.watch_telemetry(job, every).await;
        watch.expect_err("it is refused").to_string()
    };
    for wrong in [Duration::from_millis(99), Duration::from_millis(60_001)] {
        let error = refused(None, wrong).await;
        assert!(error.contains("expected 100 to 60000"), "{error}");
    }
    let error = refused(Some("train"), every).await;
    assert!(error.contains("there is no job"), "{error}");

    let mut all = client.watch_telemetry(None, every).await.unwrap();
    assert_eq!(all.next().await.unwrap(), Some(vec![]));
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let mut one = client.watch_telemetry(Some("train"), every).await.unwrap();
    let said = one.next().await.unwrap().expect("the controller runs");
    assert_eq!(said.len(), 1);
    let telemetry = client.telemetry("train").await.unwrap();
    assert_eq!(said[0].telemetry.as_ref(), Some(&telemetry));
    while all.next().await.unwrap().expect("it runs").is_empty() {}

    // There may be 64 watches.
    let mut others = Vec::new();
    for _ in 2..64 {
        others.push(client.watch_telemetry(None, every).await.unwrap());
    }
    let error = refused(None, every).await;
    assert!(
        error.contains("64 clients watch telemetry already"),
        "{error}"
    );
    drop(others);
    while client.watch_telemetry(None, every).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // The watch ends with the job, and with the controller.
    client.delete_job("train").await.unwrap();
    let error = loop {
        if let Err(error) = one.next().await {
            break error.to_string();
        }
    };
    assert!(error.contains("there is no job"), "{error}");
    handle.stop().await;
    while let Ok(Some(_)) = all.next().await {}
}
