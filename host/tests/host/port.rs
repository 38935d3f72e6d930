//! The port driver, over sockets to a small switch that replicates frames.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair};
use ultima_host::{
    ClosedBy, Collective, Config, Error, LinkError, OperationId, PortAddress, PortConfig, Rejection,
};
use ultima_wire::frame::{self, Endpoints};
use ultima_wire::{Key, UDP_PORT, group_address};

fn address(rank: u16) -> PortAddress {
    PortAddress {
        mac: [2, 0, 0, 0, 0, rank as u8],
        socket: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1 + rank as u8), UDP_PORT),
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .expect("a socket pair")
}

fn port_config(fd: OwnedFd, rank: u16, ranks: u16) -> PortConfig {
    PortConfig {
        fd,
        local: address(rank),
        peers: (0..ranks).map(address).collect(),
        group: SocketAddrV4::new(group_address(7), UDP_PORT),
    }
}

/// Forwards frames between ports: to the addressed rank, or to all except the sender with new addresses.
/// Waits if a port is full.
fn switch(ports: Vec<OwnedFd>, stop: Arc<AtomicBool>) {
    let mut bytes = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let mut fds: Vec<PollFd<'_>> = ports
            .iter()
            .map(|port| PollFd::new(port.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(&mut fds, PollTimeout::from(5u8)).expect("polls");
        let readable: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        for (from, _) in readable
            .iter()
            .enumerate()
            .filter(|(_, readable)| **readable)
        {
            let flags = MsgFlags::MSG_DONTWAIT;
            let len = {
                let mut slices = [IoSliceMut::new(&mut bytes)];
                match recvmsg::<()>(ports[from].as_raw_fd(), &mut slices, None, flags) {
                    Ok(message) => message.bytes,
                    Err(_) => continue,
                }
            };
            let Ok((endpoints, datagram)) = frame::parse(&bytes[..len]) else {
                continue;
            };
            let datagram = datagram.to_vec();
            for (to, port) in ports.iter().enumerate().filter(|(to, _)| *to != from) {
                let PortAddress { mac, socket } = address(to as u16);
                if !endpoints.dst.ip().is_multicast() && endpoints.dst != socket {
                    continue;
                }
                let mut copy = vec![0; frame::FRAME_OVERHEAD];
                copy.extend_from_slice(&datagram);
                Endpoints {
                    dst_mac: mac,
                    dst: socket,
                    ..endpoints
                }
                .emit(&mut copy);
                // A peer that is gone receives nothing.
                let _ = sendmsg::<()>(
                    port.as_raw_fd(),
                    &[IoSlice::new(&copy)],
                    &[],
                    MsgFlags::MSG_NOSIGNAL,
                    None,
                );
            }
        }
    }
}

#[test]
fn four_ranks_average_over_ports() {
    average(None);
}

/// The link writes packet numbers, which the tag does not cover.
#[test]
fn four_ranks_of_a_sealed_job_average_over_ports() {
    average(Some(Key(*b"a job's own key!")));
}

fn average(key: Option<Key>) {
    const RANKS: u16 = 4;
    const LEN: usize = 50_021;
    let (ports, fds): (Vec<_>, Vec<_>) = (0..RANKS).map(|_| pair()).unzip();
    let stop = Arc::new(AtomicBool::new(false));
    let switch = thread::spawn({
        let stop = stop.clone();
        move || switch(ports, stop)
    });
    let mut random = Random::new(1);
    let steps: Vec<Vec<Vec<f32>>> = (0..5)
        .map(|_| (0..RANKS).map(|_| random.bucket(LEN)).collect())
        .collect();
    let steps = Arc::new(steps);
    let ranks: Vec<_> = (0u16..)
        .zip(fds)
        .map(|(rank, fd)| {
            let steps = steps.clone();
            thread::spawn(move || {
                // A bound that even a busy machine meets.
                let t_b = Duration::from_secs(20);
                let config = Config {
                    key,
                    ..Config::new(7, 1, rank, RANKS, 42, t_b)
                };
                let mut collective =
                    Collective::over_port(config, port_config(fd, rank, RANKS)).expect("starts");
                let mut results = Vec::new();
                for (step, buckets) in (0..).zip(steps.iter()) {
                    let mut bucket = buckets[usize::from(rank)].clone();
                    let id = OperationId { step, bucket: 0 };
                    let outcome = collective.allreduce(id, &mut bucket).expect("averages");
                    assert_eq!(
                        outcome.closed_by,
                        ClosedBy::Complete,
                        "rank {rank}, step {step}"
                    );
                    results.push(bucket);
                }
                (
                    results,
                    collective
                        .finish(Duration::from_millis(100))
                        .expect("finishes"),
                )
            })
        })
        .collect();
    let ranks: Vec<_> = ranks
        .into_iter()
        .map(|rank| rank.join().expect("no panic"))
        .collect();
    stop.store(true, Ordering::Relaxed);
    switch.join().expect("no panic");

    for (step, buckets) in steps.iter().enumerate() {
        assert!(relative_error(&ranks[0].0[step], &exact_mean(buckets)) < 1e-12);
        assert!(
            ranks
                .iter()
                .all(|(results, _)| results[step] == ranks[0].0[step])
        );
    }
    for (_, report) in &ranks {
        let phases = report.totals.phases;
        assert_eq!(phases.scatter.sent, phases.scatter.slots);
        assert_eq!(
            phases.scatter.in_time,
            phases.gather.sent * u64::from(RANKS - 1)
        );
        assert_eq!(phases.scatter.late + phases.gather.late, 0);
        assert_eq!(report.totals.rejected.total(), 0);
        assert_eq!(report.link, Default::default());
    }
}

#[test]
fn frames_that_are_not_ours_are_counted() {
    let (port, fd) = pair();
    let config = Config::new(7, 1, 0, 2, 42, Duration::from_millis(50));
    let mut collective = Collective::over_port(config, port_config(fd, 0, 2)).expect("starts");
    let send = |bytes: &[u8]| {
        sendmsg::<()>(
            port.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &[],
            MsgFlags::empty(),
            None,
        )
        .expect("sends");
    };
    let endpoints = Endpoints {
        src_mac: address(1).mac,
        dst_mac: address(0).mac,
        src: address(1).socket,
        dst: address(0).socket,
    };
    let frame = |endpoints: Endpoints, datagram: &[u8]| {
        let mut frame = [&[0; frame::FRAME_OVERHEAD], datagram].concat();
        endpoints.emit(&mut frame);
        frame
    };
    let good = frame(endpoints, b"not an Ultima header");
    send(&good);
    send(&[0xff; 64]);
    send(&[1; 10_000]);
    let mut corrupted = good.clone();
    corrupted[frame::FRAME_OVERHEAD] ^= 1;
    send(&corrupted);
    let elsewhere = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), UDP_PORT);
    send(&frame(
        Endpoints {
            dst: elsewhere,
            ..endpoints
        },
        b"x",
    ));
    let report = collective
        .report()
        .and_then(|_| collective.finish(Duration::ZERO));
    let report = report.expect("reports");
    assert_eq!(report.totals.rejected.of(Rejection::Malformed), 1);
    assert_eq!(report.link.not_udp, 2);
    assert_eq!(report.link.checksum, 1);
    assert_eq!(report.link.misdirected, 1);
}

