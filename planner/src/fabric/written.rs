//! Fabrics with their text, so that a controller's rejection names the place in the file.

use std::fmt::Display;

use super::{Fabric, check};
use crate::yaml::{LoadError, Text};

/// A fabric of a file.
#[derive(Debug)]
pub struct WrittenFabric {
    /// The fabric.
    pub fabric: Fabric,
    text: Text,
}

impl WrittenFabric {
    /// Reads a fabric like [`parse`](super::parse).
    ///
    /// # Errors
    /// As [`parse`](super::parse).
    pub fn parse(text: &str, source: &str) -> Result<Self, LoadError> {
        let text = Text::new(text, source);
        Ok(WrittenFabric {
            fabric: check::check(&text, text.parse()?)?,
            text,
        })
    }

    /// Returns a rejection as an error of the file: `fabric.yaml:2:13: switches[0]: switch s1: …`.
    /// Without a field, or for a field that the file does not have, `said` is about the file as a
    /// whole.
    pub fn refused(&self, field: Option<&str>, said: impl Display) -> String {
        // A switch or a host is at its name.
        let named = field.and_then(|it| self.text.find(&format!("{it}.name")));
        let place = named.or_else(|| self.text.find(field?));
        match place.zip(field) {
            Some((place, field)) => format!("{place}: {field}: {said}"),
            None => format!("{}: {said}", self.text.name()),
        }
    }
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
