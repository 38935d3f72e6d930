//! Pcap files that a port replays.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::LazyLock;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::runtime::{Builder, Runtime};
use ultima_switch::{Attach, PcapFiles, PortConfig, Switch, SwitchConfig, SwitchError, WireConfig};

/// Times in a file may be far apart.
const TIMED: Duration = Duration::from_millis(3);
/// Without times, a replay that takes longer is a hang.
const PATIENCE: Duration = Duration::from_secs(20);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
});

/// A file, replayed into a switch without a program. The first byte chooses whether its times count.
pub fn pcap(data: &[u8]) {
    let Some((first, content)) = data.split_first() else {
        return;
    };
    let timed = first & 1 == 1;
    let mut file = File::from(memfd_create("input", MFdFlags::empty()).expect("memory"));
    file.write_all(content).expect("memory");
    let input = format!("/proc/self/fd/{}", file.as_raw_fd());
    let config = SwitchConfig {
        grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
        ports: vec![PortConfig {
            number: 1,
            attach: Attach::Pcap(PcapFiles {
                input: Some(input.into()),
                output: None,
                timed,
                overwrite: false,
            }),
            wire: WireConfig::default(),
        }],
        exit_when_done: true,
        ..SwitchConfig::default()
    };
    RUNTIME.block_on(async {
        let switch = match Switch::start(config).await {
            Ok(switch) => switch,
            // What is wrong with a file may be known from its beginning.
            Err(SwitchError::Attach { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let patience = if timed { TIMED } else { PATIENCE };
        let mut late = false;
        let ended = switch.run_until(async {
            tokio::time::sleep(patience).await;
            late = true;
        });
        match ended.await {
            // A record that is damaged.
            Ok(()) | Err(SwitchError::Forwarding(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(timed || !late, "the replay does not end");
    });
}
