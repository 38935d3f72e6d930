//! Measures the switch end to end over virtual ports: `cargo run --release -p ultima-switch
//! --example measure`.
//!
//! Prints packets per second for unicast and for multicast to 8 with 1400-byte frames of our own
//! program, and how much later than configured frames cross a wire with a delay.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, multicast_group};
use ultima_p4runtime::text;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    Entity, MasterArbitrationUpdate, StreamMessageRequest, Update, WriteRequest,
    stream_message_request,
};
use ultima_switch::{Attach, PortConfig, ProgramFiles, Switch, SwitchConfig, WireConfig};

const JSON: &[u8] = include_bytes!("../tests/programs/testbed.json");
const P4INFO: &str = include_str!("../tests/programs/testbed.p4info.txtpb");
const UNICAST: u64 = 0x0200_0000_0001;
const MULTICAST: u64 = 0x0300_0000_0001;
const FRAME: usize = 1400;
const SPAN: Duration = Duration::from_secs(3);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let (peers, switch) = start(WireConfig::default()).await?;
    for (name, dst, to) in [("unicast", UNICAST, 1), ("multicast to 8", MULTICAST, 8)] {
        let rate = flood(&peers[0], &peers[1..=to], dst)?;
        println!(
            "{name}: {:.0} packets/s in, {:.0} out; {:.0} in per second of the forwarding thread",
            rate.sent, rate.received, rate.per_cpu_second
        );
    }
    switch.stop().await?;

    for delay in [
        Duration::ZERO,
        Duration::from_micros(100),
        Duration::from_millis(1),
    ] {
        let (peers, switch) = start(WireConfig {
            delay,
            ..WireConfig::default()
        })
        .await?;
        let mut late = crossings(&peers[0], &peers[1], delay)?;
        late.sort_unstable();
        let at = |percent: usize| late[(late.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0;
        println!(
            "wire of {delay:?}: crossed in {delay:?} + {:.1} µs (median), {:.1} µs (99 %)",
            at(50),
            at(99)
        );
        switch.stop().await?;
    }
    Ok(())
}

/// A switch with nine ports, the second with this wire.
async fn start(wire: WireConfig) -> Outcome<(Vec<UnixDatagram>, Switch)> {
    let mut peers = Vec::new();
    let mut ports = Vec::new();
    for number in 1..=9 {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs): (OwnedFd, OwnedFd) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        setsockopt(&theirs, sockopt::SndBuf, &(4 << 20))?;
        let wire = if number == 2 {
            wire.clone()
        } else {
            WireConfig::default()
        };
        ports.push(PortConfig {
            number,
            attach: Attach::Socket(ours),
            wire,
        });
        peers.push(UnixDatagram::from(theirs));
    }
    let switch = Switch::start(SwitchConfig {
        grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
        program: Some(ProgramFiles {
            json: JSON.to_vec(),
            p4info: P4INFO.to_owned(),
        }),
        ports,
        ..SwitchConfig::default()
    })
    .await?;
    configure(switch.grpc_addr()).await?;
    Ok((peers, switch))
}

async fn configure(address: SocketAddr) -> Outcome<()> {
    let channel = Channel::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = P4RuntimeClient::new(channel);
    let update = MasterArbitrationUpdate {
        device_id: 1,
        election_id: Some(1u128.into()),
        ..MasterArbitrationUpdate::default()
    };
    let update = Some(stream_message_request::Update::Arbitration(update));
    let requests = tokio_stream::once(StreamMessageRequest { update });
    let requests = requests.chain(tokio_stream::pending());
    let mut responses = client.stream_channel(requests).await?.into_inner();
    responses.message().await?;
    let names = Names::new(text::parse(P4INFO)?)?;
    let table = names.table("IngressPipe.forward")?;
    let entry = |dst: u64, action: &str, name: &str, value: u16| -> Outcome<Entity> {
        let entry = table.entry().exact("hdr.ethernet.dst", dst)?;
        Ok(entry
            .action(action, &[(name, Bytestring::from(value))])?
            .build()?
            .into())
    };
    let copies = (2..=9).map(|port| Replica {
        port,
        instance: port,
    });
    let entities = [
        multicast_group(1, copies)?.into(),
        entry(UNICAST, "IngressPipe.send", "port", 2)?,
        entry(MULTICAST, "IngressPipe.flood", "group", 1)?,
    ];
    let request = WriteRequest {
        device_id: 1,
        election_id: Some(1u128.into()),
        updates: entities.into_iter().map(Update::insert).collect(),
        ..WriteRequest::default()
    };
    client.write(request).await?;
    Ok(())
}

fn frame(dst: u64) -> Vec<u8> {
    let mut frame = dst.to_be_bytes()[2..].to_vec();
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 0xaa, 0x88, 0xb5]);
    frame.resize(FRAME, 0);
    frame
}

/// Packets per second.
struct Rate {
    sent: f64,
    /// By all receivers together.
    received: f64,
    /// Packets sent per second that the forwarding thread computed: what a core of its own would
    /// do.
    per_cpu_second: f64,
}

/// Time that the forwarding thread has computed so far.
fn forwarding_time() -> Outcome<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == "ultima-forward" {
            // Nanoseconds on the CPU come first (Documentation/scheduler/sched-stats).
            let schedstat = std::fs::read_to_string(path.join("schedstat"))?;
            let nanos = schedstat.split_whitespace().next().unwrap_or_default();
            return Ok(Duration::from_nanos(nanos.parse()?));
        }
    }
    Err("there is no forwarding thread".into())
}

/// Sends as fast as the switch takes frames.
fn flood(from: &UnixDatagram, to: &[UnixDatagram], dst: u64) -> Outcome<Rate> {
    for peer in to {
        peer.set_read_timeout(Some(Duration::from_millis(300)))?;
    }
    let frame = frame(dst);
    thread::scope(|scope| {
        let sinks: Vec<_> = to
            .iter()
            .map(|peer| {
                scope.spawn(|| {
                    let mut buffer = [0; 2048];
                    let mut count = 0u64;
                    while peer.recv(&mut buffer).is_ok() {
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let (start, computed) = (Instant::now(), forwarding_time()?);
        let mut sent = 0u64;
        while start.elapsed() < SPAN {
            for _ in 0..32 {
                from.send(&frame)?;
                sent += 1;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let received: u64 = sinks.into_iter().map(|sink| sink.join().unwrap_or(0)).sum();
        let computed = (forwarding_time()? - computed).as_secs_f64();
        Ok(Rate {
            sent: sent as f64 / seconds,
            received: received as f64 / seconds,
            per_cpu_second: sent as f64 / computed,
        })
    })
}

/// Sends frames one by one; how much later than `delay` each one came.
fn crossings(from: &UnixDatagram, to: &UnixDatagram, delay: Duration) -> Outcome<Vec<Duration>> {
    let frame = frame(UNICAST);
    let mut buffer = [0; 2048];
    (0..2000)
        .map(|_| {
            let start = Instant::now();
            from.send(&frame)?;
            to.recv(&mut buffer)?;
            let late = start.elapsed().saturating_sub(delay);
            // Not in step with anything: the switch sleeps between two frames.
            thread::sleep(Duration::from_micros(200));
            Ok(late)
        })
        .collect()
}
