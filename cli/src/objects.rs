//! The objects that a command line names, as kubectl's users write them.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::command::desired;
use crate::exit::InputErrors as _;
use crate::names;
use crate::which::Kind;
use crate::which::Which;

/// Objects: all of some kinds, or those with these names.
#[derive(clap::Args)]
pub struct Objects {
    /// Kind of object: jobs, switches, hosts, links, ports or events; several kinds, such as jobs,switches; all, which are the
    /// first four; or an object as `-o name` prints it, such as job/train
    #[arg(value_name = "KIND[/NAME]", required_unless_present = "files", add = names::objects())]
    which: Option<Which>,
    /// Only the objects of these names; after an object, more objects with their kinds
    #[arg(value_name = "NAME", add = names::objects())]
    names: Vec<String>,
    /// The jobs in this YAML file, or in a folder of such files; `-` reads standard input. Repeatable
    #[arg(short, long = "file", value_name = "FILE", conflicts_with = "which")]
    files: Vec<PathBuf>,
}

impl Objects {
    /// The objects of these words.
    ///
    /// # Errors
    /// The first word is neither a kind nor an object.
    pub fn of(which: &str, names: &[String]) -> Result<Self> {
        Ok(Objects {
            which: Some(which.parse().map_err(anyhow::Error::msg).input()?),
            names: names.to_vec(),
            files: Vec::new(),
        })
    }

    /// The kinds with the names of the objects, in the order of the command line. No name stands for all.
    ///
    /// # Errors
    /// The words do not fit together, or a file is invalid.
    pub fn by_kind(&self) -> Result<Vec<(Kind, Vec<String>)>> {
        self.of_words().input()
    }

    fn of_words(&self) -> Result<Vec<(Kind, Vec<String>)>> {
        let Some(which) = &self.which else {
            let written = desired::read(&self.files)?;
            let names = written.iter().flat_map(|it| it.request.names());
            return Ok(vec![(Kind::Jobs, names.collect())]);
        };
        match (which, &self.names[..]) {
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
}
