//! Fabrics whose switches have a front panel.

use super::*;
use crate::target::{Fec, Speed, TOFINO};

const GOOD: &str = r#"
switches:
  - name: t1
    target: tofino
    ports:
      - { port: 5, breakout: 4x25G, fec: fc }
      - { port: 6/2, speed: 50G, autoneg: true }
  - { name: t2, target: tofino, port_map: wedge100bf-32x-odd, speed: 40G }
hosts:
  - { name: h1, mac: "02:00:00:00:00:01", ip: 10.0.0.1 }
  - { name: h2, mac: "02:00:00:00:00:02", ip: 10.0.0.2 }
  - { name: h3, mac: "02:00:00:00:00:03", ip: 10.0.0.3 }
links:
  - { ends: [h1, t1/1/0] }
  - { ends: [h2, t1/5/3] }
  - { ends: [h3, t2/1/0], a_to_b: { rate: 10G } }
  - { ends: [t1/2/0, t2/2/0] }
"#;

fn at(switch: usize, port: u16) -> SwitchPort {
    SwitchPort {
        switch: SwitchId(switch),
        port: PortNumber(port),
    }
}

fn good() -> Fabric {
    // In `GOOD`, the trunk's ends have different speeds.
    parse(&GOOD.replace("speed: 40G", "speed: 100G"), "f.yaml").unwrap()
}

#[test]
fn front_panel_names_become_device_ports() {
    let fabric = good();
    let attached = |name| fabric.host(fabric.host_named(name).unwrap()).attached;
    // Wedge 100BF-32X: connector 1 is device port 132 with one half of the chip's MACs, 128 with
    // the other.
    assert_eq!(attached("h1"), at(0, 132));
    assert_eq!(attached("h2"), at(0, 164 + 3));
    assert_eq!(attached("h3"), at(1, 128));
    assert_eq!(fabric.across(at(0, 140)), Some(at(1, 136)));
    assert_eq!(fabric.port_name(at(0, 167)), "t1/5/3");
    let t1 = fabric.switch(SwitchId(0));
    assert_eq!(t1.target, &TOFINO);
    assert!(t1.line_rate_queues);
    let settings = |port| {
        let found = t1.panel.as_ref().unwrap().port(PortNumber(port)).unwrap();
        let PortSettings {
            speed,
            fec,
            autoneg,
        } = found.settings;
        (speed, fec, autoneg)
    };
    assert_eq!(settings(132), (Speed::G100, Fec::ReedSolomon, None));
    assert_eq!(settings(165), (Speed::G25, Fec::FireCode, None));
    assert_eq!(settings(174), (Speed::G50, Fec::ReedSolomon, Some(true)));
}

/// A port's speed is its link's rate in both directions, and virtual queues follow from it. This
/// alone does not make the link impaired.
#[test]
fn a_ports_speed_is_its_links_rate() {
    let fabric = good();
    let rate = |port| fabric.wire_out_of(port).unwrap().0.rate;
    assert_eq!(rate(at(0, 132)), Some(100_000_000_000));
    assert_eq!(rate(at(0, 167)), Some(25_000_000_000));
    let [h1, _, h3, trunk] = fabric.links() else {
        panic!("four links");
    };
    assert_eq!(h3.wires[0].rate, Some(10_000_000_000));
    assert_eq!(h3.wires[1].rate, Some(100_000_000_000));
    assert!(!h1.is_impaired() && !trunk.is_impaired() && h3.is_impaired());
    assert_eq!(fabric.trunks()[0].rate, Some(100_000_000_000));
}

