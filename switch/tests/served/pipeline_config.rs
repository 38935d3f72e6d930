//! Setting programs over P4Runtime, also while packets flow.

use crate::served::common::{
    Controller, DEVICE, Testbed, base_config, group, packets, pipeline_config, probe,
};
use tonic::Code;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::{self, Entity, GetForwardingPipelineConfigRequest, TableEntry, Update};
use ultima_switch::Switch;

const A: u64 = 0x0200_0000_0001;
const B: u64 = 0x0200_0000_0002;

async fn get(
    controller: &mut Controller,
    kind: ResponseType,
) -> Option<v1::ForwardingPipelineConfig> {
    let request = GetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        response_type: kind.into(),
    };
    let answer = controller
        .client
        .get_forwarding_pipeline_config(request)
        .await;
    answer.expect("answered").into_inner().config
}

#[tokio::test]
async fn a_pipeline_is_verified_saved_committed_and_read_back() {
    let switch = Switch::start(base_config()).await.expect("starts");
    let mut controller = Controller::primary(switch.grpc_addr(), 1).await;
    assert_eq!(get(&mut controller, ResponseType::All).await, None);
    let error = controller
        .set_pipeline(Action::Commit, None)
        .await
        .expect_err("nothing saved");
    assert_eq!(error.code(), Code::NotFound);
    let config = v1::ForwardingPipelineConfig {
        cookie: Some(v1::forwarding_pipeline_config::Cookie { cookie: 42 }),
        ..pipeline_config()
    };
    controller
        .set_pipeline(Action::Verify, Some(config.clone()))
        .await
        .expect("verified");
    assert_eq!(
        get(&mut controller, ResponseType::All).await,
        None,
        "VERIFY changes nothing"
    );
    for broken in [
        None,
        Some(v1::ForwardingPipelineConfig {
            p4info: None,
            ..config.clone()
        }),
        Some(v1::ForwardingPipelineConfig {
            p4_device_config: Vec::new(),
            ..config.clone()
        }),
        Some(v1::ForwardingPipelineConfig {
            p4_device_config: b"{}".to_vec(),
            ..config.clone()
        }),
    ] {
        let error = controller
            .set_pipeline(Action::VerifyAndCommit, broken)
            .await;
        assert_eq!(error.expect_err("refused").code(), Code::InvalidArgument);
    }
    let error = controller
        .set_pipeline(Action::Unspecified, Some(config.clone()))
        .await;
    assert_eq!(error.expect_err("refused").code(), Code::InvalidArgument);

    controller
        .set_pipeline(Action::VerifyAndSave, Some(config.clone()))
        .await
        .expect("saved");
    assert_eq!(
        get(&mut controller, ResponseType::All).await,
        Some(config.clone())
    );
    let only_cookie = get(&mut controller, ResponseType::CookieOnly)
        .await
        .expect("config");
    assert_eq!(
        (only_cookie.cookie, only_cookie.p4info),
        (config.cookie, None)
    );
    let p4info = get(&mut controller, ResponseType::P4infoAndCookie)
        .await
        .expect("config");
    assert_eq!(
        (p4info.p4info, p4info.p4_device_config.len()),
        (config.p4info.clone(), 0)
    );
    let device = get(&mut controller, ResponseType::DeviceConfigAndCookie)
        .await
        .expect("config");
    assert_eq!(
        (device.p4info, device.p4_device_config),
        (None, config.p4_device_config.clone())
    );
    // Writes refer to the saved program. COMMIT keeps them.
    controller.insert(vec![group(1, &[(1, 1)])]).await;
    let error = controller
        .set_pipeline(Action::Commit, Some(config.clone()))
        .await;
    assert_eq!(error.expect_err("refused").code(), Code::InvalidArgument);
    controller
        .set_pipeline(Action::Commit, None)
        .await
        .expect("committed");
    let groups: Entity = v1::MulticastGroupEntry::default().into();
    assert_eq!(
        controller
            .read(vec![groups.clone()])
            .await
            .expect("read")
            .len(),
        1
    );
    // A new commit clears the state. A backup may not commit.
    controller
        .set_pipeline(Action::VerifyAndCommit, Some(config))
        .await
        .expect("committed");
    assert!(
        controller
            .read(vec![groups])
            .await
            .expect("read")
            .is_empty()
    );
    controller.election_id = 9;
    let error = controller
        .set_pipeline(Action::VerifyAndCommit, None)
        .await
        .expect_err("refused");
    assert_eq!(error.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_config_that_asks_for_reconciliation_changes_nothing() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    controller.insert(vec![testbed.unicast(A, 2).into()]).await;
    let entries = || vec![TableEntry::default().into()];
    let before = controller.read(entries()).await.expect("read");
    let config = pipeline_config();
    let error = controller
        .set_pipeline(Action::ReconcileAndCommit, Some(config))
        .await
        .expect_err("unimplemented");
    assert_eq!(error.code(), Code::Unimplemented);
    assert_eq!(controller.read(entries()).await.expect("read"), before);
}

#[tokio::test]
async fn a_packet_sees_all_of_a_batch_or_nothing() {
    let testbed = Testbed::new(3).await;
    let mut controller = testbed.controller().await;
    let route = |port| vec![testbed.unicast(A, port), testbed.unicast(B, port)];
    controller
        .insert(route(2).into_iter().map(Entity::from).collect())
        .await;
    // Each round sends a pair while one batch changes both routes. If the batch were not atomic, A could
    // take the new route and B, which is sent later, the old route.
    for round in 0..200u32 {
        let port = 2 + (round % 2) as u16;
        let updates = route(port).into_iter().map(Update::modify).collect();
        let sender = &testbed.peers[&1];
        sender.send(&probe(A, 0, round * 2, 60));
        sender.send(&probe(B, 0, round * 2 + 1, 60));
        controller.write(updates).await.expect("written");
    }
    let mut at = std::collections::BTreeMap::new();
    testbed.until_entered(1, 400).await;
    for port in [2u16, 3] {
        for _ in 0..packets(&testbed.port(port).await.ordered) {
            at.insert(
                crate::served::common::number(&testbed.peers[&port].receive()),
                port,
            );
        }
    }
    assert_eq!(at.len(), 400);
    for round in 0..200u32 {
        let (old, new) = (3 - (round % 2) as u16, 2 + (round % 2) as u16);
        let pair = (at[&(round * 2)], at[&(round * 2 + 1)]);
        assert_ne!(
            pair,
            (new, old),
            "round {round}: B, sent after A, saw older entries"
        );
    }
}

#[tokio::test]
async fn ingress_and_egress_of_a_packet_see_the_same_batches() {
    let rounds: u64 = ultima_testing::per_run(30, 300);
    /// Frames sent while one batch is written.
    const FRAMES: u64 = 20;
    let testbed = Testbed::new(3).await;
    let mut controller = testbed.controller().await;
    // Ingress selects a port. Egress writes the address of that port.
    let address = |port: u16| 0x0200_0000_0100 + u64::from(port);
    let batch = |port: u16| {
        let values = [("dst", Bytestring::from(address(port)))];
        let mark = testbed.replica(0, "EgressPipe.readdress", &values);
        [testbed.unicast(A, port), mark]
    };
    controller.insert(batch(2).map(Entity::from).to_vec()).await;
    let mut received = [0; 2];
    for round in 1..=rounds {
        for number in 0..FRAMES {
            testbed.peers[&1].send(&probe(A, 0, number as u32, 60));
        }
        let updates = batch(2 + (round % 2) as u16).map(Update::modify).to_vec();
        controller.write(updates).await.expect("written");
        testbed.until_entered(1, round * FRAMES).await;
        for (port, received) in [2, 3].into_iter().zip(&mut received) {
            let ordered = packets(&testbed.port(port).await.ordered);
            for _ in *received..ordered {
                let frame = testbed.peers[&port].receive();
                let written = &address(port).to_be_bytes()[2..];
                assert_eq!(&frame[..6], written, "round {round}, port {port}");
            }
            *received = ordered;
        }
    }
    assert_eq!(received.iter().sum::<u64>(), rounds * FRAMES);
}
