//! Fabrics with the places of their elements in the file, so that a rejection names the place.

use std::collections::HashMap;
use std::fmt::Display;

use serde_yaml::{Location, Spanned};

use super::file::FabricFile;
use super::{Fabric, FabricError, check};
use crate::yaml::{self, Place};

/// A fabric of a file.
#[derive(Debug)]
pub struct WrittenFabric {
    /// The fabric.
    pub fabric: Fabric,
    /// The places of fields, by their paths.
    places: HashMap<String, Location>,
    source: String,
}

impl WrittenFabric {
    /// Reads a fabric like [`parse`](super::parse).
    ///
    /// # Errors
    /// As [`parse`](super::parse).
    pub fn parse(text: &str, source: &str) -> Result<Self, FabricError> {
        let file: FabricFile = yaml::parse(text, source)?;
        let places = places(&file);
        Ok(WrittenFabric {
            fabric: check::check(file, source)?,
            places,
            source: source.to_owned(),
        })
    }

    /// Returns a rejection as an error of the file: `fabric.yaml:2:13: switches[0]: switch s1: …`.
    /// Without a field, or for a field with unknown place, `said` is about the file as a whole.
    pub fn refused(&self, field: Option<&str>, said: impl Display) -> String {
        let place = field.and_then(|field| Some((field, self.places.get(field)?)));
        match place {
            Some((field, location)) => {
                let place = Place::new(&self.source, *location);
                format!("{place}: {field}: {said}")
            }
            None => format!("{}: {said}", self.source),
        }
    }
}

/// The places of switches and hosts: those of their names.
fn places(file: &FabricFile) -> HashMap<String, Location> {
    let switches = file.switches.value.iter().map(|it| &it.name);
    let hosts = file.hosts.value.iter().map(|it| &it.name);
    let named = |of: &'static str| {
        move |(at, name): (usize, &Spanned<String>)| (format!("{of}[{at}]"), name.referenced)
    };
    let lists = [
        ("switches".to_owned(), file.switches.referenced),
        ("hosts".to_owned(), file.hosts.referenced),
    ];
    (lists.into_iter())
        .chain(switches.enumerate().map(named("switches")))
        .chain(hosts.enumerate().map(named("hosts")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_name_their_place() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let written = WrittenFabric::parse(text, "f.yaml").unwrap();
        let place = |what: &str| {
            let lines = text.lines().enumerate();
            let mut places = lines.filter_map(|(at, line)| Some((at + 1, line.find(what)? + 1)));
            let (line, column) = places.next().unwrap();
            format!("f.yaml:{line}:{column}")
        };
        let second = &written.fabric.switches()[1].name;
        let last = &written.fabric.hosts().last().unwrap().name;
        for (field, place) in [("switches[1]", place(second)), ("hosts[3]", place(last))] {
            let said = written.refused(Some(field), "it is full");
            assert_eq!(said, format!("{place}: {field}: it is full"));
        }
        let said = written.refused(Some("hosts"), "one is missing");
        assert!(
            said.ends_with(": hosts: one is missing") && said != "f.yaml: hosts: one is missing"
        );
        for of_none in [None, Some("switches[2]"), Some("a thing")] {
            assert_eq!(written.refused(of_none, "no"), "f.yaml: no");
        }
    }
}
