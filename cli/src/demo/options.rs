//! The options of `ultima demo`.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::safeguards::{CodingRule, DriftRule, SkipRule, StopRule};
use ultima_host::{Estimation, Rules};
use ultima_switch::{Loss, WireConfig};
use ultima_wire::SLOT_AT;
use ultima_wire::frame::FRAME_OVERHEAD;

use ultima_console::output::Output;
use ultima_console::policies::PolicyOptions;
use ultima_console::units;
use ultima_digits::shards::Dealing;
use ultima_digits::training;

/// The place where a gather packet is replicated for its receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Multicast {
    /// The switch: the owner sends one packet to the job's multicast group
    #[default]
    Switch,
    /// The owner: it sends one packet to each worker
    Unicast,
}

impl Multicast {
    /// The number of gather packets that hosts would send by unicast, if they `sent` this number now.
    pub fn unicast_equivalent(self, sent: u64, workers: u16) -> u64 {
        match self {
            Multicast::Switch => sent * u64::from(workers.saturating_sub(1)),
            Multicast::Unicast => sent,
        }
    }
}

/// Train a small model on this machine, with every gradient through a P4 switch
///
/// Starts a switch, a controller and the workers as separate processes, without root. The workers train a classifier of
/// handwritten digits data-parallel and average its gradients by Transpose AllReduce. The switch's traffic manager emulates loss and
/// delay; stragglers are workers that sleep. At the end the demo compares the result with exact averaging, and accounts
/// for every packet.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    ultima demo                                     1 % loss, some stragglers\n  \
    ultima demo --loss 0 --straggler 0:0            no impairments: all replicas are bit-identical\n  \
    ultima demo --preset published                  transport of the original publication\n  \
    ultima demo --drop-slots 3..9 --no-hadamard     always lose the same values: replicas diverge\n  \
    ultima demo --workers 16 --burst-loss 0.02:8 --shards by-class -o json")]
pub struct Options {
    /// Number of workers; each is a process with its own switch port
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=32))]
    pub workers: u16,
    /// Number of training steps
    #[arg(long, value_name = "N", default_value_t = training::STEPS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// Seed of all random choices: data split, initial weights, order of examples, losses, stragglers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Distribution of the training images to the workers
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Dealing::Random)]
    pub shards: Dealing,

    /// Loss probability on every wire from the switch, 0 to 1 [default: 0.01, or 0 with --burst-loss or --drop-slots]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = independent_loss)]
    pub loss: Option<Loss>,
    /// Loss in bursts on every wire from the switch: probability, and mean burst length in packets
    #[arg(long, value_name = "P:LEN", value_parser = burst_loss)]
    pub burst_loss: Option<Loss>,
    /// Always lose these slots of every shard, B excluded
    #[arg(long, value_name = "A..B", value_parser = units::range)]
    pub drop_slots: Option<Range<u32>>,
    /// Rate of every wire from the switch, such as 100M; workers pace to it [default: unlimited]
    #[arg(long, value_name = "BITS/S", value_parser = units::bit_rate)]
    pub link_rate: Option<u64>,
    /// One-way delay of every wire from the switch, such as 500us
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::duration)]
    pub link_delay: Duration,
    /// Queue size of every switch port
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = units::bytes)]
    pub queue: u64,
    /// Before each step a worker sleeps MS milliseconds with probability P
    #[arg(long, value_name = "P:MS", default_value = "0.01:250")]
    pub straggler: Straggler,

    /// The worker RANK sleeps MS milliseconds before every step
    #[arg(long, value_name = "RANK:MS")]
    pub late: Option<Late>,

    /// Time limit t_B of an AllReduce, at least 1ms [default: grows with the number of workers]
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    pub deadline: Option<Duration>,
    #[command(flatten)]
    pub policies: PolicyOptions,
    /// Send gradients without the randomized Hadamard transform
    #[arg(long)]
    pub no_hadamard: bool,
    /// Use the Hadamard transform only while workers lose more than this fraction of packets on average; they vote every 10
    /// steps
    #[arg(long, value_name = "SHARE", conflicts_with = "no_hadamard", value_parser = units::share)]
    pub hadamard_above: Option<f64>,
    /// Send values that were lost in one step again in a later step [default: on, or off with the estimator scaled]
    #[arg(long, value_name = "MODE", value_enum)]
    pub recycling: Option<Recycle>,
    /// Average the replicas exactly when they differ by more than this fraction of their norm
    #[arg(long, value_name = "SHARE", default_value_t = DriftRule::default().bound, value_parser = units::share)]
    pub drift_bound: f64,
    /// Number of steps between two measurements of the replicas' difference, for which all workers wait; 0 disables them
    #[arg(long, value_name = "STEPS", default_value_t = DriftRule::default().every)]
    pub drift_every: u32,
    /// Skip an update on all workers if one of them lost more than this fraction; workers vote after every step [default:
    /// never skip]
    #[arg(long, value_name = "SHARE", value_parser = units::share)]
    pub skip_loss: Option<f64>,
    /// Stop if in each of N consecutive steps a worker lost more than this fraction; workers vote after every step [default:
    /// never stop]
    #[arg(long, value_name = "SHARE:N", value_parser = stop_rule)]
    pub stop_loss: Option<StopRule>,
    /// Where an aggregate is replicated for all workers
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Multicast::Switch)]
    pub multicast: Multicast,
    /// Do not authenticate packets with a key from the controller
    #[arg(long)]
    pub unsealed: bool,

    /// P4 program for the switch: the JSON file of p4c's BMv2 backend [default: Ultima's program]
    #[arg(long, value_name = "FILE", requires = "p4info")]
    pub program: Option<PathBuf>,
    /// P4Info of --program, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    pub p4info: Option<PathBuf>,
    /// Address of the switch's P4Runtime server, for other clients; port 0 selects a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = units::listen_address)]
    pub grpc: SocketAddr,
    /// Folder for pcap files of the switch's ports
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
    /// Folder for a packet trace of each worker, for `ultima trace`
    #[arg(long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// Recycling of lost values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Recycle {
    /// Send lost values again in a later step
    On,
    /// Drop lost values
    Off,
}

