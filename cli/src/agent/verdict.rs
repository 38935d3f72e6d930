//! An agent's exit code, and the lines on standard error that explain it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::ExitCode;

use ultima_host::{LinkCounters, Rejection};

use super::operations::{Done, Operation};

/// Returns the exit code of these ranks: 1 for wrong results, for nothing to verify although `verify` asks for it, and for
/// a network that fails: packets that cannot be sent, operations without packets, ranks that were silent, sent no data, stop or leave early. Lost
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
pub fn problems(done: &[Done], verify: bool) -> Vec<String> {
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
        // Packets of a rank that left are no failure if another rank has its place. They are what --verify asks about.
        let checked = match verify {
            true => &done.operations[..],
            false => done.operations.last_chunk::<1>().map_or(&[][..], |it| it),
        };
        let left: BTreeSet<u16> = checked.iter().flat_map(|it| it.left()).collect();
        for member in &left {
            problems.push(format!(
                "rank {}: rank {member} has left the job before the last operation",
                done.position.rank
            ));
        }
        let steps = done.operations.iter().map(|operation| Step {
            epoch: operation.epoch,
            suspected: operation.suspected(),
            left: operation.left(),
            without_data: operation.nothing_from(),
        });
        let steps: Vec<Step> = steps.collect();
        let silences = silences(&steps);
        for (member, operations) in without_data(&steps) {
            if left.contains(&member) || silences.contains_key(&member) {
                continue;
            }
            problems.push(format!(
                "rank {}: packets of rank {member} arrive, but no gradients in {operations} operations; run `ultima job check`",
                done.position.rank
            ));
        }
        for (member, operations) in silences {
            if left.contains(&member) {
                continue;
            }
            problems.push(format!(
                "rank {}: nothing came from rank {member} in three operations or more, and it was suspected in {operations}; run `ultima job check`",
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

/// The number of operations in which a rank sent no data, if there were three or more in a row. Excludes ranks that left or were
/// silent, and ranks that were suspected at the end of an epoch before the last one.
fn without_data(steps: &[Step]) -> BTreeMap<u16, usize> {
    let mut ranks: BTreeMap<u16, BTreeSet<usize>> = BTreeMap::new();
    let last_epoch = steps.last().map(|step| step.epoch);
    for (at, three) in steps.windows(3).enumerate() {
        let epoch = three[0].epoch;
        let of_epoch = steps.iter().rfind(|step| step.epoch == epoch);
        let removed = of_epoch.filter(|_| Some(epoch) != last_epoch);
        let removed = removed.map_or(&[][..], |end| &end.suspected);
        let is_without = |step: &Step, rank: &u16| {
            step.without_data.contains(rank) && !step.left.contains(rank) && step.epoch == epoch
        };
        for rank in &three[2].without_data {
            let is_silent = three[2].suspected.contains(rank) || removed.contains(rank);
            if !is_silent && three.iter().all(|step| is_without(step, rank)) {
                ranks.entry(*rank).or_default().extend(at..at + 3);
            }
        }
    }
    ranks
        .into_iter()
        .map(|(rank, operations)| (rank, operations.len()))
        .collect()
}

/// The silent ranks of an operation.
struct Step {
    epoch: u16,
    suspected: Vec<u16>,
    left: Vec<u16>,
    /// Ranks that sent no data: no contribution and no aggregate arrived.
    without_data: BTreeSet<u16>,
}

/// The number of operations in which each rank was suspected. Excludes ranks that were suspected at the end of an epoch before
/// the last one: the next epoch removes them, and numbers the others itself.
fn silences(steps: &[Step]) -> BTreeMap<u16, usize> {
    let mut silences = BTreeMap::new();
    let epochs = steps.chunk_by(|step, next| step.epoch == next.epoch);
    let last_epoch = steps.last().map(|step| step.epoch);
    for epoch in epochs {
        let end = epoch.last().expect("chunks are not empty");
        let is_replaced =
            |rank: &u16| Some(end.epoch) != last_epoch && end.suspected.contains(rank);
        for step in epoch {
            let silent = (step.suspected.iter()).filter(|rank| !step.left.contains(rank));
            for rank in silent.filter(|rank| !is_replaced(rank)) {
                *silences.entry(*rank).or_default() += 1;
            }
        }
    }
    silences
}

/// One line if packets could not be sent, with the kernel's last reason.
fn unsent(links: impl Iterator<Item = LinkCounters> + Clone) -> Option<String> {
    let unsent: u64 = (links.clone().map(|link| link.send_errors + link.too_long)).sum();
    let error = last_send_error(links)?;
    Some(format!("{unsent} packets could not be sent: {error}"))
}

/// The kernel's last reason not to send a packet.
pub fn last_send_error(links: impl Iterator<Item = LinkCounters>) -> Option<io::Error> {
    let error = links.filter_map(|link| link.last_send_error).last()?;
    Some(io::Error::from_raw_os_error(error))
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
        Rejection::Repeated => {
            "the network duplicates packets, or another host sends copies of them"
        }
        Rejection::Epoch | Rejection::Job => {
            "they are of an earlier run, or of ranks that the job no longer has"
        }
        Rejection::Step => {
            "another host may send packets in a rank's name; seal the job if it is not sealed"
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

    /// Steps of one epoch, by the rank that is suspected in each.
    fn steps<'a>(epoch: u16, suspected: &'a [&[u16]]) -> impl Iterator<Item = Step> + 'a {
        suspected.iter().map(move |suspected| Step {
            epoch,
            suspected: suspected.to_vec(),
            left: Vec::new(),
            without_data: BTreeSet::new(),
        })
    }

    #[test]
    fn a_rank_that_sends_again_was_silent() {
        let returned: Vec<_> = steps(1, &[&[], &[2], &[1, 2], &[]]).collect();
        assert_eq!(silences(&returned), [(1, 1), (2, 2)].into());
        let at_the_end: Vec<_> = steps(1, &[&[], &[2]]).collect();
        assert_eq!(silences(&at_the_end), [(2, 1)].into());
        assert_eq!(silences(&[]), [].into());
    }

    #[test]
    fn a_rank_that_left_or_was_replaced_is_not_silent() {
        let mut left: Vec<_> = steps(1, &[&[2], &[2]]).collect();
        left[1].left = vec![2];
        assert_eq!(silences(&left), [(2, 1)].into());
        // Rank 1 sent again before the epoch ended, rank 2 did not.
        let replaced = steps(1, &[&[1], &[2], &[2]]).chain(steps(2, &[&[], &[3]]));
        let replaced: Vec<_> = replaced.collect();
        assert_eq!(silences(&replaced), [(1, 1), (3, 1)].into());
    }

    #[test]
    fn only_a_rank_that_is_there_and_sends_no_data_counts() {
        let without = |epoch, ranks: &[u16]| Step {
            epoch,
            suspected: Vec::new(),
            left: Vec::new(),
            without_data: ranks.iter().copied().collect(),
        };
        let mut steps = vec![without(1, &[]), without(1, &[2]), without(1, &[1, 2])];
        steps.push(without(1, &[2]));
        assert_eq!(without_data(&steps), [(2, 3)].into());
        steps.push(without(1, &[2]));
        assert_eq!(without_data(&steps), [(2, 4)].into());
        // Only in a row, and in one epoch.
        let apart = [&[2][..], &[2], &[], &[2]].map(|ranks| without(1, ranks));
        assert_eq!(without_data(&apart), [].into());
        let epochs = [1, 1, 2, 2].map(|epoch| without(epoch, &[2]));
        assert_eq!(without_data(&epochs), [].into());
        // A rank that left, one that is silent, and one that the next epoch removed.
        steps[3].left = vec![2];
        assert_eq!(without_data(&steps), [].into());
        let mut silent = [1, 1, 1].map(|epoch| without(epoch, &[2]));
        silent[2].suspected = vec![2];
        assert_eq!(without_data(&silent), [].into());
        let mut removed = [1, 1, 1, 1, 2].map(|epoch| without(epoch, &[2]));
        removed[3].suspected = vec![2];
        assert_eq!(without_data(&removed), [].into());
    }

    /// Each reason has its advice: the words that name the remedy or the sender.
    #[test]
    fn advice_fits_the_most_frequent_reason() {
        for most in Rejection::ALL {
            let count = |reason| match reason {
                _ if reason == most => 5,
                Rejection::Seal | Rejection::Part => 2,
                _ => 0,
            };
            let warning = rejected(&Rejection::ALL.map(|reason| (count(reason), reason)));
            let warning = warning.expect("packets were rejected");
            let expected = match most {
                Rejection::Seal => "lacks the job's key",
                Rejection::Repeated => "copies of them",
                Rejection::Epoch | Rejection::Job => "of an earlier run",
                Rejection::Step => "in a rank's name",
                Rejection::Malformed | Rejection::Kind => "another program",
                Rejection::Source | Rejection::Own | Rejection::Owner => {
                    "no two ranks use one address"
                }
                Rejection::Slot
                | Rejection::Dtype
                | Rejection::Coding
                | Rejection::Length
                | Rejection::Exact
                | Rejection::Part => "start all agents with the same",
            };
            let (counts, advice) = warning.split_once("); ").expect("counts, then advice");
            assert!(counts.contains(&format!("{} 5", most.name())), "{warning}");
            assert!(advice.contains(expected), "{warning}");
        }
        assert_eq!(rejected(&Rejection::ALL.map(|reason| (0, reason))), None);
    }
}
