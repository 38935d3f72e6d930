//! AllReduce between processes over loopback, as jobs run it: time and CPU time of an operation, also while another
//! process sends hostile packets to a sealed job.
//!
//! `cargo bench -p ultima-agent --bench loopback -- --ranks 4 --bytes 26000000`

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use ultima_agent::job::rendezvous::{Place, Request};
use ultima_agent::job::{Job, JobError, Rendezvous};
use ultima_host::{
    Coding, Collective, Config, Core, Destination, Element, Gather, OperationId, Time, UdpConfig,
};
use ultima_wire::{Key, SLOT_AT, UDP_PORT, group_address};

const JOB: u16 = 1;

#[derive(Clone, Parser)]
struct Options {
    /// Number of ranks, a process each.
    #[arg(long, default_value_t = 4)]
    ranks: u16,
    /// Length of the gradient in bytes.
    #[arg(long, default_value_t = 26_000_000)]
    bytes: usize,
    /// Measured operations, after a quarter as many more.
    #[arg(long, default_value_t = 20)]
    operations: u32,
    /// Payload of a full packet in bytes.
    #[arg(long, default_value_t = Config::SLOT_BYTES)]
    slot: usize,
    /// No Hadamard coding.
    #[arg(long)]
    uncoded: bool,
    /// bfloat16 in packets.
    #[arg(long)]
    bf16: bool,
    /// Sealed packets.
    #[arg(long)]
    sealed: bool,
    /// All packets through the kernel, none through shared memory.
    #[arg(long)]
    udp: bool,
    /// Hostile packets per second to each rank of a sealed job.
    #[arg(long, requires = "sealed")]
    attack: Option<u32>,
    /// Run as the attacker.
    #[arg(long, hide = true)]
    attacker: bool,
    /// Run as this rank.
    #[arg(long, hide = true)]
    rank: Option<u16>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    /// One short operation.
    #[arg(long, hide = true)]
    test: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::parse();
    if options.test {
        (options.bytes, options.operations) = (4000, 1);
    }
    match options.rank {
        _ if options.attacker => attack(&options),
        Some(rank) => run_rank(&options, rank),
        None => run_all(&options),
    }
}

