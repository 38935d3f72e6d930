//! Checks of jobs: rounds of check packets between members, and the switches' counters meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use ultima_api::Line;
use ultima_api::v1::{CheckRound, Hop};
use ultima_p4::names::counter;
use ultima_planner::check::{
    Check, Counted, Diagnosis, End, Evidence, Finding, Findings, HopPosition, Mesh, Path,
    PathCount, PathSwitch, Port, Reports, received, silent_paths, unreachable,
};
use ultima_planner::fabric::{HostId, SwitchId};
use ultima_planner::job::{CounterIndex, Job, Rank};
use ultima_planner::plan::{CounterCell, Entity, SchemaError, SwitchPlan};
use ultima_planner::routing::Passage;
use ultima_planner::target::PortNumber;
use ultima_wire::{Check as CheckPayload, header_len};

use super::controller::{Controller, JobState, PastCheck};
use super::counters;
use super::error::{JobRequestError, free_a_rank};
use super::seats::Seat;
use super::telemetry::read;

/// Packets for each path: one may be lost by chance.
const PACKETS: u32 = 3;
/// The interval between them.
const INTERVAL: Duration = Duration::from_millis(20);
/// The largest job that can be checked, in members.
const MOST_MEMBERS: usize = 4096;
/// The length of a round: far longer than any path's delay.
const LISTEN: Duration = Duration::from_millis(300);
/// Limit of examinations of a sender's silent paths. The causes behind more are found by the next
/// check, when these are repaired.
const MOST_EXAMINED: usize = 32;

/// Header bytes of IPv4 and UDP.
const IPV4_AND_UDP: usize = 20 + 8;

/// The counters of a job's switches: the job's, and those of its ingress ports.
type Counts = BTreeMap<SwitchId, counters::Counted>;

/// Switches that did not return their counters, and why. They are not asked again in the same
/// check.
type Away = BTreeMap<SwitchId, String>;

/// The part of a job's plan that concerns its packets at one switch.
#[derive(Clone, Debug, Default)]
struct SwitchPart {
    /// Replicas that the job's group makes of a packet.
    replicas: u64,
    /// The ports where its packets may enter.
    entrances: BTreeSet<u16>,
}

/// The job's switches.
type SwitchParts = BTreeMap<SwitchId, SwitchPart>;

/// Finds where a job's packets stop.
///
/// # Errors
/// No job has that name, or it has more than 4,096 members.
pub async fn check(controller: &Controller, name: &str) -> Result<Check, JobRequestError> {
    let asked = Instant::now();
    let mut last = controller.checks.lock().await;
    let state = controller.job(name)?;
    if let Some(past) = last.as_ref()
        && past.job == state.job.id
        && past.ended > asked
    {
        // Members that receive nothing all request a check at the same time: one answer serves
        // all.
        return Ok(past.check.clone());
    }
    let check = check_now(controller, name, &state).await?;
    *last = Some(PastCheck {
        job: state.job.id,
        ended: Instant::now(),
        check: check.clone(),
    });
    Ok(check)
}

