//! `ultima job`: creates, shows, checks, resizes and deletes jobs at a running controller.

use crate::runtime::run_beside;
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use ultima_api::client::Client;
use ultima_api::document::{self, OneOrAll, state};
use ultima_api::v1 as api;
use ultima_planner::job::{JobSpec, WrittenJob};

use super::creation;
use super::deletion;
use super::desired;
use super::get;
use super::jobs_of::{jobs_of, named};
use super::membership;
use super::telemetry::{UNREACHABLE, unreachable};
use super::wait::{self, Bound, conditions};
use crate::controller_address::ControllerAddress;
use crate::exit::{Exit, HalfDone, InputErrors as _};
use crate::names;
use crate::text::Text;
use crate::view::{View, all_found, unknown_names};
use crate::which::Kind;
use ultima_console::output::{self, Format, Output, table};
use ultima_console::units;

/// Create, show, check, resize and delete jobs at a running controller
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima job create -f job.yaml\n  \
    ultima job list\n  \
    ultima events job/train     # the job's recent events")]
pub struct Arguments {
    #[command(flatten)]
    at: ControllerAddress,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Create a job from a file, or several jobs from as many files
    ///
    /// The controller commits the jobs, all or none, and then writes them to the switches. A job is ready when all of its
    /// switches have it; members join only then. A job that can never fit is rejected, and nothing is done.
    #[command(after_help = concat!(
        "Examples:\n",
        "  ultima job create -f job.yaml --wait 60s\n",
        "  echo '{ name: train, members: [h1, h2] }' | ultima job create -f -\n",
        "\n",
        "job.yaml, with the default of each optional field:\n",
        "\n",
        "  name: train\n",
        "  members: [h1, h2, h3, h4]   # hosts in rank order\n",
        "  gather: multicast           # switches replicate results; unicast: ranks send each copy\n",
        "  seed: 7                     # seed of all random choices; default: random\n",
        "  loss_threshold: 1           # report operations with this many losses at one hop; 0: never\n",
        "  weight: 1                   # share of links with a rate, relative to other jobs, 1 to 100\n",
        "  evict_after_s: 0            # evict a suspected member after this many seconds; 0: never\n",
        "  sealed: true                # authenticate packets with a key of the job; false: do not\n",
        "  groups: 2                   # grid for hierarchical AllReduce: a job per group (NAME.row0, ...)\n",
        "                              # and per position in groups (NAME.column0, ...); default: none"
    ))]
    Create {
        /// YAML file; `-` reads standard input. A folder stands for its files, of one job each. Repeatable; `FILE` alone is the
        /// same
        #[arg(
            short,
            long = "file",
            value_name = "FILE",
            required_unless_present = "words"
        )]
        files: Vec<PathBuf>,
        #[arg(value_name = "FILE", hide = true)]
        words: Vec<PathBuf>,
        /// Wait at most TIME, such as 60s, until all members have joined; 0: do not wait for the switches either. After that
        /// time the job remains [default: wait at most 10s until the job is ready]
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
    /// List all jobs, as `ultima get jobs`
    #[command(after_help = "Examples:\n  \
        ultima job list\n  \
        ultima job list -o wide --watch")]
    List {
        #[command(flatten)]
        view: View,
    },
    /// Show a job's settings, members and packet counters
    ///
    /// JSON and YAML omit the counters: `ultima telemetry -o json` prints them.
    #[command(after_help = "Example: ultima job show train")]
    Show {
        /// Name of the job, or of a grid for all its jobs
        #[arg(add = names::jobs(), value_parser = names::job)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Find the hop where packets of a job are lost, with advice
    ///
    /// The running members send test packets to each other and to the multicast group. For a path on which none arrives,
    /// the switch counters show the first hop that did not see them. The exit code is 1 if a problem is found.
    #[command(after_help = "Examples:\n  \
        ultima job check train\n  \
        ultima job check train -o json")]
    Check {
        /// Name of the job, or of a grid for all its jobs
        #[arg(add = names::jobs(), value_parser = names::job)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Change the members of a running job
    ///
    /// The controller installs the new members as a new epoch next to the current one. When all new members have joined, the
    /// remaining members agree on the first operation of the new epoch, and the controller removes the old epoch from the
    /// switches. This continues in the background unless `--wait` is given. The members of a grid cannot be changed.
    #[command(after_help = "Examples:\n  \
        ultima job resize train --members h1,h2,h3,h4,h5\n  \
        ultima job resize train --add h6 --remove h2 --wait 90s\n  \
        ultima job resize train --add h6 -o json     # the new members are in `next`\n  \
        ultima job resize train --cancel")]
    Resize(membership::Resize),
    /// Remove one member from a running job
    ///
    /// Ranks above the removed one move down by one. The change otherwise proceeds as with `resize`.
    #[command(after_help = "Examples:\n  \
        ultima job evict train 3 --epoch 2 --reason \"its link is bad\"\n  \
        ultima job evict train --host h2 --wait 30s")]
    Evict(membership::Evict),
    /// Print membership events of a job as they happen
    ///
    /// The first event, of kind `current`, is the state of the job. If --controller names several controllers, the watch
    /// continues with the next leader and prints the state again. The watch ends when the job is deleted.
    #[command(after_help = "Examples:\n  \
        ultima job watch train\n  \
        ultima job watch train -o json | jq -r 'select(.kind == \"decided\").first_operation'")]
    Watch(membership::Watch),
    /// Delete jobs, or all jobs of grids
    #[command(after_help = "Example: ultima job delete train --wait 10s")]
    Delete {
        /// Names of the jobs, or of grids for all their jobs
        #[arg(value_name = "NAME", required = true, add = names::jobs(), value_parser = names::job)]
        names: Vec<String>,
        #[command(flatten)]
        options: deletion::Options,
    },
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    // The file comes first: its errors need no controller.
    let written = match &arguments.command {
        Command::Create { files, words, .. } => {
            Some(one_of_each(&[&files[..], words].concat()).input()?)
        }
        _ => None,
    };
    // For the whole command.
    let bound = match &arguments.command {
        Command::Create { wait, .. } => wait.map(Bound::from),
        _ => None,
    };
    run_beside(async {
        let client = match arguments.command {
            Command::List { .. } | Command::Show { .. } => arguments.at.connect_to_read().await?,
            _ => arguments.at.connect().await?,
        };
        let mut exit = Exit::Success;
        let text = match arguments.command {
            Command::Create { output, .. } => {
                let written = written.expect("read above");
                let specs = written
                    .iter()
                    .flat_map(|it| it.request.jobs(rand::random()));
                let specs: Vec<JobSpec> = specs.collect();
                let mut jobs = creation::create(&client, &written, &specs, bound).await?;
                let waited = async {
                    creation::ready(&client, &mut jobs, bound).await?;
                    match bound.filter(|bound| !bound.limit.is_zero()) {
                        Some(bound) => wait::joined(&client, &mut jobs, bound).await,
                        None => Ok(()),
                    }
                };
                match waited.await {
                    // The jobs remain.
                    Err(late) if Exit::of(&late) == Exit::TimedOut => {
                        output::print(&output.print(&one_or_all(&jobs), || summary(&jobs))?)?;
                        return Err(late);
                    }
                    waited => waited?,
                }
                output.print(&one_or_all(&jobs), || summary(&jobs))?
            }
            Command::List { view } => {
                return get::show(&client, Kind::Jobs, &[], &view).await;
            }
            Command::Show { name, output } => {
                let mut jobs = Vec::new();
                let mut shown = Vec::new();
                for name in jobs_of(&client, &name).await? {
                    let job = client.job(&name).await?;
                    if output.format() == Format::Table {
                        shown.push(details(&client, &job).await?);
                    }
                    jobs.push(job);
                }
                output.print(&one_or_all(&jobs), || {
                    let shown = jobs
                        .iter()
                        .zip(&shown)
                        .map(|(job, details)| summary(std::slice::from_ref(job)) + details);
                    shown.collect::<Vec<String>>().join("\n")
                })?
            }
            Command::Check { name, output } => {
                let mut checks = Vec::new();
                for name in jobs_of(&client, &name).await? {
                    checks.push(document::Check::from(&client.check(&name).await?));
                }
                exit = Exit::failure_if(!checks.iter().all(document::Check::is_ok));
                let text = checks.iter().map(Text::text).collect();
                output.print(&OneOrAll::of(checks), || text)?
            }
            Command::Resize(resize) => {
                let done = membership::resize(&client, &arguments.at, &resize).await;
                return of_no_grid(&client, &resize.name, done).await;
            }
            Command::Evict(evict) => {
                let done = membership::evict(&client, &arguments.at, &evict).await;
                return of_no_grid(&client, &evict.name, done).await;
            }
            Command::Watch(watch) => {
                let done = membership::watch(&client, &arguments.at, &watch).await;
                return of_no_grid(&client, &watch.name, done).await;
            }
            Command::Delete { names, options } => {
                delete(&client, Some(&names), &options).await?;
                return Ok(exit.into());
            }
        };
        output::print(&text)?;
        Ok(exit.into())
    })
}

