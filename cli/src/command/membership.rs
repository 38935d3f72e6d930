//! `ultima job resize`, `evict` and `watch`: the members of a running job.

use crate::runtime::print_beside;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout_at;
use ultima_api::client::{Client, JobWatch};
use ultima_api::v1::evict_member_request::Member as Named;
use ultima_api::v1::membership_event::Kind;
use ultima_api::v1::{self as api, MembershipEvent, WatchJobResponse};
use ultima_controller::server::LONGEST_JOIN_WAIT;

use super::resume::resumed;
use super::wait::Bound;
use crate::controller_address::ControllerAddress;
use crate::exit::Exit;
use crate::names;
use ultima_api::document;
use ultima_console::output::{self, Format, Output};
use ultima_console::units::{self, counted};

/// `ultima job resize`.
#[derive(clap::Args)]
#[group(id = "members_wanted", required = true, multiple = true, args = ["members", "add", "remove", "cancel"])]
pub struct Resize {
    /// Name of the job
    #[arg(add = names::jobs(), value_parser = names::job)]
    pub name: String,
    /// Hosts of all members of the new epoch, in rank order
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', conflicts_with_all = ["add", "remove"], add = names::hosts())]
    members: Vec<String>,
    /// Hosts that get one more member each, with the next ranks
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', add = names::hosts())]
    add: Vec<String>,
    /// Hosts that lose one member each: of several, the one with the highest rank
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', add = names::member_hosts())]
    remove: Vec<String>,
    /// Cancel the change if a new member has not joined after TIME, at most 24h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = join_timeout)]
    join_timeout: Duration,
    /// Evict remaining members that do not answer, instead of cancelling the change
    #[arg(long)]
    evict_unresponsive: bool,
    /// Cancel the pending change; the job remains in its current epoch. Not possible once the members have decided on the
    /// first operation of the new epoch
    #[arg(long, conflicts_with_all = ["members", "add", "remove", "join_timeout", "evict_unresponsive", "wait"])]
    cancel: bool,
    #[command(flatten)]
    end: End,
}

/// `ultima job evict`.
#[derive(clap::Args)]
#[group(id = "member_meant", required = true, args = ["member", "host"])]
pub struct Evict {
    /// Name of the job
    #[arg(add = names::jobs(), value_parser = names::job)]
    pub name: String,
    /// Rank of the member, or its host if that has only one rank of the job. A number is a rank
    #[arg(value_name = "RANK|HOST", conflicts_with = "host", add = names::members())]
    member: Option<String>,
    /// Host of the member; needed for a host whose name is a number
    #[arg(long, value_name = "HOST", add = names::member_hosts())]
    host: Option<String>,
    /// Fail if the job is no longer in this epoch, because ranks may have changed (see `ultima job show`) [default: the
    /// current epoch]
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u32).range(1..=65535))]
    epoch: Option<u32>,
    /// Reason, which the evicted member prints
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    end: End,
}

