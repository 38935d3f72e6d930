//! Ports on network interfaces: veth pairs in network namespaces of the tests' own threads.
//!
//! The kernel removes a thread's namespace and its interfaces when the thread ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::served::common::{
    Controller, Peer, TIMEOUT, Testbed, accounted, base_config, group, names, packets, probe,
    program,
};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
};
use nix::unistd::{Uid, gettid};
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::v1::Entity;
use ultima_switch::proto::AddPortRequest;
use ultima_switch::proto::port_control_client::PortControlClient;
use ultima_switch::tm::WireChange;
use ultima_switch::{Attach, LinkConfig, PortConfig, Switch, SwitchConfig, WireConfig, link};
use ultima_testing::skipped;

/// Returns why this machine cannot run these tests; `None` if it can.
fn missing() -> Option<&'static str> {
    if !Uid::effective().is_root() {
        return Some("needs root");
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return Some("needs iproute2");
    }
    None
}

/// Runs `ip` in this thread's namespace.
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("ip");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// Waits until an interface in this thread's namespace is up. The kernel attaches its queue some time after
/// the other end of a veth pair comes up, and drops frames until then.
fn until_up(name: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let link = Command::new("ip")
            .args(["-o", "link", "show", name])
            .output()
            .expect("ip");
        if String::from_utf8_lossy(&link.stdout).contains("state UP") {
            return;
        }
        assert!(Instant::now() < deadline, "{name} does not come up");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A thread in its own namespace with the interface `h{n}`, the far end of the switch's interface `sw{n}`:
/// address 10.0.0.n, MAC 02:00:00:00:00:0n.
pub struct Host {
    thread: thread::JoinHandle<()>,
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

impl Host {
    pub fn new(n: u8) -> Host {
        let (jobs, todo) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (ready, wait) = mpsc::channel();
        let thread = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            ready.send(gettid()).expect("the test waits");
            for job in todo {
                job();
            }
        });
        let tid = wait.recv_timeout(TIMEOUT).expect("the thread starts");
        ip(&format!(
            "link add sw{n} type veth peer name h{n} address 02:00:00:00:00:0{n} netns {tid}"
        ));
        ip(&format!("link set sw{n} up"));
        let host = Host { thread, jobs };
        host.run(move || {
            ip("link set lo up");
            ip(&format!("link set h{n} up"));
            until_up(&format!("h{n}"));
            ip(&format!("address add 10.0.0.{n}/24 dev h{n}"));
            for other in (1..=2).filter(|other| *other != n) {
                ip(&format!(
                    "neighbor add 10.0.0.{other} lladdr 02:00:00:00:00:0{other} dev h{n}"
                ));
            }
        });
        until_up(&format!("sw{n}"));
        host
    }

    /// Runs a job in the host's namespace and returns its result.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        self.spawn(job)
            .recv_timeout(TIMEOUT)
            .expect("the job succeeds")
    }

    /// Starts a job in the host's namespace.
    fn spawn<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> mpsc::Receiver<R> {
        let (result, receiver) = mpsc::channel();
        let job = move || {
            let _ = result.send(job());
        };
        self.jobs.send(Box::new(job)).expect("the host runs");
        receiver
    }

    pub fn end(self) {
        drop(self.jobs);
        self.thread.join().expect("the host ends without a panic");
    }
}

/// Runs a test in its own namespace. A single thread runs it, so that all its sockets are in the namespace.
pub fn in_namespace(test: impl Future<Output = ()> + Send + 'static) {
    if let Some(reason) = missing() {
        skipped(reason);
        return;
    }
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(test);
    };
    thread::spawn(run)
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn interface(number: u16, name: &str) -> PortConfig {
    let attach = Attach::Interface(name.to_owned());
    PortConfig {
        number,
        attach,
        wire: WireConfig::default(),
    }
}

/// A switch with port 1 on `sw1` and port 2 on a socket, and the socket's peer.
fn interface_and_socket() -> (SwitchConfig, Peer) {
    let (ours, peer) = Peer::pair();
    let virtual_port = PortConfig {
        number: 2,
        attach: Attach::Socket(ours.into()),
        wire: WireConfig::default(),
    };
    let config = SwitchConfig {
        program: Some(program()),
        ports: vec![interface(1, "sw1"), virtual_port],
        ..base_config()
    };
    (config, peer)
}

