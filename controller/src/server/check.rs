//! Checks of jobs: rounds with the members that attend, and the counters meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use ultima_p4::names::counter;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{Entity, entity};
use ultima_wire::{Check as CheckPayload, HEADER_LEN};

use super::controller::{Controller, JobState};
use super::error::JobRequestError;
use super::seats::Seat;
use crate::api::{CheckRound, RoundReport};
use crate::check::{
    Check, Counted, Diagnosis, End, Evidence, Finding, Hop, Path, Place, Step, Way, diagnose,
    unreachable,
};
use crate::fabric::SwitchId;
use crate::job::{Job, JobId, Rank};
use crate::plan::{Entity as Planned, JobPlan, SchemaError};
use crate::routing::Passage;

/// Packets by each way: one may be lost by chance.
const PACKETS: u32 = 3;
/// The time from one of them to the next.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long a round takes: far longer than any way through a fabric.
const LISTEN: Duration = Duration::from_millis(300);
/// Senders whose silent ways are looked at one by one. What is behind more is seen by the next
/// check, when these are mended.
const MOST_LOOKS: usize = 32;

/// Bytes of the headers of IPv4 and UDP.
const IPV4_AND_UDP: usize = 20 + 8;

/// A check that was made.
pub struct PastCheck {
    job: JobId,
    ended: Instant,
    check: Check,
}

/// What a round's members saw, by rank.
type Reports = BTreeMap<Rank, RoundReport>;

/// What a job's switches count: of the job, and at each port that its packets come in by.
type Counts = BTreeMap<SwitchId, SwitchCounts>;

/// Switches that did not say their counters, and why not; they are not asked again in the same check.
type Away = BTreeMap<SwitchId, String>;

#[derive(Clone, Debug, Default)]
struct SwitchCounts {
    job: Counted,
    malformed: BTreeMap<u16, u64>,
    unrouted: BTreeMap<u16, u64>,
}

impl SwitchCounts {
    fn at(&self, port: u16) -> Counted {
        let of = |counts: &BTreeMap<u16, u64>| counts.get(&port).copied().unwrap_or_default();
        Counted {
            malformed: of(&self.malformed),
            unrouted: of(&self.unrouted),
            ..self.job
        }
    }
}

/// One sender's silent way, or with the group all of its silent ones: one look shows them all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    from: Rank,
    by_group: bool,
    full: bool,
    to: BTreeSet<Rank>,
}

