//! Rejects foreign programs, and fabrics that a program is not for.

use std::time::Duration;

use ultima_controller::p4rt::{Device, Mastership, SwitchClient};
use ultima_controller::server::{self, Config};
use ultima_planner::fabric;
use ultima_planner::program::Program;
use ultima_switch::{ProgramFiles, Switch, SwitchConfig};

/// The error of a controller that starts with this program and one switch.
async fn refusal(program: Program) -> String {
    let config = SwitchConfig {
        grpc: "127.0.0.1:0".parse().unwrap(),
        ..SwitchConfig::default()
    };
    let switch = Switch::start(config).await.unwrap();
    let grpc = switch.grpc_addr().to_string();
    let text = include_str!("../../../topologies/star4.yaml").replace("127.0.0.1:9559", &grpc);
    let fabric = fabric::parse(&text, "star.yaml").unwrap();
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..Config::with_program(fabric, program)
    };
    let served = server::serve(config).await;
    served.map(|_| ()).unwrap_err().to_string()
}

/// A switch may serve others; only the operator knows. It runs Ultima's program under other names here.
#[tokio::test]
async fn another_program_is_replaced_only_if_the_operator_allows_it() {
    let own = ultima_p4::v1model();
    let renamed = |text: &str| text.replace("UltimaIngress", "OtherIngress");
    let json = String::from_utf8(own.device_config.to_vec()).unwrap();
    let switch = Switch::start(SwitchConfig {
        grpc: "127.0.0.1:0".parse().unwrap(),
        program: Some(ProgramFiles {
            json: renamed(&json).into_bytes(),
            p4info: Some(renamed(own.p4info)),
        }),
        ..SwitchConfig::default()
    });
    let switch = switch.await.unwrap();
    let grpc = switch.grpc_addr().to_string();
    let text = include_str!("../../../topologies/star4.yaml").replace("127.0.0.1:9559", &grpc);
    let serve = async |replace_pipeline| {
        server::serve(Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            replace_pipeline,
            ..Config::new(fabric::parse(&text, "star.yaml").unwrap()).unwrap()
        })
        .await
    };
    // The controller does not even ask for the primary role, which its higher election id would get.
    let device = Device {
        name: "s1".into(),
        grpc,
        device_id: 1,
        tls: None,
        packing: Default::default(),
    };
    let other = SwitchClient::connect(device, 1, Duration::from_secs(5)).await;
    let other = other.unwrap();
    let role = other.mastership();
    let refusal = serve(false).await.map(|_| ()).unwrap_err().to_string();
    assert!(*role.borrow() == Mastership::Primary && !role.has_changed().unwrap());
    let [start, end] = [
        "switch s1 runs another P4 program (with table OtherIngress.",
        "), which is left alone; start the controller with --replace-pipeline to replace it",
    ];
    assert!(
        refusal.starts_with(start) && refusal.ends_with(end),
        "{refusal}"
    );
    // The other program is still there.
    assert!(serve(false).await.is_err());
    serve(true).await.unwrap().stop().await;
    // Now it has Ultima's program.
    serve(false).await.unwrap().stop().await;
}

/// Its P4Info has the architecture alone.
#[tokio::test]
async fn a_program_without_tables_is_another_program() {
    let info = include_str!("../../../switch/tests/programs/parsing.p4info.txtpb");
    let switch = Switch::start(SwitchConfig {
        grpc: "127.0.0.1:0".parse().unwrap(),
        program: Some(ProgramFiles {
            json: include_bytes!("../../../switch/tests/programs/parsing.json").to_vec(),
            p4info: Some(info.to_owned()),
        }),
        ..SwitchConfig::default()
    });
    let switch = switch.await.unwrap();
    let grpc = switch.grpc_addr().to_string();
    let text = include_str!("../../../topologies/star4.yaml").replace("127.0.0.1:9559", &grpc);
    let served = server::serve(Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..Config::new(fabric::parse(&text, "star.yaml").unwrap()).unwrap()
    });
    let refusal = served.await.map(|_| ()).unwrap_err().to_string();
    let start = "switch s1 runs another P4 program (without tables), which is left alone; ";
    assert!(refusal.starts_with(start), "{refusal}");
}

#[tokio::test]
async fn a_program_that_does_not_match_its_p4info_is_reported_in_one_line() {
    let own = ultima_p4::v1model();
    let json = String::from_utf8(own.device_config.to_vec()).unwrap();
    let json = json.replace("UltimaIngress.jobs.job", "UltimaIngress.jobs.jib");
    let program = Program::new(json.into_bytes(), own.p4info, "p4info").unwrap();
    assert_eq!(
        refusal(program).await,
        "switch s1 refused the program: INVALID_ARGUMENT: config.p4info: program and P4Info disagree: the P4Info has no table UltimaIngress.jobs.jib"
    );
}

#[tokio::test]
async fn a_program_without_our_tables_is_rejected() {
    let own = ultima_p4::v1model();
    let p4info = own
        .p4info
        .replace("UltimaIngress.admission.source", "Other.admission.source");
    let program = Program::new(own.device_config.to_vec(), &p4info, "p4info").unwrap();
    let error = refusal(program).await;
    let [start, end] = [
        "P4Info has no table \"UltimaIngress.admission.source\"; ",
        "; use Ultima's program and P4Info, or a program derived from it",
    ];
    assert!(error.starts_with(start) && error.ends_with(end), "{error}");
}

#[tokio::test]
async fn a_program_for_another_target_is_rejected() {
    let tofino = ultima_p4runtime::tofino::TofinoProgram {
        name: "ultima".into(),
        pipeline: "pipe".into(),
        bfrt: b"{}".to_vec(),
        context: b"{}".to_vec(),
        binary: b"tofino.bin".to_vec(),
    };
    let form = ultima_planner::target::ProgramForm::Tofino;
    let p4info = ultima_p4::v1model().p4info;
    let program = Program::tofino(form, tofino, p4info, "p4info").unwrap();
    assert_eq!(
        refusal(program).await,
        "switch s1: target v1model cannot run the controller's program, which is for tofino; pass the program for v1model with --program (all switches of a fabric must be of one kind)"
    );
}
