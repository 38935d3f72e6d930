//! An agent's exit code, and the lines on standard error that explain it.

use std::io;
use std::process::ExitCode;

use ultima_host::{LinkCounters, Rejection};

use super::operations::{Done, Operation};

/// Returns the exit code of these ranks: 1 for wrong results, for nothing to verify although `verify` asks for it, and for
/// a network that fails: packets that cannot be sent, operations or members without packets, ranks that stop or leave early. Lost
/// packets are no failure.
pub fn of(done: &[Done], verify: bool) -> ExitCode {
    let mut problems = Vec::new();
    let operations = || done.iter().flat_map(|done| &done.operations);
    let count = |is: fn(&Operation) -> bool| operations().filter(|o| is(o)).count();
    let wrong = count(Operation::is_wrong);
    if wrong > 0 {
        problems.push(format!(
            "{wrong} results are wrong although no packet was lost"
        ));
    }
    if verify && operations().next().is_some() && count(|operation| operation.is_whole()) == 0 {
        problems
            .push("--verify checked nothing: packets are missing from every operation".to_owned());
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
    for problem in &problems {
        eprintln!("error: {problem}");
    }
    rejected(done);
    let stopped = done.iter().any(|done| done.stopped.is_some());
    match problems.is_empty() && !stopped {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// One line if packets could not be sent, with the kernel's last reason.
fn unsent(links: impl Iterator<Item = LinkCounters> + Clone) -> Option<String> {
    let unsent: u64 = (links.clone().map(|link| link.send_errors + link.too_long)).sum();
    let error = links.filter_map(|link| link.last_send_error).last()?;
    let error = io::Error::from_raw_os_error(error);
    Some(format!("{unsent} packets could not be sent: {error}"))
}

/// Warns of rejected packets, with advice for the most frequent reason.
fn rejected(done: &[Done]) {
    let reports = || done.iter().flat_map(|done| &done.reports);
    let of = |reason| -> u64 {
        let counts = reports().map(|report| report.totals.rejected.of(reason));
        counts.sum()
    };
    let counts = Rejection::ALL.map(|reason| (of(reason), reason));
    let Some((_, most)) = counts.iter().copied().max_by_key(|(count, _)| *count) else {
        return;
    };
    let total: u64 = counts.iter().map(|(count, _)| count).sum();
    if total == 0 {
        return;
    }
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, reason)| format!("{} {count}", reason.name()))
        .collect();
    let counts = counts.join(", ");
    let advice = advice(most);
    eprintln!("warning: {total} packets were rejected ({counts}); {advice}");
}

/// What to do about rejected packets.
fn advice(reason: Rejection) -> &'static str {
    match reason {
        Rejection::Seal => "their sender lacks the job's key, or they were changed on the way",
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
