//! The places of the fields of a YAML text.
//!
//! A text is read this way for its first error or place only. The alternatives, to follow the path in the deserializer of each form
//! (`serde_path_to_error`) or to keep the place of each value, add to the binary and to every form.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_yaml::{DuplicateKeyPolicy, Location, Spanned};

/// The places of a text's fields; `None` if the text is not YAML.
#[derive(Debug)]
pub(super) struct Outline(Option<Node>);

impl Outline {
    pub(super) fn new(text: &str) -> Self {
        let options = serde_yaml::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        Outline(serde_yaml::from_str_with_options(text, options).ok())
    }

    /// Returns the path, such as `hosts[2].ranks`, of the value that begins at `place`, or of the map that has a key there.
    /// Returns an empty path for the whole text, and if the text is not YAML.
    pub(super) fn field_at(&self, place: Location) -> String {
        let node = self.0.as_ref();
        node.and_then(|node| node.field_at(place))
            .unwrap_or_default()
    }

    /// Returns the place of the value of a field, or of the whole text for an empty path. None if the text does not have the
    /// field.
    pub(super) fn place_of(&self, field: &str) -> Option<Location> {
        self.0.as_ref()?.place_of(field)
    }
}

/// A value without its content.
#[derive(Debug)]
struct Node {
    begin: Location,
    children: Children,
}

/// Elements of a sequence or entries of a map: the segment of the path, the place of the key, the value.
#[derive(Debug)]
struct Children(Vec<(String, Option<Location>, Node)>);

impl Node {
    fn place_of(&self, field: &str) -> Option<Location> {
        let field = field.strip_prefix('.').unwrap_or(field);
        if field.is_empty() {
            return Some(self.begin);
        }
        // An index begins with a bracket, and ends the name before it.
        let end = field[1..].find(['.', '[']).map_or(field.len(), |at| at + 1);
        let (segment, rest) = field.split_at(end);
        let Children(children) = &self.children;
        let child = children.iter().find(|(known, ..)| known == segment);
        child.and_then(|(_, _, child)| child.place_of(rest))
    }

    fn field_at(&self, place: Location) -> Option<String> {
        let is_here = |it: &Location| it.line() == place.line() && it.column() == place.column();
        let Children(children) = &self.children;
        if is_here(&self.begin)
            || children
                .iter()
                .any(|(_, key, _)| key.as_ref().is_some_and(is_here))
        {
            return Some(String::new());
        }
        children.iter().find_map(|(segment, _, child)| {
            let below = child.field_at(place)?;
            let dot = if below.is_empty() || below.starts_with('[') {
                ""
            } else {
                "."
            };
            Some(format!("{segment}{dot}{below}"))
        })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Children>::deserialize(deserializer)?;
        Ok(Node {
            begin: spanned.referenced,
            children: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Children {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChildrenVisitor)
    }
}

struct ChildrenVisitor;

impl ChildrenVisitor {
    fn none<E>() -> Result<Children, E> {
        Ok(Children(Vec::new()))
    }
}

impl<'de> Visitor<'de> for ChildrenVisitor {
    type Value = Children;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Children, A::Error> {
        let mut children = Vec::new();
        while let Some(node) = sequence.next_element()? {
            children.push((format!("[{}]", children.len()), None, node));
        }
        Ok(Children(children))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Children, A::Error> {
        let mut children = Vec::new();
        while let Some((key, node)) = map.next_entry::<Spanned<String>, _>()? {
            children.push((key.value, Some(key.referenced), node));
        }
        Ok(Children(children))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Children, E> {
        Self::none()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Children, E> {
        Self::none()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Children, E> {
        Self::none()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Children, E> {
        Self::none()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Children, E> {
        Self::none()
    }

    fn visit_unit<E: Error>(self) -> Result<Children, E> {
        Self::none()
    }
}
