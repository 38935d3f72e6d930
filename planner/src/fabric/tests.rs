use super::file::MOST_SWITCHES;
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
fn valid_files_become_fabrics() {
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
    let port = |switch, port| SwitchPort {
        switch,
        port: PortNumber(port),
    };
    assert_eq!(fabric.across(port(s1, 9)), Some(port(s2, 8)));
    assert_eq!(fabric.across(port(s2, 8)), Some(port(s1, 9)));
    assert_eq!(fabric.across(port(s1, 1)), None);
}

#[test]
fn shipped_topologies_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies");
    for (file, switches, hosts, impaired) in [
        ("star4.yaml", 1, 4, 0),
        ("star16.yaml", 1, 16, 16),
        ("two-switches.yaml", 2, 4, 0),
        ("dumbbell.yaml", 2, 6, 1),
        ("leaf-spine.yaml", 6, 8, 8),
        ("tofino32.yaml", 1, 32, 31),
        ("tofino32-pair.yaml", 2, 48, 52),
    ] {
        let fabric = load(&folder.join(file)).unwrap();
        let links = fabric.links().iter();
        assert_eq!(
            (
                fabric.switches().len(),
                fabric.hosts().len(),
                links.filter(|link| link.is_impaired()).count()
            ),
            (switches, hosts, impaired),
            "{file}"
        );
    }
}

#[test]
fn switch_defaults_follow_from_the_order() {
    let (name, text) = (
        "f.yaml",
        GOOD.replace(
            ", target: v1model, grpc: \"127.0.0.1:9560\", device_id: 1",
            "",
        ),
    );
    let fabric = parse(&text, name).unwrap();
    let s2 = &fabric.switches()[1];
    assert_eq!(
        (s2.target.name, s2.grpc.as_str(), s2.device_id),
        ("v1model", "127.0.0.1:9560", 2)
    );
}

#[test]
fn a_link_has_a_wire_for_each_direction() {
    let link = "[s1/9, s2/8], mtu: 9000, rate: 1G, delay: 50us, loss: [0.001, 0.01:8], \
                a_to_b: { rate: 500M, queue_packets: 65 }, b_to_a: { loss: none, ecn: packets:20 }";
    let fabric = parse(&GOOD.replace("[s1/9, s2/8]", link), "f.yaml").unwrap();
    let port = |switch, port| SwitchPort {
        switch: SwitchId(switch),
        port: PortNumber(port),
    };
    let wire = |port| fabric.wire_out_of(port).map(|(wire, _)| wire.to_string());
    let rest = "jitter=none,reorder=false";
    assert_eq!(
        wire(port(0, 9)).unwrap(),
        format!(
            "rate=500M,packet-rate=none,background=none,delay=50us,{rest},loss=0.001,loss=0.01:8,queue=1M,queue-packets=65,ecn=none"
        )
    );
    assert_eq!(
        wire(port(1, 8)).unwrap(),
        format!(
            "rate=1G,packet-rate=none,background=none,delay=50us,{rest},loss=none,queue=1M,queue-packets=none,ecn=packets:20"
        )
    );
    assert_eq!(
        fabric.wire_out_of(port(0, 1)),
        Some((&WireConfig::default(), 1500))
    );
    assert_eq!(fabric.wire_out_of(port(0, 2)), None);
    let [h1, .., trunk] = fabric.links() else {
        panic!("three links");
    };
    assert_eq!((h1.mtu, trunk.mtu), (DEFAULT_MTU, 9000));
    assert!(trunk.is_impaired() && !h1.is_impaired());
    assert_eq!(
        h1.ends,
        [LinkEnd::Host(HostId(0)), LinkEnd::Port(port(0, 1))]
    );
}

#[test]
fn traffic_runs_between_hosts() {
    let traffic =
        "traffic:\n  - { from: h1, to: h2, rate: 30M }\n  - { from: h2, to: h1, protocol: tcp }\n";
    let fabric = parse(&format!("{GOOD}{traffic}"), "f.yaml").unwrap();
    let [h1, h2] = [HostId(0), HostId(1)];
    let udp = FlowKind::Udp { rate: 30_000_000 };
    let flow = |from, to, kind| Flow { from, to, kind };
    assert_eq!(
        fabric.traffic(),
        [flow(h1, h2, udp), flow(h2, h1, FlowKind::Tcp)]
    );
}

