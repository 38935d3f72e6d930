//! Two leaves and two spines: each job has one spine for its multicast, and uses both for unicast.

use std::time::{Duration, Instant};

use ultima_p4::names::counter;
use ultima_tests::counters::{Cell, Counts};
use ultima_tests::fabric::Fabric;
use ultima_tests::job::Job;
use ultima_tests::scenario::carried;
use ultima_tests::stage::{Stage, Target};
use ultima_tests::testbed::Arrivals;

const ONE: &str = "{ name: one, members: [h1, h1, h2, h3, h4, h3] }";
const TWO: &str = "{ name: two, members: [h1, h2, h3, h4] }";
/// The fabric's spines.
const SPINES: [usize; 2] = [2, 3];

/// The deadline for packets. A sentinel takes one of several paths, so it does not follow all packets.
const TIMEOUT: Duration = Duration::from_secs(10);

on_both! {
    each_job_has_a_spine;
}

fn each_job_has_a_spine(target: &Target) {
    target.run(Fabric::spines(), &[ONE, TWO], |mut stage| {
        let jobs = stage.jobs.clone();
        let before = stage.counts();
        for job in &jobs {
            for source in job.ranks() {
                all_reach_all(&mut stage, job, source);
            }
        }
        let counts = stage.counts().since(&before);
        let packets = |array, job: &Job| SPINES.map(|spine| count(&counts, spine, array, job));
        // Each rank multicasts once, and one copy crosses the job's spine.
        assert_eq!(packets(counter::REPLICATED, &jobs[0]), [6, 0]);
        assert_eq!(packets(counter::REPLICATED, &jobs[1]), [0, 4]);
        // Packets to each leaf's first host, with two ranks of the first job, take one spine; those to the second host the
        // other.
        assert_eq!(packets(counter::UNICAST, &jobs[0]), [2 * 6, 6]);
        assert_eq!(packets(counter::UNICAST, &jobs[1]), [4, 4]);
        for job in &jobs {
            for array in [counter::REJECTED, counter::UNDELIVERABLE] {
                assert_eq!(packets(array, job), [0, 0]);
            }
        }
    });
}

/// One rank sends a SCATTER to each other rank and a GATHER to all: each arrives once, and nothing else arrives.
fn all_reach_all(stage: &mut Stage, job: &Job, source: u16) {
    let from = job.host_of(source);
    let gather = job.gather(source, b"gathered");
    let mut frames = vec![gather.emit()];
    let mut expected = Arrivals::new();
    for to in job.ranks().filter(|to| *to != source) {
        let scatter = job.scatter(source, to, b"scattered");
        frames.push(scatter.emit());
        let (host, address) = (job.host_of(to), job.members[usize::from(to)].address);
        for sent in [&gather, &scatter] {
            let arrived = carried(sent, &stage.testbed.fabric, from, host, address);
            expected.entry(host).or_default().push(arrived);
        }
    }
    let frames_in = |arrivals: &Arrivals| arrivals.values().map(Vec::len).sum::<usize>();
    let until = Instant::now() + TIMEOUT;
    let mut arrivals = stage.testbed.exchange(from, &frames);
    while frames_in(&arrivals) < frames_in(&expected) && Instant::now() < until {
        add(&mut arrivals, stage.testbed.exchange(from, &[]));
    }
    // Paths differ, so packets arrive in any order.
    for frames in arrivals.values_mut().chain(expected.values_mut()) {
        frames.sort_unstable();
    }
    assert_eq!(arrivals, expected, "from rank {source}");
}

fn add(arrivals: &mut Arrivals, more: Arrivals) {
    for (host, frames) in more {
        arrivals.entry(host).or_default().extend(frames);
    }
}

fn count(counts: &Counts, switch: usize, array: &'static str, job: &Job) -> u64 {
    let cell = Cell {
        switch,
        array,
        index: job.counter,
    };
    counts.0.get(&cell).map_or(0, |count| count.packets)
}