/// A running switch as of [`interface_and_socket`], with an entry for the host at port 1.
pub async fn running_interface_and_socket() -> (Testbed, Peer) {
    let (config, peer) = interface_and_socket();
    (running(config).await, peer)
}

/// A running switch with an entry for the host at port 1.
async fn running(config: SwitchConfig) -> Testbed {
    let testbed = Testbed {
        switch: Switch::start(config).await.expect("starts"),
        peers: [].into(),
        names: names(),
    };
    let entry = entry_to(0x0200_0000_0001, 1);
    testbed.controller().await.insert(vec![entry]).await;
    testbed
}

/// A running switch between two hosts.
async fn between_two_hosts() -> (Testbed, Host, Host) {
    let (one, two) = (Host::new(1), Host::new(2));
    let config = SwitchConfig {
        program: Some(program()),
        ports: vec![interface(1, "sw1"), interface(2, "sw2")],
        ..base_config()
    };
    let testbed = running(config).await;
    let entry = entry_to(0x0200_0000_0002, 2);
    testbed.controller().await.insert(vec![entry]).await;
    (testbed, one, two)
}

fn entry_to(dst: u64, port: u16) -> Entity {
    let names = names();
    let table = names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", dst).expect("key");
    let entry = entry.action("IngressPipe.send", &[("port", Bytestring::from(port))]);
    entry.expect("action").build().expect("entry").into()
}

/// Sends 4 MB over TCP from one host to the other. The kernel passes the switch frames of up to 64 KB with
/// many segments and without checksums.
fn transfer(one: &Host, two: &Host) {
    let data: Vec<u8> = (0..4_000_000u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    let sent = data.clone();
    let (listening, port) = mpsc::channel();
    let received = two.spawn(move || {
        let listener = TcpListener::bind("10.0.0.2:0").expect("bind");
        listening
            .send(listener.local_addr().expect("address"))
            .expect("the test waits");
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut data = Vec::new();
        stream.read_to_end(&mut data).expect("data");
        data
    });
    let address: SocketAddr = port.recv_timeout(TIMEOUT).expect("listens");
    one.run(move || {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).expect("connects");
        stream.write_all(&sent).expect("sends");
    });
    assert!(received.recv_timeout(TIMEOUT).expect("received") == data);
}

#[test]
fn tcp_crosses_with_all_offloads_on() {
    in_namespace(async {
        let (testbed, one, two) = between_two_hosts().await;
        let before = two.run(|| received("h2"));
        transfer(&one, &two);
        let frames = two.run(|| received("h2")) - before;
        let left = packets(&testbed.port(2).await.left);
        // From Linux 6.18 on, the switch sends through AF_XDP rings and merges segments.
        assert!(!is_recent() || frames < left / 2, "{frames} of {left}");
        let port = testbed.port(1).await;
        accounted(&port);
        assert_eq!((packets(&port.too_long), packets(&port.overrun)), (0, 0));
        assert!(
            packets(&port.entered) >= 4_000_000 / 1448,
            "each segment enters as one frame"
        );
        testbed.switch.stop().await.expect("stops");
        one.end();
        two.end();
    });
}

/// Sends datagrams of 1,400 bytes with one call. The kernel passes the switch all of them in one frame.
fn send_datagrams(data: &[u8], to: SocketAddr) {
    let socket = UdpSocket::bind("10.0.0.1:0").expect("bind");
    setsockopt(&socket, UdpGsoSegment, &1400).expect("an option");
    socket.send_to(data, to).expect("sends");
}

