//! Limits on the memory and time that one client can use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::stream_message_request::Update as Message;
use ultima_p4runtime::v1::{
    CapabilitiesRequest, CounterEntry, Entity, PacketOut, ReadRequest, RegisterEntry, TableEntry,
    Update,
};

use crate::served::common::{Controller, DEVICE, TIMEOUT, Testbed, pipeline_config};

const A: u64 = 0x0200_0000_0001;

/// A number of default messages that are small on the wire and large in memory.
const MANY: usize = 100_000;

#[tokio::test]
async fn requests_that_would_take_much_memory_are_refused() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let refused = |status: Result<(), Status>, text: &str| {
        let status = status.expect_err("refused");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains(text), "{status}");
    };
    let updates = vec![Update::default(); MANY];
    refused(controller.write(updates).await, "p4.v1.WriteRequest");
    let entities = vec![Entity::default(); MANY];
    let read = controller.read(entities).await.map(drop);
    refused(read, "p4.v1.ReadRequest");
    let one_too_many = vec![Update::default(); (1 << 14) + 1];
    let text = "the request has 16385 updates, expected at most 16384; send several";
    refused(controller.write(one_too_many).await, text);
    let one_too_many = vec![Entity::default(); (1 << 14) + 1];
    let read = controller.read(one_too_many).await.map(drop);
    refused(read, "16385 entities");
}

#[tokio::test]
async fn long_messages_are_refused() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let long = TableEntry {
        metadata: vec![0; 5 << 20],
        ..testbed.unicast(A, 1)
    };
    let error = controller.write(vec![Update::insert(long)]).await;
    assert_eq!(error.expect_err("refused").code(), Code::OutOfRange);
    let packet = PacketOut {
        payload: vec![0; 300 << 10],
        ..PacketOut::default()
    };
    controller.send(Message::Packet(packet)).await;
    let error = controller.message().await.expect_err("the stream ends");
    assert_eq!(error.code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_write_waits_for_few_of_the_reads_before_it() {
    const READERS: usize = 40;
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    // Each read takes many turns of the forwarding thread.
    let all: [Entity; 2] = [
        CounterEntry::default().into(),
        RegisterEntry::default().into(),
    ];
    let requests = ultima_testing::per_run(400, 2000);
    let requests: Vec<Entity> = all.iter().cycle().take(requests).cloned().collect();
    let found = Arc::new(AtomicUsize::new(0));
    let mut readers = tokio::task::JoinSet::new();
    for election_id in 0..READERS as u128 {
        let mut reader = Controller::connect(testbed.switch.grpc_addr(), election_id).await;
        let request = ReadRequest {
            device_id: DEVICE,
            entities: requests.clone(),
            ..ReadRequest::default()
        };
        let found = found.clone();
        readers.spawn(async move {
            // The response starts when the read is done. The client does not fetch it.
            let answer = reader.client.read(request).await.expect("read");
            found.fetch_add(1, Ordering::Relaxed);
            answer
        });
    }
    while found.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let before = found.load(Ordering::Relaxed);
    controller.insert(vec![testbed.unicast(A, 1).into()]).await;
    let meanwhile = found.load(Ordering::Relaxed) - before;
    assert!(meanwhile < READERS / 2, "{before}, then {meanwhile}");
    readers.join_all().await;
}

#[tokio::test]
async fn incomplete_calls_do_not_delay_other_calls() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let address = format!("http://{}", testbed.switch.grpc_addr());
    let client = Channel::from_shared(address)
        .expect("address")
        .connect()
        .await;
    let client = client.expect("connects");
    let mut incomplete = tokio::task::JoinSet::new();
    for (call, count) in [
        ("Write", 20),
        ("Read", 10),
        ("SetForwardingPipelineConfig", 4),
    ] {
        let path = PathAndQuery::try_from(format!("/p4.v1.P4Runtime/{call}")).expect("a path");
        for _ in 0..count {
            let (mut client, path) = (Grpc::new(client.clone()), path.clone());
            incomplete.spawn(async move {
                client.ready().await.expect("connected");
                let no_message = tonic::Request::new(tokio_stream::pending::<Entity>());
                let codec = ProstCodec::<Entity, Entity>::default();
                client.client_streaming(no_message, path, codec).await
            });
        }
    }
    // The tasks run while this one waits. Their calls precede the second of these calls on the connection.
    for _ in 0..2 {
        let request = CapabilitiesRequest::default();
        let answer = P4RuntimeClient::new(client.clone())
            .capabilities(request)
            .await;
        answer.expect("capabilities");
    }
    let complete = async {
        controller.insert(vec![testbed.unicast(A, 1).into()]).await;
        let all = vec![TableEntry::default().into()];
        controller.read(all).await.expect("read");
        let config = Some(pipeline_config());
        controller
            .set_pipeline(Action::VerifyAndCommit, config)
            .await
    };
    timeout(TIMEOUT / 4, complete)
        .await
        .expect("no delay")
        .expect("set");
    // The server ends the incomplete calls.
    let ended = timeout(TIMEOUT, incomplete.join_all())
        .await
        .expect("they end");
    assert!(
        ended.iter().all(|ended| {
            matches!(ended, Err(status) if status.code() == Code::DeadlineExceeded)
        })
    );
}

#[tokio::test]
async fn connections_without_a_call_end() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let mut silent = TcpStream::connect(testbed.switch.grpc_addr())
        .await
        .expect("connects");
    let mut end = Vec::new();
    let ended = timeout(2 * TIMEOUT, silent.read_to_end(&mut end)).await;
    ended.expect("ends").expect("at an end of file");
    // A stream is a call in progress.
    controller.insert(vec![testbed.unicast(A, 1).into()]).await;
    controller.arbitrate(Some(controller.election_id)).await;
    controller.arbitration().await.expect("open");
}
