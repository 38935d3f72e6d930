//! Arbitration: the primary controller, and the rights of backups.

use crate::served::common::{Controller, DEVICE, Testbed};
use tonic::Code;
use ultima_p4runtime::v1::{
    self, CapabilitiesRequest, PacketOut, ReadRequest, Update, WriteRequest,
    stream_message_request, stream_message_response,
};

const A: u64 = 0x0200_0000_0001;

#[tokio::test]
async fn two_controllers_and_one_primary() {
    let testbed = Testbed::new(2).await;
    let address = testbed.switch.grpc_addr();
    let mut one = Controller::primary(address, 10).await;
    let mut two = Controller::connect(address, 5).await;
    two.arbitrate(Some(5)).await;
    assert_eq!(
        two.arbitration().await.expect("an update"),
        (Code::AlreadyExists, Some(10))
    );
    let entry = testbed.unicast(A, 2);
    let refused = two
        .write(vec![Update::insert(entry.clone())])
        .await
        .expect_err("a backup");
    assert_eq!(refused.code(), Code::PermissionDenied);
    one.insert(vec![entry.clone().into()]).await;
    // Backups may read.
    assert_eq!(
        two.read(vec![entry.clone().into()])
            .await
            .expect("read")
            .len(),
        1
    );

    two.arbitrate(Some(11)).await;
    assert_eq!(
        two.arbitration().await.expect("an update"),
        (Code::Ok, Some(11))
    );
    assert_eq!(
        one.arbitration().await.expect("an update"),
        (Code::AlreadyExists, Some(11))
    );
    let refused = one
        .write(vec![Update::delete(entry.clone())])
        .await
        .expect_err("no longer the primary");
    assert_eq!(refused.code(), Code::PermissionDenied);
    two.write(vec![Update::delete(entry.clone())])
        .await
        .expect("the primary");

    // The primary leaves. No other client takes its place by itself.
    drop(two);
    assert_eq!(
        one.arbitration().await.expect("an update"),
        (Code::NotFound, Some(11))
    );
    let refused = one
        .write(vec![Update::insert(entry.clone())])
        .await
        .expect_err("there is no primary");
    assert_eq!(refused.code(), Code::PermissionDenied);
    one.arbitrate(Some(10)).await;
    assert_eq!(
        one.arbitration().await.expect("an update"),
        (Code::NotFound, Some(11))
    );
    one.arbitrate(Some(11)).await;
    assert_eq!(
        one.arbitration().await.expect("an update"),
        (Code::Ok, Some(11))
    );
    one.insert(vec![entry.into()]).await;
}

#[tokio::test]
async fn an_invalid_arbitration_update_ends_the_stream() {
    let testbed = Testbed::new(1).await;
    let address = testbed.switch.grpc_addr();
    let mut one = Controller::primary(address, 10).await;
    let mut same = Controller::connect(address, 10).await;
    same.arbitrate(Some(10)).await;
    assert_eq!(
        same.arbitration()
            .await
            .expect_err("the election id is taken")
            .code(),
        Code::InvalidArgument
    );
    let mut other_device = Controller::connect(address, 1).await;
    let update = v1::MasterArbitrationUpdate {
        device_id: DEVICE + 1,
        ..Default::default()
    };
    other_device
        .send(stream_message_request::Update::Arbitration(update))
        .await;
    assert_eq!(
        other_device
            .message()
            .await
            .expect_err("no such device")
            .code(),
        Code::NotFound
    );
    one.write(Vec::new())
        .await
        .expect("it is still the primary");
    // Each role has its own election ids.
    let mut telemetry = Controller::connect(address, 10).await;
    telemetry.role = "telemetry".to_owned();
    telemetry.arbitrate(Some(10)).await;
    assert_eq!(
        telemetry.arbitration().await.expect("an update"),
        (Code::Ok, Some(10))
    );
    telemetry
        .write(Vec::new())
        .await
        .expect("primary of its role");
}

#[tokio::test]
async fn invalid_stream_messages_get_a_stream_error() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let packet = PacketOut {
        payload: vec![1, 2, 3],
        metadata: Vec::new(),
    };
    controller
        .send(stream_message_request::Update::Packet(packet.clone()))
        .await;
    let answer = controller
        .message()
        .await
        .expect("the stream stays open")
        .expect("an answer");
    let stream_message_response::Update::Error(error) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        error.canonical_code,
        Code::FailedPrecondition as i32,
        "there is no CPU port"
    );
    let Some(v1::stream_error::Details::PacketOut(details)) = error.details else {
        panic!("details")
    };
    assert_eq!(details.packet_out, Some(packet));
    controller
        .write(Vec::new())
        .await
        .expect("still the primary");
}

#[tokio::test]
async fn stopping_the_switch_ends_the_streams() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    testbed.switch.stop().await.expect("stops");
    // The stream or the connection ends.
    let end = controller.message().await;
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
}

#[tokio::test]
async fn requests_are_checked_before_their_updates() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let request = |device_id, role: &str, election_id: Option<u128>, atomicity| WriteRequest {
        device_id,
        role: role.to_owned(),
        election_id: election_id.map(Into::into),
        atomicity,
        ..WriteRequest::default()
    };
    for (request, code) in [
        (request(DEVICE + 1, "", Some(1), 0), Code::NotFound),
        (request(DEVICE, "unknown", Some(1), 0), Code::NotFound),
        (request(DEVICE, "", Some(2), 0), Code::PermissionDenied),
        (request(DEVICE, "", None, 0), Code::PermissionDenied),
        (request(DEVICE, "", Some(1), 1), Code::Unimplemented),
        (request(DEVICE, "", Some(1), 2), Code::Unimplemented),
        (request(DEVICE, "", Some(1), 9), Code::InvalidArgument),
    ] {
        let error = controller
            .client
            .write(request.clone())
            .await
            .expect_err("refused");
        assert_eq!(error.code(), code, "{request:?}: {error}");
        assert!(error.details().is_empty(), "no update ran");
    }
    let read = ReadRequest {
        device_id: DEVICE + 1,
        ..ReadRequest::default()
    };
    let error = controller
        .client
        .read(read)
        .await
        .map(|_| ())
        .expect_err("refused");
    assert_eq!(error.code(), Code::NotFound);
    let expected = format!("device_id {}: this switch has {DEVICE}", DEVICE + 1);
    assert_eq!(error.message(), expected);
    let capabilities = |device_id| CapabilitiesRequest { device_id };
    let answer = controller
        .client
        .capabilities(capabilities(0))
        .await
        .expect("answered");
    assert!(answer.into_inner().p4runtime_api_version.starts_with("1."));
    let error = controller
        .client
        .capabilities(capabilities(99))
        .await
        .expect_err("refused");
    assert_eq!(error.code(), Code::NotFound);
}
