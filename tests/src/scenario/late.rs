//! Late packets, and packets with a small budget.

use ultima_p4::names::counter;
use ultima_wire::{Header, Key, Kind, Sealer, SwitchFlags, Ticks};

use super::{Scenario, Scene};
use crate::generator::Datagram;
use crate::job::Job;

/// A budget in ticks, about ten minutes, which does not run out.
const LONG: u32 = 1 << 29;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        data_is_trimmed(scene),
        sealed_data_keeps_its_tag(scene),
        nothing_to_trim(scene),
        trimmed_before(scene),
        flagged_as_trimmed(scene),
        flags_are_kept(scene),
        other_kinds(scene),
        enough_time(scene),
    ]
}

/// The datagram that a switch makes of a late one.
fn late(sent: &Datagram) -> Datagram {
    sent.cut(|flags| flags.late = true)
}

fn with_budget(job: &Job, kind: Kind, source: u16, budget: u32) -> Header {
    Header {
        budget: Ticks(budget),
        ..job.header(kind, source, source)
    }
}

impl Scenario {
    /// A SCATTER of rank 2 to rank 0 and a GATHER of rank 2 arrive as `arrives` returns, and each copy counts as late.
    fn late(
        self,
        scene: Scene<'_>,
        [scatter, gather]: [Datagram; 2],
        arrives: impl Fn(&Datagram) -> Datagram,
    ) -> Self {
        let job = scene.left;
        let bytes = scatter.emit().len();
        let scenario = self.losing(scene, &scatter, &[0], &arrives).count(
            counter::UNICAST,
            job.counter,
            1,
            bytes,
        );
        let bytes = gather.emit().len();
        scenario
            .losing(scene, &gather, &[0, 1, 3], &arrives)
            .count(counter::REPLICATED, job.counter, 1, bytes)
            .count(counter::OWN_COPY, job.counter, 1, bytes)
    }

    /// A GATHER of rank 2 arrives with the flag and no other change.
    fn late_without_values(self, scene: Scene<'_>, sent: &Datagram) -> Self {
        let job = scene.left;
        let bytes = sent.emit().len();
        let copies = [0, 1, 3].map(|rank| {
            let copy = job.copy_for(sent, rank);
            let (mut header, _) = Header::parse(&copy.payload).expect("an Ultima packet");
            header.switch_flags.late = true;
            (job.host_of(rank), copy.with_header(&header).emit())
        });
        let scenario = self
            .step(job.host_of(2), sent.emit(), copies.to_vec())
            .count(counter::RECEIVED, job.counter, 1, bytes)
            .count(counter::REPLICATED, job.counter, 1, bytes)
            .count(counter::OWN_COPY, job.counter, 1, bytes);
        [0, 1, 3].into_iter().fold(scenario, |scenario, rank| {
            scenario.delivered_to(scene, job, rank, bytes)
        })
    }

    fn losing(
        self,
        scene: Scene<'_>,
        sent: &Datagram,
        to: &[u16],
        arrives: impl Fn(&Datagram) -> Datagram,
    ) -> Self {
        let job = scene.left;
        let bytes = sent.emit().len();
        let copies = to.iter().map(|rank| {
            let copy = arrives(&job.copy_for(sent, *rank));
            (job.host_of(*rank), copy.emit())
        });
        let scenario = self
            .step(job.host_of(2), sent.emit(), copies.collect())
            .count(counter::RECEIVED, job.counter, 1, bytes)
            .count(counter::LATE, job.counter, to.len() as u64, bytes);
        to.iter().fold(scenario, |scenario, rank| {
            let port = scene.fabric.host(job.host_of(*rank)).port;
            scenario.delivered_to(scene, job, *rank, bytes).count(
                counter::SHARE_LATE,
                job.shares[&(0, port)],
                1,
                bytes,
            )
        })
    }
}

