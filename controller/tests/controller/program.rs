//! Rejects foreign programs, and fabrics that a program is not for.

use ultima_controller::server::{self, Config};
use ultima_planner::fabric;
use ultima_planner::program::Program;
use ultima_switch::{Switch, SwitchConfig};

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
