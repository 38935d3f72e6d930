//! The switch as a replacement for simple_switch_grpc: programs without a P4Info, PI's device configs, names of captures, the
//! packet log.

use std::fs;
use std::path::Path;

use tonic::Code;
use ultima_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::{
    ForwardingPipelineConfig, GetForwardingPipelineConfigRequest, TableEntry,
};
use ultima_switch::trace::{Fate, PacketLog};
use ultima_switch::{
    Attach, PortConfig, ProgramFiles, Switch, SwitchConfig, SwitchError, WireConfig,
};

use crate::served::common::{
    Controller, DEVICE, JSON, Peer, Testbed, base_config, names, packets, pipeline_config, probe,
};

const DST: u64 = 0x0200_0000_0001;

/// A switch with two ports that runs the test program without its P4Info.
async fn testbed_without_p4info() -> Testbed {
    let mut config = SwitchConfig {
        program: Some(ProgramFiles {
            json: JSON.to_vec(),
            p4info: None,
        }),
        ..base_config()
    };
    let mut peers = std::collections::BTreeMap::new();
    for number in [1, 2] {
        let (ours, peer) = Peer::pair();
        config.ports.push(PortConfig {
            number,
            attach: Attach::Socket(ours.into()),
            wire: WireConfig::default(),
        });
        peers.insert(number, peer);
    }
    Testbed {
        switch: Switch::start(config).await.expect("the switch starts"),
        peers,
        names: names(),
    }
}

async fn config(controller: &mut Controller) -> Option<ForwardingPipelineConfig> {
    let request = GetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        response_type: ResponseType::All.into(),
    };
    let response = controller.client.get_forwarding_pipeline_config(request);
    response.await.expect("a response").into_inner().config
}

/// Checks that frames to [`DST`] go from port 1 to port 2 with an entry.
async fn forwards(testbed: &Testbed, controller: &mut Controller) {
    controller
        .insert(vec![testbed.unicast(DST, 2).into()])
        .await;
    let frame = probe(DST, 0, 5, 60);
    testbed.peers[&1].send(&frame);
    assert_eq!(testbed.peers[&2].receive(), frame);
}

/// PI's message with this program, as p4runtime_lib encodes it.
fn device_config(program: &[u8]) -> Vec<u8> {
    // Field 1 (bool reassign) is true; field 3 (bytes device_data) is the program.
    let mut message = vec![1 << 3, 1, 3 << 3 | 2];
    let mut length = program.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(program);
    message
}

#[tokio::test]
async fn a_program_runs_without_a_p4info_until_a_controller_sets_it() {
    let testbed = testbed_without_p4info().await;
    testbed.peers[&1].send(&probe(DST, 0, 1, 60));
    let port = testbed.until_entered(1, 1).await;
    // The program's default action drops the frame.
    assert_eq!(packets(&port.ingress_program), 1, "{port:?}");

    let mut controller = testbed.controller().await;
    let refused = controller.read(vec![TableEntry::default().into()]).await;
    assert_eq!(
        refused.expect_err("no P4Info").code(),
        Code::FailedPrecondition
    );
    assert_eq!(config(&mut controller).await, None);
    // A P4Info alone applies to the running program.
    let only_p4info = ForwardingPipelineConfig {
        p4_device_config: Vec::new(),
        ..pipeline_config()
    };
    let action = Action::VerifyAndCommit;
    let set = controller.set_pipeline(action, Some(only_p4info.clone()));
    set.await.expect("committed");
    assert_eq!(config(&mut controller).await, Some(pipeline_config()));
    forwards(&testbed, &mut controller).await;
    // The running program has a P4Info now.
    let set = controller.set_pipeline(action, Some(only_p4info));
    let error = set.await.expect_err("no program");
    assert_eq!(error.code(), Code::InvalidArgument);
    testbed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn all_test_programs_start_without_a_p4info() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut programs = 0;
    for file in fs::read_dir(folder).expect("a folder") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let config = SwitchConfig {
            program: Some(ProgramFiles {
                json: fs::read(&path).expect("readable"),
                p4info: None,
            }),
            ..base_config()
        };
        let switch = Switch::start(config).await;
        let switch = switch.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        switch.stop().await.expect("stops");
        programs += 1;
    }
    assert!(programs > 5);
    let broken = SwitchConfig {
        program: Some(ProgramFiles {
            json: b"{ \"actions\": [] ]".to_vec(),
            p4info: None,
        }),
        ..base_config()
    };
    match Switch::start(broken).await {
        Err(error @ SwitchError::Program(_)) => {
            let text = error.to_string();
            assert!(text.starts_with("program: line 1, column 17: "), "{text}");
            assert!(!text.contains("at line"), "{text}");
        }
        other => panic!("expected an error, got {:?}", other.err()),
    }
}

