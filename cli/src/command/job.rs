//! `ultima job`: creating, showing and deleting jobs at a running controller.

use super::run_beside;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use ultima_console::input;

use anyhow::{Result, anyhow};
use ultima_controller::api;
use ultima_controller::client::{Client, ClientError};
use ultima_controller::job::{self, GridSpec, JobProblem, JobRequest, Line, WrittenJob};
use ultima_host::{Config, Grid, Path};

use super::controller_address::ControllerAddress;
use super::creation;
use super::deletion;
use super::membership;
use super::telemetry::{AWAY, away};
use super::wait;
use crate::document::{self, OneOrAll, state};
use crate::exit::Exit;
use ultima_console::output::{self, Format, Output, table};
use ultima_console::units::{self, bit_rate, bytes};

/// Creates, shows, changes, checks and deletes jobs at a running controller
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    at: ControllerAddress,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Install a job on every switch that it needs, or on none
    #[command(
        after_help = "Example: ultima job create -f job.yaml, where job.yaml holds\n\n  \
        name: train\n  members: [h1, h2, h3, h4]     # hosts in rank order\n\n\
        and what is to be other than:\n\n  \
        gather: multicast             # or unicast\n  \
        seed: 7                       # of all that is random; else one is drawn\n  \
        loss_threshold: 1             # packets of an operation lost at one place that are worth a word; 0 for never\n  \
        weight: 1                     # its part of links with a rate that other jobs use, too, 1 to 100\n  \
        evict_after_s: 0              # seconds after which a suspected member loses its place; 0 for never\n  \
        sealed: false                 # true: members seal their packets and refuse others', under a key that they are given\n  \
        groups: 2                     # makes a job of each group, NAME.row0 …, and of each\n                                \
        # place in groups, NAME.column0 …, for hierarchical\n                                \
        # AllReduces; show, check, delete take NAME for all"
    )]
    Create {
        /// The job, as YAML; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Put a job whose file says no groups in those that take least by the cost model, for buckets of SIZE bytes on
        /// links of RATE bits per second, if that is less than without: 100G:25M
        #[arg(long, value_name = "RATE:SIZE", value_parser = grouping)]
        group_for: Option<Grouping>,
        /// Wait until all members have joined, so long at most; the job stays also where they have not
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
    /// List all jobs
    #[command(after_help = "Example: ultima job list --controller 10.0.0.1:9555")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show a job's numbers, members and counters
    ///
    /// JSON and YAML are without counters: `ultima telemetry -o json` has all of them.
    #[command(after_help = "Example: ultima job show train")]
    Show {
        /// The job's name
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Find out where a job's packets stop, and what to do
    ///
    /// The job's members, which must be running, send check packets to each other and to the group; what switches
    /// count meanwhile shows how far those came that nobody heard. The exit code is 1 where packets stop somewhere.
    #[command(after_help = "Example: ultima job check train -o json")]
    Check {
        /// The job's name
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Give a job other members while it runs
    ///
    /// The new members are installed as another epoch beside the one that the job is in. When all newcomers have joined, the members that stay
    /// agree on the first operation of the new epoch; then the old one is taken off the switches. Without --wait it follows by itself. A grid
    /// keeps its members.
    #[command(
        after_help = "Example: ultima job resize train --members h1,h2,h3,h4,h5\n         ultima job resize train --add h6 --remove h2 --wait 90s\n         ultima job resize train --add h6 -o json     # the job, with what it changes to in `next`\n         ultima job resize train --call-off           # what is on its way and not decided yet"
    )]
    Resize(membership::Resize),
    /// Take a member's place away while the job runs
    #[command(
        after_help = "Example: ultima job evict train 3 --epoch 2 --reason \"its link is bad\"\n         ultima job evict train --host h2 --wait 30s -o yaml"
    )]
    Evict(membership::Evict),
    /// Show what happens to a job's members as it happens
    ///
    /// JSON is one object on one line for each event, YAML one document. The first says how things are, with `now` for its kind; of several
    /// controllers it goes on with the one that leads next, beginning with how things are then.
    #[command(
        after_help = "Example: ultima job watch train -o json | jq -r 'select(.kind == \"decided\").first_operation'"
    )]
    Watch(membership::Watch),
    /// Take a job off all its switches; of a grid all of its jobs
    #[command(after_help = "Example: ultima job delete train --wait 10s")]
    Delete {
        /// The job's name
        name: String,
        /// Wait until it is off switches that could not be reached, too, so long at most
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
}

