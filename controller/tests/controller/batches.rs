//! One client of a switch: its batches of updates.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ultima_api::MacAddr;
use ultima_controller::p4rt::{BATCH, ELECTION_ID, Order, SwitchClient, WriteError, failed};
use ultima_p4runtime::v1::Update;
use ultima_planner::plan::{Entity, table::Neighbor};
use ultima_planner::program::Program;

use crate::chaos::{ChaosSwitch, Fault};

pub async fn client(switch: &ChaosSwitch, election_id: u128) -> SwitchClient {
    let client = SwitchClient::connect(switch.device(), election_id, Duration::from_secs(5)).await;
    client.unwrap()
}

/// Updates that fill four batches, with the numbers from `first` on.
fn four_batches(first: u32) -> Vec<Update> {
    let program = Program::v1model().unwrap();
    let row = |at: u32| {
        let ip = Ipv4Addr::from(0x0a00_0000 + first + at);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let row = Entity::Neighbor(Neighbor { ip, mac });
        row.creation(program.names()).unwrap()
    };
    (0..3 * BATCH as u32 + 1).map(row).collect()
}

#[tokio::test]
async fn unordered_batches_are_written_concurrently() {
    let switch = ChaosSwitch::start().await;
    let client = Arc::new(client(&switch, ELECTION_ID).await);
    for (first, order, together) in [(0, Order::AsGiven, 1), (1 << 16, Order::Any, 4)] {
        switch.state().stalls_writes = true;
        let writing = tokio::spawn({
            let client = Arc::clone(&client);
            async move { client.write(four_batches(first), order).await }
        });
        while switch.state().stalled_writes < together {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Time for a batch that must not come.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(switch.state().stalled_writes, together, "{order:?}");
        switch.state().stalls_writes = false;
        writing.await.unwrap().unwrap();
    }
    assert_eq!(switch.held().len(), 2 * four_batches(0).len());
}

#[tokio::test]
async fn a_failed_update_is_reported_in_its_place_among_all_batches() {
    let switch = ChaosSwitch::start().await;
    let client = client(&switch, ELECTION_ID).await;
    // The update is in the second batch. In order, later batches are not sent.
    for (first, order, refused) in [(0, Order::AsGiven, 1 + BATCH + 1), (1 << 16, Order::Any, 1)] {
        let before = switch.held().len();
        switch.fail_at(BATCH + 7, Fault::Refuse);
        let rows = four_batches(first);
        let written = client.write(rows.clone(), order).await;
        let Err(WriteError::Updates(outcomes)) = written else {
            panic!("{written:?}");
        };
        assert_eq!(outcomes.len(), rows.len());
        let count = outcomes.iter().filter(|outcome| failed(outcome)).count();
        assert_eq!(count, refused, "{order:?}");
        assert_eq!(switch.held().len() - before, rows.len() - refused);
    }
}

/// A client with small limits sends small batches, so that the first call times out, however many updates follow.
#[tokio::test]
async fn a_switch_that_takes_no_writes_times_out_at_its_first_call() {
    let switch = ChaosSwitch::start().await;
    let client = client(&switch, ELECTION_ID).await;
    let short = client.with_limits(BATCH / 2, Duration::from_millis(500));
    switch.state().stalls_writes = true;
    for _ in 0..2 {
        let error = short.write(four_batches(0), Order::AsGiven).await;
        let Err(WriteError::Rpc(error)) = error else {
            panic!("{error:?}")
        };
        assert!(error.is_abandoned(), "{error}");
        assert!(switch.state().stalled_writes <= 1);
    }
    // The connection is still good.
    switch.state().stalls_writes = false;
    let long = client.with_limits(BATCH / 2, Duration::from_secs(60));
    let written = long.write(four_batches(1 << 16), Order::AsGiven);
    written.await.unwrap();
}
