//! Ports that come and go while a switch forwards.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::common::{Bed, DEVICE, Peer, accounted, packets, probe};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tonic::Code;
use tonic::transport::Channel;
use ultima_switch::proto::port_control_client::PortControlClient;
use ultima_switch::proto::{AddPortRequest, Port, RemovePortRequest, Settings};

const DST: u64 = 0x0200_0000_0003;

struct PortControl(PortControlClient<Channel>);

impl PortControl {
    async fn of(bed: &Bed) -> PortControl {
        let address = format!("http://{}", bed.switch.grpc_addr());
        PortControl(PortControlClient::connect(address).await.expect("connects"))
    }

    async fn add(&mut self, number: u32, attachment: &str, rate: Option<u64>) -> Result<(), Code> {
        let settings = rate.map(|rate_bps| Settings {
            rate_bps: Some(rate_bps),
            ..Settings::default()
        });
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
async fn a_port_comes_and_goes_and_comes_again() {
    let bed = Bed::new(2).await;
    bed.controller()
        .await
        .insert(vec![bed.unicast(DST, 3).into()])
        .await;
    let mut control = PortControl::of(&bed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("3.sock");
    let attachment = format!("unix:{}", path.display());

    for round in 0..2 {
        control.add(3, &attachment, None).await.expect("added");
        assert_eq!(
            control.add(3, &attachment, None).await,
            Err(Code::FailedPrecondition)
        );
        let peer = connected_to(&path);
        let frame = probe(DST, 0, round, 64);
        bed.peers[&1].send(&frame);
        assert_eq!(peer.receive(), frame);
        // Both ways.
        peer.send(&probe(DST, 0, round, 100));
        assert_eq!(peer.receive(), probe(DST, 0, round, 100));
        let gone = control.remove(3).await.expect("removed");
        assert_eq!(gone.attachment, attachment);
        assert_eq!((packets(&gone.entered), packets(&gone.left)), (1, 2));
        accounted(&gone);
        assert!(!path.exists(), "its socket file goes with it");
        assert_eq!(control.remove(3).await.map(|_| ()), Err(Code::NotFound));
    }

    // The others have gone on all the time, and what is for it now is for nobody.
    bed.peers[&1].send(&probe(DST, 0, 9, 64));
    while packets(&bed.statistics().await.unattached) != 1 {}
    assert_eq!(packets(&bed.port(1).await.entered), 3);
    bed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn what_is_queued_at_a_removed_port_is_counted() {
    let bed = Bed::new(2).await;
    bed.controller()
        .await
        .insert(vec![bed.unicast(DST, 3).into()])
        .await;
    let mut control = PortControl::of(&bed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let attachment = format!("unix:{}", folder.path().join("3.sock").display());
    // At this rate the first frame takes an hour.
    control.add(3, &attachment, Some(1)).await.expect("added");
    for number in 0..20 {
        bed.peers[&1].send(&probe(DST, 0, number, 450));
    }
    while packets(&bed.port(3).await.ordered) != 20 {}
    let gone = control.remove(3).await.expect("removed");
    assert_eq!(accounted(&gone), (0, 20));
    let removed = gone.drops.expect("drops").removed.expect("counted");
    assert_eq!((removed.packets, removed.bytes), (20, 20 * 450));
    bed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn ports_that_cannot_be_are_refused() {
    let bed = Bed::new(1).await;
    let mut control = PortControl::of(&bed).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let there = folder.path().join("there.pcap");
    std::fs::write(&there, "somebody's").expect("written");
    let unix = format!("unix:{}", folder.path().join("1.sock").display());
    let overwrite = format!("pcap:,{}", there.display());
    for (number, attachment, code) in [
        (1, unix.as_str(), Code::AlreadyExists),
        (511, &unix, Code::InvalidArgument),
        (2, "", Code::InvalidArgument),
        (2, "unix:", Code::InvalidArgument),
        (2, "pcap:,", Code::InvalidArgument),
        (2, "no/interface", Code::InvalidArgument),
        // Descriptors belong to those who start the switch.
        (2, "fd:3", Code::InvalidArgument),
        (2, "nosuchinterface", Code::FailedPrecondition),
        (2, "pcap:/nonexistent.pcap", Code::FailedPrecondition),
        (2, &overwrite, Code::AlreadyExists),
    ] {
        let refused = control.add(number, attachment, None).await;
        assert_eq!(refused, Err(code), "{number}@{attachment}");
    }
    assert_eq!(std::fs::read(&there).expect("still there"), b"somebody's");
    assert_eq!(bed.statistics().await.ports.len(), 1);
    bed.switch.stop().await.expect("stops");
}
