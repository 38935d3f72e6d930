use super::*;

const GOOD: &str = r#"
switches:
  - { name: s1, target: v1model, grpc: "127.0.0.1:9559", device_id: 1 }
  - { name: s2, target: v1model, grpc: "127.0.0.1:9560", device_id: 1, limits: { group_replicas: 64 } }
hosts:
  - { name: h1, mac: "02:00:00:00:00:01", ip: 10.0.0.1, ranks: 2 }
  - { name: h2, mac: "02:00:00:00:00:02", ip: 10.0.0.2, udp_port: 7000 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [s2/1, h2] }
  - { ends: [s1/9, s2/8] }
"#;

#[test]
fn a_good_file_becomes_a_fabric() {
    let fabric = parse(GOOD, "good.yaml").unwrap();
    let [s1, s2] = [SwitchId(0), SwitchId(1)];
    assert_eq!(fabric.switch(s1).limits, fabric.switch(s1).target.limits);
    assert_eq!(fabric.switch(s2).limits.group_replicas, 64);
    assert_eq!(
        fabric.switch(s2).limits.groups,
        fabric.switch(s2).target.limits.groups
    );

    let (h1, h2) = (
        fabric.host_named("h1").unwrap(),
        fabric.host_named("h2").unwrap(),
    );
    assert_eq!(fabric.host(h1).ranks, 2);
    assert_eq!(fabric.host(h1).udp_port, ultima_wire::UDP_PORT);
    assert_eq!(fabric.host(h2).udp_port, 7000);
    assert_eq!(
        fabric.host(h2).attached,
        SwitchPort {
            switch: s2,
            port: PortNumber(1)
        }
    );
    assert_eq!(fabric.port_toward(s1, h1), PortNumber(1));
    assert_eq!(fabric.port_toward(s1, h2), PortNumber(9));
    assert_eq!(fabric.port_toward(s2, h1), PortNumber(8));
}

#[test]
fn the_topologies_that_ship_are_fabrics() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies");
    for (file, switches, hosts) in [("star4.yaml", 1, 4), ("two-switches.yaml", 2, 4)] {
        let fabric = load(&folder.join(file)).unwrap();
        assert_eq!(
            (fabric.switches().len(), fabric.hosts().len()),
            (switches, hosts),
            "{file}"
        );
    }
}

/// The whole line that `GOOD` gives with `from` replaced by `to`.
fn line_for(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from:?} is not in the good file");
    parse(&GOOD.replacen(from, to, 1), "f.yaml")
        .unwrap_err()
        .to_string()
}

