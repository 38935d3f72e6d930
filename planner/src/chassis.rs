//! A switch's port configuration for its own software: Stratum's chassis configuration, or commands
//! for the SDE's shell. Both are derived from the fabric's file, so that ports are configured in
//! one place only.

use std::fmt::Write as _;

use ultima_p4runtime::stratum::{
    AdminState, Chassis, ChassisConfig, FecMode, Node, Platform, PortConfigParams, SingletonPort,
    TriState,
};

use crate::fabric::{FrontPanel, FrontPort, Switch};
use crate::target::{Fec, ProgramForm, Speed};

/// A reason why a switch's port configuration cannot be derived.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChassisError(String);

/// The slot number of a switch with one slot.
const SLOT: i32 = 1;

/// Stratum's chassis configuration of a switch: all ports that have links or settings in the
/// fabric's file, enabled. The node's id is P4Runtime's device id; gNMI names ports as the fabric's
/// file does.
///
/// # Errors
/// The switch has no front panel, or Stratum does not support a port's settings.
pub fn stratum(switch: &Switch) -> Result<ChassisConfig, ChassisError> {
    let panel = panel(switch)?;
    let port = |port: &FrontPort| singleton_port(switch, panel, port);
    Ok(ChassisConfig {
        description: format!("Ultima's fabric: switch {}", switch.name),
        chassis: Some(Chassis {
            platform: platform(switch).into(),
            name: switch.name.clone(),
        }),
        nodes: vec![Node {
            id: switch.device_id,
            name: switch.name.clone(),
            slot: SLOT,
            index: 1,
        }],
        singleton_ports: in_order(panel).map(port).collect::<Result<_, _>>()?,
    })
}

/// Commands for the SDE's shell (`bfshell -f`) that add and enable the same ports.
///
/// # Errors
/// The switch has no front panel.
pub fn ucli(switch: &Switch) -> Result<String, ChassisError> {
    let mut text = String::from("ucli\npm\n");
    for FrontPort { at, settings, .. } in in_order(panel(switch)?) {
        let fec = match settings.fec {
            Fec::Off => "NONE",
            Fec::FireCode => "FC",
            Fec::ReedSolomon => "RS",
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "port-add {at} {} {fec}", settings.speed);
        if let Some(autoneg) = settings.autoneg {
            let policy = if autoneg { 1 } else { 2 };
            let _ = writeln!(text, "an-set {at} {policy}");
        }
        let _ = writeln!(text, "port-enb {at}");
    }
    text.push_str("exit\nexit\n");
    Ok(text)
}

/// Ports in the front panel's order, not the chip's.
fn in_order(panel: &FrontPanel) -> impl Iterator<Item = &FrontPort> {
    let mut ports: Vec<&FrontPort> = panel.ports().map(|(_, port)| port).collect();
    ports.sort_by_key(|port| port.at);
    ports.into_iter()
}

fn panel(switch: &Switch) -> Result<&FrontPanel, ChassisError> {
    switch.panel.as_ref().ok_or_else(|| {
        ChassisError(format!(
            "switch {}: target {} has no front panel to configure; set its ports when you start the switch",
            switch.name, switch.target.name
        ))
    })
}

fn platform(switch: &Switch) -> Platform {
    match switch.target.program {
        ProgramForm::Tofino2 => Platform::PltGenericBarefootTofino2,
        ProgramForm::Tofino | ProgramForm::Bmv2 => Platform::PltGenericBarefootTofino,
    }
}

fn singleton_port(
    switch: &Switch,
    panel: &FrontPanel,
    port: &FrontPort,
) -> Result<SingletonPort, ChassisError> {
    let FrontPort { at, settings, .. } = *port;
    let speed = settings.speed;
    let name = format!("port {}/{at}", switch.name);
    if speed > Speed::G100 {
        return Err(ChassisError(format!(
            "{name}: Stratum does not support speed {speed} (at most 100G); use the ucli commands instead"
        )));
    }
    let fec = settings.fec;
    let known = stratum_fec(speed);
    if fec != Fec::Off && fec != known {
        return Err(ChassisError(format!(
            "{name}: Stratum does not support fec {fec} at {speed}; set fec to {known} or none, or use the ucli commands instead"
        )));
    }
    // Stratum's port number is the connector, or for a channel 100 × connector + channel from 1.
    let channel = match port.is_channel(panel.kind()) {
        true => i32::from(at.channel) + 1,
        false => 0,
    };
    let connector = u32::from(at.connector);
    Ok(SingletonPort {
        id: match channel {
            0 => connector,
            channel => connector * 100 + channel.unsigned_abs(),
        },
        name: at.to_string(),
        slot: SLOT,
        port: at.connector.into(),
        channel,
        speed_bps: speed.bits_per_second(),
        config_params: Some(PortConfigParams {
            admin_state: AdminState::Enabled.into(),
            autoneg: match settings.autoneg {
                None => TriState::Unknown,
                Some(true) => TriState::True,
                Some(false) => TriState::False,
            }
            .into(),
            fec_mode: match fec {
                Fec::Off => FecMode::Off,
                Fec::FireCode | Fec::ReedSolomon => FecMode::On,
            }
            .into(),
        }),
        node: switch.device_id,
    })
}

