//! `ultima-research sim`: collectives on thousands of ranks, in virtual time.

pub mod file;
mod options;
mod plot;
mod runs;
mod summary;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ultima_host::trace::{Sink, TraceFile, WhenFull};
use ultima_sim::{Algorithm, Calibration, Experiment, Report};

use options::Options;
use ultima_console::output::{self, Format, Output, table};

/// Simulate AllReduce operations and print their completion times
///
/// Simulates every packet in virtual time. The same options give the same output, byte by byte. docs/simulation.md
/// describes the model.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        ultima-research sim --algorithm tar --ranks 64 --bytes 25M --tail 3 --operations 100 -o json\n  \
        ultima-research sim --algorithm tar --rate 10G --background 1.5 --operations 100"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// tar, tar-2d, switch-aggregation: carry values and check the results; does not change the times
    #[arg(long)]
    payload: bool,
    /// tar: file for a packet trace of one rank, for `ultima trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Rank to trace
    #[arg(long, value_name = "RANK", default_value_t = 0, requires = "trace")]
    trace_rank: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(RunArguments),
    Schema(SchemaArguments),
}

/// Print the JSON schema of experiment files
///
/// Editors complete and check files that begin with `# yaml-language-server: $schema=FILE`.
#[derive(clap::Args)]
#[command(after_help = "Example: ultima-research sim schema > sim.schema.json")]
struct SchemaArguments {}

/// Run a YAML file of experiments on all cores, and write the results as CSV and as plots (SVG)
///
/// DIR/results.csv has a row for each run, with all settings and results. DIR/summary.csv has means over seeds with their
/// 95 % confidence intervals. DIR/NAME.svg is the plot of the experiment NAME.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima-research sim run sim/experiments/published.yaml --out /tmp/published"
)]
struct RunArguments {
    /// YAML file of experiments; `-` reads standard input
    file: PathBuf,
    /// Output folder; created if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command and prints its report, or the names of the files that it wrote.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Some(Command::Run(run)) => {
            let written = runs::run(&run.file, &run.out)?;
            let lines = written.iter().map(|path| format!("{}\n", path.display()));
            return Ok(output::print(&lines.collect::<String>())?);
        }
        Some(Command::Schema(_)) => return Ok(output::print(&schema()?)?),
        None => {}
    }
    let experiment = Experiment {
        payload: arguments.payload,
        ..arguments.options.experiment()
    };
    experiment.validate()?;
    let style =
        ProgressStyle::with_template("simulating {bar:40} {pos}/{len} operations, {eta} left")?;
    let bar = ProgressBar::new(experiment.operations.into()).with_style(style);
    let trace = start_trace(arguments, &experiment)?;
    let sink = trace.as_ref().map(|(_, trace)| {
        let sink: Box<dyn Sink> = Box::new(trace.sink());
        (arguments.trace_rank, sink)
    });
    let report = experiment.run_traced(sink, &mut |ended| bar.set_position(ended.into()))?;
    bar.finish_and_clear();
    if let Some((path, trace)) = trace {
        trace.finish().with_context(|| path.display().to_string())?;
    }
    let output = arguments.output;
    let text = output.print(&report, || text(&experiment, &report))?;
    Ok(output::print(&text)?)
}

/// Starts the trace of `--trace`; returns it with its path.
fn start_trace<'a>(
    arguments: &'a Arguments,
    experiment: &Experiment,
) -> Result<Option<(&'a Path, TraceFile)>> {
    let Some(path) = &arguments.trace else {
        return Ok(None);
    };
    let (rank, ranks) = (arguments.trace_rank, experiment.ranks);
    if experiment.algorithm != Algorithm::Tar {
        let name = experiment.algorithm.name();
        bail!("--trace needs --algorithm tar, not {name}");
    }
    if rank >= ranks {
        bail!("--trace-rank: no rank {rank}; expected 0 to {}", ranks - 1);
    }
    let trace = TraceFile::create(path, &experiment.trace_head(), WhenFull::Wait);
    let trace = trace.with_context(|| path.display().to_string())?;
    Ok(Some((path, trace)))
}

