//! The demo's command line.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::safeguards::{CodingRule, DriftRule, SkipRule, StopRule};
use ultima_host::{Estimation, IncastPolicy, RatePolicy, Rules, Timeouts};
use ultima_switch::{Loss, WireConfig};
use ultima_wire::SLOT_AT;
use ultima_wire::frame::FRAME_OVERHEAD;

use super::report::Multicast;
use ultima_console::output::Output;
use ultima_console::{policies, units};
use ultima_digits::shards::Dealing;
use ultima_digits::training;

/// Trains a real model, data-parallel, with every gradient crossing a P4 switch.
///
/// Starts a switch, a controller and the workers as processes of their own, on this machine and
/// without root. The controller pushes the P4 program to the switch and installs the job; the workers
/// ask it for rank and peers, then train a digit classifier whose gradients they average by
/// Transpose AllReduce. Loss, delay and stragglers are emulated by the switch's traffic manager and by
/// sleeping workers.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    ultima demo                                     1 % loss, some stragglers\n  \
    ultima demo --loss 0 --straggler 0:0            nothing goes wrong: all replicas are bit-identical\n  \
    ultima demo --drop-slots 3..9 --no-hadamard     what the Hadamard transform is for\n  \
    ultima demo --estimator scaled --recycling off  what was published for what is missing\n  \
    ultima demo --workers 16 --burst-loss 0.02:8 --shards by-class -o json")]
pub struct Options {
    /// Workers, each a process with a switch port of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=32))]
    pub workers: u16,
    /// Training steps
    #[arg(long, default_value_t = training::STEPS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// Decides data split, first weights, order of examples, signs, losses and stragglers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How the training images are dealt to the workers
    #[arg(long, value_enum, default_value_t = Dealing::Random)]
    pub shards: Dealing,

    /// Share of packets lost on every wire from the switch [default: 0.01, without any other loss]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = independent_loss)]
    pub loss: Option<Loss>,
    /// Loss in bursts: share of packets and mean burst length in packets
    #[arg(long, value_name = "P:LEN", value_parser = burst_loss)]
    pub burst_loss: Option<Loss>,
    /// Lose these slots of every shard, always
    #[arg(long, value_name = "A..B", value_parser = units::range)]
    pub drop_slots: Option<Range<u32>>,
    /// Rate of every wire from the switch; the workers pace themselves to it [default: unlimited]
    #[arg(long, value_name = "BITS/S", value_parser = units::bit_rate)]
    pub link_rate: Option<u64>,
    /// How the workers' rate follows the network, under --link-rate
    #[arg(long, default_value = RatePolicy::default().name(), requires = "link_rate", value_parser = policies::rates())]
    pub rate_control: RatePolicy,
    /// How many workers send to one at a time: all, dynamic, or a number up to 15
    #[arg(long, default_value = "all", value_parser = policies::incast)]
    pub incast: IncastPolicy,
    /// Delay of every wire from the switch, such as 500us
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::duration)]
    pub link_delay: Duration,
    /// Queue of every switch port
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = units::bytes)]
    pub queue: u64,
    /// A worker sleeps this many milliseconds before a step, with this probability
    #[arg(long, value_name = "P:MS", default_value = "0.01:250")]
    pub straggler: Straggler,

    /// A worker sleeps this many milliseconds before every step
    #[arg(long, value_name = "RANK:MS")]
    pub late: Option<Late>,

    /// When an AllReduce ends, whatever has arrived [default: grows with the workers]
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    pub deadline: Option<Duration>,
    /// Whether waits are always as long as the deadline says, learned as published, or learned from what moves them
    #[arg(long, default_value = "fixed", value_parser = policies::timeouts())]
    pub timeouts: Timeouts,
    /// What owners make of the contributions that arrive; with another than arrived-mean --recycling must be off
    #[arg(long, default_value = Estimation::default().name(), value_parser = policies::estimators())]
    pub estimator: Estimation,
    /// Send gradient entries as they are, without the randomized Hadamard transform
    #[arg(long)]
    pub no_hadamard: bool,
    /// Transform them only while workers lose more than this share of the packets on average; decided every 10 steps
    #[arg(long, value_name = "SHARE", conflicts_with = "no_hadamard", value_parser = units::share)]
    pub hadamard_above: Option<f64>,
    /// Send in later steps what a step could not deliver, so that only the order of updates suffers
    #[arg(long, value_enum, default_value_t = Recycle::On)]
    pub recycling: Recycle,
    /// Average the replicas, exactly, when they have parted by more than this share of their norm
    #[arg(long, value_name = "SHARE", default_value_t = DriftRule::default().bound, value_parser = units::share)]
    pub drift_bound: f64,
    /// Measure that in every so many steps, for which all workers wait for each other; 0 never does
    #[arg(long, value_name = "STEPS", default_value_t = DriftRule::default().every)]
    pub drift_every: u32,
    /// Skip updates, all workers or none, of which any worker lost more than this share; they vote after every step
    #[arg(long, value_name = "SHARE", value_parser = units::share)]
    pub skip_loss: Option<f64>,
    /// Stop when in each of N steps in a row any worker lost more than this share; they vote after every step
    #[arg(long, value_name = "SHARE:N", value_parser = stop_rule)]
    pub stop_loss: Option<StopRule>,
    /// Who makes the copies of an aggregate: the switch, or its owner
    #[arg(long, value_enum, default_value_t = Multicast::Switch)]
    pub multicast: Multicast,
    /// The workers seal their packets and refuse others', under a key that the controller gives them
    #[arg(long)]
    pub sealed: bool,

    /// Another data plane program, as p4c's BMv2 backend printed it
    #[arg(long, value_name = "FILE", requires = "p4info")]
    pub program: Option<PathBuf>,
    /// Its P4Info, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    pub p4info: Option<PathBuf>,
    /// Where the switch serves P4Runtime, for others to look in
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = units::listen_address)]
    pub grpc: SocketAddr,
    /// Keep what the switch's ports saw, as pcap files in this folder
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
    /// Write what happens at each worker, packet by packet, to a file in this folder, for `ultima trace`
    #[arg(long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// Whether losses are made good in later steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Recycle {
    /// They are.
    On,
    /// What is lost is lost.
    Off,
}

