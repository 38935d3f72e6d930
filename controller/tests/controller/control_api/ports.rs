//! Configuration of ports.

use futures_util::future::{FutureExt, select_all};
use tonic::Code;

use super::{refusal, start};
use crate::target::{Target, on_each_target};

on_each_target!(ports_are_configured_only_on_switches_with_a_front_panel,);

/// v1model has no front panel, and the emulated Tofino here serves no gNMI Set.
async fn ports_are_configured_only_on_switches_with_a_front_panel(target: Target) {
    let (_switch, _handle, client) = start(target).await;
    let (code, said) = refusal(client.configure_ports("s1").await);
    match target.chip() {
        None => assert_eq!(code, Code::FailedPrecondition, "{said}"),
        Some(_) => assert_eq!(code, Code::Aborted, "{said}"),
    }
    assert_eq!(
        refusal(client.configure_ports("s9").await),
        (
            Code::NotFound,
            "unknown switch \"s9\" (the fabric has s1)".into()
        )
    );
}

/// Two concurrent pushes would interfere.
#[tokio::test]
async fn a_switch_receives_its_ports_from_one_request_at_a_time() {
    // A v1model switch has no front panel.
    let (switch, _handle, client) = start(Target::Tofino).await;
    switch.swallow(true);
    let asked: Vec<_> = (0..2)
        .map(|_| client.configure_ports("s1").boxed())
        .collect();
    let (second, _, first) = select_all(asked).await;
    let (code, said) = refusal(second);
    assert_eq!(code, Code::FailedPrecondition, "{said}");
    let taken = "another request is configuring the ports of switch s1";
    assert!(said.starts_with(taken), "{said}");
    switch.swallow(false);
    // The chaos switch serves no gNMI Set.
    for first in first {
        assert_eq!(refusal(first.await).0, Code::Aborted);
    }
    assert_eq!(refusal(client.configure_ports("s1").await).0, Code::Aborted);
}
