//! Names in messages.

use std::fmt::Display;

/// So many are named.
const SHOWN: usize = 8;

/// These on one line: the first few, and how many more there are. A fabric's or a job's would make a text that nobody reads, and
/// that no answer has room for.
pub(crate) fn some_of(names: impl IntoIterator<Item = impl Display>) -> String {
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
    fn of_many_names_the_first_few_are_said() {
        assert_eq!(some_of([""; 0]), "");
        assert_eq!(some_of(["a", "b"]), "a, b");
        assert_eq!(some_of(0..8), "0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(some_of(0..1000), "0, 1, 2, 3, 4, 5, 6, 7 and 992 more");
    }
}