impl Controller {
    /// Finds out where a job's packets stop.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn check(&self, name: &str) -> Result<Check, JobRequestError> {
        let asked = Instant::now();
        let mut last = self.checks.lock().await;
        let state = self.job(name)?;
        if let Some(past) = last.as_ref()
            && past.job == state.job.id
            && past.ended > asked
        {
            // Members that hear nothing all ask at once: the answer is the same.
            return Ok(past.check.clone());
        }
        let check = self.check_now(name, &state).await?;
        *last = Some(PastCheck {
            job: state.job.id,
            ended: Instant::now(),
            check: check.clone(),
        });
        Ok(check)
    }

    async fn check_now(&self, name: &str, state: &JobState) -> Result<Check, JobRequestError> {
        let job = &*state.job;
        let plan = self
            .plan_of(job.id)
            .ok_or_else(|| JobRequestError::Deleted {
                name: name.to_owned(),
            })?;
        let (attending, full) = self.attendants.of(job.id);
        let mut check = Check {
            attending,
            ..Check::default()
        };
        let problem = |id: &SwitchId| Some((*id, self.client(*id).err()?));
        let mut away: Away = state.switches.iter().filter_map(problem).collect();
        self.find_absent(state, &mut check);

        let short = CheckPayload::LEN as u32;
        let short_ones = self.everyone(job, &check.attending, short).await;
        self.drop_silent(job, &short_ones, &mut check);
        let full_ones = self.everyone(job, &check.attending, full).await;
        check.ways = ways(job, &check.attending, &short_ones, &full_ones);

        let looks = looks(&check.ways);
        if !looks.is_empty() {
            // Operations end, or have nothing left to send.
            let settle = |_| CheckRound {
                quiet: true,
                ..round(short)
            };
            self.attendants
                .round(job.id, &check.attending, settle)
                .await;
        }
        for look in looks.into_iter().take(MOST_LOOKS) {
            let payload = if look.full { full } else { short };
            let before = self.count(state, &plan, &mut away).await?;
            let round = CheckRound {
                quiet: true,
                ..round(payload)
            };
            let ask = |rank| match rank == look.from {
                true => CheckRound {
                    probe: elsewhere(job, rank),
                    to: match look.by_group {
                        true => Vec::new(),
                        false => look.to.iter().map(|r| r.0.into()).collect(),
                    },
                    to_group: look.by_group,
                    ..round.clone()
                },
                false => round.clone(),
            };
            let reports = self.attendants.round(job.id, &check.attending, ask).await;
            let after = self.count(state, &plan, &mut away).await?;
            for to in &look.to {
                let path = Path {
                    from: look.from,
                    to: *to,
                    by_group: look.by_group,
                };
                if came(&reports, path) > 0 {
                    // It has come back to life, or lost those before by chance.
                    continue;
                }
                let evidence = Evidence {
                    job: &job.name,
                    path,
                    packets: PACKETS.into(),
                    length: IPV4_AND_UDP + HEADER_LEN + payload as usize,
                    short_ones_pass: look.full,
                    sender: self.end(job, look.from, &reports),
                    receiver: self.end(job, *to, &reports),
                    sender_hears: hears(job, &check, look.from),
                    receiver_hears: hears(job, &check, *to),
                    probed: elsewhere(job, look.from).is_some(),
                    steps: self.steps(job, &plan, path, [&before, &after], &away),
                };
                check.add(diagnose(&evidence), Some(path));
            }
        }
        for (id, problem) in &away {
            check.add(unreachable(&self.fabric().switch(*id).name, problem), None);
        }
        // What is known of all others is known without their counters.
        let other = |finding: &Finding| finding.diagnosis.hop != Hop::Switch;
        check.findings.sort_by_key(other);
        Ok(check)
    }

    /// Lets all send to all others.
    async fn everyone(&self, job: &Job, attending: &[Rank], payload: u32) -> Reports {
        let round = round(payload);
        let ask = |rank| CheckRound {
            to: others(attending, rank).map(|r| r.0.into()).collect(),
            to_group: job.multicast.is_some(),
            probe: elsewhere(job, rank),
            ..round.clone()
        };
        self.attendants.round(job.id, attending, ask).await
    }

    /// Goes on without those that did not answer, which is itself a finding.
    fn drop_silent(&self, job: &Job, reports: &Reports, check: &mut Check) {
        let silent = |rank: &Rank| !reports.contains_key(rank);
        let silent: Vec<Rank> = check
            .attending
            .extract_if(.., |rank| silent(rank))
            .collect();
        for rank in silent {
            let host = self.end(job, rank, reports).host;
            let diagnosis = Diagnosis {
                hop: Hop::Member,
                place: Place::default(),
                what: format!(
                    "rank {rank} on {host} is in touch with the controller and does not answer"
                ),
                advice: format!("see whether its agent on {host} is stopped or overloaded"),
            };
            check.add(diagnosis, None);
        }
    }

    /// Members that cannot take part, which is itself a finding.
    fn find_absent(&self, state: &JobState, check: &mut Check) {
        for ((rank, member), seat) in state.job.ranks().zip(&state.seats) {
            if check.attending.contains(&rank) {
                continue;
            }
            let host = &self.fabric().host(member.host).name;
            let (what, advice) = match seat {
                Seat::Free => (
                    format!("rank {rank} on {host} has not joined"),
                    format!(
                        "start its agent: `ultima agent --job {} --host {host}`",
                        state.job.name
                    ),
                ),
                Seat::Joining | Seat::Joined => (
                    format!(
                        "rank {rank} on {host} has joined and is not in touch with the controller"
                    ),
                    format!("see whether its agent still runs on {host}, and what it says"),
                ),
                Seat::Left => (
                    format!("rank {rank} on {host} has left"),
                    format!(
                        "ranks are handed out once: create job {} again to start over",
                        state.job.name
                    ),
                ),
            };
            let diagnosis = Diagnosis {
                hop: Hop::Member,
                place: Place::default(),
                what,
                advice,
            };
            check.add(diagnosis, None);
        }
    }

    fn end<'a>(&'a self, job: &Job, rank: Rank, reports: &'a Reports) -> End<'a> {
        let member = job.members[usize::from(rank.0)];
        let host = self.fabric().host(member.host);
        End {
            host: &host.name,
            ip: host.ip,
            udp_port: member.udp_port,
            report: reports.get(&rank),
        }
    }

    /// The switches of a way, with what each counted of the packets.
    fn steps<'a>(
        &'a self,
        job: &Job,
        plan: &JobPlan,
        path: Path,
        [before, after]: [&Counts; 2],
        away: &'a Away,
    ) -> Vec<Step<'a>> {
        let fabric = self.fabric();
        let host = |rank: Rank| job.members[usize::from(rank.0)].host;
        let attached = |rank| fabric.host(host(rank)).attached;
        let (from, to) = (attached(path.from), attached(path.to));
        let on_the_way: Vec<Passage> = match job.tree() {
            Some(tree) if path.by_group => tree.way(from, to),
            // Where nothing leads to the host now, switches still send its packets as when all was well.
            _ => self
                .routes()
                .held_way(fabric, from, host(path.to))
                .collect(),
        };
        on_the_way
            .into_iter()
            .map(|Passage { ingress, egress }| {
                let (id, in_port) = (ingress.switch, ingress.port.0);
                let counted = match (before.get(&id), after.get(&id)) {
                    (Some(before), Some(after)) => Ok(after.at(in_port).since(&before.at(in_port))),
                    _ => Err(away.get(&id).map_or("it was not asked", String::as_str)),
                };
                Step {
                    switch: &fabric.switch(id).name,
                    in_port,
                    out_port: egress.0,
                    copies: copies(plan, id),
                    counted,
                }
            })
            .collect()
    }

    /// What the job's switches have counted so far; those that don't say it are `away` from now on.
    async fn count(
        &self,
        state: &JobState,
        plan: &JobPlan,
        away: &mut Away,
    ) -> Result<Counts, SchemaError> {
        let names = self.program().names();
        let asked = state.switches.iter().filter(|id| !away.contains_key(id));
        let answers = asked.map(|id| async {
            let ports = entrances(plan, *id);
            let cells = cells(names, state.job.counter.0, &ports)?;
            let read = match self.client(*id) {
                Ok(client) => client.read(cells).await.map_err(|error| error.to_string()),
                Err(problem) => Err(problem),
            };
            Ok::<_, SchemaError>((*id, read))
        });
        let mut counted = Counts::new();
        for (id, answer) in try_join_all(answers).await? {
            match answer {
                Ok(read) => {
                    counted.insert(id, counts(names, &read));
                }
                Err(problem) => {
                    away.insert(id, problem);
                }
            }
        }
        Ok(counted)
    }
}

