//! Lists of names in messages.

use std::fmt::Display;

/// The most names in one message.
const SHOWN: usize = 8;

/// The first names on one line, and how many more there are. The names of a large fabric or job
/// would not fit in a gRPC status.
pub fn some_of(names: impl IntoIterator<Item = impl Display>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = (names.by_ref().take(SHOWN))
        .map(|name| name.to_string())
        .collect();
    let shown = shown.join(", ");
    match names.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_shortened() {
        assert_eq!(some_of([""; 0]), "");
        assert_eq!(some_of(["a", "b"]), "a, b");
        assert_eq!(some_of(0..8), "0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(some_of(0..1000), "0, 1, 2, 3, 4, 5, 6, 7 and 992 more");
    }
}
