//! Hosts of a lab: names, addresses, kernel sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

use super::stage::{Lab, printed};

/// Bytes to copy over TCP.
const LENGTH: usize = 256 << 10;

fn data() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 31 % 251) as u8).collect()
}

/// Copies bytes from the first host to the last over the kernel's TCP.
pub fn tcp_copies(lab: &Lab) {
    let hosts = lab.hosts();
    let ((from, _), (to, address)) = (hosts[0].clone(), hosts[hosts.len() - 1].clone());
    let (ready, bound) = mpsc::channel();
    let receiver = lab.within(&to, move || {
        let listener = TcpListener::bind((address, 0)).expect("its own address");
        ready
            .send(listener.local_addr().expect("bound"))
            .expect("the test waits");
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("until its end");
        received
    });
    let to: SocketAddr = bound.recv().expect("an address");
    let sender = lab.within(&from, move || {
        let mut stream = TcpStream::connect(to).expect("connects");
        stream.write_all(&data()).expect("sends");
    });
    sender.join().expect("sent");
    assert!(
        receiver.join().expect("received") == data(),
        "what was sent arrived"
    );
}

/// `lab exec` runs a command in the namespace of a host of star4.
pub fn exec_runs_a_command_on_its_host(lab: &Lab) {
    assert_eq!(printed(&lab.exec("h2", &["hostname"])).trim(), "h2");
    // Gloo looks up its own address by the host's name, and must find the fabric's address.
    let own = printed(&lab.exec("h2", &["getent", "ahostsv4", "h2"]));
    assert!(own.starts_with("10.0.0.2 "), "{own}");
    let version = printed(&lab.exec("h2", &["ultima", "--version"]));
    assert!(version.starts_with("ultima "), "{version}");
    let address = printed(&lab.exec("h2", &["ip", "-o", "addr", "show", "dev", "eth0"]));
    assert!(address.contains("inet 10.0.0.2/32"), "{address}");
    assert!(!address.contains("inet6"), "{address}");
    let link = printed(&lab.exec("h2", &["ip", "-o", "link", "show", "dev", "eth0"]));
    assert!(
        link.contains("mtu 1500") && link.contains("02:00:00:00:00:02"),
        "{link}"
    );
    let interfaces = printed(&lab.exec("h2", &["ls", "/sys/class/net"]));
    assert_eq!(
        interfaces.split_whitespace().collect::<Vec<_>>(),
        ["eth0", "lo"]
    );
    // The namespace of the switches has the switches' interfaces.
    let interfaces = printed(&lab.exec("s1", &["ls", "/sys/class/net"]));
    assert!(interfaces.contains("s1-4"), "{interfaces}");

    assert_eq!(
        lab.exec("h1", &["sh", "-c", "exit 37"]).status.code(),
        Some(37)
    );
    for (host, command, code, said) in [
        (
            "h9",
            "true",
            4,
            format!(
                "lab {} has no host or switch \"h9\"; it has h1, h2, h3, h4, s1",
                lab.name
            ),
        ),
        (
            "h1",
            "no-such-program",
            2,
            "no-such-program is not on the PATH".to_owned(),
        ),
    ] {
        let output = lab.exec(host, &[command]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            format!("error: {said}\n")
        );
    }
}