async fn check_now(
    controller: &Controller,
    name: &str,
    state: &JobState,
) -> Result<Check, JobRequestError> {
    let job = &*state.job;
    let members = job.members.len();
    if members > MOST_MEMBERS {
        return Err(JobRequestError::TooManyToCheck {
            name: name.to_owned(),
            members,
            most: MOST_MEMBERS,
        });
    }
    let plan = controller
        .plan_of(job.id)
        .ok_or_else(|| JobRequestError::Deleted {
            name: name.to_owned(),
        })?;
    let parts: SwitchParts = plan.iter().map(|(id, plan)| (*id, part_of(plan))).collect();
    let elsewhere = elsewhere(job);
    let (mut present, full) = controller.sessions.of(job.id);
    let mut findings = Findings::default();
    let problem = |id: &SwitchId| Some((*id, controller.client(*id).err()?));
    let mut away: Away = state.switches.iter().filter_map(problem).collect();
    find_absent(controller, state, &present, &mut findings);

    let short = CheckPayload::LEN as u32;
    let short_ones = round_of_all(controller, job, &present, round(short)).await;
    drop_silent(controller, job, &short_ones, &mut present, &mut findings);
    let full_ones = round_of_all(controller, job, &present, round(full)).await;
    let mesh = mesh(job, &present);
    let results = mesh.results(PACKETS, &short_ones, &full_ones);

    let all_silent = silent_paths(&results);
    let mut reached = HashSet::new();
    if !all_silent.is_empty() {
        // During a quiet round, running operations end or have nothing left to send.
        let quiet = CheckRound {
            quiet: true,
            ..round(short)
        };
        // A link may have failed since the first round.
        let now = round_of_all(controller, job, &present, quiet).await;
        reached = reached_hosts(job, &mesh.results(PACKETS, &now, &now));
    }
    let is_reached = |rank: Rank| reached.contains(&job.members[usize::from(rank.0)].host);
    let mut examined = 0;
    for mut silent in all_silent {
        let path = |to| Path {
            from: silent.from,
            to,
            by_group: silent.by_group,
        };
        let uncounted = Counts::new();
        silent.to.retain(|to| {
            let steps = || steps(controller, job, &parts, path(*to), [&uncounted; 2], &away);
            !findings.explain(path(*to), silent.full, steps)
        });
        if silent.to.is_empty() {
            continue;
        }
        examined += 1;
        if examined > MOST_EXAMINED {
            break;
        }
        let payload = if silent.full { full } else { short };
        let examine = async |payload| {
            let round = CheckRound {
                quiet: true,
                ..round(payload)
            };
            let ask = |rank| match rank == silent.from {
                true => CheckRound {
                    probe: elsewhere(rank),
                    to: match silent.by_group {
                        true => Vec::new(),
                        false => silent.to.iter().map(|r| r.0.into()).collect(),
                    },
                    to_group: silent.by_group,
                    ..round.clone()
                },
                false => round.clone(),
            };
            controller.sessions.round(job.id, &present, ask).await
        };
        let before = count(controller, state, &parts, &mut away).await?;
        let reports = examine(payload).await;
        let after = count(controller, state, &parts, &mut away).await?;
        // A link that failed after the first round of short packets carries none of them now.
        let short_ones = match silent.full {
            true => examine(short).await,
            false => Reports::new(),
        };
        for to in &silent.to {
            let path = path(*to);
            if received(&reports, path) > 0 {
                // The path works again, or lost the earlier packets by chance.
                continue;
            }
            let evidence = Evidence {
                job: &job.name,
                path,
                packets: PACKETS.into(),
                length: IPV4_AND_UDP + header_len(job.key.is_some()) + payload as usize,
                short_ones_pass: received(&short_ones, path) > 0,
                sender: end(controller, job, silent.from, &reports),
                receiver: end(controller, job, *to, &reports),
                sender_hears: is_reached(silent.from),
                receiver_hears: is_reached(*to),
                probed: elsewhere(silent.from).is_some(),
                steps: steps(controller, job, &parts, path, [&before, &after], &away),
            };
            findings.add_examined(&evidence);
        }
    }
    for (id, problem) in &away {
        findings.add(
            unreachable(&controller.fabric().switch(*id).name, problem),
            None,
        );
    }
    // Last: the other findings are valid without that switch's counters.
    let other = |finding: &Finding| finding.diagnosis.hop != Hop::Switch;
    let mut findings = findings.all();
    findings.sort_by_key(other);
    Ok(Check {
        findings,
        paths: results,
        members: present,
    })
}

/// Runs a round in which all members send to all others, or each of many to some.
async fn round_of_all(
    controller: &Controller,
    job: &Job,
    present: &[Rank],
    round: CheckRound,
) -> Reports {
    let (mesh, elsewhere) = (mesh(job, present), elsewhere(job));
    let ask = |rank| {
        let at = mesh.place(rank);
        let to = at.map(|at| mesh.receivers(at)).unwrap_or_default();
        CheckRound {
            to: to.into_iter().map(|to| to.0.into()).collect(),
            to_group: at.is_some_and(|at| mesh.sends_to_group(at)),
            probe: elsewhere(rank),
            ..round.clone()
        }
    };
    controller.sessions.round(job.id, present, ask).await
}

