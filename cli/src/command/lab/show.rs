//! Labs as text.

use ultima_lab::{LabName, Plan, Removed, Status, SwitchKind};

use crate::controller_address;
use ultima_console::output::table;

fn counted(number: usize, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {}", plural(one)),
    }
}

fn plural(one: &str) -> String {
    match one {
        "switch" | "process" => format!("{one}es"),
        _ => format!("{one}s"),
    }
}

fn wires(plan: &Plan) -> usize {
    plan.links.iter().filter(|link| link.wire.is_some()).count()
}

/// Describes a new lab, with the next commands to try.
pub fn up(name: &LabName, switch: SwitchKind, plan: &Plan) -> String {
    let (hosts, switches) = (plan.hosts.len(), plan.switches.len());
    let mut text = format!(
        "lab {name} is up: {}, {} ({switch}), {} ({} impaired)\n",
        counted(hosts, "host"),
        counted(switches, "switch"),
        counted(plan.links.len(), "link"),
        wires(plan),
    );
    if let [from, to, ..] = &plan.hosts[..] {
        let (from, to) = (&from.name, &to.name);
        text += &format!("  ultima lab exec --name {name} {from} -- ping -c 3 {to}\n");
    }
    text += &format!(
        "  export {}={}    # for ultima job and fabric\n  ultima lab down {name}\n",
        controller_address::VARIABLE,
        ultima_lab::controller_address(name),
    );
    text
}

/// Describes what `ultima lab down` removed.
pub fn removed(name: &LabName, removed: Removed) -> String {
    format!(
        "lab {name} is down: {} stopped, {} deleted\n",
        counted(removed.processes, "process"),
        counted(removed.namespaces, "namespace"),
    )
}

/// The status of labs, one after the other.
pub fn status(labs: &[Status]) -> String {
    if labs.is_empty() {
        return "no labs\n".to_owned();
    }
    let labs: Vec<String> = labs.iter().map(one).collect();
    labs.join("\n")
}

fn one(lab: &Status) -> String {
    let (Some(state), Some(plan)) = (&lab.state, &lab.plan) else {
        return format!(
            "lab {0} is incomplete; remove it with `ultima lab down {0}`\n",
            lab.name
        );
    };
    let status = match (state.complete, lab.is_well()) {
        (true, true) => "up",
        (true, false) => "degraded",
        (false, _) => "incomplete",
    };
    let mut text = format!(
        "lab {}: {status}; {} on {}\ncontroller {}\n\n",
        lab.name,
        state.file.display(),
        state.switch,
        lab.controller,
    );
    let rows = lab.processes.iter().map(|process| {
        [
            process.started.role.clone(),
            process.started.process.pid.to_string(),
            match process.runs {
                true => "running".to_owned(),
                false => "exited".to_owned(),
            },
            process.started.log.display().to_string(),
        ]
    });
    text += &table(["PROCESS", "PID", "STATUS", "LOG"], rows);
    text + "\n" + &hosts_and_wires(plan, &lab.missing)
}

/// The hosts and wires of a planned lab.
pub fn plan(plan: &Plan) -> String {
    hosts_and_wires(plan, &[])
}

/// The hosts of a lab, with `missing` namespaces, and its wires.
fn hosts_and_wires(plan: &Plan, missing: &[String]) -> String {
    let rows = plan.hosts.iter().map(|host| {
        [
            host.name.clone(),
            host.ip.to_string(),
            host.mac.clone(),
            host.mtu.to_string(),
            match missing.contains(&host.namespace) {
                false => host.namespace.clone(),
                true => "missing".to_owned(),
            },
        ]
    });
    let mut text = table(["HOST", "ADDRESS", "MAC", "MTU", "NAMESPACE"], rows);
    if wires(plan) > 0 {
        let rows = plan.links.iter().filter_map(|link| {
            let wire = link.wire.as_ref()?;
            let [a, b] = &link.ends;
            Some([
                format!("{a} - {b}"),
                wire.grpc.to_string(),
                wire.a_to_b.to_string(),
                match wire.a_to_b == wire.b_to_a {
                    true => "same".to_owned(),
                    false => wire.b_to_a.to_string(),
                },
            ])
        });
        text += "\n";
        text += &table(["WIRE", "GRPC", "A-TO-B", "B-TO-A"], rows);
    }
    text
}
