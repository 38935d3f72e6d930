//! The options of `ultima agent`.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use ultima_agent::Settings;
use ultima_host::Element;

use crate::controller_address::ControllerAddress;
use ultima_console::output::Output;
use ultima_console::policies::{self, PolicyOptions};
use ultima_console::units;

/// Run ranks of a job on this host that average generated data
///
/// Start one agent on every host of the job, or one per rank. The agent takes the next free rank of its host, waits until
/// all members have joined, averages generated data --repeat times, prints a report and leaves. If the members of the
/// job change meanwhile, it continues with the new ones. --preset and the options that replace one of its policies must be
/// equal on all hosts.
///
/// The job can run again after all ranks have ended. While other ranks still run, `ultima job resize` brings a rank back that
/// has ended.
#[derive(Clone, clap::Args)]
#[command(after_help = concat!(
    "Examples:\n",
    "  ultima agent --job train --controller 10.0.0.100:9555 --repeat 20 --verify\n",
    "  ultima agent --job train --repeat 1000 --recycle --rate 10G --metrics 9464\n",
    "\n",
    "Exit codes (others: `ultima --help`):\n",
    "  0  all operations ended, or the job was resized without this rank\n",
    "  1  a result is wrong, no packet arrived, or the job was deleted or continued without this rank\n",
    "  5  no free rank on this host, or the rank was removed before the first operation"
))]
pub struct Options {
    /// Name of the job or grid
    #[arg(long, value_name = "NAME", add = crate::names::jobs(), value_parser = crate::names::job)]
    pub job: String,
    #[command(flatten)]
    pub at: ControllerAddress,
    /// Name of this host in the fabric [default: the member with an address of this machine]
    #[arg(long, value_name = "NAME", add = crate::names::hosts())]
    pub host: Option<String>,
    /// Number of ranks to run in this process, each with its own socket and thread
    #[arg(long, value_name = "K", default_value = "1", value_parser = |text: &str| units::count::<NonZeroU16>(text, NonZeroU16::MAX))]
    pub ranks: NonZeroU16,
    /// Number of values (32-bit floats) in each AllReduce, such as 25M; must be equal on all hosts
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = |text: &str| units::count::<NonZeroU32>(text, NonZeroU32::MAX))]
    pub allreduce: NonZeroU32,
    /// Number of AllReduces of the job; must be equal on all hosts. A rank that joins later takes part in the remaining ones
    #[arg(long, value_name = "N", default_value = "1", value_parser = |text: &str| units::count::<NonZeroU32>(text, NonZeroU32::MAX))]
    pub repeat: NonZeroU32,
    /// Compare every result with the exact mean
    #[arg(long)]
    pub verify: bool,
    /// Seed of the generated data; must be equal on all hosts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time limit t_B of an AllReduce; must be equal on all hosts
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration)]
    pub deadline: Duration,
    /// Time t_S after which the owner of a shard sends incomplete results [default: 3/5 of --deadline]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub flush: Option<Duration>,
    /// Multiple of its bucket's usual time after which an AllReduce ends, such as 1.5. The first 20 AllReduces show the usual
    /// time. With --recycle, later ones deliver the rest
    #[arg(long, value_name = "FACTOR", value_parser = policies::deadline_factor)]
    pub deadline_factor: Option<f64>,
    /// Number format of values in packets; must be equal on all hosts
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = policies::elements())]
    pub element: Element,
    /// Send values that were lost in one AllReduce again in a later one, as for gradients, so that only the sum over all
    /// AllReduces is exact; must be equal on all hosts
    #[arg(long, conflicts_with = "verify")]
    pub recycle: bool,
    /// Largest send rate including headers, such as 10G [default: the controller's --agent-rate, else this rank's share of
    /// the link's rate in the fabric file, else unlimited]
    #[arg(long, value_name = "RATE", value_parser = units::bit_rate)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub policies: PolicyOptions,
    /// Bytes of values in a full packet. With 80 bytes of headers (96 in a sealed job) it must fit the MTU; must be equal on
    /// all hosts [default: what fits the links in the fabric file: up to 1420 with an MTU of 1500]
    #[arg(long, value_name = "BYTES")]
    pub slot_bytes: Option<usize>,
    /// Send values without the randomized Hadamard transform; must be equal on all hosts
    #[arg(long)]
    pub no_hadamard: bool,
    /// How long to wait until the job is ready and all members have joined
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub join_timeout: Duration,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; a port alone means loopback
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = units::metrics_address)]
    pub metrics: Option<SocketAddr>,
    /// File for a packet trace of the first epoch, for `ultima trace`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

impl Options {
    /// The settings of this agent's ranks.
    pub fn settings(&self) -> Settings {
        Settings {
            t_s: self.flush,
            deadline_factor: self.deadline_factor,
            slot_bytes: self.slot_bytes,
            hadamard: !self.no_hadamard,
            recycling: self.recycle,
            element: self.element,
            rate: self.rate,
            policies: self.policies.policies(),
            ..Settings::new(self.deadline)
        }
    }

    /// What else all agents of the job have in common, by name.
    pub fn shared(&self) -> Vec<(&'static str, String)> {
        vec![
            ("--allreduce", self.allreduce.to_string()),
            ("--repeat", self.repeat.to_string()),
            ("--seed", self.seed.to_string()),
        ]
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
    fn a_preset_sets_the_policies_of_the_ranks() {
        let policies = |arguments: &[&str]| {
            let arguments = ["agent", "--job", "train"].iter().chain(arguments);
            let command = Command::try_parse_from(arguments).expect("valid arguments");
            command.options.settings().policies
        };
        assert_eq!(policies(&[]), Preset::Adaptive.policies());
        let published = ["--preset", "published"];
        assert_eq!(policies(&published), Preset::Published.policies());
    }
}
