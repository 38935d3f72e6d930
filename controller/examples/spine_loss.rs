//! How long 100 jobs on six embedded switches take to leave a spine that is lost, once as its process ends and once as it hangs:
//! `cargo run --release -p ultima-controller --example spine_loss`.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ultima_controller::fabric;
use ultima_controller::job::JobSpec;
use ultima_controller::server::{self, Config};
use ultima_switch::{Switch, SwitchConfig};

const JOBS: usize = 100;
const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];

/// What becomes of the spine.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Its connections end.
    Stops,
    /// They stand, and nothing comes by them.
    Hangs,
}

/// A switch in a runtime of its own, so that nothing else of this process ends or hangs with it.
struct Spine {
    address: SocketAddr,
    losses: mpsc::Sender<Loss>,
}

impl Spine {
    fn start(config: SwitchConfig) -> Result<Self, mpsc::RecvError> {
        let (addresses, address) = mpsc::channel();
        let (losses, loss) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let switch = runtime.block_on(Switch::start(config));
            let switch = switch.expect("a free port");
            // Whoever waits for it is there as long as the example.
            let _ = addresses.send(switch.grpc_addr());
            match loss.recv() {
                Ok(Loss::Hangs) => {
                    for _ in 0..runtime.metrics().num_workers() {
                        runtime.spawn(async {
                            loop {
                                thread::park();
                            }
                        });
                    }
                    loop {
                        thread::park();
                    }
                }
                Ok(Loss::Stops) | Err(_) => drop(runtime.block_on(switch.stop())),
            }
        });
        let address = address.recv()?;
        Ok(Spine { address, losses })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for loss in [Loss::Stops, Loss::Hangs] {
        lose(loss).await?;
    }
    Ok(())
}

async fn lose(loss: Loss) -> Result<(), Box<dyn std::error::Error>> {
    let config = || SwitchConfig {
        grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..SwitchConfig::default()
    };
    let spine = Spine::start(config())?;
    let mut switches = Vec::new();
    // Room for as many ranks on each host.
    let mut text =
        include_str!("../../topologies/leaf-spine.yaml").replace("ranks: 2", "ranks: 100");
    for name in NAMES {
        let address = match name {
            "spine1" => spine.address,
            _ => {
                let switch = Switch::start(config()).await?;
                let address = switch.grpc_addr();
                switches.push(switch);
                address
            }
        };
        let entry = format!("name: {name}, grpc: \"{address}\", device_id: 1");
        text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
    }
    let config = Config {
        listen: "127.0.0.1:0".parse()?,
        ..Config::new(fabric::parse(&text, "leaf-spine.yaml")?)?
    };
    let grace = config.terms.grace;
    let handle = server::serve(config).await?;
    let controller = handle.controller();
    for job in 0..JOBS {
        let spec = JobSpec {
            seed: Some(1),
            ..JobSpec::new(format!("job{job}"), (1..=8).map(|host| format!("h{host}")))
        };
        controller.create_job(&spec).await?;
    }
    let on_spine = || controller.switches()[0].jobs.len();
    println!("{} of {JOBS} jobs on spine1, which {loss:?}", on_spine());

    let begun = Instant::now();
    spine.losses.send(loss)?;
    while on_spine() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let planned = begun.elapsed();
    // Requests wait until all is written; that there is no such job is said then.
    let nothing = controller.delete_job("none").await;
    assert!(nothing.is_err());
    println!(
        "planned after {planned:?}, last write after {:?}, of which {grace:?} grace",
        begun.elapsed()
    );
    let audit = controller.audit(false).await;
    let whole = audit
        .iter()
        .filter(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()));
    println!("{} switches hold what they should", whole.count());
    handle.stop().await;
    for switch in switches {
        switch.stop().await?;
    }
    Ok(())
}
