//! Finds the hop at which packets stop, from a check's evidence.

use ultima_api::v1::Hop;

use super::{Counted, Diagnosis, Evidence, Place, Port, Step};

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

fn at_the_sender(evidence: &Evidence<'_>) -> Option<Diagnosis> {
    let Evidence {
        path,
        sender,
        receiver,
        length,
        ..
    } = evidence;
    let (from, host) = (path.from, sender.host);
    let Some(report) = sender.report else {
        return Some(Diagnosis {
            hop: Hop::Member,
            place: Place::default(),
            what: format!("rank {from} on {host} did not answer the request to send"),
            advice: format!("check whether its agent on {host} is stopped or overloaded"),
        });
    };
    if report.too_long > 0 {
        return Some(Diagnosis {
            hop: Hop::Mtu,
            place: Place::default(),
            what: format!("the interface of {host} does not carry packets of {length} bytes"),
            advice: format!(
                "set its MTU to {length} or more, or start all agents with a smaller --slot-bytes"
            ),
        });
    }
    (report.send_errors > 0).then(|| Diagnosis {
        hop: Hop::OwnSocket,
        place: Place::default(),
        what: format!("the kernel of {host} does not send the packets of rank {from}"),
        advice: match path.by_group {
            true => format!(
                "give {host} a route for 239.85.0.0/16 by the fabric's interface, and allow it in the firewall"
            ),
            false => format!(
                "check `ip route get {}` and the firewall on {host}",
                receiver.ip
            ),
        },
    })
}

