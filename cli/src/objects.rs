//! The objects that a command line names, as kubectl's users write them.

use std::str::FromStr;

use anyhow::{Result, bail};
use clap::ValueEnum;
use ultima_api::Line;

use crate::listing::Kind;
use crate::names;

/// Objects: all of some kinds, or those with these names.
#[derive(clap::Args)]
pub struct Objects {
    /// Kind of object: jobs, switches, hosts, links, ports or events; several kinds, such as jobs,switches; all, which are the
    /// first four; or an object as `-o name` prints it, such as job/train
    #[arg(value_name = "KIND[/NAME]", add = names::objects())]
    which: Which,
    /// Only the objects of these names; after an object, more objects with their kinds
    #[arg(value_name = "NAME", add = names::objects())]
    names: Vec<String>,
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

impl Objects {
    /// The objects of these words.
    ///
    /// # Errors
    /// The first word is neither a kind nor an object.
    pub fn of(which: &str, names: &[String]) -> Result<Self> {
        Ok(Objects {
            which: which.parse().map_err(anyhow::Error::msg)?,
            names: names.to_vec(),
        })
    }

    /// The kinds with the names of the objects, in the order of the command line. No name stands for all.
    ///
    /// # Errors
    /// The words do not fit together.
    pub fn by_kind(&self) -> Result<Vec<(Kind, Vec<String>)>> {
        match (&self.which, &self.names[..]) {
            (Which::All(kinds), []) => Ok(kinds.iter().map(|kind| (*kind, Vec::new())).collect()),
            (Which::All(kinds), names) => match &kinds[..] {
                [kind] => Ok(vec![(*kind, names.to_vec())]),
                _ => bail!("{}: names need one kind, such as `job train`", names[0]),
            },
            (Which::One(kind, name), others) => {
                let mut all = vec![(*kind, vec![name.clone()])];
                for other in others {
                    let Ok(Which::One(kind, name)) = other.parse() else {
                        bail!(
                            "{other}: expected another object with its kind, such as job/{other}"
                        );
                    };
                    match all.iter_mut().find(|(known, _)| *known == kind) {
                        Some((_, names)) => names.push(name),
                        None => all.push((kind, vec![name])),
                    }
                }
                Ok(all)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(words: &str) -> Result<Vec<(Kind, Vec<String>)>> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Objects::of(&words[0], &words[1..])?.by_kind()
    }

    #[test]
    fn objects_are_named_as_with_kubectl() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (words, expected) in [
            ("jobs", vec![(Kind::Jobs, names(&[]))]),
            ("job a b", vec![(Kind::Jobs, names(&["a", "b"]))]),
            (
                "jobs,switches",
                vec![(Kind::Jobs, names(&[])), (Kind::Switches, names(&[]))],
            ),
            (
                "job/a switch/s1 job/b",
                vec![
                    (Kind::Jobs, names(&["a", "b"])),
                    (Kind::Switches, names(&["s1"])),
                ],
            ),
            ("link/s1/9-s2/9", vec![(Kind::Links, names(&["s1/9-s2/9"]))]),
        ] {
            assert_eq!(objects(words).expect(words), expected, "{words}");
        }
        assert_eq!(objects("all").expect("all").len(), Kind::ALL.len());
        for (words, said) in [
            ("pods", "expected jobs, switches"),
            ("job/a b", "b: expected another object with its kind"),
            ("jobs,hosts a", "a: names need one kind"),
        ] {
            let error = objects(words).expect_err(words).to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }

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
