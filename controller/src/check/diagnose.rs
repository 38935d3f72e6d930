//! From what was seen to the hop where packets stop.

use super::{Counted, Diagnosis, Evidence, Hop, Place, Port, Step};

/// Says where the packets stopped that `evidence` is about, and what to do: the first hop on the
/// way that did not see as many as were sent.
///
/// A count is of all the job's packets. Others than those that are looked for can hide the hop, and
/// then a later one is named; that is why agents pause meanwhile. They never make a count too small.
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
            what: format!("rank {from} on {host} did not answer when it was told to send"),
            advice: format!("see whether its agent on {host} is stopped or overloaded"),
        });
    };
    if report.too_long > 0 {
        return Some(Diagnosis {
            hop: Hop::Mtu,
            place: Place::default(),
            what: format!("{host}'s interface has no room for packets of {length} bytes"),
            advice: format!(
                "give it an MTU of {length} or more, or start all agents with a smaller --slot-bytes"
            ),
        });
    }
    (report.send_errors > 0).then(|| Diagnosis {
        hop: Hop::OwnSocket,
        place: Place::default(),
        what: format!("{host}'s kernel does not send what rank {from} gives it"),
        advice: match path.by_group {
            true => format!(
                "{host} needs a route for 239.85.0.0/16 by the fabric's interface, and a firewall that lets it out"
            ),
            false => format!(
                "look at `ip route get {}` and the firewall on {host}",
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

/// Whether something `behind` a switch shows that packets get past it.
fn passed(evidence: &Evidence<'_>, behind: &[Step<'_>]) -> bool {
    let many = |count: u64| count >= evidence.packets;
    let at_the_host = evidence.receiver.report.is_some_and(|report| {
        many(report.no_port) || many(report.buffer_full) || many(report.rejected)
    });
    let counted = |step: &Step<'_>| step.counted.is_ok_and(|counted| many(counted.received));
    evidence.short_ones_pass || at_the_host || behind.iter().any(counted)
}

/// A switch that does not say its counters, and why not.
pub fn unreachable(switch: &str, problem: &str) -> Diagnosis {
    Diagnosis {
        hop: Hop::Switch,
        place: Place {
            switch: Some(switch.to_owned()),
            port: None,
        },
        what: format!("the controller does not reach {switch}: {problem}"),
        advice: format!(
            "see whether {switch}'s process runs and what its log says; the controller connects again by itself"
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
                "what comes in at port {in_port} of {switch} is broken: bad IPv4 checksums, or cut short"
            ),
            format!(
                "turn off the offloads of {}'s interface (`ethtool -K IF tx off`) and look at the link",
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
    // A sender who hears nobody, not even the switch beside it, has no link, whatever others let the switch count as
    // admitted. What was refused may be its own.
    let refused = sum([counted.rejected, counted.unknown_job, counted.unrouted]);
    let deaf = before.is_none() && *probed && !sender_hears && reports == 0 && refused < *packets;
    if seen >= *packets && !deaf {
        return None;
    }
    if *short_ones_pass {
        return place(
            Hop::Mtu,
            format!(
                "packets of {length} bytes don't come in at port {in_port} of {switch}, short ones do"
            ),
            format!(
                "give both ends of the link at port {in_port} of {switch} an MTU of {length} or more"
            ),
        );
    }
    match before {
        None => place(
            Hop::FirstPort,
            format!(
                "nothing that {} sends comes in at port {in_port} of {switch}",
                sender.host
            ),
            format!(
                "see that the link is up, that {switch} has a port {in_port} and that {} is what it is linked to, as the fabric file says",
                sender.host
            ),
        ),
        Some(before) => place(
            Hop::Link,
            format!(
                "what leaves {} by port {} does not come in at port {in_port} of {switch}",
                before.switch, before.out_port
            ),
            format!(
                "see that the link between {} and {switch} is up, and between the ports that the fabric file says",
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
    let again = format!("create job {job} again; somebody has changed what the controller wrote");
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
            format!("{switch} does not know job {job}"),
            again,
        );
    }
    if counted.received < *packets && counted.rejected >= *packets {
        let (ip, port) = (receiver.ip, receiver.udp_port);
        let rule = match path.by_group {
            true => String::new(),
            false => format!(", or none for the destination {ip}:{port}"),
        };
        return place(
            Hop::Admission,
            format!(
                "{switch} rejects rank {from}'s packets at port {in_port}: it has no rule for that source there{rule}"
            ),
            format!(
                "see that {} sends from {}; if it does, {again}",
                sender.host, sender.ip
            ),
        );
    }
    match path.by_group {
        true if counted.replicated < *packets => place(
            Hop::Group,
            format!("{switch} admits rank {from}'s packets and has no group for them"),
            again,
        ),
        false if counted.unicast < *packets => place(
            Hop::Route,
            format!(
                "{switch} admits rank {from}'s packets and has no route to {}",
                receiver.ip
            ),
            "restart the controller, which writes all routes; somebody has changed them".to_owned(),
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
        what: format!("{switch} routes the packets to port {out_port}, and none leaves egress"),
        advice: format!(
            "see that port {out_port} is up and that its queue is not full all the time"
        ),
    })
}

/// The group's copies at a switch: for a rank there, or toward the `next` switch.
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
        // What lacks here are copies for others, or may be.
        return None;
    }
    let again = format!("create job {job} again; somebody has changed what the controller wrote");
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
            format!("{switch} drops the group's copy for rank {to}: it has no address for it"),
            again,
        );
    }
    let made = sum([counted.delivered, counted.own_copy, counted.unknown_rank]);
    // Fewer by as many as were sent: one copy lacks of each.
    if made.saturating_add(*packets) <= copies.saturating_mul(*packets) {
        return place(
            Hop::Group,
            format!(
                "{switch}'s group makes {} copies of a packet instead of {copies}, none for rank {to}",
                made / packets
            ),
            format!("{again}; or the queue of port {out_port} drops all of them"),
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
            format!("{switch} sends them to {host}, where rank {to} did not answer"),
            format!("see whether rank {to}'s agent on {host} is stopped or overloaded"),
        );
    };
    if *short_ones_pass {
        return found(
            Hop::Mtu,
            format!(
                "packets of {length} bytes leave {switch} by port {port} and don't come to {host}, short ones do"
            ),
            format!(
                "give both ends of the link an MTU of {length} or more, or start all agents with a smaller --slot-bytes"
            ),
        );
    }
    if report.no_port >= *packets {
        return found(
            Hop::ReceiverSocket,
            format!(
                "they come to {host}, where nobody listens on UDP port {}",
                receiver.udp_port
            ),
            format!("see that rank {to}'s agent runs in the network namespace of {host}"),
        );
    }
    if report.buffer_full >= *packets {
        return found(
            Hop::ReceiverSocket,
            format!("they come to {host}, where rank {to}'s socket buffer is full"),
            format!(
                "raise net.core.rmem_max on {host}, or see what keeps rank {to}'s agent from reading"
            ),
        );
    }
    if report.rejected >= *packets {
        return found(
            Hop::ReceiverSocket,
            format!("rank {to} on {host} refuses what comes: it is of another job, epoch or form"),
            "see that all agents are of one version and of the job as it is now".to_owned(),
        );
    }
    match receiver_hears {
        true => found(
            Hop::ReceiverSocket,
            format!("{switch} sends them to {host}, which hears others but not these"),
            format!(
                "look for a firewall on {host} that drops UDP port {}",
                receiver.udp_port
            ),
        ),
        false => found(
            Hop::Link,
            format!("what leaves {switch} by port {port} does not come to {host}"),
            format!(
                "see that the link is up, that {host} has the MAC and IPv4 address of the fabric file, and that no firewall there drops UDP"
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

/// Counts are a switch's word and may be anything.
fn sum<const N: usize>(counts: [u64; N]) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}