/// Sleeps before a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// Probability that a worker sleeps before a step.
    pub probability: f64,
    /// For how many milliseconds.
    pub sleep_ms: f64,
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            String::from("expected P:MS with P from 0 to 1 and MS up to 60000, such as 0.01:250")
        };
        let (probability, sleep_ms) = text.split_once(':').ok_or_else(wrong)?;
        let straggler = Self {
            probability: probability.parse().map_err(|_| wrong())?,
            sleep_ms: sleep_ms.parse().map_err(|_| wrong())?,
        };
        let valid = (0.0..=1.0).contains(&straggler.probability)
            && (0.0..=60_000.0).contains(&straggler.sleep_ms);
        if valid { Ok(straggler) } else { Err(wrong()) }
    }
}

/// A worker that is late at every step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Late {
    /// Which one.
    pub rank: u16,
    /// For how many milliseconds it sleeps.
    pub sleep_ms: f64,
}

impl FromStr for Late {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || String::from("expected RANK:MS with a worker's rank, from 0, and MS up to 60000");
        let (rank, sleep_ms) = text.split_once(':').ok_or_else(wrong)?;
        let late = Self {
            rank: rank.parse().map_err(|_| wrong())?,
            sleep_ms: sleep_ms.parse().map_err(|_| wrong())?,
        };
        let valid = (0.0..=60_000.0).contains(&late.sleep_ms);
        if valid { Ok(late) } else { Err(wrong()) }
    }
}

/// What is done to a run on purpose, as the report repeats it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Impairments {
    /// Share of packets lost independently.
    pub loss: f64,
    /// Share lost in bursts, and their mean length in packets.
    pub burst_loss: Option<(f64, f64)>,
    /// Slots of every shard that are always lost.
    pub drop_slots: Option<Range<u32>>,
    /// Bits per second.
    pub link_rate: Option<u64>,
    /// Milliseconds.
    pub link_delay_ms: f64,
    /// Bytes.
    pub queue: u64,
    /// Sleeping workers.
    pub straggler: Straggler,
    /// A worker that is late at every step.
    pub late: Option<Late>,
}

/// The share of packets lost where the user asks for no loss of any kind.
const DEFAULT_LOSS: f64 = 0.01;