#[test]
fn udp_crosses_with_all_offloads_on() {
    in_namespace(async {
        let (testbed, one, two) = between_two_hosts().await;
        let data: Vec<u8> = (0..60_000u32).map(|n| (n / 256 + n) as u8).collect();
        // Without UDP GRO, each call receives one datagram.
        for (gro, gso_max) in [(false, 65_536), (true, 65_536), (true, 1500)] {
            ip(&format!("link set sw2 gso_max_size {gso_max}"));
            let socket = two.run(move || {
                let socket = UdpSocket::bind("10.0.0.2:0").expect("bind");
                socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
                setsockopt(&socket, UdpGroSegment, &gro).expect("an option");
                socket
            });
            let address = socket.local_addr().expect("address");
            let before = two.run(|| received("h2"));
            let left = packets(&testbed.port(2).await.left);
            let sent = data.clone();
            one.run(move || send_datagrams(&sent, address));
            let (mut arrived, mut calls) = (Vec::new(), 0);
            while arrived.len() < data.len() {
                let mut buffer = [0; 65_535];
                let len = socket.recv(&mut buffer).expect("a datagram");
                arrived.extend_from_slice(&buffer[..len]);
                calls += 1;
            }
            assert!(arrived == data);
            let frames = two.run(|| received("h2")) - before;
            let left = packets(&testbed.port(2).await.left) - left;
            assert_eq!(left, 43);
            let merges = is_recent() && gso_max > 65_535;
            assert_eq!(frames < left / 2, merges, "{frames} of {left}");
            assert_eq!(calls, if gro { frames } else { left });
        }
        testbed.switch.stop().await.expect("stops");
        one.end();
        two.end();
    });
}

/// True if the kernel is at least Linux 6.18.
fn is_recent() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()) >= Some((6, 18))
}

#[test]
fn frames_over_the_mtu_of_the_other_end_do_not_arrive_merged() {
    in_namespace(async {
        let (testbed, one, two) = between_two_hosts().await;
        let (listening, port) = mpsc::channel();
        let accepted = two.spawn(move || {
            let listener = TcpListener::bind("10.0.0.2:0").expect("bind");
            let address = listener.local_addr().expect("address");
            listening.send(address).expect("the test waits");
            let (stream, _) = listener.accept().expect("a connection");
            // The sender keeps the segment size of the handshake.
            ip("link set h2 mtu 1000");
            stream
        });
        let address: SocketAddr = port.recv_timeout(TIMEOUT).expect("listens");
        let mut sender = one.run(move || TcpStream::connect(address).expect("connects"));
        let receiver = accepted.recv_timeout(TIMEOUT).expect("accepts");
        sender.write_all(&[7; 14_480]).expect("sends");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let drops = testbed.port(2).await.drops.expect("drops");
            if packets(&drops.oversize) >= 10 {
                break;
            }
            assert!(Instant::now() < deadline, "{drops:?}");
        }
        receiver.set_nonblocking(true).expect("a mode");
        let read = receiver.peek(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock));
        // UDP datagrams are not merged either.
        let socket = two.run(|| UdpSocket::bind("10.0.0.2:0").expect("bind"));
        let address = socket.local_addr().expect("address");
        let before = packets(&testbed.port(2).await.drops.expect("drops").oversize);
        one.run(move || send_datagrams(&[7; 14_000], address));
        loop {
            let drops = testbed.port(2).await.drops.expect("drops");
            if packets(&drops.oversize) >= before + 10 {
                break;
            }
            assert!(Instant::now() < deadline, "{drops:?}");
        }
        socket.set_nonblocking(true).expect("a mode");
        let read = socket.recv(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock));
        testbed.switch.stop().await.expect("stops");
        one.end();
        two.end();
    });
}

