//! A fabric as a Graphviz graph: `ultima fabric show --dot | dot -Tsvg`.

use std::collections::{BTreeMap, BTreeSet};

use ultima_api::v1 as api;

/// The graph of the fabric; with a `job`, its tree and its members are highlighted.
pub fn draw(
    switches: &[api::Switch],
    fabric: &api::GetFabricResponse,
    job: Option<&api::Job>,
) -> String {
    let tree: BTreeSet<(&str, u32)> = job.map(tree_ends).unwrap_or_default();
    let ranks = job.map(ranks_by_host).unwrap_or_default();
    let mut text = String::from(
        "graph fabric {\n  node [fontname=\"sans-serif\"]; edge [fontname=\"sans-serif\", fontsize=9];\n",
    );
    if let Some(job) = job {
        text += &format!("  label={};\n", quoted(&format!("job {}", job.name)));
    }
    for switch in switches {
        let color = match (switch.connected || switch.unknown, switch.health.is_empty()) {
            (false, _) => "red",
            (true, false) => "orange",
            (true, true) => "black",
        };
        let label = match switch.health.as_str() {
            "" => switch.name.clone(),
            health => format!("{}\n{health}", switch.name),
        };
        let (name, label) = (node("switch", &switch.name), quoted(&label));
        text += &format!("  {name} [shape=box, color={color}, label={label}];\n");
    }
    for host in &fabric.hosts {
        let (label, style) = match ranks.get(host.name.as_str()) {
            Some(ranks) => {
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                let label = format!("{}\nrank {}", host.name, ranks.join(", "));
                (label, ", style=filled, fillcolor=lightblue")
            }
            None => (host.name.clone(), ""),
        };
        let (name, label) = (node("host", &host.name), quoted(&label));
        text += &format!("  {name} [shape=ellipse, label={label}{style}];\n");
        // The link to a member is part of the job's tree.
        let pen = match style {
            "" => "",
            _ if tree.is_empty() => "",
            _ => ", penwidth=3, color=blue",
        };
        let switch = node("switch", &host.switch);
        let port = quoted(port_label(&host.port_name));
        text += &format!("  {switch} -- {name} [taillabel={port}{pen}];\n");
    }
    for link in &fabric.links {
        let Some(ends) = &link.ends else { continue };
        let (from, from_port, to) = (&ends.from, &ends.from_port, &ends.to);
        let mut style = String::new();
        if tree.contains(&(from.as_str(), *from_port)) {
            style += ", penwidth=3, color=blue";
        }
        if !link.up {
            style += ", style=dashed";
        }
        let (one, other) = (node("switch", from), node("switch", to));
        text += &format!(
            "  {one} -- {other} [taillabel={}, headlabel={}{style}];\n",
            quoted(port_label(&ends.from_name)),
            quoted(port_label(&ends.to_name))
        );
    }
    text + "}\n"
}

fn tree_ends(job: &api::Job) -> BTreeSet<(&str, u32)> {
    let from = job
        .tree
        .iter()
        .map(|link| (link.from.as_str(), link.from_port));
    let to = job.tree.iter().map(|link| (link.to.as_str(), link.to_port));
    from.chain(to).collect()
}

/// A port's name without its switch. Names of switches have no `/`.
fn port_label(port_name: &str) -> &str {
    port_name.split_once('/').map_or("", |(_, label)| label)
}

fn ranks_by_host(job: &api::Job) -> BTreeMap<&str, Vec<u32>> {
    let mut ranks: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for member in &job.members {
        ranks.entry(&member.host).or_default().push(member.rank);
    }
    ranks
}

/// A node id; the kind separates a switch from a host of the same name.
fn node(kind: &str, name: &str) -> String {
    quoted(&format!("{kind} {name}"))
}

/// A quoted string of the DOT language.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            '\n' => quoted += "\\n",
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(up: bool, from: &str, to: &str) -> api::FabricLink {
        let ends = api::TreeLink {
            from: from.into(),
            from_port: 9,
            to: to.into(),
            to_port: 8,
            from_name: format!("{from}/1/0"),
            to_name: format!("{to}/8"),
        };
        api::FabricLink {
            ends: Some(ends),
            up,
            drained: false,
        }
    }

    #[test]
    fn a_jobs_tree_is_highlighted_and_names_are_escaped() {
        let switch = |name: &str| api::Switch {
            name: name.into(),
            connected: true,
            ..api::Switch::default()
        };
        let (one, other) = ("s\"1", "s2\\");
        let fabric = api::GetFabricResponse {
            hosts: vec![api::FabricHost {
                name: "h1".into(),
                switch: one.into(),
                port: 1,
                port_name: format!("{one}/1"),
                ..api::FabricHost::default()
            }],
            links: vec![link(true, one, other), link(false, other, one)],
        };
        let member = api::Member {
            rank: 3,
            host: "h1".into(),
            ..api::Member::default()
        };
        let job = api::Job {
            tree: fabric.links[0].ends.iter().cloned().collect(),
            members: vec![member],
            ..api::Job::default()
        };
        let switches = [switch(one), switch(other)];
        let text = draw(&switches, &fabric, Some(&job));
        assert!(text.contains(r#""switch s\"1" -- "switch s2\\" [taillabel="1/0", headlabel="8", penwidth=3, color=blue];"#), "{text}");
        assert!(
            text.contains(r#""host h1" [shape=ellipse, label="h1\nrank 3""#),
            "{text}"
        );
        let plain = draw(&switches, &fabric, None);
        assert!(
            !plain.contains("blue") && plain.contains("style=dashed"),
            "{plain}"
        );
    }
}
