//! An agent's exit code, and the lines on standard error that explain it.

use std::io;
use std::process::ExitCode;

use ultima_host::{LinkCounters, Rejection};

use super::operations::{Done, Operation};

/// Returns the exit code of these ranks: 1 for wrong results, for nothing to verify although `verify` asks for it, and for
/// a network that fails: packets that cannot be sent, operations or members without packets, ranks that stop or leave early. Lost
/// packets are no failure.
pub fn of(done: &[Done], verify: bool) -> ExitCode {
    let problems = problems(done, verify);
    for problem in &problems {
        eprintln!("error: {problem}");
    }
    let reports = || done.iter().flat_map(|done| &done.reports);
    let of = |reason| -> u64 {
        reports()
            .map(|report| report.totals.rejected.of(reason))
            .sum()
    };
    if let Some(warning) = rejected(&Rejection::ALL.map(|reason| (of(reason), reason))) {
        eprintln!("warning: {warning}");
    }
    match problems.is_empty() && done.iter().all(|done| done.stopped.is_none()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// One line for each failure.
fn problems(done: &[Done], verify: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let operations = || done.iter().flat_map(|done| &done.operations);
    let count = |is: fn(&Operation) -> bool| operations().filter(|o| is(o)).count();
    let wrong = count(Operation::is_wrong);
    if wrong > 0 {
        problems.push(format!(
            "{wrong} results are wrong although no packet was lost"
        ));
    }
    let nothing = match operations().next() {
        Some(_) => (count(|operation| operation.is_whole()) == 0)
            .then_some("packets are missing from every operation"),
        // The reason that a rank stopped is printed already.
        None => (done.iter().all(|done| done.stopped.is_none()))
            .then_some("this agent took part in none of the job's operations"),
    };
    if let Some(reason) = nothing.filter(|_| verify) {
        problems.push(format!("--verify checked nothing: {reason}"));
    }
    let deaf = count(|operation| operation.silent_job().is_some());
    if deaf > 0 {
        problems.push(format!(
            "no packet of another rank arrived in {deaf} operations; run `ultima job check`"
        ));
    }
    for done in done {
        let last = done.operations.last();
        let left = last.map(|last| last.left()).unwrap_or_default();
        for member in &left {
            problems.push(format!(
                "rank {}: rank {member} has left the job before the last operation",
                done.position.rank
            ));
        }
        let silent = last.map(|last| last.suspected()).unwrap_or_default();
        for member in silent.into_iter().filter(|member| !left.contains(member)) {
            problems.push(format!(
                "rank {}: nothing came from rank {member} in the last operations; run `ultima job check`",
                done.position.rank
            ));
        }
    }
    let links = || {
        let reports = done.iter().flat_map(|done| &done.reports);
        reports.map(|report| report.link)
    };
    problems.extend(unsent(links()));
    problems
}

/// One line if packets could not be sent, with the kernel's last reason.
fn unsent(links: impl Iterator<Item = LinkCounters> + Clone) -> Option<String> {
    let unsent: u64 = (links.clone().map(|link| link.send_errors + link.too_long)).sum();
    let error = links.filter_map(|link| link.last_send_error).last()?;
    let error = io::Error::from_raw_os_error(error);
    Some(format!("{unsent} packets could not be sent: {error}"))
}

/// A warning of rejected packets, with advice for the most frequent reason.
fn rejected(counts: &[(u64, Rejection)]) -> Option<String> {
    let (_, most) = counts.iter().copied().max_by_key(|(count, _)| *count)?;
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let total: u64 = counts.clone().map(|(count, _)| count).sum();
    let counts: Vec<String> = counts
        .map(|(count, reason)| format!("{} {count}", reason.name()))
        .collect();
    let (counts, advice) = (counts.join(", "), advice(most));
    (total > 0).then(|| format!("{total} packets were rejected ({counts}); {advice}"))
}

/// Advice about packets that are rejected for this reason.
fn advice(reason: Rejection) -> &'static str {
    match reason {
        Rejection::Seal => "their sender lacks the job's key, or they were changed on the way",
        Rejection::Repeated => "the network duplicates packets, or somebody sends copies of them",
        Rejection::Epoch | Rejection::Job => {
            "they are of an earlier run, or of ranks that the job no longer has"
        }
        Rejection::Malformed | Rejection::Kind => "another program sends to this rank's address",
        Rejection::Source | Rejection::Own | Rejection::Owner => {
            "check that no two ranks use one address, and that the switch forwards to the right port"
        }
        Rejection::Slot
        | Rejection::Dtype
        | Rejection::Coding
        | Rejection::Length
        | Rejection::Exact
        | Rejection::Part => {
            "start all agents with the same --allreduce, --slot-bytes, --element and --no-hadamard"
        }
    }
}

#[cfg(test)]
mod tests {
    use ultima_agent::rank::Position;

    use super::*;

    #[test]
    fn an_agent_without_an_operation_verified_nothing() {
        let done = |stopped: Option<&str>| Done {
            position: Position {
                rank: 1,
                ranks: 2,
                grid: None,
            },
            memberships: Vec::new(),
            stopped: stopped.map(str::to_owned),
            operations: Vec::new(),
            history: Default::default(),
            reports: Vec::new(),
            recycles: false,
        };
        let none = "--verify checked nothing: this agent took part in none of the job's operations";
        assert_eq!(problems(&[done(None)], true), [none]);
        assert_eq!(problems(&[done(None)], false), [""; 0]);
        assert_eq!(problems(&[done(Some("interrupted"))], true), [""; 0]);
    }

    #[test]
    fn advice_fits_the_most_frequent_reason() {
        let mut counts = Rejection::ALL.map(|reason| (0, reason));
        assert_eq!(rejected(&counts), None);
        for (count, reason) in &mut counts {
            match reason {
                Rejection::Seal => *count = 2,
                Rejection::Epoch => *count = 5,
                _ => {}
            }
        }
        let warning = rejected(&counts).expect("seven packets");
        assert!(
            warning.starts_with("7 packets were rejected ("),
            "{warning}"
        );
        assert!(
            warning.contains("seal 2") && warning.contains("epoch 5"),
            "{warning}"
        );
        assert!(warning.ends_with(advice(Rejection::Epoch)), "{warning}");
    }
}