/// Starts a process for each rank, and the attacker, sends them the ranks' addresses, and prints the ranks' lines.
fn run_all(options: &Options) -> Result<(), Box<dyn Error>> {
    let start = |part: String| {
        Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .arg(part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    let parts = (0..options.ranks).map(|rank| format!("--rank={rank}"));
    let mut ranks: Vec<Child> = parts.map(start).collect::<Result<_, _>>()?;
    let mut outputs = Vec::new();
    let mut addresses = String::new();
    for rank in &mut ranks {
        let mut output = BufReader::new(rank.stdout.take().expect("piped"));
        output.read_line(&mut addresses)?;
        outputs.push(output);
    }
    for rank in &mut ranks {
        let mut input = rank.stdin.take().expect("piped");
        input.write_all(addresses.as_bytes())?;
    }
    let mut attacker = None;
    if options.attack.is_some() {
        let process = attacker.insert(start("--attacker".into())?);
        let mut input = process.stdin.take().expect("piped");
        input.write_all(addresses.as_bytes())?;
    }
    for (rank, output) in ranks.iter_mut().zip(outputs) {
        for line in output.lines() {
            println!("{}", line?);
        }
        assert!(rank.wait()?.success(), "a rank failed");
    }
    if let Some(mut attacker) = attacker {
        attacker.kill()?;
        attacker.wait()?;
    }
    Ok(())
}

/// The ranks' addresses, from standard input.
fn addresses() -> Result<Vec<SocketAddrV4>, std::io::Error> {
    let addresses = std::io::stdin().lines().map(|line| match line?.parse() {
        Ok(SocketAddr::V4(address)) => Ok(address),
        other => Err(std::io::Error::other(format!("{other:?}"))),
    });
    addresses.collect()
}

fn config(options: &Options, rank: u16) -> Config {
    Config {
        gather: Gather::Unicast,
        key: options.sealed.then_some(Key([7; 16])),
        slot_bytes: options.slot,
        shared_memory: !options.udp,
        coding: match options.uncoded {
            true => Coding::Identity,
            false => Coding::default(),
        },
        element: match options.bf16 {
            true => Element::Bf16,
            false => Element::F32,
        },
        ..Config::new(JOB, 1, rank, options.ranks, 7, Duration::from_secs(10))
    }
}

/// Until it is killed, sends packets of the first operation to each rank: repeated, forged, cut and changed.
fn attack(options: &Options) -> Result<(), Box<dyn Error>> {
    let peers = addresses()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut hostile: Vec<(SocketAddrV4, Vec<u8>)> = Vec::new();
    for (peer, rank) in peers.iter().zip(0..) {
        let mut core = Core::new(config(options, (rank + 1) % options.ranks))?;
        let id = OperationId { step: 0, bucket: 0 };
        core.start(Time::ZERO, id, vec![1.0; options.bytes / 4])?;
        let mut buf = vec![0; core.max_datagram()];
        let mut sent = 0;
        while sent < 64
            && let Some(transmit) = core.next_datagram(Time::ZERO, &mut buf)
        {
            if transmit.to == Destination::Rank(rank) {
                let mut datagram = buf[..transmit.len].to_vec();
                match sent % 4 {
                    0 => {}
                    1 => datagram[SLOT_AT] ^= 1,
                    2 => datagram.truncate(transmit.len / 2),
                    _ => datagram[transmit.len - 1] ^= 1,
                }
                hostile.push((*peer, datagram));
                sent += 1;
            }
        }
    }
    let rate = f64::from(options.attack.expect("the attack's rate") * u32::from(options.ranks));
    let start = Instant::now();
    let mut sent = 0;
    loop {
        let due = (start.elapsed().as_secs_f64() * rate) as usize;
        while sent < due {
            let (peer, datagram) = &hostile[sent % hostile.len()];
            // A full buffer of the receiver is not an error, and a rank that has ended has no socket.
            let _ = socket.send_to(datagram, peer);
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The place of a rank that knows the others already, and the job's key with them.
struct Met(Place);

impl Rendezvous for Met {
    fn meet(self: Box<Self>, _request: &Request) -> Result<Place, JobError> {
        Ok(self.0)
    }
}

fn run_rank(options: &Options, rank: u16) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    println!("{}", socket.local_addr()?);
    let peers = addresses()?;
    let own = peers[usize::from(rank)];
    let config = config(options, rank);
    let udp = UdpConfig {
        socket,
        peers,
        group: SocketAddrV4::new(group_address(JOB), UDP_PORT),
    };
    let place = Place::fixed(Collective::over_udp(config, udp)?, own);
    let job = Job::builder().rendezvous(Met(place)).start()?;
    let mut gradient: Vec<f32> = (0..options.bytes / 4).map(|at| (at % 97) as f32).collect();
    let warm_up = options.operations.div_ceil(4);
    let mut times = Vec::new();
    let (mut lost, mut cpu) = (0.0f64, Duration::ZERO);
    for step in 0..warm_up + options.operations {
        if step == warm_up {
            cpu = cpu_time()?;
        }
        let start = Instant::now();
        let reduced = job.all_reduce(gradient).wait()?;
        gradient = reduced.values;
        if step >= warm_up {
            times.push(start.elapsed().as_secs_f64() * 1e3);
            lost += reduced.outcome.lost_share();
        }
    }
    let cpu = (cpu_time()? - cpu).as_secs_f64() / f64::from(options.operations);
    let report = job.finish(Duration::from_millis(200))?;
    times.sort_by(f64::total_cmp);
    println!(
        "ultima rank {rank} p50 {:.3} ms, p99 {:.3} ms, CPU {:.4} s per operation, lost {:.5}, refused {}",
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        cpu,
        lost / f64::from(options.operations),
        report.totals.rejected.total(),
    );
    Ok(())
}

/// CPU time of this process so far.
fn cpu_time() -> nix::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Ok(Duration::from_micros(micros as u64))
}