/// A round in which nobody sends yet; its token is in all of its packets.
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

/// Whether anything comes to a rank's host over a switch.
fn hears(job: &Job, check: &Check, rank: Rank) -> bool {
    let host = |rank: Rank| job.members[usize::from(rank.0)].host;
    let mut ways = check.ways.iter();
    ways.any(|way| host(way.path.to) == host(rank) && way.short_came > 0 && way.hops > 0)
}

/// A rank on another host, whom `rank` can address a PROBE to.
fn elsewhere(job: &Job, rank: Rank) -> Option<u32> {
    let host = job.members[usize::from(rank.0)].host;
    let other = job.ranks().find(|(_, member)| member.host != host);
    other.map(|(rank, _)| rank.0.into())
}

fn others(ranks: &[Rank], rank: Rank) -> impl Iterator<Item = Rank> {
    ranks.iter().copied().filter(move |other| *other != rank)
}

/// What came by every way between members that attend.
fn ways(job: &Job, attending: &[Rank], short_ones: &Reports, full_ones: &Reports) -> Vec<Way> {
    let mut ways = Vec::new();
    for by_group in [false, true] {
        if by_group && job.multicast.is_none() {
            continue;
        }
        for from in attending.iter().copied() {
            for to in others(attending, from) {
                let path = Path { from, to, by_group };
                ways.push(Way {
                    path,
                    sent: PACKETS,
                    short_came: came(short_ones, path),
                    full_came: came(full_ones, path),
                    hops: hops(short_ones, path),
                });
            }
        }
    }
    ways
}

fn heard(reports: &Reports, path: Path) -> Option<&crate::api::Heard> {
    reports
        .get(&path.to)?
        .heard
        .iter()
        .find(|heard| heard.source == u32::from(path.from.0) && heard.by_group == path.by_group)
}

fn came(reports: &Reports, path: Path) -> u32 {
    heard(reports, path).map_or(0, |heard| heard.packets)
}

fn hops(reports: &Reports, path: Path) -> u32 {
    heard(reports, path).map_or(0, |heard| heard.hops)
}