#[test]
fn tcp_crosses_an_impaired_link_with_all_offloads_on() {
    in_namespace(async {
        let (one, two) = (Host::new(1), Host::new(2));
        let wire = |settings: &str| {
            let mut wire = WireConfig::default();
            settings
                .parse::<WireChange>()
                .expect(settings)
                .apply(&mut wire);
            wire
        };
        let link = link::start(LinkConfig {
            a: Attach::Interface("sw1".to_owned()),
            b: Attach::Interface("sw2".to_owned()),
            a_to_b: wire("rate=400M,delay=1ms,jitter=pareto:100us:3,loss=0.001,queue=256k"),
            b_to_a: wire("rate=400M,delay=1ms"),
            seed: 1,
            grpc: None,
            pcap_dir: None,
        });
        let link = link.await.expect("starts");
        transfer(&one, &two);
        let counts = link::counts(&link).get().await.expect("it runs");
        let [a, b] = &counts.ports[..] else {
            panic!("two ports")
        };
        assert!(
            accounted(a).0 >= 4_000_000 / 1448,
            "each segment enters as one frame"
        );
        assert_eq!((packets(&a.too_long), packets(&a.overrun)), (0, 0));
        let lost = packets(&b.drops.as_ref().expect("drops").wire);
        assert!(
            accounted(b).1 > 0 && lost > 0 && packets(&b.left) > 2762,
            "{b:?}"
        );
        link.stop().await.expect("stops");
        one.end();
        two.end();
    });
}

#[test]
fn udp_checksums_are_complete_in_both_directions() {
    in_namespace(async {
        let host = Host::new(1);
        let (config, peer) = interface_and_socket();
        let switch = Switch::start(config).await.expect("starts");
        let mut controller = Controller::primary(switch.grpc_addr(), 1).await;
        controller
            .insert(vec![
                entry_to(0x0200_0000_0002, 2),
                entry_to(0x0200_0000_0001, 1),
            ])
            .await;
        host.run(|| {
            let socket = UdpSocket::bind("10.0.0.1:4000").expect("bind");
            socket.send_to(b"plain", "10.0.0.2:5000").expect("sends");
        });
        let plain = peer.receive();
        assert_eq!(plain[12..14], [0x08, 0x00]);
        assert_eq!(udp_sum(&plain[14..]), 0xffff);
        assert_eq!(&plain[42..], b"plain");

        // In the other direction, the host's kernel must accept the frame.
        let (listening, bound) = mpsc::channel();
        let received = host.spawn(move || {
            let socket = UdpSocket::bind("10.0.0.1:6000").expect("bind");
            socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
            listening.send(()).expect("the test waits");
            let mut buffer = [0; 64];
            let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
            (buffer[..len].to_vec(), from.ip())
        });
        bound.recv_timeout(TIMEOUT).expect("bound");
        // Send the datagram back. Swapped addresses do not change its checksum.
        let mut back = plain.clone();
        back[..6].copy_from_slice(&plain[6..12]);
        back[6..12].copy_from_slice(&plain[..6]);
        back[26..30].copy_from_slice(&plain[30..34]);
        back[30..34].copy_from_slice(&plain[26..30]);
        back[34..36].copy_from_slice(&6000u16.to_be_bytes());
        back[36..38].copy_from_slice(&6000u16.to_be_bytes());
        let old = u32::from(u16::from_be_bytes([back[40], back[41]]));
        // RFC 1624: HC' = ~(~HC + ~m + m'), for the ports 4000 and 5000 that became 6000 and 6000.
        let mut sum = (!old & 0xffff) + (!4000 & 0xffff) + (!5000 & 0xffff) + 6000 + 6000;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        back[40..42].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        peer.send(&back);
        let (data, from) = received.recv_timeout(TIMEOUT).expect("received");
        assert_eq!(
            (data.as_slice(), from),
            (&b"plain"[..], Ipv4Addr::new(10, 0, 0, 2).into())
        );
        switch.stop().await.expect("stops");
        host.end();
    });
}