/// Removes members that did not answer, and reports each as a finding.
fn drop_silent(
    controller: &Controller,
    job: &Job,
    reports: &Reports,
    present: &mut Vec<Rank>,
    findings: &mut Findings,
) {
    let silent = |rank: &mut Rank| !reports.contains_key(rank);
    let silent: Vec<Rank> = present.extract_if(.., silent).collect();
    for rank in silent {
        let host = end(controller, job, rank, reports).host;
        let diagnosis = Diagnosis {
            hop: Hop::Member,
            place: HopPosition::default(),
            what: format!(
                "rank {rank} on {host} has a session with the controller and does not answer"
            ),
            advice: format!("check whether its agent on {host} is stopped or overloaded"),
        };
        findings.add(diagnosis, None);
    }
}

/// Reports members without a session as findings.
fn find_absent(
    controller: &Controller,
    state: &JobState,
    present: &[Rank],
    findings: &mut Findings,
) {
    // Agents are started for, and jobs are created as, the whole grid of a row or column.
    let job = &state.job.name;
    let job = Line::of(job).map_or(job.as_str(), |(grid, _)| grid);
    for ((rank, member), seat) in state.job.ranks().zip(&state.seats) {
        if present.binary_search(&rank).is_ok() {
            continue;
        }
        let host = &controller.fabric().host(member.host).name;
        let (what, advice) = match seat {
            Seat::Free | Seat::Vacated => (
                format!("rank {rank} on {host} has not joined"),
                format!("start its agent: `ultima agent --job {job} --host {host}`"),
            ),
            Seat::Joining | Seat::Joined => (
                format!("rank {rank} on {host} has joined and has no session with the controller"),
                format!("check whether its agent still runs on {host}, and read its log"),
            ),
            Seat::Left => (
                format!("rank {rank} on {host} has left"),
                free_a_rank(
                    controller.fabric(),
                    &state.job,
                    state.seats.iter().copied(),
                    &state.suspected,
                ),
            ),
        };
        let diagnosis = Diagnosis {
            hop: Hop::Member,
            place: HopPosition::default(),
            what,
            advice,
        };
        findings.add(diagnosis, None);
    }
}

fn end<'a>(controller: &'a Controller, job: &Job, rank: Rank, reports: &'a Reports) -> End<'a> {
    let member = job.members[usize::from(rank.0)];
    let host = controller.fabric().host(member.host);
    End {
        host: &host.name,
        ip: host.ip,
        udp_port: member.udp_port,
        report: reports.get(&rank),
    }
}

/// The switches of a path, with the counts of the check's packets. None between ranks of one host.
fn steps<'a>(
    controller: &'a Controller,
    job: &Job,
    parts: &SwitchParts,
    path: Path,
    [before, after]: [&Counts; 2],
    away: &'a Away,
) -> Vec<PathSwitch<'a>> {
    let fabric = controller.fabric();
    let host = |rank: Rank| job.members[usize::from(rank.0)].host;
    if host(path.from) == host(path.to) && !path.by_group {
        return Vec::new();
    }
    let attached = |rank| fabric.host(host(rank)).attached;
    let (from, to) = (attached(path.from), attached(path.to));
    let passages: Vec<Passage> = match job.tree() {
        Some(tree) if path.by_group => tree.path(from, to),
        // Where no path leads to the host now, switches keep the routes of the intact fabric.
        _ => controller
            .routes()
            .path(fabric, from, host(path.to))
            .collect(),
    };
    passages
        .into_iter()
        .map(|Passage { ingress, egress }| {
            let (id, in_port) = (ingress.switch, ingress.port.0);
            let switch = fabric.switch(id);
            let port = |port: PortNumber| Port {
                number: port.0,
                label: switch.port_label(port),
            };
            let counted = match (before.get(&id), after.get(&id)) {
                (Some(before), Some(after)) => {
                    let counted = |cells| counted(cells, job.counter, in_port);
                    Ok(counted(after).since(&counted(before)))
                }
                _ => Err(away
                    .get(&id)
                    .map_or("its counters were not read", String::as_str)),
            };
            PathSwitch {
                switch: &switch.name,
                in_port: port(ingress.port),
                out_port: port(egress),
                replicas: parts.get(&id).map_or(0, |it| it.replicas),
                counted,
            }
        })
        .collect()
}

