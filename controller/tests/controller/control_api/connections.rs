//! Connections of clients.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tonic::transport::Endpoint;
use ultima_api::address::Listen;
use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_api::v1::control_client::ControlClient;
use ultima_api::v1::membership_event::Kind;
use ultima_controller::server::{self, Config, Timers};

use super::{LONG, spec, start};
use crate::chaos::ChaosSwitch;
use crate::target::Target;
use crate::testbed::{TIMERS, until_event};

/// The client's kernel acknowledges, but the client reads nothing.
#[tokio::test]
async fn a_client_that_reads_nothing_does_not_delay_the_stop() {
    let (_switch, handle, client) = start(Target::of_run()).await;
    let job = spec("train", &["h1", "h2"]);
    client.create_job(&job).await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", handle.address())).unwrap();
    // The window is too small for one answer.
    let endpoint = endpoint.initial_stream_window_size(1);
    let rpc = ControlClient::new(endpoint.connect().await.unwrap());
    let watches_telemetry = api::WatchTelemetryRequest {
        job: String::new(),
        interval_ms: 100,
    };
    let _telemetry = rpc
        .clone()
        .watch_telemetry(watches_telemetry)
        .await
        .unwrap();
    let watches_job = api::WatchJobRequest {
        name: "train".into(),
    };
    let _members = rpc.clone().watch_job(watches_job).await.unwrap();
    let stopped = tokio::time::timeout(LONG, handle.stop()).await;
    stopped.expect("it stops");
}

/// The error code of the GOAWAY frame that ends an HTTP/2 connection (RFC 9113, 6.8); none without one.
fn goaway(mut sent: &[u8]) -> Option<u32> {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |number, it| number << 8 | u32::from(*it))
    };
    while let Some((header, rest)) = sent.split_at_checked(9) {
        let (frame, rest) = rest.split_at(number(&header[..3]) as usize);
        if header[3] == 7 {
            return Some(number(&frame[4..8]));
        }
        sent = rest;
    }
    None
}

/// A connection ends with a GOAWAY when it has been idle, and its client connects again. A stream keeps its connection.
#[tokio::test]
async fn an_idle_connection_ends_unless_it_has_a_stream() {
    let target = Target::of_run();
    let switch = ChaosSwitch::start_as(target).await;
    let text = include_str!("../../../../topologies/star4.yaml");
    let text = text.replace("127.0.0.1:9559", &switch.address().to_string());
    let idle = Duration::from_millis(200);
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        timers: Timers {
            connection: idle,
            ..TIMERS
        },
        ..target.config_for(&text, "star.yaml")
    };
    let handle = server::serve(config).await.unwrap();
    let address = handle.address().to_string();
    let watching = Client::connect(&address).await.unwrap();
    let job = spec("train", &["h1", "h2"]);
    watching.create_job(&job).await.unwrap();
    let mut watch = watching.watch_job("train").await.unwrap();

    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let of_proxy = proxy.local_addr().unwrap().to_string();
    let (ended, mut connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = proxy.accept().await {
            let (ended, address) = (ended.clone(), address.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(address).await.unwrap();
                let (mut from_server, mut to_server) = server.split();
                let (mut from_client, mut to_client) = client.split();
                let mut sent = Vec::new();
                let receive = async {
                    loop {
                        let before = sent.len();
                        if from_server.read_buf(&mut sent).await.unwrap() == 0 {
                            break;
                        }
                        to_client.write_all(&sent[before..]).await.unwrap();
                    }
                };
                tokio::select! {
                    () = receive => {}
                    _ = copy(&mut from_client, &mut to_server) => {}
                }
                ended.send(sent).unwrap();
            });
        }
    });
    let client = Client::connect(&of_proxy).await.unwrap();
    for _ in 0..3 {
        client.jobs().await.unwrap();
        let next = tokio::time::timeout(LONG, connections.recv());
        let sent = next.await.expect("the connection ends").unwrap();
        assert_eq!(goaway(&sent), Some(0), "{sent:?}");
    }
    client.join("train", "h1", Duration::ZERO).await.unwrap();
    until_event(&mut watch, Kind::Joined).await;
}

#[tokio::test]
async fn an_unreachable_controller_is_named() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = Client::connect(&silent.to_string())
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!(
            "the controller at {silent} does not answer: Connection refused (os error 111); start it with `ultima controller serve`, or \
             correct the address; if it runs on another machine, start it there with --listen ADDRESS:9555, an address that this \
             machine reaches, and use --controller ADDRESS:9555 here"
        )
    );

    let (_switch, handle, client) = start(Target::of_run()).await;
    let address = handle.address().clone();
    handle.stop().await;
    let error = client.jobs().await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the controller at {address} does not answer: ")),
        "{error}"
    );
}

#[tokio::test]
async fn the_control_api_is_served_on_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("controller.sock");
    // A killed server leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let switch = ChaosSwitch::start().await;
    let text = include_str!("../../../../topologies/star4.yaml")
        .replace("127.0.0.1:9559", &switch.address().to_string());
    let config = || Config {
        listen: Listen::Unix(path.clone()),
        ..Target::of_run().config_for(&text, "star.yaml")
    };
    let handle = server::serve(config()).await.unwrap();
    let address = format!("unix:{}", path.display());
    assert_eq!(handle.address().to_string(), address);
    let client = Client::connect(&address).await.unwrap();
    assert!(client.jobs().await.unwrap().is_empty());

    // The socket of a running server is not replaced.
    let error = server::serve(config()).await.err().unwrap().to_string();
    assert!(
        error.starts_with(&format!(
            "cannot listen on {address}: Address already in use"
        )),
        "{error}"
    );
    assert!(client.jobs().await.unwrap().is_empty());
    // A client that cannot receive its answer keeps no socket: it opens no window for the metrics (RFC 9113, 6.5.2 and 6.9).
    let mut stuck = UnixStream::connect(&path).await.unwrap();
    let settings = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00";
    let headers = b"\x00\x00\x0f\x01\x05\x00\x00\x00\x01\x82\x86\x04\x08/metrics\x01\x01a";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let request = [&preface[..], settings, headers].concat();
    stuck.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    // The status 200 is one byte (RFC 7541, appendix A).
    while !answer.contains(&0x88) {
        assert_ne!(stuck.read_buf(&mut answer).await.unwrap(), 0);
    }
    handle.stop().await;
    assert!(!path.exists());
    let error = Client::connect(&address).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the controller at {address} does not answer: ")),
        "{error}"
    );
}