#[test]
fn each_bad_file_gives_its_one_line() {
    let cases = [
        (
            "ranks: 2",
            "rank: 2",
            "f.yaml:6:57: unknown field `rank`, expected one of name, mac, ip, ranks, udp_port",
        ),
        ("ranks: 2", "ranks: two", "f.yaml:6:64: invalid u16"),
        (
            ", device_id: 1 }",
            " }",
            "f.yaml:3:34: missing field `device_id`",
        ),
        (
            "name: s2",
            "name: s1",
            "f.yaml:4:13: switches[1].name: s1 is the name of switches[0] already; names are unique among switches and hosts",
        ),
        (
            "name: h2",
            "name: s1",
            "f.yaml:7:13: hosts[1].name: s1 is the name of switches[0] already; names are unique among switches and hosts",
        ),
        (
            "name: h2",
            "name: a/b",
            "f.yaml:7:13: hosts[1].name: \"a/b\" is no name; one has 1 to 63 letters, digits, '-', '_' or '.' and starts with a letter or digit",
        ),
        (
            "v1model",
            "v2model",
            "f.yaml:3:25: switches[0].target: no target is called \"v2model\"; known: v1model",
        ),
        (
            "\"127.0.0.1:9559\"",
            "localhost",
            "f.yaml:3:40: switches[0].grpc: \"localhost\" is no address of a P4Runtime server; one is HOST:PORT, such as 127.0.0.1:9559",
        ),
        (
            "device_id: 1",
            "device_id: 0",
            "f.yaml:3:69: switches[0].device_id: device_id 0 means none in P4Runtime; use the switch's own, 1 or above",
        ),
        (
            "9560",
            "9559",
            "f.yaml:4:69: switches[1].device_id: device 1 at 127.0.0.1:9559 is s1 already; every switch is its own device",
        ),
        (
            "group_replicas: 64",
            "group_replicas: 5000",
            "f.yaml:4:98: switches[1].limits.group_replicas: 5000 is out of range; target v1model takes 1 to 1024",
        ),
        (
            "02:00:00:00:00:02",
            "02:00:00:00:02",
            "f.yaml:7:22: hosts[1].mac: \"02:00:00:00:02\" is not a MAC address; one is six octets in hexadecimal, such as 02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:02",
            "03:00:00:00:00:02",
            "f.yaml:7:22: hosts[1].mac: 03:00:00:00:00:02 cannot be a host's; its lowest bit of the first octet must be 0, such as 02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:02",
            "02:00:00:00:00:01",
            "f.yaml:7:22: hosts[1].mac: 02:00:00:00:00:01 is h1's already; every host has its own",
        ),
        (
            "10.0.0.2",
            "10.0.2",
            "f.yaml:7:47: hosts[1].ip: \"10.0.2\" is no IPv4 address; one is written 10.0.0.1",
        ),
        (
            "10.0.0.2",
            "239.85.0.1",
            "f.yaml:7:47: hosts[1].ip: 239.85.0.1 cannot be a host's; use a unicast address that is not loopback, such as 10.0.0.1",
        ),
        (
            "10.0.0.2",
            "10.0.0.1",
            "f.yaml:7:47: hosts[1].ip: 10.0.0.1 is h1's already; every host has its own",
        ),
        (
            "ranks: 2",
            "ranks: 0",
            "f.yaml:6:64: hosts[0].ranks: 0 ranks make no member; give 1 or more, or leave the host out",
        ),
        (
            "ranks: 2",
            "ranks: 2, udp_port: 65535",
            "f.yaml:6:77: hosts[0].udp_port: 2 ranks from UDP port 65535 would end above 65535; start at 1 to 65534",
        ),
        (
            "[h1, s1/1]",
            "[h1]",
            "f.yaml:9:13: links[0].ends: a link has 2 ends, not 1; write [h1, s1/1] or [s1/9, s2/9]",
        ),
        (
            "[h1, s1/1]",
            "[h9, s1/1]",
            "f.yaml:9:14: links[0].ends: no switch or host is called \"h9\"; ends are a host's name or SWITCH/PORT",
        ),
        (
            "[h1, s1/1]",
            "[h1, s1]",
            "f.yaml:9:18: links[0].ends: s1 is a switch; say which port, such as s1/1",
        ),
        (
            "[h1, s1/1]",
            "[h1/1, s1/1]",
            "f.yaml:9:14: links[0].ends: h1 is a host, which has one link; write h1 without a port",
        ),
        (
            "[h1, s1/1]",
            "[h1, s1/511]",
            "f.yaml:9:18: links[0].ends: \"511\" is no port of s1; target v1model has 1 to 510",
        ),
        (
            "[h1, s1/1]",
            "[h1, s1/0]",
            "f.yaml:9:18: links[0].ends: \"0\" is no port of s1; target v1model has 1 to 510",
        ),
        (
            "[s1/9, s2/8]",
            "[s1/1, s2/8]",
            "f.yaml:11:14: links[2].ends: port s1/1 has a link already, links[0]; a port takes one",
        ),
        (
            "[s1/9, s2/8]",
            "[h1, s2/8]",
            "f.yaml:11:14: links[2].ends: host h1 has a link already, links[0]; a host takes one",
        ),
        (
            "[s2/1, h2]",
            "[h2, h2]",
            "f.yaml:10:13: links[1].ends: h2 and h2 are both hosts; link each to a switch's port, such as [h2, s1/1]",
        ),
        (
            "[s1/9, s2/8]",
            "[s1/9, s1/8]",
            "f.yaml:11:13: links[2].ends: both ends are at s1; a trunk joins two switches",
        ),
        (
            "  - { ends: [h1, s1/1] }\n",
            "",
            "f.yaml:6:13: hosts[0]: host h1 is on no port; add a link such as [h1, s1/1]",
        ),
        (
            "  - { ends: [s1/9, s2/8] }\n",
            "",
            "f.yaml:4:13: switches[1]: no links lead from s1 to s2; add a trunk such as [s1/9, s2/9]",
        ),
    ];
    for (from, to, line) in cases {
        assert_eq!(line_for(from, to), line, "with {to:?} for {from:?}");
    }
}

#[test]
fn text_that_is_no_fabric_gives_one_line_too() {
    for text in [
        "",
        "switches: [",
        "- 1\n- 2",
        "switches: []\nhosts: []\nlinks: []",
        "\u{0}",
    ] {
        let line = parse(text, "f.yaml").unwrap_err().to_string();
        assert!(
            line.starts_with("f.yaml") && !line.contains('\n'),
            "{text:?} gives {line:?}"
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let line = load(Path::new("no/such/fabric.yaml"))
        .unwrap_err()
        .to_string();
    assert!(
        line.starts_with("cannot read no/such/fabric.yaml: "),
        "{line}"
    );
}
