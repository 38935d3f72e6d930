//! The agent's command line.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use ultima_host::{Answers, Element, Estimation, GatherStart, IncastPolicy, RatePolicy, Timeouts};

use crate::command::controller_address::ControllerAddress;
use crate::output::Output;
use crate::policies;
use crate::units;

/// Runs this host's ranks of a job: AllReduces over kernel UDP sockets, each by its deadline
///
/// Every host of the job runs one, or one for each of its ranks. It takes the next free rank of its host, waits until
/// all members are there, averages seeded data as often as it is told, and leaves. Ranks are handed out once an epoch: a rank that
/// ended comes back with `ultima job resize` as long as others of the job run on; where all have ended, delete the job and create it
/// again. Where the job's members change while it runs, it goes on with the new ones.
#[derive(Clone, clap::Args)]
#[command(
    after_help = "Example: ultima agent --job train --controller 10.0.0.100:9555 --allreduce 1000000 --repeat 20 --verify\n         \
    ultima agent --job train --repeat 1000 --recycle --rate 10G --metrics 9464\n\n\
    Exit codes: 0 all operations ended, or the rank was left out as the job was resized; 1 a result is wrong, nothing came from\n\
    anybody, or the job was deleted or has gone on without the rank; 5 no rank to take, or none any more before anything began;\n\
    others as for all commands, see `ultima --help`."
)]
pub struct Options {
    /// The job's name
    #[arg(long, value_name = "NAME")]
    pub job: String,
    #[command(flatten)]
    pub at: ControllerAddress,
    /// The fabric's name for this host; without it the member whose address this machine has
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Ranks to run in this process, each on a socket and a thread of its own
    #[arg(long, value_name = "K", default_value = "1", value_parser = |text: &str| units::count::<NonZeroU16>(text, NonZeroU16::MAX))]
    pub ranks: NonZeroU16,
    /// Values (binary32) in each AllReduce
    #[arg(long, value_name = "SIZE", default_value = "1000000", value_parser = |text: &str| units::count::<NonZeroU32>(text, NonZeroU32::MAX))]
    pub allreduce: NonZeroU32,
    /// AllReduces; who joins while the job runs does those that are left
    #[arg(long, value_name = "N", default_value = "1", value_parser = |text: &str| units::count::<NonZeroU32>(text, NonZeroU32::MAX))]
    pub repeat: NonZeroU32,
    /// Compare every result with the exact mean
    #[arg(long)]
    pub verify: bool,
    /// Seed of the data; the same on all hosts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// t_B: when an AllReduce ends at the latest
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub deadline: Duration,
    /// t_S: when owners send what they have; without it 3/5 of the deadline
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub flush: Option<Duration>,
    /// Whether waits are always as long as that, learned as published, or learned from what moves them
    #[arg(long, default_value = "fixed", value_parser = policies::timeouts())]
    pub timeouts: Timeouts,
    /// How values travel
    #[arg(long, default_value = "f32", value_parser = policies::elements())]
    pub element: Element,
    /// What owners make of the contributions that arrive
    #[arg(long, default_value = Estimation::default().name(), value_parser = policies::estimators())]
    pub estimator: Estimation,
    /// Send in later AllReduces what one could not deliver, as for gradients that are summed; a single result is not the
    /// mean then
    #[arg(long, conflicts_with = "verify")]
    pub recycle: bool,
    /// The rate to send at, over whole frames [default: the controller's --agent-rate, else unlimited]
    #[arg(long, value_name = "RATE", value_parser = units::bit_rate)]
    pub rate: Option<u64>,
    /// How the rate follows the network, under --rate
    #[arg(long, default_value = RatePolicy::default().name(), requires = "rate", value_parser = policies::rates())]
    pub rate_control: RatePolicy,
    /// How many ranks send to one at a time: all, dynamic, or a number up to 15; the same on all hosts
    #[arg(long, default_value = "all", value_parser = policies::incast)]
    pub incast: IncastPolicy,
    /// How owners send their first aggregate: at once, or one packet after the other
    #[arg(long, default_value = GatherStart::default().name(), requires = "rate", value_parser = policies::gather_starts())]
    pub gather_start: GatherStart,
    /// What ends the wait for a packet beside it: nothing (arrivals), its header without the payload (cuts), or that
    /// and what was sent after it (order)
    #[arg(long, default_value = Answers::default().name(), value_parser = policies::answers())]
    pub answers: Answers,
    /// Bytes of values in a full packet; with 80 bytes of headers, 96 in a sealed job, it must fit the MTU. Without it 1408, 16 less
    /// in a sealed job, or what the narrowest link of the fabric's file has room for
    #[arg(long, value_name = "BYTES")]
    pub slot_bytes: Option<usize>,
    /// Send gradients as they are, without the Hadamard transform
    #[arg(long)]
    pub no_hadamard: bool,
    /// How long to wait until all other members are there
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub join_timeout: Duration,
    /// Serve metrics to Prometheus while it runs, at http://ADDRESS:PORT/metrics; without an address on loopback
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = units::metrics_address)]
    pub metrics: Option<SocketAddr>,
    /// Write what happens, packet by packet, for `ultima trace`; of the first epoch in which the ranks are
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}
