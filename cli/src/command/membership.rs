//! `ultima job resize`, `evict` and `watch`: a job's members while it runs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout;
use ultima_controller::api::evict_member_request::Member as Named;
use ultima_controller::api::membership_event::Kind;
use ultima_controller::api::{self, MembershipEvent, WatchJobResponse};
use ultima_controller::client::{Client, JobWatch};

use super::controller_address::ControllerAddress;
use super::resume::resumed;
use crate::document;
use crate::exit::Exit;
use crate::output::{self, Format, Output};
use crate::units;

/// What gives a job other members.
#[derive(clap::Args)]
#[group(id = "members_wanted", required = true, multiple = true, args = ["members", "add", "remove", "call_off"])]
pub struct Resize {
    /// The job's name
    pub name: String,
    /// The hosts of all members from now on, in rank order
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', conflicts_with_all = ["add", "remove"])]
    members: Vec<String>,
    /// Hosts that get a member more, behind those that there are
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    add: Vec<String>,
    /// Hosts that lose a member; of several the one with the highest rank
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    remove: Vec<String>,
    /// How long newcomers may take to join, a day at most
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    join_wait: Duration,
    /// Go on without members that should stay and do not answer, instead of calling the change off
    #[arg(long)]
    leave_out_lost: bool,
    /// Call off the change that is on its way, instead: the job goes on in the epoch that it is in. What is decided cannot be called off
    #[arg(long, conflicts_with_all = ["members", "add", "remove", "join_wait", "leave_out_lost", "wait"])]
    call_off: bool,
    #[command(flatten)]
    end: End,
}

/// What takes a member's place away.
#[derive(clap::Args)]
#[group(id = "member_meant", required = true, args = ["member", "host"])]
pub struct Evict {
    /// The job's name
    pub name: String,
    /// The member's rank, or its host where that has one rank of the job; a number is a rank
    #[arg(value_name = "RANK|HOST", conflicts_with = "host")]
    member: Option<String>,
    /// The member's host, also one that is called like a number
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// The epoch in which the member was seen, as `ultima job show` says it: nothing is done where the job is in another one by now, as ranks close up
    /// when a member goes. Without it the epoch that the job is in when this command looks
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u32).range(1..=65535))]
    epoch: Option<u32>,
    /// Why, for the member itself
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    end: End,
}

#[derive(clap::Args)]
struct End {
    /// Wait until the old epoch is off all switches, so long at most, and tell what happens meanwhile; the exit code is 1 if the change is
    /// called off. It goes on also where the time is over
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

/// What shows what happens to members.
#[derive(clap::Args)]
pub struct Watch {
    /// The job's name
    pub name: String,
    #[command(flatten)]
    output: Output,
}

/// Gives a job other members.
pub async fn resize(
    client: &Client,
    at: &ControllerAddress,
    arguments: &Resize,
) -> Result<ExitCode> {
    let name = &arguments.name;
    if arguments.call_off {
        let job = client.call_off_change(name, 0).await?;
        let text = format!(
            "job {name} goes on in epoch {}: {}\n",
            job.epoch, job.unchanged
        );
        return told_so(&arguments.end, &job, text);
    }
    let (members, number) = match &arguments.members[..] {
        [] => {
            let job = client.job(name).await?;
            let number = Some(job.id);
            let now = job.members.into_iter().map(|member| member.host);
            let members = changed(now.collect(), &arguments.add, &arguments.remove);
            let members =
                members.map_err(|what| Exit::NotThere.because(format!("job {name} {what}")));
            (members?, number)
        }
        members => (members.to_vec(), None),
    };
    // First, so that nothing is missed.
    let told = Told::begin(client, at, name).await?;
    let terms = (arguments.join_wait, arguments.leave_out_lost);
    let job = client.resize_job((name, number), &members, terms).await?;
    follow(told, &job, &arguments.end).await
}

/// Takes a member's place away.
pub async fn evict(client: &Client, at: &ControllerAddress, arguments: &Evict) -> Result<ExitCode> {
    let Evict {
        name, reason, end, ..
    } = arguments;
    let member = arguments.member();
    let told = Told::begin(client, at, name).await?;
    let number = client.job(name).await?.id;
    let seen = (name.as_str(), arguments.epoch.unwrap_or_default(), number);
    let job = client.evict_seen(seen, member, reason).await?;
    follow(told, &job, end).await
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

/// What happens to a job's members, as long as any of the controllers tells it.
struct Told<'a> {
    at: &'a ControllerAddress,
    name: &'a str,
    watch: JobWatch,
    /// Whether the last word has been said.
    is_over: bool,
    /// Whether it is another controller, or the same one started again, that tells it by now.
    is_resumed: bool,
}

impl<'a> Told<'a> {
    async fn begin(client: &Client, at: &'a ControllerAddress, name: &'a str) -> Result<Self> {
        Ok(Told {
            at,
            name,
            watch: client.watch_job(name).await?,
            is_over: false,
            is_resumed: false,
        })
    }