fn text(experiment: &Experiment, report: &Report) -> String {
    let ms = |ms: f64| format!("{ms:.3} ms");
    let percent = |share: f64| format!("{:.3} %", share * 100.0);
    let row = |name: &str, value: String| [name.to_owned(), value];
    let completion = &report.completion_ms;
    let grid = report.groups.map(|groups| {
        let members = report.ranks / groups;
        let cheapest = match experiment.choose() {
            Some(grid) => format!("{} groups of {}", grid.groups(), grid.members()),
            None => "no groups".to_owned(),
        };
        [
            row("grid", format!("{groups} groups of {members}")),
            row("cheapest by the cost model", cheapest),
        ]
    });
    let mut rows: Vec<_> = grid.into_iter().flatten().collect();
    if let Some(background) = report.background {
        rows.push(row(
            "background, asked p99/p50",
            background.ratio.to_string(),
        ));
        if let Some(calibration) = background.calibration {
            let Calibration {
                load,
                ring_ratio,
                ring_p50_ms,
                ring_p99_ms,
                ring_operations,
            } = calibration;
            rows.push(row("background, load of a link", percent(load)));
            rows.push(row(
                "background, p99/p50 of the ring",
                format!(
                    "{ring_ratio:.3} ({ring_p99_ms:.3} ms / {ring_p50_ms:.3} ms, {ring_operations} operations)"
                ),
            ));
        }
    }
    rows.extend([
        row("mean", ms(completion.mean)),
        row("p50", ms(completion.p50)),
        row("p99", ms(completion.p99)),
        row("max", ms(completion.max)),
    ]);
    if let Some(on_time) = report.on_time_ms {
        rows.push(row("p50 without stragglers", ms(on_time.p50)));
        rows.push(row("p99 without stragglers", ms(on_time.p99)));
    }
    rows.extend([
        row("lower bound by link rate", ms(report.bound_ms)),
        row("arrived", percent(report.arrived_share)),
        row(
            "arrived, of packets not lost",
            percent(report.arrived_share_of_not_lost),
        ),
        row(
            "goodput, share of the bound",
            percent(report.goodput_share_of_bound),
        ),
        row(
            "p99 queueing time",
            format!("{:.1} us", report.p99_queue_us),
        ),
        row(
            "maximum queueing time",
            format!("{:.1} us", report.longest_queue_us),
        ),
    ]);
    for (name, bound) in [
        ("t_S", report.t_s_ms),
        ("t_B", report.t_b_ms),
        ("minimum RTO", report.min_rto_ms),
    ] {
        rows.extend(bound.map(|bound| row(name, ms(bound))));
    }
    rows.extend(
        report
            .pool_slots
            .map(|slots| row("pool", format!("{slots} slots"))),
    );
    if let Some(error) = report.worst_error {
        rows.push(row("largest error of the mean", error.to_string()));
    }
    let network = report.network;
    rows.push(row("packets sent", network.sent.to_string()));
    for (cause, copies) in [
        ("copies delivered", network.delivered),
        ("copies lost on links", network.link_lost),
        ("copies dropped by full queues", network.queue_dropped),
        ("copies trimmed", network.trimmed),
        ("copies late", network.late),
    ] {
        rows.push(row(cause, copies.to_string()));
    }
    let title = format!("SIMULATED {}", report.algorithm.name());
    let what = format!(
        "{} ranks, {} bytes, {} operations",
        report.ranks, report.bytes, report.operations
    );
    table([&title, &what], rows.into_iter())
}

/// The JSON schema of a file of experiments, as text.
fn schema() -> Result<String> {
    Format::Json.print(&file::schema(), String::new)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_schema_is_up_to_date() {
        assert!(
            super::schema().expect("JSON") == include_str!("../../../docs/schema/sim.json"),
            "ultima-research sim schema > docs/schema/sim.json"
        );
    }
}
