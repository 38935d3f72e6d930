//! Texts of errors, each on one line.

use std::error::Error;

/// Returns the innermost cause on one line: "Connection refused" is more useful than "transport error".
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string())
}

/// Returns an error and all its causes on one line.
pub fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    one_line(&text)
}

/// Returns a server's message on one line of limited length.
pub fn one_line(text: &str) -> String {
    const MOST: usize = 300;
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MOST) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}
