//! Tests that break each hop in turn.

use std::net::Ipv4Addr;

use ultima_api::v1::RoundReport;

use super::*;

const SENT: u64 = 5;

/// Counters of a switch that saw all packets of a lost path over two switches.
fn counted(by_group: bool) -> Counted {
    let (replicated, unicast) = if by_group { (SENT, 0) } else { (0, SENT) };
    Counted {
        received: SENT,
        replicated,
        unicast,
        delivered: if by_group { 2 * SENT } else { SENT },
        own_copy: if by_group { SENT } else { 0 },
        ..Counted::default()
    }
}

struct Case {
    by_group: bool,
    short_ones_pass: bool,
    sender_hears: bool,
    receiver_hears: bool,
    sender: Option<RoundReport>,
    receiver: Option<RoundReport>,
    counted: [Counted; 2],
    away: [bool; 2],
}

fn case(by_group: bool) -> Case {
    Case {
        by_group,
        short_ones_pass: false,
        sender_hears: true,
        receiver_hears: false,
        sender: Some(RoundReport::default()),
        receiver: Some(RoundReport::default()),
        counted: [counted(by_group); 2],
        away: [false; 2],
    }
}

fn passage(switch: &str, in_port: u16, out_port: u16) -> PathSwitch<'_> {
    let port = |number: u16| Port {
        number,
        label: number.to_string(),
    };
    PathSwitch {
        switch,
        in_port: port(in_port),
        out_port: port(out_port),
        replicas: 3,
        counted: Err("not read"),
    }
}

impl Case {
    fn diagnose(&self) -> Diagnosis {
        diagnose(&self.evidence())
    }

    fn evidence(&self) -> Evidence<'_> {
        let end = |host, at, report| End {
            host,
            ip: Ipv4Addr::new(10, 0, 0, at),
            udp_port: 21836,
            report,
        };
        let seen = |at: usize| (!self.away[at]).then_some(self.counted[at]);
        let step = |switch, in_port, out_port, counted: Option<Counted>| PathSwitch {
            counted: counted.ok_or("it was stopped"),
            ..passage(switch, in_port, out_port)
        };
        Evidence {
            job: "train",
            path: Path {
                from: Rank(0),
                to: Rank(1),
                by_group: self.by_group,
            },
            packets: SENT,
            length: 1488,
            short_ones_pass: self.short_ones_pass,
            sender: end("h1", 1, self.sender.as_ref()),
            receiver: end("h2", 2, self.receiver.as_ref()),
            probed: true,
            sender_hears: self.sender_hears,
            receiver_hears: self.receiver_hears,
            steps: vec![step("s1", 1, 9, seen(0)), step("s2", 8, 2, seen(1))],
        }
    }

    /// The hop, its switch and port, and the text.
    fn finding(&self) -> (Hop, Option<String>, Option<u16>, String) {
        let found = self.diagnose();
        assert!(!found.what.contains('\n') && !found.advice.contains('\n'));
        (
            found.hop,
            found.place.switch,
            found.place.port.map(|port| port.number),
            found.what,
        )
    }
}

#[track_caller]
fn assert_found(case: &Case, hop: Hop, place: Option<(&str, u16)>, text: &str) {
    let (found, switch, port, what) = case.finding();
    assert_eq!(found, hop, "{what}");
    let expected = place.map(|(switch, port)| (switch.to_owned(), port));
    assert_eq!(switch.zip(port), expected, "{what}");
    assert!(what.contains(text), "{what}");
}

#[test]
fn the_sender_is_checked_first() {
    let mut broken = case(false);
    broken.sender = Some(RoundReport {
        send_errors: 5,
        ..RoundReport::default()
    });
    assert_found(&broken, Hop::OwnSocket, None, "kernel of h1");
    broken.sender = Some(RoundReport {
        too_long: 5,
        ..RoundReport::default()
    });
    assert_found(&broken, Hop::Mtu, None, "1488 bytes");
    broken.sender = None;
    assert_found(&broken, Hop::Member, None, "rank 0 on h1");
}

#[test]
fn the_first_switch_without_packets_is_named() {
    for by_group in [false, true] {
        let mut broken = case(by_group);
        broken.counted[1] = Counted::default();
        assert_found(&broken, Hop::Link, Some(("s2", 8)), "leave s1 by port 9");
        broken.counted[0] = Counted::default();
        assert_found(
            &broken,
            Hop::FirstPort,
            Some(("s1", 1)),
            "no packet from h1",
        );
        broken.short_ones_pass = true;
        assert_found(&broken, Hop::Mtu, Some(("s1", 1)), "1488 bytes");
        broken.counted[0].malformed = SENT;
        assert_found(&broken, Hop::FirstPort, Some(("s1", 1)), "malformed");
    }
}

