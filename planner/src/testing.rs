//! Fabrics of any shape, and jobs on them, for unit tests of this crate and of the controller.

use std::fmt::Write as _;

use proptest::prelude::*;

use crate::fabric::{self, Element, Fabric, Health, HostId, SwitchId, SwitchPort, TrunkId};
use crate::job::{Epoch, Job, JobSpec, Refusal};
use crate::ledger::Ledger;
use crate::plan::JobPlan;
use crate::program::Program;
use crate::routing::Routes;

/// A fabric of switches `s0`, `s1` …; hosts `h0`, `h1` …, each with its switch and its room for ranks; and trunks with settings
/// such as `rate: 1G`.
pub fn fabric_of(
    switches: usize,
    hosts: &[(usize, u16)],
    trunks: &[(usize, usize, &str)],
) -> Fabric {
    fabric_with(&vec![""; switches], hosts, trunks)
}

/// Like [`fabric_of`], with settings for each switch, such as `limits: { groups: 1 }`.
pub fn fabric_with(
    switches: &[&str],
    hosts: &[(usize, u16)],
    trunks: &[(usize, usize, &str)],
) -> Fabric {
    let settings = switches;
    let switches = settings.len();
    let mut next_port = vec![0; switches];
    let mut port = |switch: usize| {
        next_port[switch] += 1;
        format!("s{switch}/{}", next_port[switch])
    };
    let mut text = String::from("switches:\n");
    for (switch, settings) in settings.iter().enumerate() {
        writeln!(text, "  - {{ name: s{switch}, {settings} }}").unwrap();
    }
    text.push_str("hosts:\n");
    for (host, (_, ranks)) in hosts.iter().enumerate() {
        let (high, low) = (host >> 8, host & 0xff);
        writeln!(text, "  - {{ name: h{host}, mac: \"02:00:00:00:{high:02x}:{low:02x}\", ip: 10.0.{high}.{low}, ranks: {ranks} }}").unwrap();
    }
    text.push_str("links:\n");
    for (a, b, settings) in trunks {
        writeln!(
            text,
            "  - {{ ends: [{}, {}], {settings} }}",
            port(*a),
            port(*b)
        )
        .unwrap();
    }
    for (host, (switch, _)) in hosts.iter().enumerate() {
        writeln!(text, "  - {{ ends: [h{host}, {}] }}", port(*switch)).unwrap();
    }
    fabric::parse(&text, "fabric.yaml").unwrap()
}

/// A leaf-spine fabric: `spines` switches from `s0` on, then `leaves`, each linked to every spine and with `hosts` hosts of one
/// rank.
pub fn leaf_spine(spines: usize, leaves: usize, hosts: usize) -> Fabric {
    let leaf = |number| spines + number;
    let on_leaves: Vec<(usize, u16)> = (0..leaves * hosts)
        .map(|host| (leaf(host / hosts), 1))
        .collect();
    let trunks: Vec<(usize, usize, &str)> = (0..leaves)
        .flat_map(|number| (0..spines).map(move |spine| (leaf(number), spine, "")))
        .collect();
    fabric_of(spines + leaves, &on_leaves, &trunks)
}

/// A job on these hosts.
pub fn spec(name: &str, members: &[impl AsRef<str>]) -> JobSpec {
    JobSpec {
        seed: Some(1),
        // Keys are random, and these tests compare jobs.
        sealed: false,
        ..JobSpec::new(name, members.iter().map(AsRef::as_ref))
    }
}

/// A fabric, and the resources that its jobs have taken.
pub struct Site {
    /// The fabric.
    pub fabric: Fabric,
    /// Its present routes.
    pub routes: Routes,
    /// The program of its switches.
    pub program: Program,
    /// The resources that its jobs have taken.
    pub ledger: Ledger,
}

/// An accepted job and its plan.
pub type Planned = (Job, JobPlan);

impl Site {
    /// A healthy fabric without jobs.
    pub fn new(fabric: Fabric) -> Self {
        let routes = Routes::new(&fabric, Health::default());
        Site {
            ledger: Ledger::new(&fabric, &routes),
            program: Program::v1model().unwrap(),
            fabric,
            routes,
        }
    }

    /// Plans a job without taking its resources.
    pub fn propose(&self, spec: &JobSpec) -> Result<Planned, Refusal> {
        let names = self.program.names();
        self.ledger
            .propose(&self.fabric, &self.routes, names, spec, Epoch(1), 0)
    }

    /// Plans a job and takes its resources.
    pub fn add(&mut self, spec: &JobSpec) -> Planned {
        let (job, plan) = self.propose(spec).unwrap();
        self.ledger.take(&self.fabric, &job, &plan);
        self.ledger.give_out(job.id);
        (job, plan)
    }