#[test]
fn a_port_that_closes_is_an_error_not_a_hang() {
    let (port, fd) = pair();
    let config = Config::new(7, 1, 0, 2, 42, Duration::from_secs(3600));
    let mut collective = Collective::over_port(config, port_config(fd, 0, 2)).expect("starts");
    drop(port);
    let error = collective
        .allreduce(ID, &mut [1.0; 1000])
        .expect_err("no socket is there");
    assert!(
        matches!(error, Error::Link(LinkError::PortClosed)),
        "{error}"
    );
}

#[test]
fn ids_and_peers_are_checked() {
    let (_port, fd) = pair();
    let config = Config::new(7, 1, 0, 2, 42, Duration::from_millis(1));
    let refused = Collective::over_port(config.clone(), port_config(fd, 0, 3)).err();
    assert!(
        refused
            .expect("3 peers")
            .to_string()
            .contains("3 peer addresses")
    );
    let (_port, fd) = pair();
    let mut collective = Collective::over_port(config, port_config(fd, 0, 2)).expect("starts");
    let mut bucket = [1.0; 10];
    collective
        .allreduce(ID, &mut bucket)
        .expect("ends by its deadline");
    let repeated = collective.allreduce(ID, &mut bucket).expect_err("used");
    assert!(
        repeated.to_string().contains("started before"),
        "{repeated}"
    );
    let past = OperationId { step: 0, bucket: 0 };
    let past = collective.allreduce(past, &mut bucket).expect_err("past");
    assert!(past.to_string().contains("expected step 1"), "{past}");
}