/// Deletes the jobs that these names stand for, also if other names stand for none, or all jobs, and prints the deleted jobs.
///
/// # Errors
/// As [`deletion::delete`]; [`Exit::NotFound`] if no name stands for a job, else [`Exit::Failure`] with the unknown names.
pub async fn delete(
    client: &Client,
    names: Option<&[String]>,
    options: &deletion::Options,
) -> Result<()> {
    let bound = options.wait.map(Bound::from);
    let present = client.jobs().await?;
    let (mut jobs, mut unknown) = (Vec::new(), Vec::new());
    match names {
        None => jobs.extend(present.into_iter().map(|job| job.name)),
        Some(names) => {
            for name in names {
                let of_name = named(&present, name);
                if of_name.is_empty() && !options.ignore_not_found {
                    unknown.push(name.as_str());
                }
                jobs.extend(of_name);
            }
            let mut known = HashSet::new();
            jobs.retain(|job| known.insert(job.clone()));
        }
    }
    let unknown = unknown_names("job", &unknown);
    if jobs.is_empty() && unknown.is_some() {
        return all_found(unknown);
    }
    let deleted = deletion::delete(client, &jobs, bound).await;
    let deleted = deleted.map_err(|error| match &unknown {
        Some(unknown) => error.context(format!("{unknown}; the other jobs")),
        None => error,
    })?;
    let text = deleted.iter().map(Text::text).collect();
    output::print(&options.output.print(&OneOrAll::of(deleted), || text)?)?;
    all_found(unknown).context(HalfDone("not all jobs were deleted".to_owned()))
}