#[test]
fn vlan_tags_are_kept() {
    in_namespace(async {
        // Ports 1 and 2 are the ends of one veth pair. Ports 3 and 4 are virtual.
        ip("link add v1 mtu 9000 type veth peer name v2 mtu 9000");
        ip("link set v1 up");
        ip("link set v2 up");
        until_up("v1");
        until_up("v2");
        let (three, sender) = Peer::pair();
        let (four, receiver) = Peer::pair();
        let virtual_port = |number, socket: OwnedFd| PortConfig {
            number,
            attach: Attach::Socket(socket.into()),
            wire: WireConfig::default(),
        };
        let config = SwitchConfig {
            program: Some(program()),
            ports: vec![
                interface(1, "v1"),
                interface(2, "v2"),
                virtual_port(3, three),
                virtual_port(4, four),
            ],
            ..base_config()
        };
        let switch = Switch::start(config).await.expect("starts");
        let mut controller = Controller::primary(switch.grpc_addr(), 1).await;
        let testbed = Testbed {
            switch,
            peers: [].into(),
            names: names(),
        };
        // Frames go from port 3 to port 1 with a new address, through the veth pair to port 2, and on to port 4.
        let (there, back) = (0x0200_0000_0001u64, 0x0200_0000_0002u64);
        controller
            .insert(vec![
                testbed.flood(there, 1).into(),
                group(1, &[(1, 5)]),
                testbed
                    .replica(5, "EgressPipe.readdress", &[("dst", back.into())])
                    .into(),
                testbed.unicast(back, 4).into(),
            ])
            .await;
        // The kernel removes the tag from a received frame and reports it separately.
        let tags = [[0x81, 0x00, 0x60, 0x07], [0x88, 0xa8, 0x0f, 0xff]];
        // The longest frames do not fit a slot of the receive ring.
        let lengths = [64, 1514, 1900, 2000, 2048, 9010];
        for (tag, len) in tags.iter().flat_map(|tag| lengths.map(|len| (*tag, len))) {
            let mut frame = probe(there, 0, 9, len);
            let last = frame.len() - 1;
            frame[last] = 0x77;
            frame.splice(12..12, tag);
            sender.send(&frame);
            frame[..6].copy_from_slice(&back.to_be_bytes()[2..]);
            assert!(receiver.receive() == frame, "{len} bytes");
        }
        // Short and long frames stay in order.
        let lengths = |n: u32| if n.is_multiple_of(3) { 8000 } else { 64 };
        let mut frames: Vec<_> = (0..90).map(|n| probe(there, 0, n, lengths(n))).collect();
        frames.iter().for_each(|frame| sender.send(frame));
        for frame in &mut frames {
            frame[..6].copy_from_slice(&back.to_be_bytes()[2..]);
            assert!(receiver.receive() == *frame);
        }
        testbed.switch.stop().await.expect("stops");
    });
}

#[test]
fn frames_for_an_interface_that_is_down_or_has_a_small_mtu_are_counted() {
    in_namespace(async {
        let host = Host::new(1);
        let (testbed, peer) = running_interface_and_socket().await;
        peer.send(&probe(0x0200_0000_0001, 0, 1, 1514));
        assert_eq!(packets(&testbed.until_drained(1, 1).await.left), 1);
        peer.send(&probe(0x0200_0000_0001, 0, 2, 1600));
        assert_eq!(
            packets(
                &testbed
                    .until_drained(1, 2)
                    .await
                    .drops
                    .expect("drops")
                    .oversize
            ),
            1
        );
        ip("link set sw1 down");
        peer.send(&probe(0x0200_0000_0001, 0, 3, 100));
        let port = testbed.until_drained(1, 3).await;
        assert_eq!(packets(&port.drops.expect("drops").no_peer), 1);
        ip("link set sw1 up");
        until_connected(&testbed, true).await;
        peer.send(&probe(0x0200_0000_0001, 0, 4, 100));
        let port = testbed.until_drained(1, 4).await;
        assert_eq!(packets(&port.left), 2);
        testbed.switch.stop().await.expect("stops");
        host.end();
    });
}

#[test]
fn frames_over_the_mtu_of_the_other_end_do_not_delay_others() {
    in_namespace(async {
        let host = Host::new(1);
        host.run(|| ip("link set h1 mtu 1400"));
        let (testbed, peer) = running_interface_and_socket().await;
        let before = host.run(|| received("h1"));
        for number in 0..20 {
            peer.send(&probe(0x0200_0000_0001, 0, number, 1514));
            peer.send(&probe(0x0200_0000_0001, 0, number, 100));
        }
        let port = testbed.until_drained(1, 40).await;
        assert_eq!(packets(&port.left), 20, "{port:?}");
        assert_eq!(packets(&port.drops.expect("drops").oversize), 20);
        // The count includes packets of the kernel's neighbour discovery.
        assert!(host.run(|| received("h1")) >= before + 20);
        testbed.switch.stop().await.expect("stops");
        host.end();
    });
}

