//! The settings of an experiment, as command-line options and as keys of a YAML file.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use ultima_host::{GatherStart, LossDetection, Policies};
use ultima_link::{Jitter, Loss};
use ultima_sim::{
    Algorithm, Background, Experiment, NetworkConfig, Ps, Slow, Stragglers, Topology,
};

use ultima_console::policies::{self, PolicyOptions};
use ultima_console::units::{bit_rate, bytes, duration};

/// One experiment.
#[derive(clap::Args)]
pub struct Options {
    /// AllReduce algorithm to simulate
    #[arg(long, default_value = "tar", value_parser = algorithm())]
    algorithm: Algorithm,
    /// Number of ranks, one per host
    #[arg(long, default_value_t = 8)]
    ranks: u16,
    /// tar-2d: number of groups of ranks [default: the number with the least cost]
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=i64::from(u16::MAX)))]
    groups: Option<u16>,
    /// Size of the averaged bucket, in bytes
    #[arg(long, default_value = "25M", value_parser = bytes)]
    bytes: u64,
    /// Payload of a packet, in bytes
    #[arg(long, default_value = "8k", value_parser = bytes)]
    slot: u64,
    /// p99/p50 of the time of a message over one idle hop; log-normal, drawn for each sender and stage
    #[arg(long, default_value_t = 1.0, value_name = "RATIO")]
    tail: f64,
    /// Loss on host links: a probability, P:LENGTH for bursts, or ge:P:R[:BAD[:GOOD]] for Gilbert-Elliott
    #[arg(long)]
    loss: Option<Loss>,
    /// Number of AllReduce operations
    #[arg(long, default_value_t = 1)]
    operations: u32,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rate of host links, in bits per second
    #[arg(long, default_value = "100G", value_parser = bit_rate)]
    rate: u64,
    /// Propagation delay of a link
    #[arg(long, default_value = "1us", value_parser = duration)]
    delay: Duration,
    /// Time added to each packet's delay on the links of hosts, such as lognormal:2ms:0.47; packets do not overtake each
    /// other [default: none]
    #[arg(long)]
    jitter: Option<Jitter>,
    /// Host overhead per message
    #[arg(long, default_value = "20us", value_parser = duration)]
    host: Duration,
    /// Compute time between operations, from the end at the last rank
    #[arg(long, default_value = "0s", value_parser = duration)]
    compute: Duration,
    /// p99/p50 of the compute time; log-normal, drawn for each rank and operation
    #[arg(long, default_value_t = 1.0, value_name = "RATIO")]
    compute_tail: f64,
    /// Share of ranks that start an operation late, and their delay, such as 0.01:5ms
    #[arg(long, value_name = "SHARE:DURATION", value_parser = stragglers)]
    straggler: Option<Stragglers>,
    /// Topology: star, or leaf-spine:HOSTS-PER-LEAF:SPINES
    #[arg(long, default_value = "star", value_parser = topology)]
    topology: Topology,
    /// Queue size of a switch port, in bytes
    #[arg(long, default_value = "32M", value_parser = bytes)]
    queue: u64,
    /// Queue length at which switches trim payloads, in bytes
    #[arg(long, default_value = "28M", value_parser = bytes)]
    trim: u64,
    /// Queue length at which switches set ECN marks, in bytes
    #[arg(long, default_value = "1M", value_parser = bytes)]
    mark: u64,
    /// Share of a host link used by cross traffic, which comes in bursts
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    cross: f64,
    /// Mean duration of a burst of cross traffic
    #[arg(long, default_value = "50us", value_parser = duration)]
    burst: Duration,
    /// Background flows that share the links to hosts: their load is chosen so that a ring AllReduce of up to 8 ranks has
    /// this p99/p50, such as 1.5 or 3 [default: no background flows]
    #[arg(long, value_name = "RATIO")]
    background: Option<f64>,
    /// Mean size of a background flow, in bytes; exponentially distributed
    #[arg(long, default_value = "25M", value_parser = bytes)]
    background_flow: u64,
    /// Slow hosts: the links of the first K hosts are slower by this factor
    #[arg(long, value_name = "K:FACTOR", value_parser = slow)]
    slow: Option<Slow>,
    #[command(flatten)]
    policies: PolicyOptions,
    /// tar, tar-2d: flow control by credit: size of each rank's socket buffer, in bytes, as Linux counts it (425984 is its
    /// default limit) [default: no flow control]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    receive_buffer: Option<u64>,
    /// tar: when owners of shards send their first result packets: at once, or in turns by rank [default: of --preset]
    #[arg(long, value_parser = policies::gather_starts())]
    gather_start: Option<GatherStart>,
    /// tar: loss detection: by timeouts only, also by trimmed packets, or also by later packets of the same sender
    /// (in-order) [default: of --preset]
    #[arg(long, value_parser = policies::loss_detection())]
    loss_detection: Option<LossDetection>,
    /// tar: time t_S after which the owner of a shard sends incomplete results [default: covers the tail's 99.9th percentile]
    #[arg(long, value_parser = duration, requires = "t_b")]
    t_s: Option<Duration>,
    /// tar, tar-2d: deadline t_B of an operation; phases of tar-2d get shares of it
    #[arg(long, value_parser = duration, requires = "t_s")]
    t_b: Option<Duration>,
    /// Minimum retransmission timeout of algorithms over TCP
    #[arg(long, default_value = "200ms", value_parser = duration)]
    min_rto: Duration,
}

fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name)).map(|name| {
        let named = |algorithm: &Algorithm| algorithm.name() == name;
        let found = Algorithm::ALL.into_iter().find(named);
        found.expect("a possible value")
    })
}

fn slow(text: &str) -> Result<Slow, String> {
    let wrong =
        || "expected K:FACTOR, such as 4:10 for four hosts at a tenth of the rate".to_owned();
    let (hosts, factor) = text.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    let (hosts, factor) = number(hosts).zip(number(factor)).ok_or_else(wrong)?;
    Ok(Slow { hosts, factor })
}

fn stragglers(text: &str) -> Result<Stragglers, String> {
    let parse = || {
        let (share, delay) = text.split_once(':')?;
        let share = share.parse().ok()?;
        let delay = duration(delay).ok()?;
        Some(Stragglers { share, delay })
    };
    parse().ok_or_else(|| "expected SHARE:DURATION, such as 0.01:5ms".into())
}

fn topology(text: &str) -> Result<Topology, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
    match parts[..] {
        ["star"] => Some(Topology::Star),
        ["leaf-spine", hosts, spines] => {
            number(hosts)
                .zip(number(spines))
                .map(|(hosts_per_leaf, spines)| Topology::LeafSpine {
                    hosts_per_leaf,
                    spines,
                })
        }
        _ => None,
    }
    .ok_or_else(|| {
        "expected star or leaf-spine:HOSTS-PER-LEAF:SPINES, such as leaf-spine:32:4".into()
    })
}

impl Options {
    /// The experiment, not yet validated.
    pub fn experiment(&self) -> Experiment {
        let policies = self.policies.policies();
        Experiment {
            groups: self.groups,
            bytes: self.bytes,
            slot: usize::try_from(self.slot).unwrap_or(usize::MAX),
            tail: self.tail,
            host: self.host,
            operations: self.operations,
            compute: self.compute,
            compute_tail: self.compute_tail,
            stragglers: self.straggler,
            seed: self.seed,
            network: NetworkConfig {
                topology: self.topology,
                rate: self.rate,
                delay: Ps::from(self.delay),
                jitter: self.jitter,
                queue: self.queue,
                trim: self.trim,
                mark: self.mark,
                loss: self.loss.clone(),
                cross: self.cross,
                burst: Ps::from(self.burst),
                background: self.background.map(|ratio| Background {
                    ratio,
                    flow: self.background_flow,
                    calibration: None,
                }),
                slow: self.slow,
            },
            policies: Policies {
                gather_start: self.gather_start.unwrap_or(policies.gather_start),
                loss_detection: self.loss_detection.unwrap_or(policies.loss_detection),
                ..policies
            },
            receive_buffer: self.receive_buffer,
            bounds: self.t_s.zip(self.t_b),
            min_rto: self.min_rto,
            ..Experiment::new(self.algorithm, self.ranks)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ultima_host::Preset;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_preset_sets_the_policies_of_the_experiment() {
        let policies = |arguments: &[&str]| {
            let arguments = ["sim"].iter().chain(arguments);
            let command = Command::try_parse_from(arguments).expect("valid arguments");
            command.options.experiment().policies
        };
        assert_eq!(policies(&[]), Preset::Adaptive.policies());
        let published = ["--preset", "published"];
        assert_eq!(policies(&published), Preset::Published.policies());
        let turns = [&published[..], &["--gather-start", "turns"]].concat();
        assert_eq!(policies(&turns).gather_start, GatherStart::Turns);
    }
}
