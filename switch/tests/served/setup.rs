//! Errors at the start of a switch, on one line each.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use crate::served::common::{Peer, base_config, program};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use ultima_switch::{Attach, Loss, PortConfig, ProgramFiles, Switch, SwitchConfig, WireConfig};

fn port(number: u16, attach: Attach) -> PortConfig {
    PortConfig {
        number,
        attach,
        wire: WireConfig::default(),
    }
}

fn virtual_port(number: u16) -> PortConfig {
    port(number, Attach::Socket(Peer::pair().0.into()))
}

async fn refusal(config: SwitchConfig) -> String {
    match Switch::start(config).await {
        Ok(_) => panic!("the switch starts"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            text
        }
    }
}

#[tokio::test]
async fn ports_are_checked() {
    let twice = SwitchConfig {
        ports: vec![virtual_port(3), virtual_port(3)],
        ..base_config()
    };
    assert_eq!(refusal(twice).await, "port 3 is given twice");
    let drop_port = SwitchConfig {
        ports: vec![virtual_port(511)],
        ..base_config()
    };
    assert_eq!(refusal(drop_port).await, "port 511: expected 0 to 510");
    for cpu_port in [0, 3, 511] {
        let config = SwitchConfig {
            ports: vec![virtual_port(3)],
            cpu_port: Some(cpu_port),
            ..base_config()
        };
        assert_eq!(
            refusal(config).await,
            format!("CPU port {cpu_port}: expected 1 to 510, and no other port of this number")
        );
    }
    let missing = port(1, Attach::Interface("nosuch0".to_owned()));
    assert_eq!(
        refusal(SwitchConfig {
            ports: vec![missing],
            ..base_config()
        })
        .await,
        "port 1: cannot attach to nosuch0: there is no such interface"
    );
    let nowhere = port(1, Attach::Unix("/nonexistent/p1.sock".into()));
    let text = refusal(SwitchConfig {
        ports: vec![nowhere],
        ..base_config()
    })
    .await;
    assert!(
        text.starts_with("port 1: cannot attach to unix:/nonexistent/p1.sock: "),
        "{text}"
    );
    let closed = port(1, Attach::Inherited(999));
    let text = refusal(SwitchConfig {
        ports: vec![closed],
        ..base_config()
    })
    .await;
    assert!(
        text.starts_with("port 1: cannot attach to fd:999: "),
        "{text}"
    );
    let wire = WireConfig {
        loss: vec![Loss::Independent { probability: 2.0 }],
        ..WireConfig::default()
    };
    let lossy = PortConfig {
        wire,
        ..virtual_port(1)
    };
    assert_eq!(
        refusal(SwitchConfig {
            ports: vec![lossy],
            ..base_config()
        })
        .await,
        "port 1: loss probability 2: expected at least 0 and at most 1 (below 1 for bursts)"
    );
}

#[tokio::test]
async fn a_socket_file_in_use_is_kept_and_an_abandoned_one_replaced() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("p.sock");
    let config = |path: &PathBuf| SwitchConfig {
        ports: vec![port(1, Attach::Unix(path.clone()))],
        ..base_config()
    };
    let first = Switch::start(config(&path)).await.expect("starts");
    assert!(
        refusal(config(&path))
            .await
            .contains("Address already in use")
    );
    assert!(
        path.exists(),
        "the refused switch does not remove the socket file in use"
    );
    first.stop().await.expect("stops");
    // A killed switch leaves its socket file, on which no process listens.
    let dead = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .expect("socket");
    bind(dead.as_raw_fd(), &UnixAddr::new(&path).expect("address")).expect("bind");
    drop(dead);
    let second = Switch::start(config(&path)).await.expect("replaces it");
    second.stop().await.expect("stops");
    let stream = std::os::unix::net::UnixListener::bind(&path).expect("bind");
    let text = refusal(config(&path)).await;
    assert!(
        text.contains("in use"),
        "the switch must not remove another service's socket: {text}"
    );
    drop(stream);
    std::fs::remove_file(&path).expect("remove");
    std::fs::write(&path, "data").expect("write");
    assert!(
        refusal(config(&path)).await.contains("in use"),
        "nor a file"
    );
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "data");
}

#[tokio::test]
async fn program_and_address_are_checked() {
    let garbled = ProgramFiles {
        p4info: Some("tables { preamble { id: x } }".into()),
        ..program()
    };
    let text = refusal(SwitchConfig {
        program: Some(garbled),
        ..base_config()
    })
    .await;
    assert!(text.starts_with("P4Info: "), "{text}");
    let invalid_json = ProgramFiles {
        json: b"{".to_vec(),
        ..program()
    };
    let text = refusal(SwitchConfig {
        program: Some(invalid_json),
        ..base_config()
    })
    .await;
    assert!(text.starts_with("program: line 1"), "{text}");
    let other = ProgramFiles {
        p4info: Some("pkg_info { arch: \"v1model\" }".into()),
        ..program()
    };
    let text = refusal(SwitchConfig {
        program: Some(other),
        ..base_config()
    })
    .await;
    assert!(
        text.starts_with("program: program and P4Info disagree"),
        "{text}"
    );
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address");
    let text = refusal(SwitchConfig {
        grpc: address,
        ..base_config()
    })
    .await;
    assert!(
        text.starts_with(&format!("cannot serve gRPC at {address}: ")),
        "{text}"
    );
}

#[test]
fn ports_are_written_as_number_at_attachment() {
    let attach = |text: &str| {
        let port: PortConfig = text.parse().expect("valid");
        (port.number, port.attach.to_string())
    };
    assert_eq!(attach("3@veth0"), (3, "veth0".to_owned()));
    assert_eq!(
        attach("0@unix:/run/p3.sock"),
        (0, "unix:/run/p3.sock".to_owned())
    );
    assert_eq!(attach("510@fd:7"), (510, "fd:7".to_owned()));
    let error = |text: &str| text.parse::<PortConfig>().expect_err("invalid").to_string();
    assert_eq!(
        error("veth0"),
        "port `veth0`: expected PORT@INTERFACE, PORT@unix:PATH or PORT@fd:NUMBER"
    );
    assert_eq!(
        error("x@veth0"),
        "port `x@veth0`: `x` is not a port number, expected 0 to 510"
    );
    assert_eq!(
        error("511@veth0"),
        "port `511@veth0`: `511` is not a port number, expected 0 to 510"
    );
    assert!(error("1@fd:0").contains("3 or more"));
    assert!(error("1@unix:").contains("a path of 1 to 107 bytes"));
    assert!(error("1@a/b").contains("not an interface name"));
    assert!(error("1@sixteen-letters-").contains("not an interface name"));
}
