//! Paths to leaves, and patterns of them (gNMI path conventions, "Wildcards in paths").

use crate::v0::{Path, PathElem};

/// Matches any name or key.
const ANY: &str = "*";
/// Matches any number of elements.
const ANY_ELEMENTS: &str = "...";

/// A path element.
pub fn elem(name: &str) -> PathElem {
    PathElem {
        name: name.to_owned(),
        key: Default::default(),
    }
}

/// A path element for an entry of a list.
pub fn entry(name: &str, key: &str, value: &str) -> PathElem {
    PathElem {
        name: name.to_owned(),
        key: [(key.to_owned(), value.to_owned())].into(),
    }
}

/// A path from the root.
pub fn path(elem: impl IntoIterator<Item = PathElem>) -> Path {
    Path {
        elem: elem.into_iter().collect(),
        ..Path::default()
    }
}

/// The elements of a prefix and a path.
pub fn join(prefix: Option<&Path>, path: Option<&Path>) -> Vec<PathElem> {
    let both = prefix.into_iter().chain(path);
    both.flat_map(|path| path.elem.iter().cloned()).collect()
}

/// True if a pattern matches `leaf` or one of its ancestors. A missing key matches any. Takes time proportional to the
/// product of the lengths.
pub fn leads_to(pattern: &[PathElem], leaf: &[PathElem]) -> bool {
    let (mut said, mut at) = (0, 0);
    // The latest `...`, and the end of its match. If that fails, its match grows by one element. The match of an earlier
    // one never needs to change, because the latest could cover it.
    let mut any: Option<(usize, usize)> = None;
    while let Some(elem) = pattern.get(said) {
        if elem.name == ANY_ELEMENTS {
            any = Some((said, at));
            said += 1;
        } else if leaf.get(at).is_some_and(|here| is(elem, here)) {
            said += 1;
            at += 1;
        } else if let Some((dots, end)) = any.filter(|(_, end)| *end < leaf.len()) {
            any = Some((dots, end + 1));
            (said, at) = (dots + 1, end + 1);
        } else {
            return false;
        }
    }
    true
}

fn is(pattern: &PathElem, elem: &PathElem) -> bool {
    let name = pattern.name == ANY || pattern.name == elem.name;
    let mut keys = pattern.key.iter();
    name && keys.all(|(key, value)| {
        let here = elem.key.get(key);
        here.is_some_and(|here| value == ANY || value == here)
    })
}

/// Formats a path: `/interfaces/interface[name=eth0]/state`.
pub fn text(elements: &[PathElem]) -> String {
    let mut text = String::new();
    for elem in elements {
        text.push('/');
        text += &elem.name;
        for (key, value) in &elem.key {
            text += &format!("[{key}={value}]");
        }
    }
    match text.as_str() {
        "" => "/".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_their_descendants() {
        let leaf = [
            elem("interfaces"),
            entry("interface", "name", "veth1"),
            elem("state"),
            elem("oper-status"),
        ];
        let interface = |name: &str| vec![elem("interfaces"), entry("interface", "name", name)];
        let below = |name: &str, more: &[&str]| {
            let more = more.iter().map(|name| elem(name));
            interface(name).into_iter().chain(more).collect::<Vec<_>>()
        };
        for pattern in [
            vec![],
            vec![elem("interfaces"), elem("interface")],
            interface("veth1"),
            interface("*"),
            below("veth1", &["*", "oper-status"]),
            vec![elem("..."), elem("oper-status")],
            vec![elem("..."), elem("state"), elem("..."), elem("oper-status")],
            vec![elem("interfaces"), elem("..."), elem("..."), elem("state")],
            leaf.to_vec(),
        ] {
            assert!(leads_to(&pattern, &leaf), "{}", text(&pattern));
        }
        for pattern in [
            interface("veth2"),
            below("veth1", &["config"]),
            below("veth1", &["state", "oper-status", "more"]),
            vec![elem("interfaces"), entry("interface", "id", "*")],
            vec![elem("..."), elem("mtu")],
            vec![elem("..."), elem("state"), elem("..."), elem("interface")],
            // However many there are.
            [vec![elem("..."); 100_000], vec![elem("mtu")]].concat(),
        ] {
            assert!(!leads_to(&pattern, &leaf), "{}", text(&pattern));
        }
        assert_eq!(
            text(&leaf),
            "/interfaces/interface[name=veth1]/state/oper-status"
        );
    }
}
