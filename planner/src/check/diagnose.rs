//! Finds the hop at which packets stop, from a check's evidence.

use ultima_api::v1::Hop;

use super::{Counted, Diagnosis, Evidence, HopPosition, PathSwitch, Port};

/// Returns the first hop on the path that did not see all packets of `evidence`, with the fix.
///
/// A counter counts all packets of the job. Packets other than the check's can hide the hop, and
/// then a later one is named; this is why agents pause during a check. They never make a count too
/// low.
pub fn diagnose(evidence: &Evidence<'_>) -> Diagnosis {
    at_the_sender(evidence)
        .or_else(|| on_the_way(evidence))
        .unwrap_or_else(|| behind_the_last_switch(evidence))
}

fn found(hop: Hop, place: HopPosition, what: String, advice: String) -> Diagnosis {
    Diagnosis {
        hop,
        place,
        what,
        advice,
    }
}

fn at_the_sender(evidence: &Evidence<'_>) -> Option<Diagnosis> {
    let (path, length) = (evidence.path, evidence.length);
    let (from, host) = (path.from, evidence.sender.host);
    let (hop, what, advice) = match evidence.sender.report {
        None => (
            Hop::Member,
            format!("rank {from} on {host} did not answer the request to send"),
            format!("check whether its agent on {host} is stopped or overloaded"),
        ),
        Some(report) if report.too_long > 0 => (
            Hop::Mtu,
            format!("the interface of {host} does not carry packets of {length} bytes"),
            format!(
                "set its MTU to {length} or more, or start all agents with a smaller --slot-bytes"
            ),
        ),
        Some(report) if report.send_errors > 0 => (
            Hop::OwnSocket,
            format!("the kernel of {host} does not send the packets of rank {from}"),
            match path.by_group {
                true => format!(
                    "give {host} a route for 239.85.0.0/16 by the fabric's interface, and allow it in the firewall"
                ),
                false => {
                    let to = evidence.receiver.ip;
                    format!("check `ip route get {to}` and the firewall on {host}")
                }
            },
        ),
        Some(_) => return None,
    };
    Some(found(hop, HopPosition::default(), what, advice))
}

fn on_the_way(evidence: &Evidence<'_>) -> Option<Diagnosis> {
    let steps = &evidence.steps;
    let mut before: Option<&PathSwitch<'_>> = None;
    for (at, step) in steps.iter().enumerate() {
        let behind = &steps[at + 1..];
        let found = match &step.counted {
            Ok(counted) => at_the_entrance(evidence, before, step, counted)
                .or_else(|| in_ingress(evidence, step, counted))
                .or_else(|| match evidence.path.by_group {
                    true => in_replication(evidence, step, counted, behind.first()),
                    false => in_egress(evidence, step, counted),
                }),
            Err(problem) => (!passed(evidence, behind)).then(|| unreachable(step.switch, problem)),
        };
        if found.is_some() {
            return found;
        }
        before = Some(step);
    }
    None
}

/// True if the evidence `behind` a switch shows that packets get past it.
fn passed(evidence: &Evidence<'_>, behind: &[PathSwitch<'_>]) -> bool {
    let many = |count: u64| count >= evidence.packets;
    let at_the_host = evidence.receiver.report.is_some_and(|report| {
        many(report.no_port) || many(report.buffer_full) || many(report.rejected)
    });
    let counted = |step: &PathSwitch<'_>| step.counted.is_ok_and(|counted| many(counted.received));
    evidence.short_ones_pass || at_the_host || behind.iter().any(counted)
}

/// The diagnosis of a switch that does not report its counters.
pub fn unreachable(switch: &str, problem: &str) -> Diagnosis {
    let place = HopPosition {
        switch: Some(switch.to_owned()),
        port: None,
    };
    found(
        Hop::Switch,
        place,
        format!("the controller cannot reach {switch}: {problem}"),
        format!(
            "check that the process of {switch} runs, and read its log; the controller reconnects by itself"
        ),
    )
}