#[derive(clap::Args)]
struct End {
    /// Wait at most TIME, such as 60s, until the change is complete, and print its events; the exit code is 1 if it is
    /// cancelled. A timeout does not cancel it [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

/// `ultima job watch`.
#[derive(clap::Args)]
pub struct Watch {
    /// Name of the job
    #[arg(add = names::jobs(), value_parser = names::job)]
    pub name: String,
    #[command(flatten)]
    output: Output,
}

/// A time that the controller accepts: it counts milliseconds, and 0 would be its own default.
fn join_timeout(text: &str) -> Result<Duration, String> {
    let wait = units::duration(text).map_err(|error| error.to_string())?;
    match (Duration::from_millis(1)..=LONGEST_JOIN_WAIT).contains(&wait) {
        true => Ok(wait),
        false => Err("expected a time from 1ms to 24h".into()),
    }
}

/// Resizes a job, or cancels its pending change.
pub async fn resize(
    client: &Client,
    at: &ControllerAddress,
    arguments: &Resize,
) -> Result<ExitCode> {
    let (name, bound) = (&arguments.name, arguments.end.wait.map(Bound::from));
    if arguments.cancel {
        let job = client.cancel_change(name, 0).await?;
        let text = format!(
            "job {name} remains in epoch {}: {}\n",
            job.epoch, job.unchanged
        );
        return print_job(&arguments.end, &job, text);
    }
    let (members, number) = match &arguments.members[..] {
        [] => {
            let job = client.job(name).await?;
            let number = Some(job.id);
            let now = job.members.into_iter().map(|member| member.host);
            let members = changed(now.collect(), &arguments.add, &arguments.remove);
            let members =
                members.map_err(|what| Exit::NotFound.because(format!("job {name} {what}")));
            (members?, number)
        }
        members => (members.to_vec(), None),
    };
    // The watch starts first, so that it misses no event.
    let events = Events::watch(client, at, name).await?;
    let (join_timeout, evicts) = (arguments.join_timeout, arguments.evict_unresponsive);
    let job = client
        .resize_job(name, number, &members, join_timeout, evicts)
        .await?;
    follow(events, &job, (&arguments.end, bound)).await
}

/// Evicts a member.
pub async fn evict(client: &Client, at: &ControllerAddress, arguments: &Evict) -> Result<ExitCode> {
    let Evict {
        name, reason, end, ..
    } = arguments;
    let bound = end.wait.map(Bound::from);
    let member = arguments.member();
    let events = Events::watch(client, at, name).await?;
    let number = client.job(name).await?.id;
    let epoch = arguments.epoch.unwrap_or_default();
    let job = client
        .evict_seen(name, epoch, number, member, reason)
        .await?;
    follow(events, &job, (end, bound)).await
}

impl Evict {
    fn member(&self) -> Named {
        let of_either = |member: &String| match member.parse() {
            Ok(rank) => Named::Rank(rank),
            Err(_) => Named::Host(member.clone()),
        };
        let host = self.host.clone().map(Named::Host);
        let named = host.or_else(|| self.member.as_ref().map(of_either));
        named.expect("clap requires one of them")
    }
}

/// The membership events of a job; continues with the next leader when a controller fails.
struct Events<'a> {
    at: &'a ControllerAddress,
    name: &'a str,
    watch: JobWatch,
    /// True after the last event: the job was deleted.
    is_over: bool,
    /// True if events now come from another controller, or from a restarted one.
    is_resumed: bool,
}

impl<'a> Events<'a> {
    async fn watch(client: &Client, at: &'a ControllerAddress, name: &'a str) -> Result<Self> {
        Ok(Events {
            at,
            name,
            watch: client.watch_job(name).await?,
            is_over: false,
            is_resumed: false,
        })
    }

    /// The next event, or the current state after a change of the leader; none after the job was deleted.
    async fn next(&mut self) -> Result<Option<WatchJobResponse>> {
        loop {
            let why = match self.watch.next().await {
                Ok(Some(next)) => {
                    let event = next.event.as_ref();
                    self.is_over = event.is_some_and(|event| event.kind() == Kind::Deleted);
                    return Ok(Some(next));
                }
                Ok(None) if self.is_over => return Ok(None),
                Ok(None) => Exit::Unavailable
                    .because(format!(
                        "the controller stopped; run `ultima job show {}` when it is back",
                        self.name
                    ))
                    .into(),
                Err(error) => error.into(),
            };
            let begin = async |client: &Client| client.watch_job(self.name).await;
            self.watch = resumed(self.at, why, begin).await?;
            self.is_resumed = true;
        }
    }
}

/// Prints events until the job is deleted or the command is interrupted.
pub async fn watch(client: &Client, at: &ControllerAddress, arguments: &Watch) -> Result<ExitCode> {
    tokio::select! {
        ended = show(client, at, arguments) => ended,
        () = crate::runtime::interrupted() => Ok(Exit::Interrupted.into()),
    }
}

