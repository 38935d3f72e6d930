//! A switch with another program, which the controller leaves alone unless the operator allows it.

use std::time::Duration;

use ultima_controller::p4rt::{Device, ELECTION_ID, SwitchClient};
use ultima_planner::program::Program;
use ultima_tests::controller::Controller;
use ultima_tests::fabric::{Fabric, device_id, switch_name};
use ultima_tests::stage::Target;
use ultima_tests::testbed::Testbed;

on_both! {
    another_program_is_left_alone;
    a_program_without_tables_is_left_alone;
}

/// A compiled test program of the switch.
macro_rules! program {
    ($name:literal) => {{
        let json = include_bytes!(concat!("../../../switch/tests/programs/", $name, ".json"));
        let p4info = include_str!(concat!(
            "../../../switch/tests/programs/",
            $name,
            ".p4info.txtpb"
        ));
        Program::new(json.to_vec(), p4info, $name).unwrap_or_else(|error| panic!("{error}"))
    }};
}

fn another_program_is_left_alone(target: &Target) {
    target.bare(Fabric::star(), |testbed| {
        is_left_alone(&testbed, &program!("lookups"), "with table ");
    });
}

/// The program's P4Info has only the architecture.
fn a_program_without_tables_is_left_alone(target: &Target) {
    target.bare(Fabric::star(), |testbed| {
        is_left_alone(&testbed, &program!("parsing"), "without tables)");
    });
}

fn is_left_alone(testbed: &Testbed, program: &Program, description: &str) {
    testbed.runtime.block_on(install(testbed, program));
    let expected = format!("switch s1 runs another P4 program ({description}");
    // A refused controller does not replace the program.
    for replaces in [false, false, true] {
        match Controller::try_start(testbed, replaces) {
            Err(error) => assert!(
                !replaces && error.to_string().starts_with(&expected),
                "{error}"
            ),
            Ok(_) => assert!(replaces, "the controller replaced the program"),
        }
    }
    // Now the switch has the controller's program.
    Controller::start(testbed);
}

/// Installs a program as another controller, which then leaves.
async fn install(testbed: &Testbed, program: &Program) {
    let device = Device {
        name: switch_name(0),
        grpc: testbed.grpc()[0].to_string(),
        device_id: device_id(0),
        tls: None,
        packing: Default::default(),
    };
    let other = SwitchClient::connect(device, ELECTION_ID, Duration::from_secs(5)).await;
    let other = other.unwrap_or_else(|error| panic!("{error}"));
    let installed = other.set_pipeline(program).await;
    installed.unwrap_or_else(|error| panic!("{error}"));
}
