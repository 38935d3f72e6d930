//! Finds objects by their names in tests: the whole name, or its end.

use ultima_p4runtime::names::{Action, MatchField, Table};

/// Why a name has no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No object has the name.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// Kind of object.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Several objects have the name.
    #[error("{kind} {name} is ambiguous: {one} or {other}")]
    Ambiguous {
        /// Kind of object.
        kind: &'static str,
        /// The name.
        name: String,
        /// One object.
        one: String,
        /// Another object.
        other: String,
    },
}

/// Returns the object with this name; else the only one whose name ends with it after a point; else, like p4c's runner, the
/// only one whose name ends with it.
pub fn find<'a, T>(
    kind: &'static str,
    name: &str,
    objects: impl Iterator<Item = &'a T> + Clone,
    name_of: impl Fn(&T) -> &str,
) -> Result<&'a T, LookupError> {
    if let Some(found) = objects.clone().find(|object| name_of(object) == name) {
        return Ok(found);
    }
    let part = format!(".{name}");
    for suffix in [part.as_str(), name] {
        let mut ending = (objects.clone()).filter(|object| name_of(object).ends_with(suffix));
        match (ending.next(), ending.next()) {
            (Some(found), None) => return Ok(found),
            (Some(one), Some(other)) => {
                return Err(LookupError::Ambiguous {
                    kind,
                    name: name.to_owned(),
                    one: name_of(one).to_owned(),
                    other: name_of(other).to_owned(),
                });
            }
            (None, _) => {}
        }
    }
    Err(LookupError::Unknown {
        kind,
        name: name.to_owned(),
    })
}

/// Returns a table's action.
pub fn action<'a>(table: &'a Table, name: &str) -> Result<&'a Action, LookupError> {
    let actions = table.actions.iter().map(|(_, action)| action.as_ref());
    find("action", name, actions, |action| &action.name)
}

/// Returns a table's key field. Tests write a header's validity (`hdr.h.$valid$` in P4Info) as `hdr.h.valid`, `hdr.h.$valid` or
/// `valid`, and a header of a stack (`h[0]`) also as `h$0`.
pub fn key_field<'a>(table: &'a Table, name: &str) -> Result<&'a MatchField, LookupError> {
    let name = bracketed(name);
    let validity = match name.strip_suffix("valid") {
        Some(header) => format!("{header}$valid$"),
        None => format!("{name}.$valid$"),
    };
    let find = |name: &str| {
        find("key field", name, table.key.iter(), |field| {
            &field.field.name
        })
    };
    // Report the first error, which has the name as written.
    find(&name).or_else(|error| {
        find(&format!("{name}$"))
            .or_else(|_| find(&validity))
            .map_err(|_| error)
    })
}

/// Converts `h$0.f` to `h[0].f`.
fn bracketed(name: &str) -> String {
    let parts = name.split('.').map(|part| match part.split_once('$') {
        Some((stack, index))
            if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{stack}[{index}]")
        }
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_is_enough_if_no_other_has_it() {
        let names = ["Ingress.send", "Ingress.resend", "Egress.drop", "my_drop"];
        let find = |name: &str| {
            let found = find("action", name, names.iter(), |name| name);
            found.copied().map_err(|error| error.to_string())
        };
        assert_eq!(find("Egress.drop"), Ok("Egress.drop"));
        // The whole last part counts more than its end.
        assert_eq!(find("send"), Ok("Ingress.send"));
        assert_eq!(find("drop"), Ok("Egress.drop"));
        assert_eq!(find("y_drop"), Ok("my_drop"));
        assert_eq!(find("forward"), Err("there is no action forward".into()));
        assert_eq!(
            find("end"),
            Err("action end is ambiguous: Ingress.send or Ingress.resend".into())
        );
    }

    #[test]
    fn stacks_have_brackets() {
        assert_eq!(bracketed("hdr.vlan$1.id"), "hdr.vlan[1].id");
        assert_eq!(bracketed("hdr.vlan.$valid$"), "hdr.vlan.$valid$");
    }
}
