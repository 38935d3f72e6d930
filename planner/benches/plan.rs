//! Measures reading and planning of a fabric of 1,000 hosts and 64 switches with up to 500 jobs, and planning again after the failure of
//! a spine:
//! `cargo bench -p ultima-planner --bench plan`.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ultima_planner::fabric::{self, Element, Fabric, Health, SwitchId};
use ultima_planner::job::{Epoch, Job, JobSpec};
use ultima_planner::ledger::Ledger;
use ultima_planner::plan::{self, JobPlan};
use ultima_planner::program::Program;
use ultima_planner::routing::Routes;

const SPINES: usize = 8;
const LEAVES: usize = 56;
const HOSTS: usize = 1000;
/// Ranks of each job, one on each of as many hosts in a row: a scheduler keeps a job together.
const RANKS: usize = 16;

/// Links between switches have `settings`, such as `, rate: 1G`.
fn leaf_spine_file(settings: &str) -> String {
    let mut text = String::from("switches:\n");
    let mut line = |entry: std::fmt::Arguments<'_>| writeln!(text, "{entry}").expect("room");
    for spine in 0..SPINES {
        line(format_args!("  - {{ name: spine{spine} }}"));
    }
    for leaf in 0..LEAVES {
        line(format_args!("  - {{ name: leaf{leaf} }}"));
    }
    line(format_args!("hosts:"));
    for host in 0..HOSTS {
        let (high, low) = (host >> 8, host & 0xff);
        line(format_args!(
            "  - {{ name: h{host}, mac: \"02:00:00:00:{high:02x}:{low:02x}\", ip: 10.0.{high}.{low} }}"
        ));
    }
    line(format_args!("links:"));
    for leaf in 0..LEAVES {
        for spine in 0..SPINES {
            line(format_args!(
                "  - {{ ends: [leaf{leaf}/{}, spine{spine}/{}]{settings} }}",
                101 + spine,
                1 + leaf
            ));
        }
    }
    for host in 0..HOSTS {
        let (leaf, port) = (host * LEAVES / HOSTS, 1 + host % 100);
        line(format_args!("  - {{ ends: [h{host}, leaf{leaf}/{port}] }}"));
    }
    text
}

fn read(text: &str) -> Fabric {
    fabric::parse(text, "leaf-spine.yaml").expect("a fabric")
}

fn leaf_spine(settings: &str) -> Fabric {
    read(&leaf_spine_file(settings))
}

fn spec(job: usize) -> JobSpec {
    let host = |rank| format!("h{}", (job * RANKS + rank) % HOSTS);
    JobSpec {
        seed: Some(1),
        ..JobSpec::new(format!("job{job}"), (0..RANKS).map(host))
    }
}

/// A fabric's jobs and their plans.
struct Planned {
    ledger: Ledger,
    jobs: Vec<(Job, JobPlan)>,
    /// Number of entities on all switches.
    entities: usize,
}

fn plan(fabric: &Fabric, program: &Program, specs: &[JobSpec]) -> Planned {
    let routes = Routes::new(fabric, Health::default());
    let base = fabric
        .switch_ids()
        .map(|switch| plan::of_fabric(fabric, &routes, switch).len());
    let mut entities = base.sum();
    let mut ledger = Ledger::new(fabric, &routes);
    let mut jobs = Vec::with_capacity(specs.len());
    for spec in specs {
        let proposed = ledger.propose(fabric, &routes, program.names(), spec, Epoch(1), 0);
        let (job, plan) = proposed.expect("room for the job");
        ledger.take(fabric, &job, &plan);
        ledger.give_out(job.id);
        entities += plan
            .values()
            .map(|plan| plan.entities().count())
            .sum::<usize>();
        jobs.push((job, plan));
    }
    Planned {
        ledger,
        jobs,
        entities,
    }
}

fn without_a_spine(fabric: &Fabric, program: &Program, planned: &mut Planned) {
    let mut health = Health::default();
    health.fail(Element::Switch(SwitchId(0)));
    let routes = Routes::new(fabric, health);
    for (job, plan) in &mut planned.jobs {
        let names = program.names();
        let refitted = (planned.ledger).refit(fabric, &routes, names, job, plan);
        let refitted = refitted.expect("room for the job");
        (*job, *plan) = (refitted.job, refitted.plan);
    }
    planned.ledger.free_returned();
}

fn planning(criterion: &mut Criterion) {
    let (fabric, program) = (leaf_spine(""), Program::v1model().expect("the program"));
    let specs: Vec<JobSpec> = (0..500).map(spec).collect();
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    let text = leaf_spine_file("");
    group.bench_function("read", |bencher| bencher.iter(|| read(black_box(&text))));
    for jobs in [0, 125, 250, 500] {
        let specs = &specs[..jobs];
        let entities = plan(&fabric, &program, specs).entities;
        group.throughput(Throughput::Elements(entities as u64));
        group.bench_function(BenchmarkId::new("jobs", jobs), |bencher| {
            bencher.iter(|| plan(&fabric, &program, black_box(specs)));
        });
    }
    group.bench_function(BenchmarkId::new("spine-fails", specs.len()), |bencher| {
        bencher.iter_batched_ref(
            || plan(&fabric, &program, &specs),
            |planned| without_a_spine(&fabric, &program, planned),
            criterion::BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// Measures the division of the ports of a job's switches among jobs, with all jobs of the fabric and with the jobs on the switch only.
/// Jobs above the number of a switch's counters are copies of others under new numbers.
fn division(criterion: &mut Criterion) {
    let program = Program::v1model().expect("the program");
    let mut group = criterion.benchmark_group("divide");
    group.sample_size(10);
    for (rate, of_links) in [("no rate", ""), ("100G", ", rate: 100G")] {
        // Made only if a benchmark of this rate runs.
        let made = LazyCell::new(|| {
            let fabric = leaf_spine(of_links);
            let specs: Vec<JobSpec> = (0..250).map(spec).collect();
            let planned = plan(&fabric, &program, &specs);
            (fabric, planned)
        });
        for (number, looks_at) in [250, 1000, 4000]
            .into_iter()
            .flat_map(|number| [(number, "all"), (number, "its own")])
        {
            let id = BenchmarkId::new(format!("{rate}, {looks_at}"), number);
            group.bench_function(id, |bencher| {
                let (fabric, planned) = &*made;
                let jobs: Vec<Job> = (planned.jobs.iter().map(|(job, _)| job).cycle())
                    .zip(0..number)
                    .map(|(job, number)| Job {
                        name: format!("job{number}"),
                        ..job.clone()
                    })
                    .collect();
                let switches: BTreeSet<SwitchId> =
                    jobs[0].shares.keys().map(|at| at.switch).collect();
                let is_on = |job: &Job, id| job.shares.keys().any(|at| at.switch == id);
                let here = |id: SwitchId| {
                    let looked_at = |job: &&Job| looks_at == "all" || is_on(job, id);
                    (id, jobs.iter().filter(looked_at).collect())
                };
                let jobs_on: Vec<(SwitchId, Vec<&Job>)> = switches.into_iter().map(here).collect();
                bencher.iter(|| {
                    for (id, jobs) in &jobs_on {
                        black_box(plan::divide(fabric, *id, jobs.iter().copied()));
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, planning, division);
criterion_main!(benches);
