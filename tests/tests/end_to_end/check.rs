//! `ultima job check`: the tests break every hop, and the check names it.

mod running_job;

use ultima_api::v1::{CheckJobResponse, Finding, Hop, Path};
use ultima_tests::fabric::{Fabric, HostId};

use self::running_job::RunningJob;

const RING: [HostId; 3] = [HostId(0), HostId(1), HostId(2)];

fn ring(unplugged: &[HostId]) -> RunningJob {
    RunningJob::start(Fabric::star(), "ring", &RING, unplugged)
}

/// The only finding of a check.
#[track_caller]
fn only(check: CheckJobResponse) -> Finding {
    match <[Finding; 1]>::try_from(check.findings) {
        Ok([finding]) => {
            assert!(!finding.advice.is_empty(), "{finding:?}");
            finding
        }
        Err(findings) => panic!("one finding: {findings:#?}"),
    }
}

#[track_caller]
fn assert_found(finding: &Finding, hop: Hop, switch_and_port: (&str, u32), text: &str) {
    assert_eq!(finding.hop(), hop, "{finding:?}");
    assert_eq!(
        (finding.switch.as_str(), finding.port),
        switch_and_port,
        "{finding:?}"
    );
    assert!(finding.what.contains(text), "{finding:?}");
}

fn paths(paths: &[(u32, u32, bool)]) -> Vec<Path> {
    let path = |(from, to, by_group)| Path { from, to, by_group };
    paths.iter().copied().map(path).collect()
}

#[test]
fn a_working_job_has_no_findings() {
    let check = ring(&[]).check();
    assert_eq!(check.findings, []);
    assert_eq!(check.attending, [0, 1, 2]);
    // Six pairs of ranks, by unicast and by group.
    assert_eq!(check.paths.len(), 12);
    for path in &check.paths {
        assert_eq!(
            (path.short_came, path.full_came),
            (path.sent, path.sent),
            "{path:?}"
        );
    }
}

#[test]
fn a_check_names_an_unplugged_link() {
    assert_h2_is_unplugged(&ring(&[RING[1]]).check());
}

#[test]
fn other_traffic_does_not_hide_an_unplugged_link() {
    assert_h2_is_unplugged(&ring(&[RING[1]]).check_with_traffic(0, 2));
}

#[track_caller]
fn assert_h2_is_unplugged(check: &CheckJobResponse) {
    let [port, link] = &check.findings[..] else {
        panic!("one for each direction: {check:#?}");
    };
    let (port, link) = if port.hop() == Hop::FirstPort {
        (port, link)
    } else {
        (link, port)
    };
    assert_found(port, Hop::FirstPort, ("s1", 2), "no packet from h2");
    assert_eq!(port.paths.len(), 4);
    assert_found(link, Hop::Link, ("s1", 2), "do not arrive at h2");
    assert_eq!(link.paths.len(), 4);
}

#[test]
fn a_check_names_a_missing_admission() {
    let job = ring(&[]);
    job.change_switch(0, async |operator, fabric, job| {
        operator.delete_admission(fabric, job, 2).await
    });
    let check = job.check();
    for finding in &check.findings {
        assert_found(
            finding,
            Hop::Admission,
            ("s1", 3),
            "rejects packets of rank 2",
        );
    }
    let failed: usize = check
        .findings
        .iter()
        .map(|finding| finding.paths.len())
        .sum();
    assert_eq!(failed, 4);
}

#[test]
fn a_check_names_a_missing_group() {
    let job = ring(&[]);
    job.change_switch(0, async |operator, _, job| operator.delete_group(job).await);
    let check = job.check();
    assert!(!check.findings.is_empty());
    for finding in &check.findings {
        assert_eq!(finding.hop(), Hop::Group, "{finding:?}");
        assert!(finding.paths.iter().all(|path| path.by_group));
    }
    let failed: usize = check
        .findings
        .iter()
        .map(|finding| finding.paths.len())
        .sum();
    assert_eq!(failed, 6);
}

#[test]
fn a_check_names_a_missing_address() {
    let job = ring(&[]);
    job.change_switch(0, async |operator, _, job| {
        operator.delete_address(job, 1).await
    });
    let finding = only(job.check());
    assert_found(&finding, Hop::Egress, ("s1", 2), "for rank 1");
    assert_eq!(finding.paths, paths(&[(0, 1, true), (2, 1, true)]));
}

#[test]
fn a_check_names_a_member_without_a_session() {
    let mut job = ring(&[]);
    job.kill(2);
    // The controller notices the end of the session later.
    let check = loop {
        let check = job.check();
        if check.attending == [0, 1] {
            break check;
        }
    };
    let finding = only(check);
    assert_eq!(finding.hop(), Hop::Member, "{finding:?}");
    assert!(finding.what.contains("rank 2 on h3"), "{finding:?}");
}

/// The switch forwards, but the controller cannot read its counters.
#[test]
fn a_check_names_a_disconnected_switch() {
    let job = RunningJob::start(Fabric::pair(), "pair", &[HostId(0), HostId(2)], &[]);
    let check = job.check_without_primary(1);
    assert_eq!(check.paths.len(), 4);
    for path in &check.paths {
        assert_eq!(path.full_came, path.sent, "{path:?}");
    }
    let finding = only(check);
    assert_found(&finding, Hop::Switch, ("s2", 0), "cannot reach s2");
    assert_eq!(finding.paths, []);
    assert_eq!(job.check().findings, []);
}

/// The second switch lacks the admission entry for a rank's packets from the trunk.
#[test]
fn a_check_names_a_missing_admission_at_a_trunk() {
    let job = RunningJob::start(Fabric::pair(), "pair", &[HostId(1), HostId(3)], &[]);
    assert_eq!(job.check().findings, []);
    job.change_switch(1, async |operator, _, job| {
        operator.delete_admission_at(9, job, 0).await
    });
    for finding in job.check().findings {
        assert_found(&finding, Hop::Admission, ("s2", 9), "packets of rank 0");
        assert!(finding.paths.iter().all(|path| path.from == 0));
    }
}
