//! Compares the embedded switch with BMv2: `cargo bench -p ultima-tests --bench bmv2`, as root, with
//! `simple_switch_grpc` on the PATH or named by `--bmv2`.
//!
//! Both have the same program, entries and controller, nine veth interfaces each in its own namespace, and get the same frames
//! in turns. Each round measures every quantity at both switches, and has its own ratio.
//!
//! - *Rates* come from the counters of the receiving interfaces. One thread sends with sendmmsg, up to 16 frames at a time, at
//!   rising rates. "Most received" is the highest received rate; "without loss" is the highest at which every frame arrived and
//!   the switch kept up. Frames per second of CPU time are comparable on a busy machine, too.
//! - *Latency* is the time from the call that sends a frame to the end of the call that receives it, or the last copy of a
//!   multicast. One spinning thread does both. "back to back" sends the next frame at once; "1,000/s" pauses so that the switch
//!   sleeps.
//! - *Table writes* insert and delete entries of the table of jobs, in batches of 500, while frames flow at a fixed rate.
//!
//! The sender runs on the first CPU; the switches may use all.

use std::io;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use clap::Parser;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use ultima_tests::fabric::Fabric;
use ultima_tests::needs;
use ultima_tests::stage::Target;

mod link;
mod report;
mod threads;
mod trial;

use report::{Row, percentile};
use trial::{Bench, RECEIVERS, Rates, Traffic, WRITES_FOR, Writes};

/// The pause between frames in the slow latency measurement.
const PAUSE: Duration = Duration::from_millis(1);
/// The rates of frames while tables are written: one that BMv2 carries, and one that it does not.
const WHILE_WRITING: [f64; 2] = [4_000.0, 50_000.0];

/// Measures the embedded switch and BMv2 side by side.
#[derive(Parser)]
struct Arguments {
    /// BMv2's simple_switch_grpc [default: the one on the PATH]
    #[arg(long, value_name = "FILE")]
    bmv2: Option<PathBuf>,
    /// Rounds over everything
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each rate is offered, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(50..))]
    span: u64,
    /// Frames per latency measurement
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(100..))]
    frames: u32,
    /// Only these quantities
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Rates, Part::Latency, Part::Writes])]
    only: Vec<Part>,
    /// How long the embedded switch polls, as `ultima switch --poll`, in microseconds
    #[arg(long, value_name = "US", default_value = "30", value_parser = microseconds)]
    poll: Duration,
    /// Only the embedded switch
    #[arg(long)]
    alone: bool,
    /// Only flood the embedded switch for some seconds, for a profiler to look at
    #[arg(long, value_name = "SECONDS", requires = "alone", value_parser = clap::value_parser!(u64).range(1..=60))]
    flood: Option<u64>,
    /// The argument that `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
    /// One short round, as `cargo bench -- --test` requests of all benches
    #[arg(long, hide = true)]
    test: bool,
}

/// A group of rows.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Rates,
    Latency,
    Writes,
}

/// One measurement.
#[derive(Clone, Copy)]
enum Trial {
    Rates(Traffic, Duration),
    Latency(Traffic, usize, Duration),
    Flood(Traffic, Duration),
    /// Frames per second.
    Writes(f64),
}

enum Sample {
    Rates(Rates),
    /// Microseconds, sorted.
    Latency(Vec<f64>),
    Writes(Writes),
}