/// Reads files, and those of folders, that must have exactly one job each.
fn one_of_each(files: &[PathBuf]) -> Result<Vec<WrittenJob>> {
    let one = |jobs| {
        let [job] = <[WrittenJob; 1]>::try_from(jobs).map_err(|jobs: Vec<WrittenJob>| {
            let (second, jobs) = (jobs[1].place(), jobs.len());
            anyhow!(
                "{second}: {jobs} jobs in one file; `ultima job create` takes one, use `ultima apply -f` for several"
            )
        })?;
        Ok(job)
    };
    let jobs = (desired::read_each(files)?.into_iter()).map(one);
    let jobs = jobs.collect::<Result<Vec<_>>>()?;
    desired::check_names(&jobs)?;
    Ok(jobs)
}

/// The result of a command that does not work on grids; if `name` is a grid, the error says so.
async fn of_no_grid(client: &Client, name: &str, done: Result<ExitCode>) -> Result<ExitCode> {
    let is_unknown = |error: &anyhow::Error| Exit::of(error) == Exit::NotFound;
    if !done.as_ref().is_err_and(is_unknown) {
        return done;
    }
    match &jobs_of(client, name).await?[..] {
        [one] if one == name => done,
        lines => Err(Exit::Rejected.because(format!(
            "{name} is a grid of the jobs {}, whose members cannot be changed; watch one of these jobs, or delete the grid and create it again",
            lines.join(", ")
        ))
        .into()),
    }
}

