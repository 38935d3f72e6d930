//! The digest of the fabric settings that all controllers of a fabric must share.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Fabric, FrontPanel, Host, Link, LinkEnd, Switch, SwitchPort};

impl Fabric {
    /// A digest of the settings that all controllers of a fabric must share, never 0: those that
    /// become entries on switches, choose paths or name elements. Keeps names and the file's order,
    /// because plans depend on both. Excludes how a controller reaches switches (address, TLS),
    /// which may differ, and settings for labs only.
    pub fn digest(&self) -> u64 {
        let switches: Vec<Value> = self.switches.iter().map(switch).collect();
        let hosts: Vec<Value> = self.hosts.iter().map(|it| self.host_settings(it)).collect();
        let links: Vec<Value> = self.links.iter().map(|it| self.link_settings(it)).collect();
        let digest = Sha256::digest(json!([switches, hosts, links]).to_string());
        let first: [u8; 8] = digest[..8].try_into().expect("a digest has 32 bytes");
        u64::from_be_bytes(first).max(1)
    }

    fn host_settings(&self, host: &Host) -> Value {
        let (mac, ip) = (host.mac.to_string(), host.ip.to_string());
        let attached = self.number_of(host.attached);
        json!([host.name, mac, ip, host.ranks, host.udp_port, attached])
    }

    fn link_settings(&self, link: &Link) -> Value {
        let ends = link.ends.map(|end| match end {
            LinkEnd::Host(host) => self.host(host).name.clone(),
            LinkEnd::Port(port) => self.number_of(port),
        });
        let wires = link.wires.each_ref().map(|wire| {
            let delay = wire.delay.as_nanos().to_string();
            json!([wire.rate, delay, wire.queue_bytes, wire.queue_packets])
        });
        json!([ends, link.mtu, wires])
    }

    /// A port's name by its number.
    fn number_of(&self, at: SwitchPort) -> String {
        format!("{}/{}", self.switch(at.switch).name, at.port)
    }
}

fn switch(switch: &Switch) -> Value {
    let ports = switch.panel.iter().flat_map(FrontPanel::ports);
    let ports = ports.map(|(number, port)| {
        let (at, set) = (port.at.to_string(), port.settings);
        json!([
            number.0,
            at,
            set.speed.to_string(),
            set.fec.to_string(),
            set.autoneg
        ])
    });
    let limits = switch.limits;
    json!([
        switch.name,
        switch.target.name,
        switch.device_id,
        [limits.groups, limits.group_replicas, limits.nodes],
        switch.line_rate_queues,
        ports.collect::<Vec<_>>(),
    ])
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
