//! Adding and removing ports while a switch forwards.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::served::common::{DEVICE, Peer, Testbed, accounted, base_config, packets, probe};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use pcap_file::pcap::PcapReader;
use tonic::Code;
use tonic::transport::Channel;
use ultima_switch::proto::port_control_client::PortControlClient;
use ultima_switch::proto::{AddPortRequest, Port, RemovePortRequest};
use ultima_switch::{SwitchConfig, WireConfig};

const DST: u64 = 0x0200_0000_0003;

struct PortControl(PortControlClient<Channel>);

impl PortControl {
    async fn connect(testbed: &Testbed) -> PortControl {
        let address = format!("http://{}", testbed.switch.grpc_addr());
        PortControl(PortControlClient::connect(address).await.expect("connects"))
    }

    async fn add(&mut self, number: u32, attachment: &str, rate: Option<u64>) -> Result<(), Code> {
        let settings = rate.map_or_else(String::new, |rate| format!("rate={rate}"));
        let request = AddPortRequest {
            device_id: DEVICE,
            number,
            attachment: attachment.to_owned(),
            settings,
        };
        let answer = self.0.add(request).await;
        answer.map(|_| ()).map_err(|status| status.code())
    }

    async fn remove(&mut self, number: u32) -> Result<Port, Code> {
        let request = RemovePortRequest {
            device_id: 0,
            number,
        };
        let answer = self.0.remove(request).await;
        let port = answer.map_err(|status| status.code())?.into_inner().port;
        Ok(port.expect("a removed port's counts"))
    }
}

/// A peer that connects to a port's socket.
fn connected_to(path: &Path) -> Peer {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket: OwnedFd =
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(path).expect("a short path");
    connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).expect("the port listens");
    Peer::new(socket)
}

#[tokio::test]
async fn a_port_is_added_removed_and_added_again() {
    let testbed = Testbed::new(2).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(DST, 3).into()])
        .await;
    let mut control = PortControl::connect(&testbed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("3.sock");
    let attachment = format!("unix:{}", path.display());

    for round in 0..2 {
        control.add(3, &attachment, None).await.expect("added");
        assert_eq!(
            control.add(3, &attachment, None).await,
            Err(Code::AlreadyExists)
        );
        let peer = connected_to(&path);
        let frame = probe(DST, 0, round, 64);
        testbed.peers[&1].send(&frame);
        assert_eq!(peer.receive(), frame);
        // The port also receives.
        peer.send(&probe(DST, 0, round, 100));
        assert_eq!(peer.receive(), probe(DST, 0, round, 100));
        let port = control.remove(3).await.expect("removed");
        assert_eq!(port.attachment, attachment);
        assert_eq!((packets(&port.entered), packets(&port.left)), (1, 2));
        accounted(&port);
        assert!(!path.exists(), "the switch removes the socket file");
        assert_eq!(control.remove(3).await.map(|_| ()), Err(Code::NotFound));
    }

    // The other ports keep forwarding. Frames for the removed port count as unattached.
    testbed.peers[&1].send(&probe(DST, 0, 9, 64));
    while packets(&testbed.statistics().await.unattached) != 1 {}
    assert_eq!(packets(&testbed.port(1).await.entered), 3);
    testbed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn copies_queued_at_a_removed_port_are_counted() {
    let testbed = Testbed::new(2).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(DST, 3).into()])
        .await;
    let mut control = PortControl::connect(&testbed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let attachment = format!("unix:{}", folder.path().join("3.sock").display());
    // At this rate the first frame takes an hour.
    control.add(3, &attachment, Some(1)).await.expect("added");
    for number in 0..20 {
        testbed.peers[&1].send(&probe(DST, 0, number, 450));
    }
    while packets(&testbed.port(3).await.ordered) != 20 {}
    let port = control.remove(3).await.expect("removed");
    assert_eq!(accounted(&port), (0, 20));
    let removed = port.drops.expect("drops").removed.expect("counted");
    assert_eq!((removed.packets, removed.bytes), (20, 20 * 450));
    testbed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn invalid_ports_are_refused() {
    let testbed = Testbed::new(1).await;
    let mut control = PortControl::connect(&testbed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let unix = format!("unix:{}", folder.path().join("1.sock").display());
    for (number, attachment, code) in [
        (1, unix.as_str(), Code::AlreadyExists),
        (511, &unix, Code::InvalidArgument),
        (2, "", Code::InvalidArgument),
        (2, "unix:", Code::InvalidArgument),
        (2, "no/interface", Code::InvalidArgument),
        // Only the command line can name a descriptor.
        (2, "fd:3", Code::InvalidArgument),
        (2, "nosuchinterface", Code::FailedPrecondition),
    ] {
        let refused = control.add(number, attachment, None).await;
        assert_eq!(refused, Err(code), "{number}@{attachment}");
    }
    assert_eq!(testbed.statistics().await.ports.len(), 1);
    testbed.switch.stop().await.expect("stops");
}

/// Frames in a capture.
fn captured(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).expect("a capture")).expect("pcap");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a packet").data.into_owned());
    }
    frames
}

#[tokio::test]
async fn captures_survive_refused_requests_and_removed_ports() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pcaps = folder.path().join("pcaps");
    let config = SwitchConfig {
        pcap_dir: Some(pcaps.clone()),
        ..base_config()
    };
    let testbed = Testbed::with_wires(config, vec![WireConfig::default()]).await;
    let mut control = PortControl::connect(&testbed).await;
    let path = folder.path().join("3.sock");
    let attachment = format!("unix:{}", path.display());
    // The switch deletes this capture of an earlier run when the port is added.
    let input = pcaps.join("3_in.pcap");
    std::fs::write(&input, "old").expect("written");

    let mut sent = Vec::new();
    for round in 1..=2 {
        control.add(3, &attachment, None).await.expect("added");
        let frame = probe(DST, 0, round, 60);
        connected_to(&path).send(&frame);
        sent.push(frame);
        while packets(&testbed.port(3).await.entered) != 1 {}
        control.remove(3).await.expect("removed");
        assert_eq!(captured(&input), sent);
    }

    let frame = probe(DST, 0, 9, 60);
    testbed.peers[&1].send(&frame);
    testbed.until_entered(1, 1).await;
    let refused = control.add(1, &attachment, None).await;
    assert_eq!(refused, Err(Code::AlreadyExists));
    testbed.switch.stop().await.expect("stops");
    assert_eq!(captured(&pcaps.join("1_in.pcap")), [frame]);
}

#[tokio::test]
async fn ports_are_listed_in_the_order_of_their_numbers() {
    let testbed = Testbed::new(1).await;
    let mut control = PortControl::connect(&testbed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = |number: u32| folder.path().join(number.to_string());
    for number in [9, 3, 5, 0] {
        let attachment = format!("unix:{}", socket(number).display());
        control.add(number, &attachment, None).await.expect("added");
    }
    control.remove(5).await.expect("removed");
    // Each port counts its own frames.
    for number in [0, 3, 9] {
        let frames = number + 1;
        let peer = connected_to(&socket(number));
        (0..frames).for_each(|n| peer.send(&probe(DST, 0, n, 60)));
        let number = u16::try_from(number).expect("a port");
        testbed.until_entered(number, frames.into()).await;
    }
    let ports = testbed.statistics().await.ports;
    let numbers: Vec<u32> = ports.iter().map(|port| port.number).collect();
    assert_eq!(numbers, [0, 1, 3, 9]);
    testbed.switch.stop().await.expect("stops");
}