    /// The next that happens; none when the job has been deleted. Where another controller leads by now, how things are comes anew.
    async fn next(&mut self) -> Result<Option<WatchJobResponse>> {
        loop {
            let why = match self.watch.next().await {
                Ok(Some(next)) => {
                    let event = next.event.as_ref();
                    self.is_over = event.is_some_and(|event| event.kind() == Kind::Deleted);
                    return Ok(Some(next));
                }
                Ok(None) if self.is_over => return Ok(None),
                Ok(None) => Exit::NoAnswer
                    .because(format!(
                        "the controller has stopped; see `ultima job show {}` when it is back",
                        self.name
                    ))
                    .into(),
                Err(error) => error.into(),
            };
            let begin = async |client: &Client| client.watch_job(self.name).await;
            self.watch = resumed(&self.at.controller, why, begin).await?;
            self.is_resumed = true;
        }
    }
}

/// Shows what happens to a job's members until it is deleted, or this is interrupted.
pub async fn watch(client: &Client, at: &ControllerAddress, arguments: &Watch) -> Result<ExitCode> {
    tokio::select! {
        ended = show(client, at, arguments) => ended,
        () = super::interrupted() => Ok(Exit::Interrupted.into()),
    }
}

async fn show(client: &Client, at: &ControllerAddress, arguments: &Watch) -> Result<ExitCode> {
    let mut told = Told::begin(client, at, &arguments.name).await?;
    while let Some(next) = told.next().await? {
        let format = arguments.output.format();
        let text = match (&next.event, &next.job) {
            (Some(event), _) => {
                format.print_one(&document::Event::from(event), || described(event) + "\n")?
            }
            (None, Some(job)) => format.print_one(&document::Now::from(job), || {
                format!(
                    "epoch {} with {} ranks, since operation {}\n",
                    job.epoch,
                    job.members.len(),
                    job.first_operation
                )
            })?,
            (None, None) => continue,
        };
        if output::print_beside(text).await?.is_break() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what was begun, and with `--wait` what becomes of it. Documents are of the job as it is then.
async fn follow(told: Told<'_>, job: &api::Job, end: &End) -> Result<ExitCode> {
    let Some(bound) = end.wait else {
        return told_so(end, job, begun(job));
    };
    let waited = timeout(bound, until_over(told, job, end)).await;
    waited.unwrap_or_else(|_| {
        let name = &job.name;
        Err(Exit::TooLate.because(format!(
            "job {name}: after {bound:?} the change is not over; it goes on: `ultima job watch {name}`"
        ))
        .into())
    })
}

/// Prints the job with what is said of it at last.
fn told_so(end: &End, job: &api::Job, text: String) -> Result<ExitCode> {
    let text = end.output.print(&document::Job::from(job), || text)?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Tells what becomes of a change until it is over.
async fn until_over(mut told: Told<'_>, job: &api::Job, end: &End) -> Result<ExitCode> {
    let is_told = end.output.format() == Format::Table;
    let say = |text: String| match is_told {
        true => output::print(&text),
        false => Ok(()),
    };
    say(begun(job))?;
    let mut change = Awaited::new(job);
    // The first word is how the job was before.
    let mut was_before = true;
    while let Some(next) = told.next().await? {
        let is_before = std::mem::take(&mut was_before);
        let Some(event) = next.event else {
            let Some(job) = next.job.filter(|_| !is_before) else {
                continue;
            };
            match change.missed(&job) {
                Heard::Over => return told_so(end, &job, begun(&job)),
                Heard::Failed => {
                    return Err(Exit::Found
                        .because(format!("job {}: {}", job.name, job.unchanged))
                        .into());
                }
                // The one before it may have ended while the epoch was made anew without members that did not answer.
                Heard::Gone if told.is_resumed => {
                    let (name, epoch) = (&job.name, change.epoch);
                    return Err(Exit::Found
                        .because(format!(
                            "job {name}: the controller that changed it has gone, and with it epoch {epoch}; ask again"
                        ))
                        .into());
                }
                Heard::Gone | Heard::Told | Heard::Nothing => continue,
            }
        };
        let line = described(&event);
        match change.hear(&event) {
            Heard::Over => return told_so(end, next.job.as_ref().unwrap_or(job), line + "\n"),
            Heard::Failed => {
                return Err(Exit::Found
                    .because(format!("job {}: {line}", job.name))
                    .into());
            }
            Heard::Told => say(line + "\n")?,
            Heard::Gone | Heard::Nothing => {}
        }
    }
    Err(Exit::Found
        .because(format!(
            "job {} was deleted before the change was over",
            job.name
        ))
        .into())
}

/// A change whose end is waited for.
struct Awaited {
    /// The epoch that is to come.
    epoch: u32,
    /// Whether events are of this change already: the epoch before may still be coming itself when it begins.
    is_installed: bool,
}

/// What an event is for one who waits for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// The change is over.
    Over,
    /// It will not come.
    Failed,
    /// It is on its way.
    Told,
    /// It is not on its way at the moment.
    Gone,
    /// Nothing new.
    Nothing,
}

impl Awaited {
    /// The change that has been begun in a job.
    fn new(job: &api::Job) -> Self {
        Self {
            epoch: job.next.as_ref().map_or(job.epoch, |next| next.epoch),
            is_installed: false,
        }
    }

    fn hear(&mut self, event: &MembershipEvent) -> Heard {
        match event.kind() {
            // An epoch comes to an end once, the one before this change's at its end.
            Kind::Fenced if event.epoch + 1 >= self.epoch => Heard::Over,
            Kind::Deleted => Heard::Failed,
            Kind::Installed if event.epoch == self.epoch && !self.is_installed => {
                // That has been said.
                self.is_installed = true;
                Heard::Nothing
            }
            _ if !self.is_installed => Heard::Nothing,
            Kind::CalledOff => Heard::Failed,
            _ => Heard::Told,
        }
    }

    /// More has happened than waited for this reader, perhaps the end of the change; this is how the job is.
    fn missed(&mut self, job: &api::Job) -> Heard {
        self.is_installed = true;
        match &job.next {
            Some(_) => Heard::Nothing,
            None if job.epoch >= self.epoch => Heard::Over,
            None if !job.unchanged.is_empty() => Heard::Failed,
            None => Heard::Gone,
        }
    }
}

fn begun(job: &api::Job) -> String {
    let Some(next) = &job.next else {
        // It was quick.
        return format!("job {} is in epoch {}\n", job.name, job.epoch);
    };
    let free = next
        .members
        .iter()
        .filter(|m| m.state() == api::MemberState::Free);
    let free: Vec<String> = free
        .map(|m| format!("rank {} on {}", m.rank, m.host))
        .collect();
    // Where not all have joined the old epoch nothing has begun, and the new one waits for nobody.
    let mut members = job.members.iter();
    let has_begun = members.all(|m| m.state() != api::MemberState::Free);
    let waits = match free.is_empty() || !has_begun {
        true => String::new(),
        false => format!("; it waits for {} to join", free.join(", ")),
    };
    let (epoch, ranks) = (next.epoch, next.members.len());
    format!(
        "epoch {epoch} of {} is installed, with {ranks} ranks{waits}\n",
        job.name
    )
}

/// The members with these more and those less.
fn changed(mut now: Vec<String>, add: &[String], remove: &[String]) -> Result<Vec<String>, String> {
    for host in remove {
        let at = now.iter().rposition(|it| it == host);
        let at = at.ok_or_else(|| format!("has no member on host {host} to remove"))?;
        now.remove(at);
    }
    now.extend_from_slice(add);
    Ok(now)
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
        Kind::Joined => format!("{member} has joined epoch {epoch}"),
        Kind::Left => format!("{member} has left epoch {epoch}"),
        Kind::Suspected => format!("{member} is suspected in epoch {epoch}"),
        Kind::Cleared => format!("{member} is there again in epoch {epoch}"),
        Kind::Installed => format!("epoch {epoch} is installed"),
        Kind::LeftOut => format!("{member} of epoch {epoch} has no place in the next"),
        Kind::Decided => format!("epoch {epoch} begins with operation {first}"),
        Kind::CalledOff => format!("epoch {epoch} is called off"),
        Kind::Fenced => format!("epoch {epoch} is off the switches"),
        Kind::Deleted => format!("the job was deleted in epoch {epoch}"),
        Kind::Unspecified => format!("something that only a newer version knows, in epoch {epoch}"),
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
    fn newcomers_are_waited_for_where_operations_have_begun() {
        let of = |rank: u32, state: api::MemberState| api::Member {
            rank,
            host: format!("h{rank}"),
            state: state.into(),
            ..api::Member::default()
        };
        let said = |state| {
            begun(&api::Job {
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
        let installed = "epoch 2 of train is installed, with 2 ranks";
        let waits = format!("{installed}; it waits for rank 1 on h1 to join\n");
        assert_eq!(said(api::MemberState::Joined), waits);
        assert_eq!(said(api::MemberState::Free), format!("{installed}\n"));
    }

    #[test]
    fn who_missed_the_end_of_a_change_sees_it_in_the_job() {
        let next = Some(api::NextEpoch::default());
        let of = |epoch, next: &Option<api::NextEpoch>, unchanged: &str| {
            let mut change = Awaited {
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
        assert_eq!(of(2, &None, ""), Heard::Over);
        assert_eq!(of(2, &next, ""), Heard::Nothing);
        assert_eq!(of(1, &next, ""), Heard::Nothing);
        assert_eq!(of(1, &None, "epoch 2 was cancelled: …"), Heard::Failed);
        assert_eq!(of(1, &None, ""), Heard::Gone);
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
            let mut change = Awaited::new(&job);
            let hear = |(kind, epoch): &(Kind, u32)| {
                change.hear(&MembershipEvent {
                    kind: (*kind).into(),
                    epoch: *epoch,
                    ..MembershipEvent::default()
                })
            };
            events.iter().map(hear).collect::<Vec<_>>()
        };
        // What the switches were slow to forget, and what somebody else began and lost.
        let earlier = [(Kind::Fenced, 1), (Kind::CalledOff, 3)];
        let ours = [
            (Kind::Installed, 3),
            (Kind::Joined, 3),
            (Kind::Decided, 3),
            (Kind::Fenced, 2),
        ];
        use Heard::{Failed, Nothing, Over, Told};
        assert_eq!(
            heard(&[&earlier[..], &ours].concat()),
            [Nothing, Nothing, Nothing, Told, Told, Over]
        );
        assert_eq!(
            heard(&[(Kind::Installed, 3), (Kind::CalledOff, 3)]),
            [Nothing, Failed]
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
                "rank 1 on h2 of epoch 2 has no place in the next: it was evicted\n",
                "{\"kind\":\"left_out\",\"epoch\":2,\"rank\":1,\"host\":\"h2\",\"first_operation\":null,\"reason\":\"it was evicted\"}\n",
                "---\nkind: left_out\nepoch: 2\nrank: 1\nhost: h2\nfirst_operation: null\nreason: it was evicted\n",
            ]
        );
    }

    #[test]
    fn members_come_behind_and_go_from_behind() {
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