impl Options {
    /// The wires of the switch's ports.
    pub fn wire(&self) -> WireConfig {
        let by_slot = self.drop_slots.as_ref().map(|slots| Loss::Field {
            offset: FRAME_OVERHEAD + SLOT_AT,
            bytes: 4,
            range: u64::from(slots.start)..u64::from(slots.end),
        });
        let other = self.burst_loss.is_some() || by_slot.is_some();
        let default = (!other).then_some(Loss::Independent {
            probability: DEFAULT_LOSS,
        });
        let independent = self.loss.clone().or(default);
        WireConfig {
            rate: self.link_rate,
            delay: self.link_delay,
            loss: [independent, self.burst_loss.clone(), by_slot]
                .into_iter()
                .flatten()
                .collect(),
            queue_bytes: self.queue,
            ..WireConfig::default()
        }
    }

    /// The same as options of `ultima switch`.
    pub fn wire_arguments(&self) -> Vec<(&'static str, String)> {
        let wire = self.wire();
        let mut arguments = vec![
            ("--delay", format!("{}ns", wire.delay.as_nanos())),
            ("--queue", wire.queue_bytes.to_string()),
        ];
        arguments.extend(wire.rate.map(|rate| ("--rate", rate.to_string())));
        let loss = wire.loss.iter().map(|loss| ("--loss", loss.to_string()));
        arguments.extend(loss);
        arguments
    }

    /// What the workers agree on.
    pub fn rules(&self) -> Rules {
        Rules {
            skip: self.skip_loss.map(|share| SkipRule { share }),
            stop: self.stop_loss,
            drift: (self.drift_every > 0).then_some(DriftRule {
                bound: self.drift_bound,
                every: self.drift_every,
            }),
            coding: self.hadamard_above.map(|above| CodingRule {
                above,
                ..CodingRule::default()
            }),
        }
    }

    /// The longest that a worker sleeps before a step.
    pub fn longest_sleep(&self) -> Duration {
        let straggler_ms = match self.straggler.probability > 0.0 {
            true => self.straggler.sleep_ms,
            false => 0.0,
        };
        let late_ms = self.late.map_or(0.0, |late| late.sleep_ms);
        Duration::from_secs_f64((straggler_ms + late_ms) * 1e-3)
    }

    /// What is done on purpose, for the report.
    pub fn impairments(&self) -> Impairments {
        let mut impairments = Impairments {
            loss: 0.0,
            burst_loss: None,
            drop_slots: self.drop_slots.clone(),
            link_rate: self.link_rate,
            link_delay_ms: self.link_delay.as_secs_f64() * 1e3,
            queue: self.queue,
            straggler: self.straggler,
            late: self.late,
        };
        for loss in self.wire().loss {
            match loss {
                Loss::Independent { probability } => impairments.loss = probability,
                Loss::Burst {
                    probability,
                    mean_length,
                } => {
                    impairments.burst_loss = Some((probability, mean_length));
                }
                Loss::GilbertElliott { .. } | Loss::Field { .. } => {}
            }
        }
        impairments
    }
}

fn stop_rule(text: &str) -> Result<StopRule, String> {
    let wrong = || {
        String::from(
            "expected SHARE:N with a share from 0 to 1 and N steps, 1 or more, such as 0.5:20",
        )
    };
    let (part, updates) = text.split_once(':').ok_or_else(wrong)?;
    let updates = updates.parse().ok().filter(|updates| *updates > 0);
    Ok(StopRule {
        share: units::share(part).map_err(|_| wrong())?,
        updates: updates.ok_or_else(wrong)?,
    })
}

fn deadline(text: &str) -> Result<Duration, String> {
    let deadline = units::duration(text).map_err(|error| error.to_string())?;
    let shortest = Duration::from_millis(1);
    if deadline >= shortest {
        Ok(deadline)
    } else {
        Err("expected at least 1ms".into())
    }
}

fn independent_loss(text: &str) -> Result<Loss, String> {
    match text.parse().map_err(|error| format!("{error}"))? {
        loss @ Loss::Independent { .. } => Ok(loss),
        _ => {
            Err("expected a probability from 0 to 1, such as 0.01; bursts are --burst-loss".into())
        }
    }
}

fn burst_loss(text: &str) -> Result<Loss, String> {
    match text.parse().map_err(|error| format!("{error}"))? {
        loss @ Loss::Burst { .. } => Ok(loss),
        _ => Err("expected P:LEN, such as 0.02:8".into()),
    }
}