const TRUNK: &str = "[s1/9, s2/8]";
const LINK_CASES: [(&str, &str, &str); 6] = [
    (
        TRUNK,
        "[s1/9, s2/8], rate: fast",
        "f.yaml:11:33: links[2].rate: expected bits per second, more than 0, such as 100000000, 100M or 2.5G",
    ),
    (
        TRUNK,
        "[s1/9, s2/8], loss: [0.1, 2]",
        "f.yaml:11:33: links[2].loss: loss probability 2: expected at least 0 and at most 1 (below 1 for bursts)",
    ),
    (
        TRUNK,
        "[s1/9, s2/8], a_to_b: { speed: 1G }",
        "f.yaml:11:44: links[2].a_to_b.speed: unknown setting `speed`: expected one of rate, packet-rate, background, delay, jitter, reorder, loss, queue, queue-packets, ecn",
    ),
    (
        TRUNK,
        "[s1/9, s2/8], rate: 100G, b_to_a: { delay: 2s }",
        "f.yaml:11:13: links[2].b_to_a: rate 100G over a delay of 2s: 25000000000 bytes in flight, expected at most 1073741824",
    ),
    (
        TRUNK,
        "[s1/9, s2/8], mtu: 100",
        "f.yaml:11:32: links[2].mtu: MTU 100 is out of range; use 576 to 9216 bytes",
    ),
    (
        TRUNK,
        "[s1/9, s2/8], mtu: 70000",
        "f.yaml:11:32: links[2].mtu: MTU 70000 is out of range; use 576 to 9216 bytes",
    ),
];
const LAST: &str = "[s1/9, s2/8] }\n";
const TRAFFIC_CASES: [(&str, &str, &str); 5] = [
    (
        LAST,
        "[s1/9, s2/8] }\ntraffic:\n  - { from: h1, to: s2, rate: 1M }\n",
        "f.yaml:13:21: traffic[0].to: unknown host \"s2\"; traffic runs between two hosts",
    ),
    (
        LAST,
        "[s1/9, s2/8] }\ntraffic:\n  - { from: h1, to: h1, rate: 1M }\n",
        "f.yaml:13:21: traffic[0].to: traffic from h1 to itself crosses no link; name another host",
    ),
    (
        LAST,
        "[s1/9, s2/8] }\ntraffic:\n  - { from: h1, to: h2 }\n",
        "f.yaml:13:13: traffic[0]: UDP traffic needs a rate, such as 40M",
    ),
    (
        LAST,
        "[s1/9, s2/8] }\ntraffic:\n  - { from: h1, to: h2, rate: much }\n",
        "f.yaml:13:31: traffic[0].rate: expected bits per second, more than 0, such as 100000000, 100M or 2.5G",
    ),
    (
        LAST,
        "[s1/9, s2/8] }\ntraffic:\n  - { from: h1, to: h2, protocol: tcp, rate: 1M }\n",
        "f.yaml:13:46: traffic[0].rate: TCP has no fixed rate; leave `rate` out, or use udp",
    ),
];

/// The error line for `GOOD` with `from` replaced by `to`.
fn line_for(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from:?} is not in the good file");
    parse(&GOOD.replacen(from, to, 1), "f.yaml")
        .unwrap_err()
        .to_string()
}