/// The error correction that Stratum enables at this speed (`FecModeHalToBf` in
/// `bf_sde_wrapper.cc`).
fn stratum_fec(speed: Speed) -> Fec {
    match speed {
        Speed::G1 => Fec::Off,
        Speed::G10 | Speed::G40 => Fec::FireCode,
        _ => Fec::ReedSolomon,
    }
}

#[cfg(test)]
mod tests {
    use ultima_p4runtime::text;

    use super::*;
    use crate::fabric::{self, SwitchId};

    const FABRIC: &str = r#"
switches:
  - name: t1
    target: tofino
    device_id: 7
    ports:
      - { port: 5, breakout: 2x50G, autoneg: true }
      - { port: 6, speed: 40G, fec: fc, autoneg: false }
hosts:
  - { name: h1, mac: "02:00:00:00:00:01", ip: 10.0.0.1 }
  - { name: h2, mac: "02:00:00:00:00:02", ip: 10.0.0.2 }
links:
  - { ends: [h1, t1/16/0] }
  - { ends: [h2, t1/5/2] }
"#;

    fn switch(text: &str) -> Switch {
        let fabric = fabric::parse(text, "f.yaml").unwrap();
        fabric.switch(SwitchId(0)).clone()
    }

    /// The expected text is a chassis configuration as written by hand.
    #[test]
    fn stratum_gets_the_fabric_s_ports() {
        let expected = r#"
            description: "Ultima's fabric: switch t1"
            chassis { platform: PLT_GENERIC_BAREFOOT_TOFINO name: "t1" }
            nodes { id: 7 name: "t1" slot: 1 index: 1 }
            singleton_ports {
              id: 501 name: "5/0" slot: 1 port: 5 channel: 1 speed_bps: 50000000000 node: 7
              config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_TRUE fec_mode: FEC_MODE_ON }
            }
            singleton_ports {
              id: 503 name: "5/2" slot: 1 port: 5 channel: 3 speed_bps: 50000000000 node: 7
              config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_TRUE fec_mode: FEC_MODE_ON }
            }
            singleton_ports {
              id: 6 name: "6/0" slot: 1 port: 6 speed_bps: 40000000000 node: 7
              config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_FALSE fec_mode: FEC_MODE_ON }
            }
            singleton_ports {
              id: 16 name: "16/0" slot: 1 port: 16 speed_bps: 100000000000 node: 7
              config_params { admin_state: ADMIN_STATE_ENABLED fec_mode: FEC_MODE_ON }
            }"#;
        let expected: ChassisConfig = text::parse(expected).unwrap();
        let chassis = stratum(&switch(FABRIC)).unwrap();
        assert_eq!(chassis, expected);
        assert_eq!(text::parse(&text::print(&chassis)), Ok(chassis));
    }

    #[test]
    fn ucli_gets_the_same_ports() {
        let expected = "ucli\npm\n\
            port-add 5/0 50G RS\nan-set 5/0 1\nport-enb 5/0\n\
            port-add 5/2 50G RS\nan-set 5/2 1\nport-enb 5/2\n\
            port-add 6/0 40G FC\nan-set 6/0 2\nport-enb 6/0\n\
            port-add 16/0 100G RS\nport-enb 16/0\n\
            exit\nexit\n";
        assert_eq!(ucli(&switch(FABRIC)).unwrap(), expected);
    }

    #[test]
    fn settings_unknown_to_stratum_are_rejected() {
        let line = |from: &str, to: &str| {
            let switch = switch(&FABRIC.replace(from, to));
            stratum(&switch).unwrap_err().to_string()
        };
        assert_eq!(
            line("2x50G", "2x50G, fec: fc"),
            "port t1/5/0: Stratum does not support fec fc at 50G; set fec to rs or none, or use the ucli commands instead"
        );
        let tofino2 = FABRIC
            .replace("tofino", "tofino2")
            .replace("2x50G", "2x200G");
        let tofino2 = switch(&tofino2.replace("t1/5/2", "t1/5/4"));
        assert_eq!(
            stratum(&tofino2).unwrap_err().to_string(),
            "port t1/5/0: Stratum does not support speed 200G (at most 100G); use the ucli commands instead"
        );
        assert!(ucli(&tofino2).unwrap().contains("port-add 5/4 200G RS\n"));
        let v1model = switch(include_str!("../../topologies/star4.yaml"));
        assert_eq!(
            ucli(&v1model).unwrap_err().to_string(),
            "switch s1: target v1model has no front panel to configure; set its ports when you start the switch"
        );
    }
}