/// Random sleeps before steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// Probability that a worker sleeps before a step.
    pub probability: f64,
    /// The length of a sleep in milliseconds.
    pub sleep_ms: f64,
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            String::from(
                "expected P:MS with P from 0 to 1 and MS from 0 to 60000, such as 0.01:250",
            )
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

/// A worker that sleeps before every step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Late {
    /// Its rank.
    pub rank: u16,
    /// The length of a sleep in milliseconds.
    pub sleep_ms: f64,
}

impl FromStr for Late {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            String::from(
                "expected RANK:MS with a worker's rank and MS from 0 to 60000, such as 2:50",
            )
        };
        let (rank, sleep_ms) = text.split_once(':').ok_or_else(wrong)?;
        let late = Self {
            rank: rank.parse().map_err(|_| wrong())?,
            sleep_ms: sleep_ms.parse().map_err(|_| wrong())?,
        };
        let valid = (0.0..=60_000.0).contains(&late.sleep_ms);
        if valid { Ok(late) } else { Err(wrong()) }
    }
}

/// The impairments of a run, for the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Impairments {
    /// Probability of independent loss.
    pub loss: f64,
    /// Probability of loss in bursts, and mean burst length in packets.
    pub burst_loss: Option<(f64, f64)>,
    /// Slots of every shard that are always lost.
    pub drop_slots: Option<Range<u32>>,
    /// Rate of links in bits per second.
    pub link_rate: Option<u64>,
    /// Delay of links in milliseconds.
    pub link_delay_ms: f64,
    /// Size of queues in bytes.
    pub queue: u64,
    /// Random sleeps.
    pub straggler: Straggler,
    /// A worker that sleeps before every step.
    pub late: Option<Late>,
}

/// The loss probability if no loss option is given.
const DEFAULT_LOSS: f64 = 0.01;

impl Options {
    /// The settings of the wires from the switch.
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

    /// The settings of the wires as options of `ultima switch`.
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

    /// True if lost values are sent again.
    pub fn recycles(&self) -> bool {
        let recycles = self.policies.policies().estimation == Estimation::ArrivedMean;
        self.recycling.map_or(recycles, |mode| mode == Recycle::On)
    }

    /// The rules on which the workers vote.
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

    /// The impairments, for the report.
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
        String::from("expected SHARE:N with SHARE from 0 to 1 and N steps from 1, such as 0.5:20")
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
        _ => Err(
            "expected a probability from 0 to 1, such as 0.01; for bursts use --burst-loss".into(),
        ),
    }
}

fn burst_loss(text: &str) -> Result<Loss, String> {
    match text.parse().map_err(|error| format!("{error}"))? {
        loss @ Loss::Burst { .. } => Ok(loss),
        _ => {
            Err("expected P:LEN with a probability and a length in packets, such as 0.02:8".into())
        }
    }
}
