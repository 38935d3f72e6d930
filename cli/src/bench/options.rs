//! The options of `ultima bench`.

use std::path::PathBuf;
use std::time::Duration;

use ultima_console::{policies, units};
use ultima_lab::SwitchKind;

use super::method::Method;

/// Compare AllReduces and training with Ultima, Gloo and Open MPI in labs, and write a report
///
/// All methods take turns in the same lab: hosts as network namespaces behind one switch. Writes results.csv, results.json and
/// index.html. Needs root, iproute2, and a Python with PyTorch and Ultima's package; Open MPI is optional.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    ultima bench --quick                                 under 3 minutes\n  \
    ultima bench --python venv/bin/python --out results  about 20 minutes\n  \
    ultima bench --ranks 2 --sizes 400KB --tails 3 --loss 0,0.01 --methods ultima-multicast,gloo-ring")]
pub struct Options {
    /// Measure less: one number of ranks, small sizes, no loss, one training for each tail
    #[arg(long)]
    pub quick: bool,
    /// Folder for the report's files
    #[arg(long, value_name = "DIR", default_value = "bench")]
    pub out: PathBuf,
    /// Numbers of ranks, one on each host, 2 to 16. All cells have the first one; the others have the main cells only
    /// [default: 4,2,8; quick: 4]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(2..=16))]
    pub ranks: Vec<u16>,
    /// Sizes of the gradient, 4KB to 1GB [default: 4KB,400KB,4MB; unlimited links also 25MB,100MB; quick: 4KB,400KB; unlimited links 400KB,4MB]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<u64>,
    /// Tails of links with a rate: p99 ÷ p50 of Gloo's AllReduce, reached by calibrated bursts of background traffic; 1 is none
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = tail, default_value = "1,1.5,3")]
    pub tails: Vec<f64>,
    /// One-way delay of links with a tail
    #[arg(long, value_name = "TIME", value_parser = delay, default_value = "2ms")]
    pub delay: Duration,
    /// Multiple of its bucket's usual time after which an AllReduce of Ultima ends on links with a tail; 0 for Ultima's
    /// default, which other links always have
    #[arg(long, value_name = "FACTOR", value_parser = deadline_factor, default_value = "1.5")]
    deadline_factor: f64,
    /// Shares of packets lost on each link, without a tail [default: 0,0.001,0.01,0.05; quick: 0]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = units::share_under_one)]
    pub loss: Vec<f64>,
    /// Rate of the limited links in bits per second [default: 100M; with BMv2: 10M]
    #[arg(long, value_name = "BITS/S", value_parser = units::bit_rate)]
    pub rate: Option<u64>,
    /// MTU of all links and hosts
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1500..=9000), default_value = "1500")]
    pub mtu: u16,
    /// Methods that take turns [default: all that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub methods: Vec<Method>,
    /// Time for all measurements, at least 1s; a few operations take place in any case [default: 22m; quick: 165s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,
    /// Measure links with --rate only, not also unlimited ones
    #[arg(long)]
    pub no_unlimited: bool,
    /// Measure AllReduces only, not training
    #[arg(long)]
    pub no_training: bool,
    /// Switch to run: embedded (this program) or bmv2 (simple_switch_grpc, which must be on the PATH)
    #[arg(long, value_name = "KIND", default_value_t = SwitchKind::Embedded)]
    pub switch: SwitchKind,
    /// Python with PyTorch and the package `ultima`
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
}

impl Options {
    /// Ultima's deadline factor on links with a tail, unless it is the default.
    pub fn deadline_factor(&self) -> Option<f64> {
        (self.deadline_factor > 0.0).then_some(self.deadline_factor)
    }
}

/// Parses a size in decimal units, such as 400KB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = units::decimal(text.strip_suffix('B').unwrap_or(text));
    let valid = |bytes: &u64| (4_000..=1_000_000_000).contains(bytes) && bytes.is_multiple_of(4);
    bytes
        .filter(valid)
        .ok_or_else(|| "expected 4KB to 1GB in whole words of 4 bytes, such as 400KB".to_owned())
}

fn tail(text: &str) -> Result<f64, String> {
    let tail = text.parse().ok();
    tail.filter(|tail| (1.0..=10.0).contains(tail))
        .ok_or_else(|| "expected p99 ÷ p50, 1 to 10".to_owned())
}

fn delay(text: &str) -> Result<Duration, String> {
    let delay = units::duration(text).map_err(|error| error.to_string())?;
    (delay <= Duration::from_secs(1))
        .then_some(delay)
        .ok_or_else(|| "expected 0s to 1s".to_owned())
}

fn deadline_factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(0.0) => Ok(0.0),
        _ => policies::deadline_factor(text).map_err(|error| format!("{error}, or 0")),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = units::duration(text).map_err(|error| error.to_string())?;
    let valid = (1..=86_400).contains(&time.as_secs());
    valid
        .then_some(time)
        .ok_or_else(|| "expected 1s to 24h".to_owned())
}