#[test]
fn admission_findings_name_the_missing_entry() {
    for by_group in [false, true] {
        let mut broken = case(by_group);
        broken.counted[0] = Counted {
            rejected: SENT,
            ..Counted::default()
        };
        assert_found(
            &broken,
            Hop::Admission,
            Some(("s1", 1)),
            "packets of rank 0",
        );
        let destination = broken.finding().3.contains("10.0.0.2:21836");
        assert_eq!(destination, !by_group);
        broken.counted[0] = Counted {
            unknown_job: SENT,
            ..Counted::default()
        };
        assert_found(
            &broken,
            Hop::Admission,
            Some(("s1", 1)),
            "no entry for job train",
        );
    }
}

#[test]
fn missing_groups_and_routes_are_distinguished() {
    let stuck = |by_group| {
        let mut broken = case(by_group);
        broken.counted[1] = Counted {
            received: SENT,
            unrouted: SENT,
            ..Counted::default()
        };
        broken
    };
    assert_found(&stuck(true), Hop::Group, Some(("s2", 8)), "no group");
    assert_found(
        &stuck(false),
        Hop::Route,
        Some(("s2", 8)),
        "route to 10.0.0.2",
    );
    let mut broken = case(true);
    broken.counted[1].delivered = SENT;
    assert_found(&broken, Hop::Group, Some(("s2", 2)), "2 replicas");
}

#[test]
fn egress_and_group_are_distinguished() {
    let mut broken = case(true);
    broken.counted[1].delivered = SENT;
    broken.counted[1].unknown_rank = SENT;
    assert_found(&broken, Hop::Egress, Some(("s2", 2)), "for rank 1");
    let mut broken = case(false);
    broken.counted[0].delivered = 0;
    assert_found(&broken, Hop::Egress, Some(("s1", 9)), "none leaves");
}

#[test]
fn the_receiver_is_checked_last() {
    let mut broken = case(false);
    assert_found(&broken, Hop::Link, Some(("s2", 2)), "arrive at h2");
    broken.receiver_hears = true;
    assert_found(
        &broken,
        Hop::ReceiverSocket,
        Some(("s2", 2)),
        "receives other packets",
    );
    let report = |no_port, buffer_full, rejected| RoundReport {
        no_port,
        buffer_full,
        rejected,
        ..RoundReport::default()
    };
    for (seen, text) in [
        (report(5, 0, 0), "no process listens on UDP port 21836"),
        (report(0, 5, 0), "socket buffer of rank 1 is full"),
        (report(0, 0, 5), "another job"),
    ] {
        broken.receiver = Some(seen);
        assert_found(&broken, Hop::ReceiverSocket, Some(("s2", 2)), text);
    }
    broken.short_ones_pass = true;
    assert_found(&broken, Hop::Mtu, Some(("s2", 2)), "short ones do");
    broken.receiver = None;
    assert_found(
        &broken,
        Hop::ReceiverSocket,
        Some(("s2", 2)),
        "did not answer",
    );
}

/// The job's own packets are counted too, but do not make a working hop look broken.
#[test]
fn other_traffic_does_not_blame_a_working_hop() {
    let busy = |counted: Counted| Counted {
        received: counted.received + 1000,
        unicast: counted.unicast + 500,
        replicated: counted.replicated + 500,
        delivered: counted.delivered + 1500,
        own_copy: counted.own_copy + 500,
        ..counted
    };
    for by_group in [false, true] {
        let mut busy_case = case(by_group);
        busy_case.counted = busy_case.counted.map(busy);
        assert_found(&busy_case, Hop::Link, Some(("s2", 2)), "arrive at h2");
        // They do not hide that the sender reaches no switch, either.
        busy_case.sender_hears = false;
        assert_found(
            &busy_case,
            Hop::FirstPort,
            Some(("s1", 1)),
            "no packet from h1",
        );
        // Rejected packets may be the sender's.
        let admitted = busy_case.counted[0];
        busy_case.counted[0].rejected = SENT;
        assert_found(&busy_case, Hop::Link, Some(("s2", 2)), "arrive at h2");
        busy_case.counted[0] = admitted;
        // The sender receives from the switch, so the fault is further on.
        busy_case.sender = Some(RoundReport {
            reports: 5,
            ..RoundReport::default()
        });
        assert_found(&busy_case, Hop::Link, Some(("s2", 2)), "arrive at h2");
    }
}

#[test]
fn reset_counters_count_from_zero() {
    let before = Counted {
        received: 100,
        rejected: 7,
        ..Counted::default()
    };
    let now = Counted {
        received: 5,
        rejected: 9,
        ..Counted::default()
    };
    let since = now.since(&before);
    assert_eq!((since.received, since.rejected), (5, 2));
}

/// The largest number in P4Runtime.
#[test]
fn large_counts_do_not_overflow() {
    const MOST: u64 = i64::MAX.unsigned_abs();
    let most = Counted {
        received: MOST,
        rejected: MOST,
        unknown_job: MOST,
        replicated: MOST,
        unicast: MOST,
        delivered: MOST,
        own_copy: MOST,
        unknown_rank: MOST,
        malformed: 0,
        unrouted: MOST,
    };
    for by_group in [false, true] {
        let mut broken = case(by_group);
        broken.counted = [most; 2];
        if by_group {
            assert_found(&broken, Hop::Egress, Some(("s2", 2)), "for rank 1");
            broken.counted[1].unknown_rank = 0;
        }
        assert_found(&broken, Hop::Link, Some(("s2", 2)), "arrive at h2");
    }
}

