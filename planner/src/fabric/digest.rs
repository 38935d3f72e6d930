//! The digest of the fabric settings that all controllers of a fabric must share.

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{Fabric, LinkEnd, SwitchPort};

/// The hashed settings: those that become entries on switches, choose paths or name elements.
/// Excludes how a controller reaches switches (address, TLS), which may differ, and settings for
/// labs only. Keeps names and the file's order, because plans depend on both.
#[derive(Serialize)]
struct Canonical<'a> {
    switches: Vec<Switch<'a>>,
    hosts: Vec<Host<'a>>,
    links: Vec<Link>,
}

#[derive(Serialize)]
struct Switch<'a> {
    name: &'a str,
    target: &'a str,
    device_id: u64,
    /// Groups, replicas of a group, nodes.
    limits: [u32; 3],
    line_rate_queues: bool,
    /// Front-panel ports: device port, position, speed, FEC, autonegotiation.
    ports: Vec<(u16, String, String, String, Option<bool>)>,
}

#[derive(Serialize)]
struct Host<'a> {
    name: &'a str,
    mac: String,
    ip: String,
    ranks: u16,
    udp_port: u16,
    attached: String,
}

#[derive(Serialize)]
struct Link {
    ends: [String; 2],
    mtu: u16,
    /// Both directions.
    wires: [Wire; 2],
}

#[derive(Serialize)]
struct Wire {
    rate: Option<u64>,
    delay_ns: u128,
    queue_bytes: u64,
    queue_packets: Option<u32>,
}

impl Fabric {
    /// A digest of the settings that all controllers of a fabric must share, never 0. Files with the
    /// same settings in other words, or with other addresses of switches, have the same digest.
    pub fn digest(&self) -> u64 {
        let text =
            serde_json::to_vec(&self.canonical()).expect("numbers, names and lists of these");
        let digest = Sha256::digest(text);
        let first: [u8; 8] = digest[..8].try_into().expect("a digest has 32 bytes");
        u64::from_be_bytes(first).max(1)
    }

    fn canonical(&self) -> Canonical<'_> {
        let switches = self.switches.iter().map(|switch| Switch {
            name: &switch.name,
            target: switch.target.name,
            device_id: switch.device_id,
            limits: [
                switch.limits.groups,
                switch.limits.group_replicas,
                switch.limits.nodes,
            ],
            line_rate_queues: switch.line_rate_queues,
            ports: (switch.panel.iter().flat_map(|panel| panel.ports()))
                .map(|(number, port)| {
                    let set = port.settings;
                    let (speed, fec) = (set.speed.to_string(), set.fec.to_string());
                    (number.0, port.at.to_string(), speed, fec, set.autoneg)
                })
                .collect(),
        });
        let hosts = self.hosts.iter().map(|host| Host {
            name: &host.name,
            mac: host.mac.to_string(),
            ip: host.ip.to_string(),
            ranks: host.ranks,
            udp_port: host.udp_port,
            attached: self.number_of(host.attached),
        });
        let links = self.links.iter().map(|link| Link {
            ends: link.ends.map(|end| match end {
                LinkEnd::Host(host) => self.host(host).name.clone(),
                LinkEnd::Port(port) => self.number_of(port),
            }),
            mtu: link.mtu,
            wires: link.wires.each_ref().map(|wire| Wire {
                rate: wire.rate,
                delay_ns: wire.delay.as_nanos(),
                queue_bytes: wire.queue_bytes,
                queue_packets: wire.queue_packets,
            }),
        });
        Canonical {
            switches: switches.collect(),
            hosts: hosts.collect(),
            links: links.collect(),
        }
    }

    /// A port's name by its number.
    fn number_of(&self, at: SwitchPort) -> String {
        format!("{}/{}", self.switch(at.switch).name, at.port)
    }
}

#[cfg(test)]
mod tests {
    use crate::fabric;

    const TEXT: &str = r#"
switches:
  - { name: s1, grpc: "10.0.0.1:9559" }
hosts:
  - { name: h1, mac: "02:00:00:00:00:01", ip: 10.1.0.1 }
  - { name: h2, mac: "02:00:00:00:00:02", ip: 10.1.0.2 }
links:
  - { ends: [h1, s1/1], rate: 10G }
  - { ends: [h2, s1/2] }
"#;

    fn digest_with(was: &str, is: &str) -> u64 {
        assert!(TEXT.contains(was));
        let text = TEXT.replace(was, is);
        fabric::parse(&text, "fabric.yaml").unwrap().digest()
    }

    #[test]
    fn equivalent_files_have_the_same_digest() {
        let as_it_is = digest_with("", "");
        for (was, is) in [
            ("10.0.0.1:9559", "127.0.0.1:9559"),
            ("rate: 10G", "rate: 10000M"),
            ("switches:", "# One more word.\nswitches:"),
            ("h1, mac:", "h1, ranks: 1, mac:"),
            ("[h2, s1/2]", "[h2, s1/2], loss: 0.5"),
        ] {
            assert_eq!(digest_with(was, is), as_it_is, "{is}");
        }
        for (was, is) in [
            ("s1/2", "s1/3"),
            ("rate: 10G", "rate: 25G"),
            ("10.1.0.2", "10.1.0.3"),
            ("h2", "h3"),
            ("10.0.0.1:9559\"", "10.0.0.1:9559\", limits: { groups: 7 }"),
            ("[h2, s1/2]", "[h2, s1/2], mtu: 9000"),
        ] {
            assert_ne!(digest_with(was, is), as_it_is, "{is}");
        }
        assert_ne!(as_it_is, 0);
    }
}