/// What to look at: of each sender, what nobody heard. Unicast goes one way at a time, so that
/// counts are of that way alone.
fn looks(ways: &[Way]) -> BTreeSet<Look> {
    let mut by_group: BTreeMap<(Rank, bool), BTreeSet<Rank>> = BTreeMap::new();
    let mut looks = BTreeSet::new();
    for way in ways
        .iter()
        .filter(|w| w.short_came == 0 || w.full_came == 0)
    {
        let full = way.short_came > 0;
        let Path { from, to, .. } = way.path;
        if way.path.by_group {
            by_group.entry((from, full)).or_default().insert(to);
        } else {
            looks.insert(Look {
                from,
                by_group: false,
                full,
                to: BTreeSet::from([to]),
            });
        }
    }
    looks.extend(by_group.into_iter().map(|((from, full), to)| Look {
        from,
        by_group: true,
        full,
        to,
    }));
    looks
}

/// Copies that the job's group makes of a packet at a switch.
fn copies(plan: &JobPlan, id: SwitchId) -> u64 {
    let entities = plan.get(&id).into_iter().flat_map(|plan| plan.entities());
    let group = entities.filter_map(|entity| match entity {
        Planned::Group(group) => Some(group.copies.len() as u64),
        _ => None,
    });
    group.sum()
}

/// The ports of a switch by which a job's packets may come in.
fn entrances(plan: &JobPlan, id: SwitchId) -> BTreeSet<u16> {
    let entities = plan.get(&id).into_iter().flat_map(|plan| plan.entities());
    let sources = entities.filter_map(|entity| match entity {
        Planned::Source(source) => Some(source.ingress.0),
        _ => None,
    });
    sources.collect()
}

/// The counter cells of a job, of unknown jobs, and of ports.
fn cells(names: &Names, index: u16, ports: &BTreeSet<u16>) -> Result<Vec<Entity>, SchemaError> {
    let cell = |name, index: u16| -> Result<Entity, SchemaError> {
        Ok(names.counter(name)?.cell(index.into())?.into())
    };
    let of_job = counter::BY_JOB.into_iter().map(|name| cell(name, index));
    let unknown = std::iter::once(cell(counter::REJECTED, 0));
    let of_ports = ports
        .iter()
        .flat_map(|port| [counter::MALFORMED, counter::UNROUTED].map(|name| cell(name, *port)));
    of_job.chain(unknown).chain(of_ports).collect()
}

/// The counts in cells that were read.
fn counts(names: &Names, read: &[Entity]) -> SwitchCounts {
    let mut cells: HashMap<&str, Vec<(i64, u64)>> = HashMap::new();
    for entity in read {
        let Some(entity::Entity::CounterEntry(entry)) = &entity.entity else {
            continue;
        };
        if let Some(counter) = names.counters.by_id(entry.counter_id) {
            let packets = entry.data.unwrap_or_default().packet_count;
            let index = entry.index.unwrap_or_default().index;
            // The protocol's numbers are signed and never negative.
            let packets = u64::try_from(packets).unwrap_or_default();
            let counted = cells.entry(counter.name.as_str()).or_default();
            counted.push((index, packets));
        }
    }
    let of = |name: &str| cells.get(name).into_iter().flatten().copied();
    let one = |name, wanted: fn(i64) -> bool| {
        let mut cells = of(name);
        cells
            .find(|(index, _)| wanted(*index))
            .map_or(0, |(_, packets)| packets)
    };
    let job = |name| one(name, |index| index != 0);
    let ports = |name| {
        of(name)
            .filter_map(|(port, packets)| Some((u16::try_from(port).ok()?, packets)))
            .collect()
    };
    // PROBEs take another way than the packets that are looked for.
    let reflected = job(counter::REFLECTED);
    SwitchCounts {
        job: Counted {
            received: job(counter::RECEIVED).saturating_sub(reflected),
            rejected: job(counter::REJECTED),
            unknown_job: one(counter::REJECTED, |index| index == 0),
            replicated: job(counter::REPLICATED),
            unicast: job(counter::UNICAST),
            delivered: job(counter::DELIVERED).saturating_sub(reflected),
            own_copy: job(counter::OWN_COPY),
            unknown_rank: job(counter::UNKNOWN_RANK),
            malformed: 0,
            unrouted: 0,
        },
        malformed: ports(counter::MALFORMED),
        unrouted: ports(counter::UNROUTED),
    }
}
