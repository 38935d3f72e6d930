//! An object, or the objects of some kinds, as kubectl's users write them.

use std::str::FromStr;

use clap::ValueEnum;
use ultima_api::Line;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Jobs: their ranks, the switches that have them, and their state
    #[value(alias = "job")]
    Jobs,
    /// Switches: connection, health and jobs
    #[value(aliases = ["switch", "sw"])]
    Switches,
    /// Hosts: addresses, port and jobs
    #[value(alias = "host")]
    Hosts,
    /// Links between switches
    #[value(alias = "link")]
    Links,
    /// Ports of switches with a host or a link
    #[value(alias = "port")]
    Ports,
    /// Recent events, as `ultima events`
    #[value(aliases = ["event", "ev"])]
    Events,
}

impl Kind {
    /// The kinds of `get all`.
    pub const ALL: [Kind; 4] = [Kind::Jobs, Kind::Switches, Kind::Hosts, Kind::Links];

    /// The kind's name before an object's name, as in `job/train`.
    pub fn singular(self) -> &'static str {
        match self {
            Kind::Jobs => "job",
            Kind::Switches => "switch",
            Kind::Hosts => "host",
            Kind::Links => "link",
            Kind::Ports => "port",
            Kind::Events => "event",
        }
    }
}

/// Kinds of objects, or one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Which {
    /// All objects of these kinds.
    All(Vec<Kind>),
    /// The object of this kind and name.
    One(Kind, String),
}

impl Which {
    /// True if this stands for the object `job/train`. A grid stands for its jobs.
    pub fn has(&self, object: &str) -> bool {
        let (kind, name) = object.split_once('/').unwrap_or_default();
        match self {
            Which::All(kinds) => kinds.iter().any(|it| it.singular() == kind),
            Which::One(of, wanted) => of.singular() == kind && stands_for(kind, wanted, name),
        }
    }
}

/// True if `wanted` is the name of this object, or of its grid.
fn stands_for(kind: &str, wanted: &str, name: &str) -> bool {
    let of_grid = || Line::of(name).is_some_and(|(grid, _)| grid == wanted);
    wanted == name || kind == Kind::Jobs.singular() && of_grid()
}

/// The names among `all` that a name stands for: itself, or those of the grid's jobs, rows first. None if it is unknown.
pub fn named<'a>(kind: &str, all: impl IntoIterator<Item = &'a str>, name: &str) -> Vec<&'a str> {
    let all = all.into_iter();
    let mut found: Vec<&str> = all.filter(|it| stands_for(kind, name, it)).collect();
    if let Some(exact) = found.iter().find(|it| **it == name) {
        return vec![exact];
    }
    found.sort_by_key(|name| Line::of(name).map(|(_, line)| line));
    found
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = |text| {
            let kind = <Kind as ValueEnum>::from_str(text, false);
            kind.map_err(|_| {
                "expected jobs, switches, hosts, links, ports or events, or an object such as job/train"
            })
        };
        // The name of a link has slashes, too.
        match text.split_once('/') {
            Some((of, name)) if !name.is_empty() => Ok(Which::One(kind(of)?, name.to_owned())),
            _ if text == "all" => Ok(Which::All(Kind::ALL.to_vec())),
            _ => text
                .split(',')
                .map(kind)
                .collect::<Result<_, _>>()
                .map(Which::All),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_stands_for_its_jobs() {
        let all = ["g.column0", "g.row1", "g.row0", "g", "h.row0", "h.row01"];
        assert_eq!(named("job", all, "g"), ["g"]);
        assert_eq!(named("job", all, "h"), ["h.row0"]);
        assert_eq!(named("switch", all, "h"), [""; 0]);
        let lines = named("job", all[..3].iter().copied(), "g");
        assert_eq!(lines, ["g.row0", "g.row1", "g.column0"]);

        let grid: Which = "job/g".parse().expect("an object");
        assert!(grid.has("job/g.row1") && grid.has("job/g") && !grid.has("switch/g"));
        let jobs: Which = "jobs".parse().expect("a kind");
        assert!(jobs.has("job/h") && !jobs.has("switch/h"));
    }
}
