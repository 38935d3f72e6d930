//! Two ports joined by wires, without a program.

use std::net::SocketAddr;
use std::time::Duration;

use crate::served::common::{Peer, accounted, number, packets, probe};
use ultima_switch::proto::traffic_manager_client::TrafficManagerClient;
use ultima_switch::proto::{Change, GetResponse, SetSettingsRequest};
use ultima_switch::tm::{WireChange, WireConfig};
use ultima_switch::{Attach, LinkConfig, Running, link};

const A: u64 = 0x0200_0000_0001;

/// A link between two virtual ports.
struct Testbed {
    link: Running,
    a: Peer,
    b: Peer,
}

fn wire(settings: &str) -> WireConfig {
    let mut wire = WireConfig::default();
    let change: WireChange = settings.parse().expect(settings);
    change.apply(&mut wire);
    wire
}

impl Testbed {
    async fn new(a_to_b: WireConfig, b_to_a: WireConfig, seed: u64) -> Testbed {
        let ((at_a, a), (at_b, b)) = (Peer::pair(), Peer::pair());
        let config = LinkConfig {
            a: Attach::Socket(at_a.into()),
            b: Attach::Socket(at_b.into()),
            a_to_b,
            b_to_a,
            seed,
            grpc: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            pcap_dir: None,
        };
        let link = link::start(config).await.expect("the link starts");
        Testbed { link, a, b }
    }

    /// Waits until this many frames have entered at A and none is queued or in flight. Returns the counts.
    async fn until_drained(&self, entered: u64) -> GetResponse {
        let counts = link::counts(&self.link);
        loop {
            let now = counts.get().await.expect("it runs");
            let (a, b) = (&now.ports[0], &now.ports[1]);
            let held = packets(&b.queued) + packets(&b.in_flight);
            if accounted(a).0 == entered && accounted(b).1 == entered && held == 0 {
                return now;
            }
        }
    }
}

#[tokio::test]
async fn frames_cross_unchanged_in_both_directions() {
    let testbed = Testbed::new(WireConfig::default(), WireConfig::default(), 1).await;
    for (len, n) in (19..).step_by(977).take(60).zip(0..) {
        let frame = probe(A, 0, n, len);
        testbed.a.send(&frame);
        assert_eq!(testbed.b.receive(), frame);
        testbed.b.send(&frame);
        assert_eq!(testbed.a.receive(), frame);
    }
    let counts = testbed.until_drained(60).await;
    for port in &counts.ports {
        assert_eq!((accounted(port), packets(&port.left)), ((60, 60), 60));
        assert_eq!(packets(&port.forwarded), 60);
    }
    let counts = link::counts(&testbed.link);
    testbed.link.stop().await.expect("stops");
    assert!(counts.get().await.is_none());
}

/// Sends 2000 frames to A, in batches that fit the queue. Returns the numbers of the frames that arrive at B.
async fn arrived(settings: &str, seed: u64) -> Vec<u32> {
    let testbed = Testbed::new(wire(settings), WireConfig::default(), seed).await;
    let mut arrived = Vec::new();
    for batch in 0..20 {
        for n in 0..100 {
            testbed.a.send(&probe(A, 0, batch * 100 + n, 100));
        }
        let counts = testbed.until_drained(u64::from(batch + 1) * 100).await;
        while (arrived.len() as u64) < packets(&counts.ports[1].left) {
            arrived.push(number(&testbed.b.receive()));
        }
    }
    let counts = testbed.until_drained(2000).await;
    let drops = counts.ports[1].drops.clone().expect("drops");
    assert_eq!(packets(&drops.wire), 2000 - arrived.len() as u64);
    testbed.link.stop().await.expect("stops");
    arrived
}

#[tokio::test]
async fn the_seed_decides_which_frames_are_lost() {
    let lossy = "loss=0.05:4,loss=0.01";
    let first = arrived(lossy, 7).await;
    assert!(first.is_sorted());
    // 2000 frames lose 120 on average; bursts make the standard deviation 27.
    let lost = 2000 - first.len();
    assert!((20..250).contains(&lost), "{lost}");
    assert_eq!(first, arrived(lossy, 7).await);
    assert_ne!(first, arrived(lossy, 8).await);
    // Delay and jitter neither lose nor reorder.
    let jittery = format!("{lossy},delay=100us,jitter=normal:50us");
    assert_eq!(first, arrived(&jittery, 7).await);
}

#[tokio::test]
async fn jitter_reorders_on_request() {
    let numbers = arrived("delay=2ms,jitter=uniform:2ms,reorder=true", 3).await;
    assert_eq!(numbers.len(), 2000);
    assert!(!numbers.is_sorted());
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..2000));
}

#[tokio::test]
async fn loss_is_set_and_cleared_while_frames_flow() {
    let testbed = Testbed::new(WireConfig::default(), WireConfig::default(), 1).await;
    let address = format!("http://{}", testbed.link.grpc_addr().expect("served"));
    let mut client = TrafficManagerClient::connect(address)
        .await
        .expect("connects");
    let mut set = async |settings: &str| {
        let changes = vec![Change {
            ports: vec![ultima_switch::link::PORT_B.into()],
            settings: settings.to_owned(),
        }];
        let device_id = 0;
        client
            .set(SetSettingsRequest { device_id, changes })
            .await
            .expect("set");
    };
    testbed.a.send(&probe(A, 0, 1, 60));
    assert_eq!(number(&testbed.b.receive()), 1);
    set("loss=1").await;
    testbed.a.send(&probe(A, 0, 2, 60));
    testbed.until_drained(2).await;
    // The other direction is unchanged.
    testbed.b.send(&probe(A, 0, 3, 60));
    assert_eq!(number(&testbed.a.receive()), 3);
    set("loss=none,delay=1ms").await;
    testbed.a.send(&probe(A, 0, 4, 60));
    assert_eq!(number(&testbed.b.receive()), 4);
    let counts = testbed.until_drained(3).await;
    let b = &counts.ports[1];
    assert_eq!(packets(&b.drops.as_ref().expect("drops").wire), 1);
    testbed.link.stop().await.expect("stops");
}

#[tokio::test]
async fn ends_and_wires_are_checked() {
    let config = |a, a_to_b| LinkConfig {
        a,
        b: Attach::Socket(Peer::pair().0.into()),
        a_to_b,
        b_to_a: WireConfig::default(),
        seed: 1,
        grpc: None,
        pcap_dir: None,
    };
    let missing = Attach::Interface("nosuch0".to_owned());
    let far = WireConfig {
        delay: Duration::from_secs(100),
        ..WireConfig::default()
    };
    for (config, text) in [
        (
            config(missing, WireConfig::default()),
            "port 1: cannot attach to nosuch0: there is no such interface",
        ),
        (
            config(Attach::Socket(Peer::pair().0.into()), far),
            "port 2: delay 100s: expected at most 60s",
        ),
    ] {
        let error = link::start(config).await.map(|_| ()).expect_err("refused");
        assert_eq!(error.to_string(), text);
    }
    let link = config(Attach::Socket(Peer::pair().0.into()), WireConfig::default());
    let link = link::start(link).await.expect("starts");
    assert_eq!(link.grpc_addr(), None);
    link.stop().await.expect("stops");
}