fn both(job: &Job, budget: u32, data: &[u8]) -> [Datagram; 2] {
    [job.scatter(2, 0, data), job.gather(2, data)].map(|sent| {
        let (header, _) = Header::parse(&sent.payload).expect("an Ultima packet");
        sent.with_header(&Header {
            budget: Ticks(budget),
            ..header
        })
    })
}

fn data_is_trimmed(scene: Scene<'_>) -> Scenario {
    [1, 4, 1384, 8919].into_iter().fold(
        Scenario::new("late data loses its payload"),
        |scenario, length| scenario.late(scene, both(scene.left, 0, &vec![7; length]), late),
    )
}

fn sealed_data_keeps_its_tag(scene: Scene<'_>) -> Scenario {
    let job = scene.left;
    let sealed = |sent: Datagram| {
        let (mut header, _) = Header::parse(&sent.payload).expect("an Ultima packet");
        header.seal(&mut Sealer::new(&Key(*b"the job's secret")), b"data");
        sent.with_header(&header)
    };
    let sent = both(job, 0, b"data").map(sealed);
    let [scatter, gather] = sent.each_ref().map(|sent| sent.emit().len());
    let scenario = Scenario::new("late data with a tag keeps it")
        .late(scene, sent, late)
        .count(counter::CUT_SEALED, job.counter, 1, scatter)
        .count(counter::CUT_SEALED, job.counter, 3, gather);
    let copies = [(0, scatter), (0, gather), (1, gather), (3, gather)];
    copies
        .into_iter()
        .fold(scenario, |scenario, (rank, bytes)| {
            let port = scene.fabric.host(job.host_of(rank)).port;
            scenario.count(counter::SHARE_CUT_SEALED, job.shares[&(0, port)], 1, bytes)
        })
}

/// A packet without values gets the flag only, and keeps its checksum.
fn nothing_to_trim(scene: Scene<'_>) -> Scenario {
    let [_, gather] = both(scene.left, 0, b"");
    Scenario::new("late data without a payload").late_without_values(scene, &gather)
}

/// A packet that an earlier switch trimmed is not late at this one.
fn trimmed_before(scene: Scene<'_>) -> Scenario {
    let [_, gather] = both(scene.left, 0, b"");
    Scenario::new("data trimmed before").multicast(scene, scene.left, 2, &gather.cut(|_| ()))
}

/// The flag marks a packet as trimmed, even if the packet has a payload.
fn flagged_as_trimmed(scene: Scene<'_>) -> Scenario {
    let [_, gather] = both(scene.left, 0, b"data");
    let (mut header, _) = Header::parse(&gather.payload).expect("an Ultima packet");
    header.switch_flags.trimmed = true;
    let marked = gather.with_header(&header);
    Scenario::new("data with the flag of a trimmed packet").multicast(scene, scene.left, 2, &marked)
}

/// A switch keeps the flags and the hops of earlier switches.
fn flags_are_kept(scene: Scene<'_>) -> Scenario {
    let job = scene.left;
    let header = Header {
        switch_flags: SwitchFlags {
            trimmed: true,
            late: true,
            congestion: true,
            hops: 31,
        },
        ..job.header(Kind::Gather, 2, 2)
    };
    let sent = job.gather(2, b"").with_header(&header);
    Scenario::new("flags of earlier switches").multicast(scene, job, 2, &sent)
}

/// Packets of other kinds carry no slots and are never late.
fn other_kinds(scene: Scene<'_>) -> Scenario {
    let job = scene.left;
    [Kind::Feedback, Kind::Report, Kind::Control]
        .into_iter()
        .fold(
            Scenario::new("packets without data are never late"),
            |scenario, kind| {
                let sent = job
                    .multicast(kind, 2, b"data")
                    .with_header(&with_budget(job, kind, 2, 0));
                scenario.multicast(scene, job, 2, &sent)
            },
        )
}

fn enough_time(scene: Scene<'_>) -> Scenario {
    let job = scene.left;
    let [scatter, gather] = both(job, LONG, b"data");
    Scenario::new("a sufficient budget")
        .unicast(scene, job, 2, 0, &scatter)
        .multicast(scene, job, 2, &gather)
}