/// Reads the counters of the job's switches. Those that fail are `away` from then on.
async fn count(
    controller: &Controller,
    state: &JobState,
    parts: &SwitchParts,
    away: &mut Away,
) -> Result<Counts, SchemaError> {
    let asked = state.switches.iter().filter(|id| !away.contains_key(id));
    let answers = asked.map(|id| async {
        let ports = parts.get(id).into_iter().flat_map(|it| &it.entrances);
        let cells = cells(state.job.counter, ports);
        Ok::<_, SchemaError>((*id, read(controller, *id, cells).await?))
    });
    let mut counted = Counts::new();
    for (id, answer) in try_join_all(answers).await? {
        match answer {
            Ok(read) => {
                counted.insert(id, read);
            }
            Err(problem) => {
                away.insert(id, problem);
            }
        }
    }
    Ok(counted)
}

/// A round without senders. Its token is in all of its packets.
fn round(payload: u32) -> CheckRound {
    CheckRound {
        token: rand::random(),
        probe: None,
        quiet: false,
        to: Vec::new(),
        to_group: false,
        payload,
        packets: PACKETS,
        interval_ms: INTERVAL.as_millis() as u32,
        listen_ms: LISTEN.as_millis() as u32,
    }
}

fn mesh<'a>(job: &Job, present: &'a [Rank]) -> Mesh<'a> {
    Mesh {
        ranks: present,
        has_group: job.multicast.is_some(),
    }
}

/// The hosts that receive anything over a switch.
fn reached_hosts(job: &Job, results: &[PathCount]) -> HashSet<HostId> {
    let heard = results
        .iter()
        .filter(|result| result.short_received > 0 && result.hops > 0);
    let host = |result: &PathCount| job.members[usize::from(result.path.to.0)].host;
    heard.map(host).collect()
}

/// For each rank, a rank on another host as the destination of PROBEs.
fn elsewhere(job: &Job) -> impl Fn(Rank) -> Option<u32> {
    let host = |rank: Rank| job.members[usize::from(rank.0)].host;
    // Rank 0 serves all that are not on its host; those that are share another.
    let home = host(Rank(0));
    let other = job.ranks().find(|(_, member)| member.host != home);
    let other = other.map(|(rank, _)| rank.0.into());
    move |rank| match host(rank) == home {
        true => other,
        false => Some(0),
    }
}

fn part_of(plan: &SwitchPlan) -> SwitchPart {
    let mut part = SwitchPart::default();
    for entity in plan.entities() {
        match entity {
            Entity::Group(group) => part.replicas += group.replicas.len() as u64,
            Entity::Source(source) => drop(part.entrances.insert(source.ingress.0)),
            _ => {}
        }
    }
    part
}

/// The counter cells of a job, of unknown jobs, and of these ports.
fn cells<'a>(
    index: CounterIndex,
    ports: impl Iterator<Item = &'a u16>,
) -> impl Iterator<Item = CounterCell> {
    let of_port = |port: &u16| {
        let index = u32::from(*port);
        [counter::MALFORMED, counter::UNROUTED].map(|counter| CounterCell { counter, index })
    };
    let unknown = CounterCell {
        counter: counter::REJECTED,
        index: 0,
    };
    let cells = CounterCell::of_job(index).chain([unknown]);
    cells.chain(ports.flat_map(of_port))
}

/// The counters of a job, and of the port where its packets arrive.
fn counted(cells: &counters::Counted, CounterIndex(job): CounterIndex, port: u16) -> Counted {
    let count = |counter, index| cells.at(counter, index).packets;
    // PROBEs take another path than the packets under test.
    let reflected = count(counter::REFLECTED, job);
    Counted {
        received: count(counter::RECEIVED, job).saturating_sub(reflected),
        rejected: count(counter::REJECTED, job),
        unknown_job: count(counter::REJECTED, 0),
        replicated: count(counter::REPLICATED, job),
        unicast: count(counter::UNICAST, job),
        delivered: count(counter::DELIVERED, job).saturating_sub(reflected),
        own_copy: count(counter::OWN_COPY, job),
        unknown_rank: count(counter::UNKNOWN_RANK, job),
        malformed: count(counter::MALFORMED, port),
        unrouted: count(counter::UNROUTED, port),
    }
}