fn at_the_entrance(
    evidence: &Evidence<'_>,
    before: Option<&PathSwitch<'_>>,
    step: &PathSwitch<'_>,
    counted: &Counted,
) -> Option<Diagnosis> {
    let (packets, length, host) = (evidence.packets, evidence.length, evidence.sender.host);
    let (switch, port) = (step.switch, &step.in_port);
    let place = at(step, port);
    if counted.malformed >= packets {
        return Some(found(
            Hop::FirstPort,
            place,
            format!(
                "packets at port {port} of {switch} are malformed: bad IPv4 checksums, or truncated"
            ),
            format!(
                "turn off the offloads of the interface of {host} (`ethtool -K IF tx off`) and check the link"
            ),
        ));
    }
    // A sender that receives nothing, not even from its own switch, has no link, even if other
    // packets make the switch's count of admitted ones large enough. Rejected packets may be the
    // sender's.
    let refused = sum([counted.rejected, counted.unknown_job, counted.unrouted]);
    let reports = evidence.sender.report.map_or(0, |report| report.reports);
    let hears = evidence.sender_hears || reports > 0;
    let deaf = before.is_none() && evidence.probed && !hears && refused < packets;
    if sum([counted.received, refused]) >= packets && !deaf {
        return None;
    }
    let (hop, what, advice) = match before {
        _ if evidence.short_ones_pass => (
            Hop::Mtu,
            format!(
                "packets of {length} bytes do not arrive at port {port} of {switch}, but short ones do"
            ),
            format!(
                "set the MTU of both ends of the link at port {port} of {switch} to {length} or more"
            ),
        ),
        None => (
            Hop::FirstPort,
            format!("no packet from {host} arrives at port {port} of {switch}"),
            format!(
                "check that the link is up, and that port {port} of {switch} is linked to {host} as in the fabric file"
            ),
        ),
        Some(before) => {
            let (from, exit) = (before.switch, &before.out_port);
            (
                Hop::Link,
                format!(
                    "packets that leave {from} by port {exit} do not arrive at port {port} of {switch}"
                ),
                format!(
                    "check that the link between {from} and {switch} is up, and joins the ports in the fabric file"
                ),
            )
        }
    };
    Some(found(hop, place, what, advice))
}

/// The advice for a switch that lacks entries of the job.
fn sync(evidence: &Evidence<'_>) -> String {
    let job = evidence.job;
    format!("run `ultima fabric sync`: the switch lacks entries of job {job}")
}

fn in_ingress(
    evidence: &Evidence<'_>,
    step: &PathSwitch<'_>,
    counted: &Counted,
) -> Option<Diagnosis> {
    let (path, packets) = (evidence.path, evidence.packets);
    let (sender, receiver) = (&evidence.sender, &evidence.receiver);
    let (switch, port, from) = (step.switch, &step.in_port, path.from);
    let (hop, what, advice) = if counted.received < packets && counted.unknown_job >= packets {
        let job = evidence.job;
        let what = format!("{switch} has no entry for job {job}");
        (Hop::Admission, what, sync(evidence))
    } else if counted.received < packets && counted.rejected >= packets {
        let rule = match path.by_group {
            true => String::new(),
            false => format!(
                ", or for the destination {}:{}",
                receiver.ip, receiver.udp_port
            ),
        };
        (
            Hop::Admission,
            format!(
                "{switch} rejects packets of rank {from} at port {port}: it has no entry for this source there{rule}"
            ),
            format!(
                "check that {} sends from {}; if it does, {}",
                sender.host,
                sender.ip,
                sync(evidence)
            ),
        )
    } else if path.by_group && counted.replicated < packets {
        let what = format!("{switch} admits packets of rank {from} but has no group for them");
        (Hop::Group, what, sync(evidence))
    } else if !path.by_group && counted.unicast < packets {
        (
            Hop::Route,
            format!(
                "{switch} admits packets of rank {from} but has no route to {}",
                receiver.ip
            ),
            "run `ultima fabric sync`: the switch lacks routes".to_owned(),
        )
    } else {
        return None;
    };
    Some(found(hop, at(step, port), what, advice))
}

fn in_egress(
    evidence: &Evidence<'_>,
    step: &PathSwitch<'_>,
    counted: &Counted,
) -> Option<Diagnosis> {
    let (switch, port) = (step.switch, &step.out_port);
    (counted.delivered < evidence.packets).then(|| {
        found(
            Hop::Egress,
            at(step, port),
            format!("{switch} routes the packets to port {port}, but none leaves egress"),
            format!("check that port {port} is up and that its queue is not always full"),
        )
    })
}