/// Makes one request and prints what came of it.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    // The file is read first: what is wrong with it does not need a controller to be said.
    let written = match &arguments.command {
        Command::Create {
            file, group_for, ..
        } => {
            let mut written = only_one(file)?;
            if let Some(grouping) = group_for {
                let grouped = grouping.apply(&written.request);
                written.request = grouped.map_err(|problem| written.invalid(problem))?;
            }
            Some(written)
        }
        _ => None,
    };
    run_beside(async {
        let client = Client::connect(&arguments.at.controller).await?;
        let mut exit = Exit::Done;
        let text = match arguments.command {
            Command::Create { wait, output, .. } => {
                let written = [written.expect("read above")];
                let specs = written[0].request.jobs(rand::random());
                let mut jobs = creation::create(&client, &written, &specs).await?;
                if let Some(bound) = wait {
                    jobs = wait::joined(&client, jobs, bound).await?;
                }
                output.print(&one_or_all(&jobs), || summary(&jobs))?
            }
            Command::List { output } => {
                let jobs = client.jobs().await?;
                let documents: Vec<document::Job> = jobs.iter().map(Into::into).collect();
                output.print(&documents, || summary(&jobs))?
            }
            Command::Show { name, output } => {
                let mut jobs = Vec::new();
                let mut counters = Vec::new();
                for name in jobs_of(&client, &name).await? {
                    jobs.push(client.job(&name).await?);
                    if output.format() == Format::Table {
                        counters.push(client.counters(&name).await?);
                    }
                }
                output.print(&one_or_all(&jobs), || {
                    let shown = jobs.iter().zip(&counters).map(|(job, counters)| {
                        let summary = summary(std::slice::from_ref(job));
                        format!("{summary}{}{}", members(job), counts(counters))
                    });
                    shown.collect::<Vec<String>>().join("\n")
                })?
            }
            Command::Check { name, output } => {
                let mut checks = Vec::new();
                for name in jobs_of(&client, &name).await? {
                    checks.push(document::Check::from(&client.check(&name).await?));
                }
                exit = Exit::found(!checks.iter().all(document::Check::is_ok));
                let text = checks.iter().map(document::Check::text).collect();
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
            Command::Delete { name, wait, output } => {
                let names = jobs_of(&client, &name).await?;
                let deleted = deletion::delete(&client, &names, wait).await?;
                let text = deleted.iter().map(document::Deleted::text).collect();
                output.print(&OneOrAll::of(deleted), || text)?
            }
        };
        output::print(&text)?;
        Ok(exit.into())
    })
}

/// The job of a file that has only one.
fn only_one(file: &std::path::Path) -> Result<WrittenJob> {
    let name = input::name_of(file);
    let jobs = job::parse_all(&input::read_text(file)?, &name)?;
    let [job] = <[WrittenJob; 1]>::try_from(jobs).map_err(|jobs| {
        let (second, jobs) = (jobs[1].place(), jobs.len());
        anyhow!(
            "{second}: {jobs} jobs; `ultima job create` takes one, `ultima apply -f` creates several"
        )
    })?;
    Ok(job)
}

/// What came of a command about one job; where there is no job, but a grid of that name, that is said.
async fn of_no_grid(client: &Client, name: &str, done: Result<ExitCode>) -> Result<ExitCode> {
    let is_unknown = |error: &anyhow::Error| Exit::of(error) == Exit::NotThere;
    if !done.as_ref().is_err_and(is_unknown) {
        return done;
    }
    match &jobs_of(client, name).await?[..] {
        [one] if one == name => done,
        lines => Err(Exit::Refused.because(format!(
            "{name} is a grid, which keeps its members, of the jobs {}; watch one of these, or delete the grid and create it with others",
            lines.join(", ")
        ))
        .into()),
    }
}