async fn show(client: &Client, at: &ControllerAddress, arguments: &Watch) -> Result<ExitCode> {
    let mut events = Events::watch(client, at, &arguments.name).await?;
    while let Some(next) = events.next().await? {
        let format = arguments.output.format();
        let text = match (&next.event, &next.job) {
            (Some(event), _) => {
                format.print_one(&document::Event::from(event), || described(event) + "\n")?
            }
            (None, Some(job)) => format.print_one(&document::Current::from(job), || {
                format!(
                    "epoch {} with {}, since operation {}\n",
                    job.epoch,
                    counted(job.members.len(), "rank"),
                    job.first_operation
                )
            })?,
            (None, None) => continue,
        };
        if print_beside(text).await?.is_break() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the job after the start of a change; with `--wait`, after its end.
async fn follow(
    events: Events<'_>,
    job: &api::Job,
    (end, bound): (&End, Option<Bound>),
) -> Result<ExitCode> {
    let Some(bound) = bound else {
        return print_job(end, job, started(job));
    };
    let waited = timeout_at(bound.end, until_over(events, job, end)).await;
    waited.unwrap_or_else(|_| {
        let (name, limit) = (&job.name, bound.limit);
        Err(Exit::TimedOut.because(format!(
            "job {name}: the change is not complete after {limit:?}; it continues, watch it with `ultima job watch {name}`"
        ))
        .into())
    })
}

/// Prints a job as a document, or `text`.
fn print_job(end: &End, job: &api::Job, text: String) -> Result<ExitCode> {
    let text = end.output.print(&document::Job::from(job), || text)?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the end of a change and prints its events as text.
async fn until_over(mut events: Events<'_>, job: &api::Job, end: &End) -> Result<ExitCode> {
    let is_text = end.output.format() == Format::Table;
    let print = |text: String| match is_text {
        true => output::print(&text),
        false => Ok(()),
    };
    print(started(job))?;
    let mut change = PendingChange::new(job);
    // The watch began before the change: its first message is the state before.
    let mut was_before = true;
    while let Some(next) = events.next().await? {
        let is_before = std::mem::take(&mut was_before);
        let Some(event) = next.event else {
            let Some(job) = next.job.filter(|_| !is_before) else {
                continue;
            };
            match change.missed(&job) {
                Progress::Complete => return print_job(end, &job, started(&job)),
                Progress::Failed => {
                    return Err(Exit::Failure
                        .because(format!("job {}: {}", job.name, job.unchanged))
                        .into());
                }
                // The change was lost with the controller that made it.
                Progress::Absent if events.is_resumed => {
                    let (name, epoch) = (&job.name, change.epoch);
                    return Err(Exit::Failure
                        .because(format!(
                            "job {name}: the controller failed during the change, and epoch {epoch} is lost; repeat the command"
                        ))
                        .into());
                }
                Progress::Absent | Progress::Event | Progress::Unrelated => continue,
            }
        };
        let line = described(&event);
        match change.hear(&event) {
            Progress::Complete => {
                return print_job(end, next.job.as_ref().unwrap_or(job), line + "\n");
            }
            Progress::Failed => {
                return Err(Exit::Failure
                    .because(format!("job {}: {line}", job.name))
                    .into());
            }
            Progress::Event => print(line + "\n")?,
            Progress::Absent | Progress::Unrelated => {}
        }
    }
    Err(Exit::Failure
        .because(format!(
            "job {} was deleted before the change was complete",
            job.name
        ))
        .into())
}

/// A change whose end the command waits for.
struct PendingChange {
    /// The new epoch.
    epoch: u32,
    /// True once the new epoch is installed. Earlier events may belong to the change before.
    is_installed: bool,
}

/// The meaning of an event for a pending change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The change is complete.
    Complete,
    /// The change was cancelled, or the job was deleted.
    Failed,
    /// An event of this change.
    Event,
    /// The job has no pending change at the moment.
    Absent,
    /// An event of another change, or one that was printed before.
    Unrelated,
}

impl PendingChange {
    /// The change that has just started in a job.
    fn new(job: &api::Job) -> Self {
        Self {
            epoch: job.next.as_ref().map_or(job.epoch, |next| next.epoch),
            is_installed: false,
        }
    }

    fn hear(&mut self, event: &MembershipEvent) -> Progress {
        match event.kind() {
            // The change is complete when the epoch before the new one is fenced.
            Kind::Fenced if event.epoch + 1 >= self.epoch => Progress::Complete,
            Kind::Deleted => Progress::Failed,
            Kind::Installed if event.epoch == self.epoch && !self.is_installed => {
                // `started` has printed that.
                self.is_installed = true;
                Progress::Unrelated
            }
            _ if !self.is_installed => Progress::Unrelated,
            Kind::Cancelled => Progress::Failed,
            _ => Progress::Event,
        }
    }

    /// Compares with the current state of the job, after events were lost.
    fn missed(&mut self, job: &api::Job) -> Progress {
        self.is_installed = true;
        match &job.next {
            Some(_) => Progress::Unrelated,
            None if job.epoch >= self.epoch => Progress::Complete,
            None if !job.unchanged.is_empty() => Progress::Failed,
            None => Progress::Absent,
        }
    }
}

fn started(job: &api::Job) -> String {
    let Some(next) = &job.next else {
        // The change is already complete.
        return format!("job {} is in epoch {}\n", job.name, job.epoch);
    };
    let free = next
        .members
        .iter()
        .filter(|m| m.state() == api::MemberState::Free);
    let free: Vec<String> = free
        .map(|m| format!("rank {} on {}", m.rank, m.host))
        .collect();
    // If not all members of the old epoch have joined, no operation has started, and the new epoch waits for none of its own.
    let mut members = job.members.iter();
    let has_begun = members.all(|m| m.state() != api::MemberState::Free);
    let waits = match free.is_empty() || !has_begun {
        true => String::new(),
        false => format!("; waiting for {} to join", free.join(", ")),
    };
    let (epoch, ranks) = (next.epoch, counted(next.members.len(), "rank"));
    format!(
        "job {}: epoch {epoch} with {ranks} is committed{waits}\n",
        job.name
    )
}

/// The members after `remove` and `add`.
fn changed(
    mut members: Vec<String>,
    add: &[String],
    remove: &[String],
) -> Result<Vec<String>, String> {
    for host in remove {
        let at = members.iter().rposition(|it| it == host);
        let at = at.ok_or_else(|| format!("has no member on host {host} to remove"))?;
        members.remove(at);
    }
    members.extend_from_slice(add);
    Ok(members)
}

fn described(event: &MembershipEvent) -> String {
    let MembershipEvent {
        epoch,
        rank,
        host,
        first_operation,
        reason,
        ..
    } = event;
    let rank = rank.unwrap_or_default();
    let first = first_operation.unwrap_or_default();
    let member = format!("rank {rank} on {host}");
    let text = match event.kind() {
        Kind::Joined => format!("{member} joined epoch {epoch}"),
        Kind::Left => format!("{member} left epoch {epoch}"),
        Kind::Suspected => format!("{member} is suspected in epoch {epoch}"),
        Kind::Cleared => format!("{member} recovered in epoch {epoch}"),
        Kind::Installed => format!("epoch {epoch} is installed"),
        Kind::LeftOut => format!("{member} of epoch {epoch} is not in the next epoch"),
        Kind::Decided => format!("epoch {epoch} starts with operation {first}"),
        Kind::Cancelled => format!("epoch {epoch} was cancelled"),
        Kind::Fenced => format!("epoch {epoch} was removed from the switches"),
        Kind::Deleted => format!("the job was deleted in epoch {epoch}"),
        Kind::Unspecified => {
            format!("unknown event in epoch {epoch}; the controller is newer than this program")
        }
    };
    match reason.as_str() {
        "" => text,
        reason => format!("{text}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_members_are_awaited_once_operations_have_started() {
        let of = |rank: u32, state: api::MemberState| api::Member {
            rank,
            host: format!("h{rank}"),
            state: state.into(),
            ..api::Member::default()
        };
        let text = |state| {
            started(&api::Job {
                name: "train".into(),
                epoch: 1,
                members: vec![of(0, state)],
                next: Some(api::NextEpoch {
                    epoch: 2,
                    members: vec![of(0, state), of(1, api::MemberState::Free)],
                    ..api::NextEpoch::default()
                }),
                ..api::Job::default()
            })
        };
        let committed = "job train: epoch 2 with 2 ranks is committed";
        let waits = format!("{committed}; waiting for rank 1 on h1 to join\n");
        assert_eq!(text(api::MemberState::Joined), waits);
        assert_eq!(text(api::MemberState::Free), format!("{committed}\n"));
    }

    #[test]
    fn the_job_shows_the_end_of_a_change_after_lost_events() {
        let next = Some(api::NextEpoch::default());
        let of = |epoch, next: &Option<api::NextEpoch>, unchanged: &str| {
            let mut change = PendingChange {
                epoch: 2,
                is_installed: false,
            };
            change.missed(&api::Job {
                epoch,
                next: next.clone(),
                unchanged: unchanged.into(),
                ..api::Job::default()
            })
        };
        assert_eq!(of(2, &None, ""), Progress::Complete);
        assert_eq!(of(2, &next, ""), Progress::Unrelated);
        assert_eq!(of(1, &next, ""), Progress::Unrelated);
        assert_eq!(of(1, &None, "epoch 2 was cancelled: …"), Progress::Failed);
        assert_eq!(of(1, &None, ""), Progress::Absent);
    }

    #[test]
    fn the_end_of_an_earlier_change_is_not_the_end_of_this_one() {
        let job = api::Job {
            epoch: 2,
            next: Some(api::NextEpoch {
                epoch: 3,
                ..api::NextEpoch::default()
            }),
            ..api::Job::default()
        };
        let heard = |events: &[(Kind, u32)]| {
            let mut change = PendingChange::new(&job);
            let hear = |(kind, epoch): &(Kind, u32)| {
                change.hear(&MembershipEvent {
                    kind: (*kind).into(),
                    epoch: *epoch,
                    ..MembershipEvent::default()
                })
            };
            events.iter().map(hear).collect::<Vec<_>>()
        };
        // A slow end of epoch 1, and a cancelled change of another client.
        let earlier = [(Kind::Fenced, 1), (Kind::Cancelled, 3)];
        let ours = [
            (Kind::Installed, 3),
            (Kind::Joined, 3),
            (Kind::Decided, 3),
            (Kind::Fenced, 2),
        ];
        use Progress::{Complete, Event, Failed, Unrelated};
        assert_eq!(
            heard(&[&earlier[..], &ours].concat()),
            [Unrelated, Unrelated, Unrelated, Event, Event, Complete]
        );
        assert_eq!(
            heard(&[(Kind::Installed, 3), (Kind::Cancelled, 3)]),
            [Unrelated, Failed]
        );
    }

    #[test]
    fn events_are_a_line_or_a_document_each() {
        let event = MembershipEvent {
            kind: Kind::LeftOut.into(),
            epoch: 2,
            rank: Some(1),
            host: "h2".into(),
            reason: "it was evicted".into(),
            ..MembershipEvent::default()
        };
        let of = |format: Format| {
            let document = document::Event::from(&event);
            let line = || described(&event) + "\n";
            format.print_one(&document, line).unwrap()
        };
        assert_eq!(
            [Format::Table, Format::Json, Format::Yaml].map(of),
            [
                "rank 1 on h2 of epoch 2 is not in the next epoch: it was evicted\n",
                "{\"kind\":\"removed\",\"epoch\":2,\"rank\":1,\"host\":\"h2\",\"first_operation\":null,\"reason\":\"it was evicted\"}\n",
                "---\nkind: removed\nepoch: 2\nrank: 1\nhost: h2\nfirst_operation: null\nreason: it was evicted\n",
            ]
        );
    }

    #[test]
    fn new_members_get_the_next_ranks_and_the_last_ones_go_first() {
        let hosts = |text: &str| {
            text.split_terminator(' ')
                .map(String::from)
                .collect::<Vec<_>>()
        };
        let of = |add: &str, remove: &str| changed(hosts("a b a c"), &hosts(add), &hosts(remove));
        assert_eq!(of("d", "a").unwrap(), hosts("a b c d"));
        assert_eq!(of("", "a a").unwrap(), hosts("b c"));
        assert_eq!(
            of("d", "d").unwrap_err(),
            "has no member on host d to remove"
        );
    }
}