#[test]
fn frames_pass_a_queueing_discipline_that_is_added_later() {
    in_namespace(async {
        let host = Host::new(1);
        let (testbed, peer) = running_interface_and_socket().await;
        let before = host.run(|| received("h1"));
        let mut sent = 0;
        let mut send = |count| {
            (0..count).for_each(|_| peer.send(&probe(0x0200_0000_0001, 0, 1, 100)));
            sent += count;
            sent
        };
        let total = send(10);
        testbed.until_drained(1, total).await;
        tc("qdisc add dev sw1 root pfifo");
        let deadline = Instant::now() + TIMEOUT;
        while queued("sw1") == 0 {
            let total = send(1);
            testbed.until_drained(1, total).await;
            assert!(Instant::now() < deadline, "no frame passes the queue");
        }
        let seen = queued("sw1");
        let total = send(10);
        testbed.until_drained(1, total).await;
        assert!(queued("sw1") >= seen + 10);
        tc("qdisc del dev sw1 root");
        let total = send(10);
        assert_eq!(packets(&testbed.until_drained(1, total).await.left), total);
        // The count includes packets of the kernel's neighbour discovery.
        assert!(host.run(|| received("h1")) >= before + total);
        testbed.switch.stop().await.expect("stops");
        host.end();
    });
}

#[test]
fn a_capture_on_the_switchs_interface_shows_sent_frames_unless_they_leave_through_af_xdp() {
    for send_rings in [false, true] {
        in_namespace(async move {
            let host = Host::new(1);
            let (config, peer) = interface_and_socket();
            let testbed = running(SwitchConfig {
                send_rings,
                ..config
            })
            .await;
            let tap = tap();
            (0..10).for_each(|_| peer.send(&probe(0x0200_0000_0001, 0, 1, 100)));
            assert_eq!(packets(&testbed.until_drained(1, 10).await.left), 10);
            let expected = if send_rings { 0 } else { 10 };
            assert_eq!(captured(&tap), expected, "send rings: {send_rings}");
            testbed.switch.stop().await.expect("stops");
            host.end();
        });
    }
}

/// A packet socket that gets all frames of the interfaces in this namespace.
fn tap() -> OwnedFd {
    socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_NONBLOCK,
        SockProtocol::EthAll,
    )
    .expect("a packet socket")
}

/// The number of frames to host 1 that the socket has received.
fn captured(tap: &OwnedFd) -> usize {
    let mut frame = [0; 2048];
    let mut count = 0;
    while recv(tap.as_raw_fd(), &mut frame, MsgFlags::empty()).is_ok() {
        count += usize::from(frame[..6] == [2, 0, 0, 0, 0, 1]);
    }
    count
}