#[test]
fn elements_have_the_names_of_the_file() {
    let fabric = good();
    for name in ["t1/1/0", "t1/2/0-t2/2/0", "t2"] {
        let part = fabric.element_named(name).unwrap();
        assert_eq!(fabric.name_of(part), name);
    }
    let error = fabric.element_named("t1/132").unwrap_err().to_string();
    let expected = "unknown element \"t1/132\": switch t1 has no link at port 132; ";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn port_maps_of_unknown_boards_are_accepted() {
    let map = "port_map: { 1: 0, 2: 4, 7: 128 }";
    let text = GOOD.replace("port_map: wedge100bf-32x-odd, speed: 40G", map);
    let fabric = parse(&text, "f.yaml").unwrap();
    assert_eq!(fabric.across(at(0, 140)), Some(at(1, 4)));
}

#[test]
fn invalid_front_panels_give_one_line_errors() {
    let cases = [
        (
            "t1/1/0]",
            "t1/33/0]",
            "f.yaml:14:18: links[0].ends: unknown connector 33; the port map has 1 to 32",
        ),
        (
            "t1/1/0]",
            "t1/132]",
            "f.yaml:14:18: links[0].ends: unknown port \"132\" of t1; ports of target tofino are CONNECTOR/CHANNEL, such as t1/1/0",
        ),
        (
            "t1/1/0]",
            "t1]",
            "f.yaml:14:18: links[0].ends: t1 is a switch; add a port, such as t1/1/0",
        ),
        (
            "t1/1/0]",
            "t1/1/1]",
            "f.yaml:14:18: links[0].ends: invalid channel 1: a port of 100G takes 4 of the connector's 4 lanes, 25G (NRZ) each; use a multiple of 4 below 4",
        ),
        (
            "t1/1/0]",
            "t1/5/4]",
            "f.yaml:14:18: links[0].ends: invalid channel 4: a port of 100G takes 4 of the connector's 4 lanes, 25G (NRZ) each; use a multiple of 4 below 4",
        ),
        (
            "t1/1/0]",
            "t1/6/0]",
            "f.yaml:14:18: links[0].ends: 6/0 overlaps 6/2, which at 50G takes lanes 2 to 3 of connector 6",
        ),
        (
            "t1/1/0]",
            "t1/5/3]",
            "f.yaml:15:18: links[1].ends: port t1/5/3 already has a link, links[0]; use another port",
        ),
        (
            "6/2, speed: 50G",
            "6/1, speed: 50G",
            "f.yaml:7:17: switches[0].ports[1].port: invalid channel 1: a port of 50G takes 2 of the connector's 4 lanes, 25G (NRZ) each; use a multiple of 2 below 4",
        ),
        (
            "6/2, speed: 50G",
            "5/2, speed: 50G",
            "f.yaml:7:17: switches[0].ports[1].port: 5/2 overlaps 5/2, which at 25G takes lanes 2 to 2 of connector 5",
        ),
        (
            "6/2, speed: 50G",
            "6/2, speed: 400G",
            "f.yaml:7:29: switches[0].ports[1].speed: invalid speed \"400G\"; ports of target tofino have 1G, 10G, 25G, 40G, 50G, 100G",
        ),
        (
            "6/2, speed: 50G",
            "six",
            "f.yaml:7:17: switches[0].ports[1].port: invalid front-panel port \"six\"; use CONNECTOR/CHANNEL, such as 1/0, or CONNECTOR for its first port",
        ),
        (
            "4x25G",
            "3x25G",
            "f.yaml:6:30: switches[0].ports[0].breakout: invalid breakout \"3x25G\" of a connector with 4 lanes; use CHANNELSxSPEED, such as 4x25G",
        ),
        (
            "4x25G",
            "4x100G",
            "f.yaml:6:30: switches[0].ports[0].breakout: 4x100G needs more than the connector's 4 lanes: a port of 100G takes 4 lanes of 25G (NRZ) each; use 1x100G",
        ),
        (
            "target: tofino\n    ports:\n      - { port: 5, breakout: 4x25G, fec: fc }",
            "target: tofino2\n    ports:\n      - { port: 5, breakout: 8x50G }",
            "f.yaml:6:30: switches[0].ports[0].breakout: 8x50G needs more than the connector's 8 lanes: a port of 50G takes 2 lanes of 25G (NRZ) each; use 4x50G",
        ),
        (
            "target: tofino\n    ports:\n      - { port: 5, breakout: 4x25G, fec: fc }",
            "target: tofino2\n    ports:\n      - { port: 5, breakout: 4x200G }",
            "f.yaml:6:30: switches[0].ports[0].breakout: 4x200G needs more than the connector's 8 lanes: a port of 200G takes 4 lanes of 50G (PAM4) each; use 2x200G",
        ),
        (
            "4x25G, fec: fc",
            "4x25G, speed: 25G",
            "f.yaml:6:30: switches[0].ports[0].breakout: `breakout` sets the channels' speed; leave `speed` out",
        ),
        (
            "fec: fc",
            "fec: on",
            "f.yaml:6:42: switches[0].ports[0].fec: invalid forward error correction \"on\"; use none, fc (Firecode) or rs (Reed-Solomon)",
        ),
        (
            "4x25G, fec: fc",
            "4x10G, fec: rs",
            "f.yaml:6:17: switches[0].ports[0].port: fec rs is not supported at 10G",
        ),
        (
            "wedge100bf-32x-odd",
            "wedge",
            "f.yaml:8:43: switches[1].port_map: unknown board \"wedge\" for target tofino; known boards: wedge100bf-32x, wedge100bf-32x-odd, wedge100bf-65x; for another board, list the first device port of each connector, such as { 1: 132, 2: 140 }",
        ),
        (
            "wedge100bf-32x-odd",
            "{ 1: 64 }",
            "f.yaml:8:43: switches[1].port_map: connector 1: device port 64 is port 64 of pipe 0, expected a front-panel port, 0 to 63 of each pipe",
        ),
        (
            "wedge100bf-32x-odd",
            "{ 1: 0, 2: 2 }",
            "f.yaml:8:43: switches[1].port_map: connectors 1 and 2 both use device port 2; each needs 4 of its own",
        ),
        (
            "wedge100bf-32x-odd",
            "{}",
            "f.yaml:16:18: links[2].ends: the port map is empty",
        ),
        (
            "speed: 40G",
            "speed: 40G, fec: rs",
            "f.yaml:8:80: switches[1].fec: fec rs is not supported at 40G",
        ),
        (
            "speed: 40G",
            "speed: 40G",
            "f.yaml:17:13: links[3].ends: t1/2/0 has speed 100G, but t2/2/0 has 40G; set both to the same speed",
        ),
        (
            "rate: 10G",
            "rate: 50G",
            "f.yaml:16:13: links[2].a_to_b.rate: rate 50000000000 bit/s exceeds the port's 40G; leave the rate out to use the port's",
        ),
        (
            "target: tofino, port_map: wedge100bf-32x-odd",
            "port_map: wedge100bf-32x-odd",
            "f.yaml:8:27: switches[1].port_map: target v1model has no front panel; leave the field out, or set another target",
        ),
    ];
    for (from, to, line) in cases {
        assert!(GOOD.contains(from), "{from:?} is not in the good file");
        let error = parse(&GOOD.replacen(from, to, 1), "f.yaml").unwrap_err();
        assert_eq!(error.to_string(), line, "with {to:?} for {from:?}");
    }
}