#[test]
fn switches_without_counters_are_named() {
    #[track_caller]
    fn assert_unreachable(case: &Case, switch: &str) {
        let (hop, at, port, what) = case.finding();
        assert_eq!(
            (hop, at.as_deref(), port),
            (Hop::Switch, Some(switch), None),
            "{what}"
        );
        assert_eq!(
            what,
            format!("the controller cannot reach {switch}: it was stopped")
        );
    }
    for by_group in [false, true] {
        let mut broken = case(by_group);
        broken.away = [false, true];
        assert_unreachable(&broken, "s2");
        broken.away = [true, true];
        assert_unreachable(&broken, "s1");
        broken.away = [true, false];
        broken.counted[1] = Counted::default();
        assert_unreachable(&broken, "s1");

        // The other hops saw the packets, so they passed the switch.
        broken.counted[1] = counted(by_group);
        assert_found(&broken, Hop::Link, Some(("s2", 2)), "arrive at h2");
        broken.away = [true, true];
        broken.receiver = Some(RoundReport {
            no_port: SENT,
            ..RoundReport::default()
        });
        assert_found(
            &broken,
            Hop::ReceiverSocket,
            Some(("s2", 2)),
            "no process listens",
        );
        broken.receiver = Some(RoundReport::default());
        broken.short_ones_pass = true;
        assert_found(&broken, Hop::Mtu, Some(("s2", 2)), "1488 bytes");
        broken.short_ones_pass = false;

        // Hops with counters are checked before it.
        broken.away = [false, true];
        broken.counted[0] = Counted::default();
        assert_found(
            &broken,
            Hop::FirstPort,
            Some(("s1", 1)),
            "no packet from h1",
        );
    }
    // The missing replicas may be for others.
    let mut broken = case(true);
    broken.away = [false, true];
    broken.counted[0].delivered = SENT;
    assert_unreachable(&broken, "s2");
}

/// Paths over a link that loses packets need no examination of their own, those in the other direction do.
#[test]
fn a_broken_link_explains_the_paths_over_it() {
    let path = Path {
        from: Rank(5),
        to: Rank(6),
        by_group: true,
    };
    let over = [passage("s3", 4, 5), passage("s2", 8, 3)];
    let back = [passage("s2", 3, 8), passage("s3", 5, 4)];
    let link = Case {
        counted: [counted(false), Counted::default()],
        ..case(false)
    };
    let narrow = Case {
        short_ones_pass: true,
        ..case(false)
    };
    let last = [passage("s1", 1, 9), passage("s2", 7, 2)];
    let socket = Case {
        receiver_hears: true,
        ..case(false)
    };
    for (broken, steps, [full, all]) in [
        (&link, &over, [true, true]),
        (&link, &back, [false, false]),
        (&narrow, &last, [true, false]),
        (&narrow, &over, [false, false]),
        (&socket, &last, [false, false]),
    ] {
        let mut findings = Findings::default();
        assert!(!findings.explain(path, true, || steps.to_vec()));
        findings.add_examined(&broken.evidence());
        assert_eq!(findings.explain(path, true, || steps.to_vec()), full);
        assert_eq!(findings.explain(path, false, || steps.to_vec()), all);
        let [finding] = &findings.all()[..] else {
            panic!("another finding");
        };
        assert_eq!(
            finding.paths.len(),
            1 + usize::from(full) + usize::from(all)
        );
    }
}

/// A copy for another rank of the sender's host enters and leaves by one port.
#[test]
fn a_sender_without_a_link_explains_its_own_paths_only() {
    let mut findings = Findings::default();
    let broken = case(true);
    let mut evidence = broken.evidence();
    evidence.steps = vec![PathSwitch {
        counted: Ok(Counted::default()),
        ..passage("s1", 1, 1)
    }];
    findings.add_examined(&evidence);
    let mut is_explained =
        |steps: &[PathSwitch<'static>]| findings.explain(evidence.path, false, || steps.to_vec());
    assert!(is_explained(&[passage("s1", 1, 9), passage("s2", 8, 2)]));
    assert!(!is_explained(&[passage("s2", 2, 8), passage("s1", 9, 1)]));
    assert!(!is_explained(&[]));
    assert_eq!(findings.all()[0].diagnosis.hop, Hop::FirstPort);
}

#[test]
fn packets_between_ranks_of_a_host_pass_no_switch() {
    let broken = case(false);
    let mut evidence = broken.evidence();
    evidence.steps.clear();
    let found = diagnose(&evidence);
    assert_eq!(found.hop, Hop::ReceiverSocket);
    assert!(
        found.what.starts_with("h2 sends the packets"),
        "{}",
        found.what
    );
}
