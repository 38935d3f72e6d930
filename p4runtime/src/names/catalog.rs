//! Objects of one kind, found by name, alias or id.

use super::P4InfoError;
use crate::config::v1::Preamble;
use std::collections::HashMap;
use std::fmt;

/// Number of names that an error lists, the nearest first.
const LISTED: usize = 4;

/// A name that the P4Info does not have, with the nearest names that it has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} has no {kind} \"{name}\"; {existing}")]
pub struct NameError {
    /// The place of the lookup: the P4Info, a table, an action ...
    pub place: String,
    /// Kind of object: a table, a match field ...
    pub kind: &'static str,
    /// The name.
    pub name: String,
    /// The existing names.
    pub existing: Existing,
}

/// The existing names, or the nearest ones if there are many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    /// The nearest names, the nearest first.
    pub nearest: Vec<String>,
    /// Number of all names.
    pub total: usize,
}

impl NameError {
    pub(super) fn new<'a>(
        place: impl Into<String>,
        kind: &'static str,
        name: &str,
        existing: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut by_distance: Vec<(usize, &str)> = existing
            .map(|other| (strsim::levenshtein(name, other), other))
            .collect();
        by_distance.sort();
        let nearest = by_distance
            .iter()
            .take(LISTED)
            .map(|(_, name)| (*name).into())
            .collect();
        let existing = Existing {
            nearest,
            total: by_distance.len(),
        };
        NameError {
            place: place.into(),
            kind,
            name: name.into(),
            existing,
        }
    }
}

impl fmt::Display for Existing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .nearest
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect();
        let names = names.join(", ");
        match self.total {
            0 => f.write_str("there is none"),
            1 => write!(f, "there is {names}"),
            total if total == self.nearest.len() => write!(f, "there are {names}"),
            total => write!(f, "the nearest of {total} are {names}"),
        }
    }
}

/// Objects of one kind.
#[derive(Debug, Clone)]
pub struct Catalog<T> {
    kind: &'static str,
    objects: Vec<T>,
    full_names: Vec<String>,
    /// Full names and aliases.
    by_name: HashMap<String, usize>,
    by_id: HashMap<u32, usize>,
}

impl<T> Catalog<T> {
    pub(super) fn new(kind: &'static str) -> Self {
        Catalog {
            kind,
            objects: Vec::new(),
            full_names: Vec::new(),
            by_name: HashMap::new(),
            by_id: HashMap::new(),
        }
    }

    /// Adds the object that `build` returns for an id and full name.
    pub(super) fn add(
        &mut self,
        preamble: Option<&Preamble>,
        build: impl FnOnce(u32, &str) -> Result<T, P4InfoError>,
    ) -> Result<(), P4InfoError> {
        let kind = self.kind;
        let index = self.objects.len();
        let Some(Preamble {
            id, name, alias, ..
        }) = preamble.filter(|preamble| preamble.id != 0 && !preamble.name.is_empty())
        else {
            return Err(P4InfoError::Unnamed {
                kind,
                position: index + 1,
            });
        };
        self.objects.push(build(*id, name)?);
        self.full_names.push(name.clone());
        if self.by_id.insert(*id, index).is_some() {
            return Err(P4InfoError::RepeatedId {
                place: format!("{kind} \"{name}\""),
                id: *id,
            });
        }
        for name in [name, alias] {
            // The alias may be absent, or be the name itself.
            if name.is_empty() {
                continue;
            }
            if self
                .by_name
                .insert(name.clone(), index)
                .is_some_and(|other| other != index)
            {
                return Err(P4InfoError::RepeatedName {
                    kind,
                    name: name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns the object of this full name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn get(&self, name: &str) -> Result<&T, NameError> {
        match self.by_name.get(name) {
            Some(&index) => Ok(&self.objects[index]),
            None => {
                let existing = self.full_names.iter().map(String::as_str);
                Err(NameError::new("P4Info", self.kind, name, existing))
            }
        }
    }

    /// Returns the object of this id.
    pub fn by_id(&self, id: u32) -> Option<&T> {
        self.by_id.get(&id).map(|&index| &self.objects[index])
    }

    /// Iterates over all objects in the P4Info's order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.objects.iter()
    }
}

impl<'a, T> IntoIterator for &'a Catalog<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preamble(id: u32, name: &str, alias: &str) -> Preamble {
        Preamble {
            id,
            name: name.into(),
            alias: alias.into(),
            ..Default::default()
        }
    }

    fn catalog(preambles: &[Preamble]) -> Result<Catalog<u32>, P4InfoError> {
        let mut catalog = Catalog::new("table");
        for preamble in preambles {
            catalog.add(Some(preamble), |id, _| Ok(id))?;
        }
        Ok(catalog)
    }

    #[test]
    fn found_by_name_alias_and_id() {
        let catalog = catalog(&[preamble(1, "I.a.t", "t"), preamble(2, "E.u", "E.u")]).unwrap();
        assert_eq!(catalog.get("I.a.t"), Ok(&1));
        assert_eq!(catalog.get("t"), Ok(&1));
        assert_eq!(catalog.get("E.u"), Ok(&2));
        assert_eq!(catalog.by_id(2), Some(&2));
        assert_eq!(catalog.by_id(3), None);
        assert_eq!(catalog.iter().copied().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn errors_name_the_nearest() {
        let text = |count: u32| {
            let preambles: Vec<_> = (0..count)
                .map(|n| preamble(n + 1, &format!("Ingress.t{n}"), ""))
                .collect();
            catalog(&preambles)
                .unwrap()
                .get("Ingress.t7x")
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(0),
            r#"P4Info has no table "Ingress.t7x"; there is none"#
        );
        assert_eq!(
            text(1),
            r#"P4Info has no table "Ingress.t7x"; there is "Ingress.t0""#
        );
        assert_eq!(
            text(2),
            r#"P4Info has no table "Ingress.t7x"; there are "Ingress.t0", "Ingress.t1""#
        );
        assert!(
            text(9).contains(r#"the nearest of 9 are "Ingress.t7", "#),
            "{}",
            text(9)
        );
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |preambles: &[Preamble]| catalog(preambles).unwrap_err().to_string();
        assert_eq!(
            refused(&[preamble(1, "a", ""), preamble(1, "b", "")]),
            "table \"b\": id 1 is given twice, expected unique ids"
        );
        assert_eq!(
            refused(&[preamble(1, "I.a", "a"), preamble(2, "E.a", "a")]),
            "table \"a\": name or alias is given twice, expected unique names"
        );
        let unnamed = "table number 1 of the P4Info has no id or no name";
        assert_eq!(refused(&[preamble(0, "a", "")]), unnamed);
        assert_eq!(refused(&[preamble(1, "", "")]), unnamed);
    }
}