/// A switch that waits for its measurements.
struct Contestant {
    trials: Sender<Trial>,
    samples: Receiver<io::Result<Sample>>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.test {
        (arguments.rounds, arguments.span, arguments.frames) = (1, 50, 100);
    }
    if !needs::interfaces() {
        return ExitCode::SUCCESS;
    }
    let program = if arguments.alone {
        None
    } else {
        let Some(program) = arguments.bmv2.clone().or_else(needs::bmv2_installed) else {
            return ExitCode::SUCCESS;
        };
        Some(program)
    };
    match measure(program, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(program: Option<PathBuf>, arguments: &Arguments) -> io::Result<()> {
    thread::scope(|scope| {
        let start = |target: Target| {
            let (trials, todo) = channel();
            let (done, samples) = channel();
            scope.spawn(move || compete(&target, todo, done));
            Contestant { trials, samples }
        };
        let bmv2 = program.map(|program| start(Target::Bmv2(program)));
        let embedded = start(Target::Polling(arguments.poll));
        let span = Duration::from_millis(arguments.span);
        if let Some(seconds) = arguments.flood {
            return flood(&embedded, Duration::from_secs(seconds));
        }
        let mut rows = Vec::new();
        for round in 0..arguments.rounds {
            let mut at = 0;
            let mut add = |name: String, digits: usize, values: [f64; 2]| {
                if round == 0 {
                    rows.push(Row {
                        name,
                        bmv2: Vec::new(),
                        embedded: Vec::new(),
                        digits,
                    });
                }
                rows[at].bmv2.push(values[0]);
                rows[at].embedded.push(values[1]);
                at += 1;
            };
            for traffic in Traffic::all() {
                let name = name(traffic);
                if arguments.only.contains(&Part::Rates) {
                    let [a, b] = both(bmv2.as_ref(), &embedded, Trial::Rates(traffic, span))?.map(
                        |sample| match sample {
                            Some(Sample::Rates(rates)) => rates,
                            _ => Rates::UNKNOWN,
                        },
                    );
                    add(
                        format!("{name}: most received, frames/s"),
                        0,
                        [a.most, b.most],
                    );
                    add(
                        format!("{name}: without loss, frames/s"),
                        0,
                        [a.lossless, b.lossless],
                    );
                    add(
                        format!("{name}: received per second of the switch's CPU time"),
                        0,
                        [a.per_cpu_second, b.per_cpu_second],
                    );
                }
                if !arguments.only.contains(&Part::Latency) {
                    continue;
                }
                for (how, pause) in [("back to back", Duration::ZERO), ("1,000/s", PAUSE)] {
                    let trial = Trial::Latency(traffic, arguments.frames as usize, pause);
                    let [a, b] =
                        both(bmv2.as_ref(), &embedded, trial)?.map(|sample| match sample {
                            Some(Sample::Latency(sorted)) => sorted,
                            _ => Vec::new(),
                        });
                    for (quantile, percent) in [("least", 0.0), ("median", 50.0), ("99 %", 99.0)] {
                        let name = format!("{name}: latency {how}, {quantile}, µs");
                        add(name, 1, [percentile(&a, percent), percentile(&b, percent)]);
                    }
                }
            }
            for rate in WHILE_WRITING {
                if !arguments.only.contains(&Part::Writes) {
                    break;
                }
                let [a, b] =
                    both(bmv2.as_ref(), &embedded, Trial::Writes(rate))?.map(
                        |sample| match sample {
                            Some(Sample::Writes(writes)) => writes,
                            _ => Writes::UNKNOWN,
                        },
                    );
                let name = format!("{rate} frames/s for {} s", WRITES_FOR.as_secs());
                add(
                    format!("table writes/s during {name}"),
                    0,
                    [a.per_second, b.per_second],
                );
                add(format!("frames lost of these {name}"), 0, [a.lost, b.lost]);
            }
            eprintln!("round {} of {}", round + 1, arguments.rounds);
        }
        println!("{}", report::head());
        for row in rows {
            println!("{row}");
        }
        Ok(())
    })
}

/// Sends each kind of traffic as fast as the sender can.
fn flood(embedded: &Contestant, span: Duration) -> io::Result<()> {
    for traffic in Traffic::all() {
        let [_, sample] = both(None, embedded, Trial::Flood(traffic, span))?;
        if let Some(Sample::Rates(rates)) = sample {
            println!(
                "{}: {:.0} received/s, {:.0} per second of CPU time",
                name(traffic),
                rates.most,
                rates.per_cpu_second
            );
        }
    }
    Ok(())
}

fn microseconds(text: &str) -> Result<Duration, ParseIntError> {
    text.parse().map(Duration::from_micros)
}

fn name(traffic: Traffic) -> String {
    if traffic.multicast {
        format!("multicast to {RECEIVERS}, {} bytes", traffic.bytes)
    } else {
        format!("unicast, {} bytes", traffic.bytes)
    }
}

/// Measures BMv2, if present, and then the embedded switch.
fn both(
    bmv2: Option<&Contestant>,
    embedded: &Contestant,
    trial: Trial,
) -> io::Result<[Option<Sample>; 2]> {
    let turn = |contestant: &Contestant| {
        let gone = |_| io::Error::other("a switch's thread has ended");
        contestant
            .trials
            .send(trial)
            .map_err(|_| io::Error::other("a switch's thread has ended"))?;
        contestant.samples.recv().map_err(gone)?
    };
    Ok([bmv2.map(turn).transpose()?, Some(turn(embedded)?)])
}

/// Runs a switch, and takes measurements on request.
fn compete(target: &Target, todo: Receiver<Trial>, done: Sender<io::Result<Sample>>) {
    target.run(Fabric::wide(RECEIVERS + 1), &[trial::JOB], move |stage| {
        // The switch's threads run on all CPUs; this thread sends.
        let result = first_cpu_only().and_then(|()| Bench::new(stage));
        let bench = match result {
            Ok(bench) => bench,
            Err(error) => return drop(done.send(Err(error))),
        };
        for trial in todo {
            let sample = match trial {
                Trial::Rates(traffic, span) => bench.rates(traffic, span).map(Sample::Rates),
                Trial::Writes(rate) => bench.writes(rate).map(Sample::Writes),
                Trial::Flood(traffic, span) => bench.flood(traffic, span).map(Sample::Rates),
                Trial::Latency(traffic, frames, pause) => {
                    bench.latencies(traffic, frames, pause).map(|all| {
                        let mut all: Vec<f64> =
                            all.iter().map(|one| one.as_secs_f64() * 1e6).collect();
                        all.sort_by(f64::total_cmp);
                        Sample::Latency(all)
                    })
                }
            };
            if done.send(sample).is_err() {
                return;
            }
        }
    });
}

fn first_cpu_only() -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}