#[tokio::test]
async fn pi_s_device_config_is_accepted_and_errors_name_the_field() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let message = ForwardingPipelineConfig {
        p4_device_config: device_config(JSON),
        ..pipeline_config()
    };
    let set = controller.set_pipeline(Action::VerifyAndCommit, Some(message.clone()));
    set.await.expect("committed");
    assert_eq!(
        config(&mut controller).await,
        Some(message),
        "as it was set"
    );
    forwards(&testbed, &mut controller).await;

    let with = |p4_device_config: &[u8]| ForwardingPipelineConfig {
        p4_device_config: p4_device_config.to_vec(),
        ..pipeline_config()
    };
    let without_p4info = ForwardingPipelineConfig {
        p4info: None,
        ..pipeline_config()
    };
    let other_p4info = ForwardingPipelineConfig {
        p4info: Some(Default::default()),
        ..pipeline_config()
    };
    for (config, text) in [
        (with(b""), "config.p4_device_config has no program"),
        (
            with(&device_config(b"")),
            "config.p4_device_config has no program",
        ),
        (with(b"#!"), "config.p4_device_config has no program"),
        (with(b"{}"), "config.p4_device_config: line 1, "),
        (
            with(&device_config(b"{}")),
            "config.p4_device_config: line 1, ",
        ),
        (without_p4info, "config.p4info is not set"),
        (other_p4info, "config.p4info: "),
    ] {
        let set = controller.set_pipeline(Action::VerifyAndCommit, Some(config));
        let error = set.await.expect_err(text);
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with(text), "{}", error.message());
    }
    testbed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn the_packet_log_has_every_packet_with_its_copies() {
    let (packet_log, mut reader) = PacketLog::new();
    let config = SwitchConfig {
        packet_log: Some(packet_log),
        ..base_config()
    };
    let testbed = Testbed::with_wires(config, vec![WireConfig::default(); 2]).await;
    let mut controller = testbed.controller().await;
    controller
        .insert(vec![testbed.unicast(DST, 2).into()])
        .await;
    let frames = [probe(DST, 0, 1, 60), probe(DST + 1, 0, 2, 60)];
    for frame in &frames {
        testbed.peers[&1].send(frame);
    }
    let mut entries = Vec::new();
    for _ in &frames {
        entries.push(reader.recv().await.expect("an entry"));
    }
    // A packet without copies is complete before an earlier one with copies.
    entries.sort_by_key(|entry| entry.trace.frame.0.clone());
    for (entry, frame) in entries.iter().zip(&frames) {
        assert_eq!((entry.missed, entry.trace.port), (0, 1));
        assert_eq!(&entry.trace.frame.0, frame);
    }
    assert_eq!(entries[0].trace.copies[0].fate, Fate::Left);
    assert!(entries[1].trace.copies.is_empty() && entries[0].time <= entries[1].time);
    testbed.switch.stop().await.expect("stops");
    assert!(
        reader.recv().await.is_none(),
        "the log ends with the switch"
    );
}