/// What the cost model needs to know of a job's operations.
#[derive(Clone, Copy, Debug)]
struct Grouping {
    /// Bits per second of a rank's link.
    rate: u64,
    /// Of a bucket.
    bytes: u64,
}

fn grouping(text: &str) -> Result<Grouping, String> {
    let Some((rate, size)) = text.split_once(':') else {
        return Err("expected RATE:SIZE, such as 100G:25M".into());
    };
    Ok(Grouping {
        rate: bit_rate(rate).map_err(|error| error.to_string())?,
        bytes: bytes(size).map_err(|error| error.to_string())?,
    })
}

impl Grouping {
    /// The job in the groups that take least, if that is less than without any; a grid as its file says.
    fn apply(self, request: &JobRequest) -> Result<JobRequest, JobProblem> {
        let JobRequest::Job(spec) = request else {
            return Ok(request.clone());
        };
        // The file's check knows that it is no more than there are ranks.
        let ranks = u16::try_from(spec.members.len()).unwrap_or(u16::MAX);
        let path = Path::new(self.rate, Config::SLOT_BYTES);
        match Grid::choose(ranks, self.bytes, &path) {
            Some(grid) => GridSpec::new(spec.clone(), grid.groups()).map(JobRequest::Grid),
            None => Ok(request.clone()),
        }
    }
}

/// The jobs that a name stands for: one, or those of a grid, rows first.
async fn jobs_of(client: &Client, name: &str) -> Result<Vec<String>, ClientError> {
    let all = client.jobs().await?;
    let of_grid = |job: &api::Job| {
        let (grid, line) = Line::of(&job.name)?;
        (grid == name).then_some(line)
    };
    let mut lines: Vec<Line> = all.iter().filter_map(of_grid).collect();
    if lines.is_empty() || all.iter().any(|job| job.name == name) {
        // Where there is none the controller says so.
        return Ok(vec![name.to_owned()]);
    }
    lines.sort();
    Ok(lines.into_iter().map(|line| line.name(name)).collect())
}

/// One job's document as it is, a grid's as a list.
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
            job.switches.join(","),
        ]
    });
    table(
        [
            "JOB", "ID", "EPOCH", "RANKS", "GROUP", "COUNTERS", "WEIGHT", "SWITCHES",
        ],
        rows,
    )
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
                true => format!("{}, cut off", state(member)),
                false => state(member).to_owned(),
            },
        ]
    });
    let mut notes = String::new();
    if !job.stays.is_empty() {
        notes += &format!("keeps its ways: {}\n", job.stays);
    }
    if let Some(next) = &job.next {
        let hosts = next.members.iter().map(|m| match m.state() {
            api::MemberState::Free => format!("{} (has not joined)", m.host),
            _ => m.host.clone(),
        });
        let hosts: Vec<String> = hosts.collect();
        notes += &format!("changes to epoch {}: {}\n", next.epoch, hosts.join(", "));
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
            AWAY.clone_into(&mut row[1]);
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
        "PACKETS AT",
        "RECEIVED",
        "REJECTED",
        "REPLICATED",
        "UNICAST",
        "DELIVERED",
        "OWN COPY",
        "UNKNOWN RANK",
        "UNDELIVERABLE",
    ];
    format!("\n{}{}", table(header, rows), away(switches.iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many ranks as docs/transport.md says that groups pay for, and fewer.
    #[test]
    fn many_ranks_are_grouped_and_few_are_not() {
        let grouping = grouping("100G:25M").expect("as it should be");
        let asked = |ranks: usize| {
            let hosts: Vec<String> = (0..ranks).map(|host| format!("h{host}")).collect();
            let text = format!("{{ name: train, members: [{}] }}", hosts.join(", "));
            grouping.apply(&job::parse(&text, "job.yaml").expect("a job"))
        };
        assert!(matches!(asked(64), Ok(JobRequest::Job(_))));
        assert!(matches!(asked(16_384), Ok(JobRequest::Grid(_))));
    }
}