fn on_the_way(evidence: &Evidence<'_>) -> Option<Diagnosis> {
    let steps = &evidence.steps;
    let mut before: Option<&Step<'_>> = None;
    for (at, step) in steps.iter().enumerate() {
        let behind = &steps[at + 1..];
        let found = match &step.counted {
            Ok(counted) => at_the_entrance(evidence, before, step, counted)
                .or_else(|| in_ingress(evidence, step, counted))
                .or_else(|| match evidence.path.by_group {
                    true => copying(evidence, step, counted, behind.first()),
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
fn passed(evidence: &Evidence<'_>, behind: &[Step<'_>]) -> bool {
    let many = |count: u64| count >= evidence.packets;
    let at_the_host = evidence.receiver.report.is_some_and(|report| {
        many(report.no_port) || many(report.buffer_full) || many(report.rejected)
    });
    let counted = |step: &Step<'_>| step.counted.is_ok_and(|counted| many(counted.received));
    evidence.short_ones_pass || at_the_host || behind.iter().any(counted)
}

/// The diagnosis of a switch that does not report its counters.
pub fn unreachable(switch: &str, problem: &str) -> Diagnosis {
    Diagnosis {
        hop: Hop::Switch,
        place: Place {
            switch: Some(switch.to_owned()),
            port: None,
        },
        what: format!("the controller cannot reach {switch}: {problem}"),
        advice: format!(
            "check that the process of {switch} runs, and read its log; the controller reconnects by itself"
        ),
    }
}

fn at_the_entrance(
    evidence: &Evidence<'_>,
    before: Option<&Step<'_>>,
    step: &Step<'_>,
    counted: &Counted,
) -> Option<Diagnosis> {
    let Evidence {
        packets,
        length,
        short_ones_pass,
        sender,
        probed,
        sender_hears,
        ..
    } = evidence;
    let Step {
        switch, in_port, ..
    } = step;
    let place = |hop, what, advice| {
        Some(Diagnosis {
            hop,
            place: at(step, in_port),
            what,
            advice,
        })
    };
    if counted.malformed >= *packets {
        return place(
            Hop::FirstPort,
            format!(
                "packets at port {in_port} of {switch} are malformed: bad IPv4 checksums, or truncated"
            ),
            format!(
                "turn off the offloads of the interface of {} (`ethtool -K IF tx off`) and check the link",
                sender.host
            ),
        );
    }
    let seen = sum([
        counted.received,
        counted.rejected,
        counted.unknown_job,
        counted.unrouted,
    ]);
    let reports = sender.report.map_or(0, |report| report.reports);
    // A sender that receives nothing, not even from its own switch, has no link, even if other
    // packets make the switch's count of admitted ones large enough. Rejected packets may be the
    // sender's.
    let refused = sum([counted.rejected, counted.unknown_job, counted.unrouted]);
    let deaf = before.is_none() && *probed && !sender_hears && reports == 0 && refused < *packets;
    if seen >= *packets && !deaf {
        return None;
    }
    if *short_ones_pass {
        return place(
            Hop::Mtu,
            format!(
                "packets of {length} bytes do not arrive at port {in_port} of {switch}, but short ones do"
            ),
            format!(
                "set the MTU of both ends of the link at port {in_port} of {switch} to {length} or more"
            ),
        );
    }
    match before {
        None => place(
            Hop::FirstPort,
            format!(
                "no packet from {} arrives at port {in_port} of {switch}",
                sender.host
            ),
            format!(
                "check that the link is up, and that port {in_port} of {switch} is linked to {} as in the fabric file",
                sender.host
            ),
        ),
        Some(before) => place(
            Hop::Link,
            format!(
                "packets that leave {} by port {} do not arrive at port {in_port} of {switch}",
                before.switch, before.out_port
            ),
            format!(
                "check that the link between {} and {switch} is up, and joins the ports in the fabric file",
                before.switch
            ),
        ),
    }
}

fn in_ingress(evidence: &Evidence<'_>, step: &Step<'_>, counted: &Counted) -> Option<Diagnosis> {
    let Evidence {
        job,
        path,
        packets,
        sender,
        receiver,
        ..
    } = evidence;
    let Step {
        switch, in_port, ..
    } = step;
    let from = path.from;
    let again = format!("run `ultima fabric sync`: the switch lacks entries of job {job}");
    let place = |hop, what, advice| {
        Some(Diagnosis {
            hop,
            place: at(step, in_port),
            what,
            advice,
        })
    };
    if counted.received < *packets && counted.unknown_job >= *packets {
        return place(
            Hop::Admission,
            format!("{switch} has no entry for job {job}"),
            again,
        );
    }
    if counted.received < *packets && counted.rejected >= *packets {
        let (ip, port) = (receiver.ip, receiver.udp_port);
        let rule = match path.by_group {
            true => String::new(),
            false => format!(", or for the destination {ip}:{port}"),
        };
        return place(
            Hop::Admission,
            format!(
                "{switch} rejects packets of rank {from} at port {in_port}: it has no entry for this source there{rule}"
            ),
            format!(
                "check that {} sends from {}; if it does, {again}",
                sender.host, sender.ip
            ),
        );
    }
    match path.by_group {
        true if counted.replicated < *packets => place(
            Hop::Group,
            format!("{switch} admits packets of rank {from} but has no group for them"),
            again,
        ),
        false if counted.unicast < *packets => place(
            Hop::Route,
            format!(
                "{switch} admits packets of rank {from} but has no route to {}",
                receiver.ip
            ),
            "run `ultima fabric sync`: the switch lacks routes".to_owned(),
        ),
        _ => None,
    }
}

fn in_egress(evidence: &Evidence<'_>, step: &Step<'_>, counted: &Counted) -> Option<Diagnosis> {
    let Step {
        switch, out_port, ..
    } = step;
    (counted.delivered < evidence.packets).then(|| Diagnosis {
        hop: Hop::Egress,
        place: at(step, out_port),
        what: format!("{switch} routes the packets to port {out_port}, but none leaves egress"),
        advice: format!("check that port {out_port} is up and that its queue is not always full"),
    })
}

/// Diagnoses the group's replicas at a switch: for a rank there, or toward the `next` switch.
fn copying(
    evidence: &Evidence<'_>,
    step: &Step<'_>,
    counted: &Counted,
    next: Option<&Step<'_>>,
) -> Option<Diagnosis> {
    let Evidence {
        job, path, packets, ..
    } = evidence;
    let Step {
        switch,
        out_port,
        copies,
        ..
    } = step;
    let lacks = |next: &Step<'_>| {
        next.counted
            .is_ok_and(|counted| counted.received < *packets)
    };
    if next.is_some_and(|next| !lacks(next)) {
        // The missing replicas are for others, or may be.
        return None;
    }
    let again = format!("run `ultima fabric sync`: the switch lacks entries of job {job}");
    let place = |hop, what, advice| {
        Some(Diagnosis {
            hop,
            place: at(step, out_port),
            what,
            advice,
        })
    };
    let to = path.to;
    if next.is_none() && counted.unknown_rank >= *packets {
        return place(
            Hop::Egress,
            format!(
                "{switch} drops the group's replica for rank {to}: it has no address for the rank"
            ),
            again,
        );
    }
    let made = sum([counted.delivered, counted.own_copy, counted.unknown_rank]);
    // At least one replica per packet is missing.
    if made.saturating_add(*packets) <= copies.saturating_mul(*packets) {
        return place(
            Hop::Group,
            format!(
                "the group of {switch} makes {} replicas of a packet instead of {copies}, none for rank {to}",
                made / packets
            ),
            format!("{again}; or check whether the queue of port {out_port} drops all replicas"),
        );
    }
    None
}

fn behind_the_last_switch(evidence: &Evidence<'_>) -> Diagnosis {
    let Evidence {
        path,
        packets,
        length,
        short_ones_pass,
        receiver,
        receiver_hears,
        steps,
        ..
    } = evidence;
    let (to, host) = (path.to, receiver.host);
    let last = steps.last();
    let switch = last.map_or("the switch", |step| step.switch);
    let port = last.map(|step| step.out_port.clone()).unwrap_or_default();
    let place = last.map_or_else(Place::default, |step| at(step, &step.out_port));
    let found = |hop, what, advice| Diagnosis {
        hop,
        place: place.clone(),
        what,
        advice,
    };
    let Some(report) = receiver.report else {
        return found(
            Hop::ReceiverSocket,
            format!("{switch} sends the packets to {host}, but rank {to} did not answer"),
            format!("check whether the agent of rank {to} on {host} is stopped or overloaded"),
        );
    };
    if *short_ones_pass {
        return found(
            Hop::Mtu,
            format!(
                "packets of {length} bytes leave {switch} by port {port} but do not arrive at {host}; short ones do"
            ),
            format!(
                "set the MTU of both ends of the link to {length} or more, or start all agents with a smaller --slot-bytes"
            ),
        );
    }
    if report.no_port >= *packets {
        return found(
            Hop::ReceiverSocket,
            format!(
                "the packets arrive at {host}, but no process listens on UDP port {}",
                receiver.udp_port
            ),
            format!("check that the agent of rank {to} runs in the network namespace of {host}"),
        );
    }
    if report.buffer_full >= *packets {
        return found(
            Hop::ReceiverSocket,
            format!("the packets arrive at {host}, but the socket buffer of rank {to} is full"),
            format!(
                "raise net.core.rmem_max on {host}, or find out what blocks the agent of rank {to}"
            ),
        );
    }
    if report.rejected >= *packets {
        return found(
            Hop::ReceiverSocket,
            format!(
                "rank {to} on {host} rejects the packets: they are of another job, epoch or format"
            ),
            "check that all agents have the same version and joined the current job".to_owned(),
        );
    }
    match receiver_hears {
        true => found(
            Hop::ReceiverSocket,
            format!(
                "{switch} sends the packets to {host}, which receives other packets but not these"
            ),
            format!(
                "check whether a firewall on {host} drops UDP port {}",
                receiver.udp_port
            ),
        ),
        false => found(
            Hop::Link,
            format!("packets that leave {switch} by port {port} do not arrive at {host}"),
            format!(
                "check that the link is up, that {host} has the MAC and IPv4 address in the fabric file, and that no firewall there drops UDP"
            ),
        ),
    }
}

fn at(step: &Step<'_>, port: &Port) -> Place {
    Place {
        switch: Some(step.switch.to_owned()),
        port: Some(port.clone()),
    }
}

/// Saturates, because counters come from switches and may have any value.
fn sum<const N: usize>(counts: [u64; N]) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}