    /// Returns the resources of a job.
    pub fn remove(&mut self, (job, plan): &Planned) {
        self.ledger.remove(&self.fabric, job, plan);
    }

    /// Fits a job to the current routes. Returns true if all members reach each other, also over the tree.
    pub fn refit(&mut self, planned: &mut Planned) -> bool {
        let names = self.program.names();
        let refitted = (self.ledger)
            .refit(&self.fabric, &self.routes, names, &planned.0, &planned.1)
            .unwrap();
        self.ledger.free_returned();
        *planned = (refitted.job, refitted.plan);
        refitted.cut_off.is_empty() && refitted.stays.is_none()
    }
}

/// A random connected fabric with parallel trunks, different rates and hosts anywhere; the elements that fail, in order; and
/// the members of some jobs.
#[derive(Clone, Debug)]
pub struct Case {
    /// The fabric.
    pub fabric: Fabric,
    /// The elements that fail, in order.
    pub failures: Vec<Element>,
    /// The hosts of each job's members, by rank.
    pub jobs: Vec<Vec<String>>,
}

impl Case {
    /// The fabric's health after all failures.
    pub fn health(&self) -> Health {
        let mut health = Health::default();
        for part in &self.failures {
            health.fail(*part);
        }
        health
    }
}

/// Random cases with room for all jobs.
pub fn cases(switches: usize) -> impl Strategy<Value = Case> {
    cases_with(switches, vec![""])
}

/// Random cases in which some switches have room for only one or two groups.
pub fn tight_cases(switches: usize) -> impl Strategy<Value = Case> {
    let limits = ["", "limits: { groups: 1 }", "limits: { groups: 2 }"];
    cases_with(switches, limits.to_vec())
}

fn cases_with(switches: usize, settings: Vec<&'static str>) -> impl Strategy<Value = Case> {
    (1..=switches, 2usize..=10).prop_flat_map(move |(switches, hosts)| {
        let settings = prop::sample::select(settings.clone());
        let settings = prop::collection::vec(settings, switches);
        let any = any::<prop::sample::Index>;
        let rate = prop::sample::select(vec!["", "rate: 1G", "rate: 10G"]);
        let parents = prop::collection::vec((any(), rate.clone()), switches - 1);
        let extra = prop::collection::vec((0..switches, 0..switches, rate), 0..2 * switches);
        let hosts = prop::collection::vec((0..switches, 1u16..=3), hosts);
        let failures = prop::collection::vec((0..3, any()), 0..4);
        let all = (settings, parents, extra, hosts, failures);
        all.prop_flat_map(move |(settings, parents, extra, hosts, failures)| {
            let mut trunks: Vec<_> = (parents.iter().enumerate())
                .map(|(child, (parent, rate))| (parent.index(child + 1), child + 1, *rate))
                .collect();
            trunks.extend(extra.into_iter().filter(|(a, b, _)| a != b));
            let fabric = fabric_with(&settings, &hosts, &trunks);
            let part = |(kind, at): &(i32, prop::sample::Index)| match kind {
                0 => Element::Switch(SwitchId(at.index(switches))),
                1 if !trunks.is_empty() => Element::Trunk(TrunkId(at.index(trunks.len()))),
                _ => {
                    let ends = fabric.trunks().iter().flat_map(|trunk| trunk.ends);
                    let ports = ends.chain(fabric.hosts().iter().map(|host| host.attached));
                    let ports: Vec<SwitchPort> = ports.collect();
                    Element::Port(ports[at.index(ports.len())])
                }
            };
            let failures = failures.iter().map(part).collect::<Vec<_>>();
            let seats: Vec<String> = (hosts.iter().enumerate())
                .flat_map(|(host, (_, ranks))| vec![format!("h{host}"); usize::from(*ranks)])
                .collect();
            let most = seats.len();
            let members = prop::sample::subsequence(seats, 2..=most).prop_shuffle();
            (
                Just((fabric, failures)),
                prop::collection::vec(members, 1..4),
            )
                .prop_map(|((fabric, failures), jobs)| Case {
                    fabric,
                    failures,
                    jobs,
                })
        })
    })
}

/// The far end of the trunk that a packet leaves by, if any. Asserts that the trunk is up.
pub fn cross(site: &Site, leaving: SwitchPort) -> Option<SwitchPort> {
    let far = site.fabric.across(leaving)?;
    let ends = site.fabric.trunks_of(leaving.switch).iter();
    let trunk = ends.into_iter().find(|end| end.port == leaving.port)?.trunk;
    assert!(
        site.routes.health().trunk_is_up(&site.fabric, trunk),
        "{leaving:?} is down"
    );
    Some(far)
}

/// The host of a rank.
pub fn host_of(job: &Job, rank: u16) -> HostId {
    job.members[usize::from(rank)].host
}
