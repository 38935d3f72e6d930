//! Errors as one line on standard error: causes joined, clap's text folded, control characters escaped.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output::{self, Unprinted};

/// The exit code for invalid input.
const INVALID_INPUT: u8 = 2;

/// Prints `error` and its causes as one line on standard error.
pub fn print(error: &anyhow::Error) {
    eprintln!("error: {}", output::visible(&one_line(error)));
}

/// Prints help and version as clap formats them, and clap's errors as one line. Returns the exit code: 0 after help, 2
/// after an error, and what `fail` returns if standard output cannot be written.
pub fn refuse(error: &clap::Error, fail: impl FnOnce(&anyhow::Error) -> ExitCode) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => match error.print() {
            Ok(()) if error.use_stderr() => INVALID_INPUT.into(),
            Ok(()) => ExitCode::SUCCESS,
            // The reader has closed the pipe (`ultima --help | head`).
            Err(lost) if lost.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(lost) => fail(&Unprinted::from(lost).into()),
        },
        _ => {
            eprintln!("{}", output::visible(&clap_line(error)));
            INVALID_INPUT.into()
        }
    }
}

/// Joins an error and its causes, without causes that the text before already contains.
pub fn one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |line, cause| match cause.to_string() {
            cause if line.is_empty() => cause,
            cause if line.contains(&cause) => line,
            cause => format!("{line}: {cause}"),
        })
}

/// Folds one of clap's errors into one line.
pub fn clap_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let wanted = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let wanted =
        wanted.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let line = wanted.fold(String::new(), |line, next| {
        match next.strip_prefix("tip: ") {
            // Advice to pass a mistyped option as a value.
            Some(tip) if tip.starts_with("to pass ") => line,
            Some(tip) => format!("{line}; {tip}"),
            None if line.is_empty() => next.to_owned(),
            None => format!("{line} {next}"),
        }
    });
    let line = worded_range(&line).unwrap_or(line);
    match error.get(ContextKind::InvalidArg) {
        // clap takes a negative value for an unknown option.
        Some(ContextValue::String(unknown))
            if error.kind() == ErrorKind::UnknownArgument
                && unknown
                    .trim_start_matches('-')
                    .starts_with(|it: char| it.is_ascii_digit()) =>
        {
            format!("{line}; no option takes a negative value")
        }
        _ => line,
    }
}

/// Rewords the end of an error about a number out of range, which clap writes as in `0 is not in 2..=32`.
fn worded_range(line: &str) -> Option<String> {
    let (before, range) = line.rsplit_once(" is not in ")?;
    let (least, most) = range.split_once("..=")?;
    // The value, which the line has already.
    let (before, _) = before.rsplit_once(' ')?;
    Some(format!(
        "{before} expected an integer from {least} to {most}"
    ))
}