/// Diagnoses the group's replicas at a switch: for a rank there, or toward the `next` switch.
fn in_replication(
    evidence: &Evidence<'_>,
    step: &PathSwitch<'_>,
    counted: &Counted,
    next: Option<&PathSwitch<'_>>,
) -> Option<Diagnosis> {
    let (packets, to) = (evidence.packets, evidence.path.to);
    let (switch, port, replicas) = (step.switch, &step.out_port, step.replicas);
    let lacks =
        |next: &PathSwitch<'_>| (next.counted).is_ok_and(|counted| counted.received < packets);
    if next.is_some_and(|next| !lacks(next)) {
        // The missing replicas are for others, or may be.
        return None;
    }
    if next.is_none() && counted.unknown_rank >= packets {
        return Some(found(
            Hop::Egress,
            at(step, port),
            format!(
                "{switch} drops the group's replica for rank {to}: it has no address for the rank"
            ),
            sync(evidence),
        ));
    }
    let made = sum([counted.delivered, counted.own_copy, counted.unknown_rank]);
    // At least one replica per packet is missing.
    (made.saturating_add(packets) <= replicas.saturating_mul(packets)).then(|| {
        found(
            Hop::Group,
            at(step, port),
            format!(
                "the group of {switch} makes {} replicas of a packet instead of {replicas}, none for rank {to}",
                made / packets
            ),
            format!(
                "{}; or check whether the queue of port {port} drops all replicas",
                sync(evidence)
            ),
        )
    })
}

fn behind_the_last_switch(evidence: &Evidence<'_>) -> Diagnosis {
    let (packets, length, to) = (evidence.packets, evidence.length, evidence.path.to);
    let (host, udp_port) = (evidence.receiver.host, evidence.receiver.udp_port);
    let last = evidence.steps.last();
    // Ranks of one host send to each other without a switch.
    let switch = last.map_or(host, |step| step.switch);
    let port = last.map(|step| step.out_port.clone()).unwrap_or_default();
    let place = last.map_or_else(HopPosition::default, |step| at(step, &step.out_port));
    let (hop, what, advice) = match evidence.receiver.report {
        None => (
            Hop::ReceiverSocket,
            format!("{switch} sends the packets to {host}, but rank {to} did not answer"),
            format!("check whether the agent of rank {to} on {host} is stopped or overloaded"),
        ),
        Some(_) if evidence.short_ones_pass => (
            Hop::Mtu,
            format!(
                "packets of {length} bytes leave {switch} by port {port} but do not arrive at {host}; short ones do"
            ),
            format!(
                "set the MTU of both ends of the link to {length} or more, or start all agents with a smaller --slot-bytes"
            ),
        ),
        Some(report) if report.no_port >= packets => (
            Hop::ReceiverSocket,
            format!("the packets arrive at {host}, but no process listens on UDP port {udp_port}"),
            format!("check that the agent of rank {to} runs in the network namespace of {host}"),
        ),
        Some(report) if report.buffer_full >= packets => (
            Hop::ReceiverSocket,
            format!("the packets arrive at {host}, but the socket buffer of rank {to} is full"),
            format!(
                "raise net.core.rmem_max on {host}, or find out what blocks the agent of rank {to}"
            ),
        ),
        Some(report) if report.rejected >= packets => (
            Hop::ReceiverSocket,
            format!(
                "rank {to} on {host} rejects the packets: they are of another job, epoch or format"
            ),
            "check that all agents have the same version and joined the current job".to_owned(),
        ),
        Some(_) if evidence.receiver_hears || last.is_none() => (
            Hop::ReceiverSocket,
            format!(
                "{switch} sends the packets to {host}, which receives other packets but not these"
            ),
            format!("check whether a firewall on {host} drops UDP port {udp_port}"),
        ),
        Some(_) => (
            Hop::Link,
            format!("packets that leave {switch} by port {port} do not arrive at {host}"),
            format!(
                "check that the link is up, that {host} has the MAC and IPv4 address in the fabric file, and that no firewall there drops UDP"
            ),
        ),
    };
    found(hop, place, what, advice)
}

fn at(step: &PathSwitch<'_>, port: &Port) -> HopPosition {
    HopPosition {
        switch: Some(step.switch.to_owned()),
        port: Some(port.clone()),
    }
}

/// Saturates, because counters come from switches and may have any value.
fn sum<const N: usize>(counts: [u64; N]) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}