/// Runs `tc` in this thread's namespace, and returns its output.
fn tc(arguments: &str) -> String {
    let output = Command::new("tc")
        .args(arguments.split_whitespace())
        .output()
        .expect("tc, a part of iproute2");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tc {arguments}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Frames that have passed an interface's queueing discipline.
fn queued(interface: &str) -> u64 {
    // Sent 1400 bytes 14 pkt (dropped 0, overlimits 0 requeues 0)
    let text = tc(&format!("-s qdisc show dev {interface}"));
    let mut words = text.split_whitespace();
    let sent = words.find(|word| *word == "Sent").and(words.nth(2));
    sent.map_or(0, |count| count.parse().expect("a number"))
}

/// Waits until port 1 is connected, or not connected.
async fn until_connected(testbed: &Testbed, connected: bool) {
    let deadline = Instant::now() + TIMEOUT;
    while testbed.port(1).await.connected != connected {
        assert!(Instant::now() < deadline, "never connected: {connected}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn link_state_changes_are_detected_without_traffic() {
    in_namespace(async {
        let host = Host::new(1);
        ip("link set sw1 down");
        let (testbed, peer) = running_interface_and_socket().await;
        assert!(!testbed.port(1).await.connected, "it starts down");
        ip("link set sw1 up");
        until_connected(&testbed, true).await;
        ip("link set sw1 down");
        until_connected(&testbed, false).await;
        ip("link set sw1 up");
        until_connected(&testbed, true).await;
        // The far end is down: no carrier.
        host.run(|| ip("link set h1 down"));
        until_connected(&testbed, false).await;
        peer.send(&probe(0x0200_0000_0001, 0, 1, 100));
        let port = testbed.until_drained(1, 1).await;
        assert_eq!(packets(&port.drops.expect("drops").no_peer), 1);
        host.run(|| ip("link set h1 up"));
        until_connected(&testbed, true).await;
        peer.send(&probe(0x0200_0000_0001, 0, 2, 100));
        assert_eq!(packets(&testbed.until_drained(1, 2).await.left), 1);
        ip("link delete sw1");
        until_connected(&testbed, false).await;
        testbed.switch.stop().await.expect("stops");
        host.end();
    });
}

#[test]
fn an_interface_serves_one_port() {
    in_namespace(async {
        let config = |ports| SwitchConfig {
            ports,
            ..base_config()
        };
        let twice = config(vec![interface(1, "lo"), interface(2, "lo")]);
        let Err(error) = Switch::start(twice).await else {
            panic!("one interface at two ports");
        };
        let text = error.to_string();
        assert!(
            text.contains("port 2: lo is already attached to port 1"),
            "{text}"
        );

        let once = config(vec![interface(1, "lo")]);
        let switch = Switch::start(once).await.expect("starts");
        let address = format!("http://{}", switch.grpc_addr());
        let mut control = PortControlClient::connect(address).await.expect("connects");
        let request = AddPortRequest {
            number: 2,
            attachment: "lo".to_owned(),
            ..AddPortRequest::default()
        };
        let refused = control.add(request).await.expect_err("refused");
        assert_eq!(refused.code(), tonic::Code::AlreadyExists);
        assert_eq!(
            refused.message(),
            "port 2: lo is already attached to port 1; an interface serves one port"
        );
        switch.stop().await.expect("stops");
    });
}

/// Frames that an interface in this thread's namespace has received.
fn received(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("procfs");
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(name));
    let counts = line.expect("the interface exists").trim_start_matches(':');
    // Bytes come first, then packets (proc_pid_net(5)).
    let packets = counts.split_whitespace().nth(1).expect("a count");
    packets.parse().expect("a number")
}

#[test]
fn frames_wait_while_the_queue_of_an_interface_is_full() {
    in_namespace(async {
        let host = Host::new(1);
        // An interface of 20 Mbit/s with a queue for three frames.
        let shape = "qdisc add dev sw1 root tbf rate 20mbit burst 1600 limit 3200";
        let shaped = Command::new("tc").args(shape.split_whitespace()).status();
        if !shaped.is_ok_and(|status| status.success()) {
            skipped("needs tc and the kernel's tbf");
            return host.end();
        }
        let (testbed, peer) = running_interface_and_socket().await;
        let before = host.run(|| received("h1"));
        for number in 0..100 {
            peer.send(&probe(0x0200_0000_0001, 0, number, 1000));
        }
        let port = testbed.until_drained(1, 100).await;
        assert_eq!(packets(&port.left), 100, "{port:?}");
        let deadline = Instant::now() + TIMEOUT;
        while host.run(|| received("h1")) < before + 100 {
            assert!(Instant::now() < deadline, "frames that left do not arrive");
        }
        testbed.switch.stop().await.expect("stops");
        host.end();
    });
}

/// The ones' complement sum of an IPv4 datagram's UDP part with its pseudo-header: 0xffff if the
/// checksum is correct.
fn udp_sum(datagram: &[u8]) -> u16 {
    let header = usize::from(datagram[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([datagram[2], datagram[3]]));
    let udp = &datagram[header..total];
    let mut bytes = datagram[12..20].to_vec();
    bytes.extend_from_slice(&[0, 17]);
    bytes.extend_from_slice(&(udp.len() as u16).to_be_bytes());
    bytes.extend_from_slice(udp);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