/// One document for a job, a list for a grid.
fn one_or_all(jobs: &[api::Job]) -> OneOrAll<document::Job<'_>> {
    OneOrAll::of(jobs.iter().map(Into::into).collect())
}

fn summary(jobs: &[api::Job]) -> String {
    let rows = jobs.iter().map(|job| {
        let group = match job.group_id {
            0 => "none".to_owned(),
            group => format!("{group} at {}", job.group_address),
        };
        [
            job.name.clone(),
            job.id.to_string(),
            job.epoch.to_string(),
            job.members.len().to_string(),
            group,
            job.counter_index.to_string(),
            job.weight.to_string(),
            match job.unfit.is_empty() {
                true => job.switches.join(","),
                false => "none (see `job show`)".to_owned(),
            },
        ]
    });
    table(
        [
            "NAME",
            "ID",
            "EPOCH",
            "RANKS",
            "GROUP",
            "COUNTER-INDEX",
            "WEIGHT",
            "SWITCHES",
        ],
        rows,
    )
}

/// A job's members, and its packet counters by switch.
pub async fn details(client: &Client, job: &api::Job) -> Result<String> {
    // A job on no switch has no counters, and a standby cannot read them.
    let counters = match job.unfit.is_empty() && client.standby().is_none() {
        true => counts(&client.counters(&job.name).await?),
        false => String::new(),
    };
    Ok(conditions(job) + &members(job) + &counters)
}

fn members(job: &api::Job) -> String {
    let rows = job.members.iter().map(|member| {
        [
            member.rank.to_string(),
            member.host.clone(),
            member.mac.clone(),
            format!("{}:{}", member.ip, member.udp_port),
            member.switch_port_name.clone(),
            match member.cut_off {
                true => format!("{}, unreachable", state(member)),
                false => state(member).to_owned(),
            },
        ]
    });
    let mut notes = String::new();
    if !job.unfit.is_empty() {
        notes += &format!("on no switch: {}\n", job.unfit);
    }
    if let Some(next) = &job.next {
        let hosts = next.members.iter().map(|m| match m.state() {
            api::MemberState::Free => format!("{} (not joined)", m.host),
            _ => m.host.clone(),
        });
        let hosts: Vec<String> = hosts.collect();
        notes += &format!("next epoch {}: {}\n", next.epoch, hosts.join(", "));
    }
    if !job.unchanged.is_empty() {
        notes += &format!("{}\n", job.unchanged);
    }
    format!(
        "\n{}{notes}",
        table(["RANK", "HOST", "MAC", "ADDRESS", "PORT", "STATE"], rows)
    )
}

fn counts(switches: &[api::SwitchCounters]) -> String {
    let packets = |count: &Option<api::Count>| count.map_or(0, |count| count.packets).to_string();
    let rows = switches.iter().map(|counted| {
        if !counted.problem.is_empty() {
            let mut row: [String; 9] = Default::default();
            row[0].clone_from(&counted.switch);
            UNREACHABLE.clone_into(&mut row[1]);
            return row;
        }
        [
            counted.switch.clone(),
            packets(&counted.received),
            packets(&counted.rejected),
            packets(&counted.replicated),
            packets(&counted.unicast),
            packets(&counted.delivered),
            packets(&counted.own_copy),
            packets(&counted.unknown_rank),
            packets(&counted.undeliverable),
        ]
    });
    let header = [
        "SWITCH",
        "RECEIVED",
        "REJECTED",
        "REPLICATED",
        "UNICAST",
        "DELIVERED",
        "OWN-COPY",
        "UNKNOWN-RANK",
        "UNDELIVERABLE",
    ];
    format!("\n{}{}", table(header, rows), unreachable(switches.iter()))
}