#[test]
fn invalid_fabrics_give_one_line_errors() {
    let cases = [
        (
            "ranks: 2",
            "rank: 2",
            "f.yaml:6:57: hosts[0]: unknown field `rank`, expected one of name, mac, ip, ranks, udp_port",
        ),
        (
            "ranks: 2",
            "ranks: two",
            "f.yaml:6:64: hosts[0].ranks: expected a whole number from 0 to 65535",
        ),
        (
            ", ip: 10.0.0.1,",
            ",",
            "f.yaml:6:43: hosts[0]: missing field `ip`",
        ),
        (
            "name: s2",
            "name: s1",
            "f.yaml:4:13: switches[1].name: duplicate name s1, first used by switches[0]; names are unique among switches and hosts",
        ),
        (
            "name: h2",
            "name: s1",
            "f.yaml:7:13: hosts[1].name: duplicate name s1, first used by switches[0]; names are unique among switches and hosts",
        ),
        (
            "name: h2",
            "name: a/b",
            "f.yaml:7:13: hosts[1].name: invalid name \"a/b\"; use 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit",
        ),
        (
            "v1model",
            "v2model",
            "f.yaml:3:25: switches[0].target: unknown target \"v2model\"; known targets: v1model, tofino, tofino2",
        ),
        (
            "\"127.0.0.1:9559\"",
            "localhost",
            "f.yaml:3:40: switches[0].grpc: invalid address \"localhost\"; use HOST:PORT of the P4Runtime server, such as 127.0.0.1:9559",
        ),
        (
            "device_id: 1",
            "device_id: 0",
            "f.yaml:3:69: switches[0].device_id: device_id 0 is reserved in P4Runtime; use the switch's id, 1 or above",
        ),
        (
            "9560",
            "9559",
            "f.yaml:4:69: switches[1].device_id: duplicate device 1 at 127.0.0.1:9559, first used by s1; give each switch its own",
        ),
        (
            "group_replicas: 64",
            "group_replicas: 5000",
            "f.yaml:4:98: switches[1].limits.group_replicas: 5000 is out of range; target v1model takes 1 to 1024",
        ),
        (
            "02:00:00:00:00:02",
            "02:00:00:00:02",
            "f.yaml:7:22: hosts[1].mac: \"02:00:00:00:02\": invalid MAC address; expected six hexadecimal octets, such as 02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:02",
            "03:00:00:00:00:02",
            "f.yaml:7:22: hosts[1].mac: 03:00:00:00:00:02 is not a unicast address; use one with an even first octet that is not all zeros, such as 02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:02",
            "02:00:00:00:00:01",
            "f.yaml:7:22: hosts[1].mac: duplicate MAC address 02:00:00:00:00:01, first used by h1; give each host its own",
        ),
        (
            "10.0.0.2",
            "10.0.2",
            "f.yaml:7:47: hosts[1].ip: invalid IPv4 address \"10.0.2\"; use dotted decimal, such as 10.0.0.1",
        ),
        (
            "10.0.0.2",
            "239.85.0.1",
            "f.yaml:7:47: hosts[1].ip: 239.85.0.1 is not a host's address; use a unicast address that is not loopback, such as 10.0.0.1",
        ),
        (
            "10.0.0.2",
            "10.0.0.1",
            "f.yaml:7:47: hosts[1].ip: duplicate IPv4 address 10.0.0.1, first used by h1; give each host its own",
        ),
        (
            "ranks: 2",
            "ranks: 0",
            "f.yaml:6:64: hosts[0].ranks: 0 ranks; use 1 or more, or leave the host out",
        ),
        (
            "ranks: 2",
            "ranks: 2, udp_port: 65535",
            "f.yaml:6:77: hosts[0].udp_port: 2 ranks from UDP port 65535 end above 65535; start at 1 to 65534",
        ),
        (
            "[h1, s1/1]",
            "[h1]",
            "f.yaml:9:13: links[0].ends: 1 ends; a link has 2, such as [h1, s1/1] or [s1/9, s2/9]",
        ),
        (
            "[h1, s1/1]",
            "[h9, s1/1]",
            "f.yaml:9:14: links[0].ends: unknown end \"h9\"; use a host's name, or SWITCH/PORT",
        ),
        (
            "[h1, s1/1]",
            "[h1, s1]",
            "f.yaml:9:18: links[0].ends: s1 is a switch; add a port, such as s1/1",
        ),
        (
            "[h1, s1/1]",
            "[h1/1, s1/1]",
            "f.yaml:9:14: links[0].ends: h1 is a host; write h1 without a port",
        ),
        (
            "[h1, s1/1]",
            "[h1, s1/511]",
            "f.yaml:9:18: links[0].ends: unknown port \"511\" of s1; target v1model has 1 to 509",
        ),
        (
            "[h1, s1/1]",
            "[h1, s1/0]",
            "f.yaml:9:18: links[0].ends: unknown port \"0\" of s1; target v1model has 1 to 509",
        ),
        (
            "[s1/9, s2/8]",
            "[s1/1, s2/8]",
            "f.yaml:11:14: links[2].ends: port s1/1 already has a link, links[0]; use another port",
        ),
        (
            "[s1/9, s2/8]",
            "[h1, s2/8]",
            "f.yaml:11:14: links[2].ends: host h1 already has a link, links[0]; a host has one link",
        ),
        (
            "[s2/1, h2]",
            "[h2, h2]",
            "f.yaml:10:13: links[1].ends: h2 and h2 are both hosts; link each to a switch's port, such as [h2, s1/1]",
        ),
        (
            "[s1/9, s2/8]",
            "[s1/9, s1/8]",
            "f.yaml:11:13: links[2].ends: both ends are on s1; a trunk joins two switches",
        ),
        (
            "  - { ends: [h1, s1/1] }\n",
            "",
            "f.yaml:6:13: hosts[0]: host h1 has no link; add one such as [h1, s1/1]",
        ),
        (
            "  - { ends: [s1/9, s2/8] }\n",
            "",
            "f.yaml:4:13: switches[1]: no path leads from s1 to s2; add a trunk such as [s1/9, s2/9]",
        ),
    ];
    let cases = cases.into_iter().chain(LINK_CASES).chain(TRAFFIC_CASES);
    for (from, to, line) in cases {
        assert_eq!(line_for(from, to), line, "with {to:?} for {from:?}");
    }
}

#[test]
fn other_texts_give_one_line_errors() {
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
fn the_number_of_switches_is_limited() {
    let switches = (0..=MOST_SWITCHES).map(|at| format!("  - {{ name: s{at} }}\n"));
    let switches: String = switches.collect();
    let text = format!("switches:\n{switches}hosts: []\nlinks: []\n");
    assert_eq!(
        parse(&text, "f.yaml").unwrap_err().to_string(),
        "f.yaml:2:3: switches: 1025 switches; a fabric has at most 1024"
    );
}

#[test]
fn missing_files_are_named() {
    let line = load(Path::new("no/such/fabric.yaml"))
        .unwrap_err()
        .to_string();
    assert!(
        line.starts_with("cannot read no/such/fabric.yaml: "),
        "{line}"
    );
}
