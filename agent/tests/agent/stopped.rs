//! Ranks that SIGSTOP suspends at random moments: a process per rank, whose packets pass the kernel.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Write, stdin};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use ultima_agent::job::{Addresses, JobBuilder};
use ultima_host::{ClosedBy, Config};
use ultima_testing::{full_run, per_run, signals, skipped};

use crate::job::addresses;

/// Environment variable of a rank's process, with its [`Part`].
const PART: &str = "ULTIMA_TEST_PART";
/// Values of the buckets of a step, all in flight together: several packets to each rank, and less than one.
const BUCKETS: [usize; 2] = [20_000, 500];
/// Steps between two reports of progress.
const REPORT_EVERY: u32 = 16;
/// A pause of a process that costs an operation nothing: a third of the slack of the default deadline.
const HARMLESS: Duration = Duration::from_millis(100);
/// The most steps after a stopped rank's return until nothing is missing.
const STEPS_TO_RETURN: u32 = 20;
/// The longest wait for a step, on a busy machine.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// A rank's part in a test.
#[derive(Clone, Serialize, Deserialize)]
struct Part {
    rank: usize,
    addresses: Vec<SocketAddr>,
    /// None: the default, about 32 KB on the loopback interface.
    slot_bytes: Option<usize>,
}

/// A line of a rank's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Line {
    /// All operations of the step have ended.
    Progress(u32),
    /// An operation is incomplete.
    Incomplete {
        step: u32,
        closed_by: ClosedBy,
        /// How long it took, and its t_S and t_B.
        took: [Duration; 3],
        /// Other ranks with missing packets.
        missing_from: Vec<u16>,
        /// Contributions in the slot of this rank's shard that has the fewest.
        fewest: usize,
    },
    /// The process did not run for so long.
    Pause(Duration),
    /// The rank's counters at its end.
    Ended {
        operations: u64,
        rejected: u64,
        not_sent: u64,
        /// CONTROL packets sent and received, to explain a failure.
        control: [u64; 2],
    },
}

impl Line {
    fn print(&self) {
        let line = serde_json::to_string(self).expect("JSON");
        // The test harness may have begun a line.
        println!("\n{line}");
    }
}

/// A rank that averages until its standard input names the last step.
#[test]
#[ignore = "a rank of another test, which starts it"]
fn rank_process() {
    let Ok(part) = env::var(PART) else {
        return;
    };
    let part: Part = serde_json::from_str(&part).expect("a part");
    let last = Arc::new(AtomicU32::new(u32::MAX));
    let received = last.clone();
    thread::spawn(move || {
        let line = stdin().lines().next().expect("a line").expect("text");
        received.store(line.parse().expect("a step"), Ordering::Relaxed);
    });
    thread::spawn(|| {
        loop {
            let before = Instant::now();
            thread::sleep(HARMLESS / 10);
            if before.elapsed() > HARMLESS {
                Line::Pause(before.elapsed()).print();
            }
        }
    });
    // All else is as by default.
    let mut builder = JobBuilder::default().rendezvous(Addresses::new(part.rank, part.addresses));
    builder.settings_mut().shared_memory = false;
    builder.settings_mut().slot_bytes = part.slot_bytes;
    let job = builder.start().expect("it starts");
    let (rank, ranks) = (job.rank(), job.ranks());
    let (own, mean) = (f32::from(rank), f32::from(ranks - 1) / 2.0);
    let mut step = 0;
    while step <= last.load(Ordering::Relaxed) {
        let pending: Vec<_> = (0..)
            .zip(BUCKETS)
            .map(|(bucket, len)| job.all_reduce_bucket(bucket, vec![own; len]))
            .collect();
        for pending in pending {
            let reduced = pending.wait().expect("it ends");
            let outcome = &reduced.outcome;
            assert_eq!(outcome.id.step, step);
            if outcome.is_whole() {
                let error = reduced.values.iter().map(|value| (value - mean).abs());
                let error = error.fold(0.0, f32::max);
                assert!(error < 1e-4, "error {error} of {outcome:?}");
                continue;
            }
            let counts = (0..).zip(&outcome.contributions);
            let line = Line::Incomplete {
                step,
                closed_by: outcome.closed_by,
                took: [outcome.duration, outcome.t_s, outcome.t_b],
                missing_from: outcome.missing_from(rank).map(|(from, _)| from).collect(),
                fewest: counts
                    .filter(|(_, slots)| **slots > 0)
                    .map(|(fewest, _)| fewest)
                    .min()
                    .unwrap_or(usize::from(ranks)),
            };
            line.print();
        }
        if step % REPORT_EVERY == 0 {
            Line::Progress(step).print();
        }
        step += 1;
    }
    let last = last.load(Ordering::Relaxed);
    assert_eq!(step, last + 1, "it learned the last step too late");
    let report = job.finish(Duration::from_millis(50)).expect("it finishes");
    Line::Ended {
        operations: report.totals.operations,
        rejected: report.totals.rejected.total(),
        not_sent: report.link.send_errors + report.link.too_long,
        control: [report.totals.control_sent, report.totals.control_received],
    }
    .print();
}

/// The lines of all ranks so far, each with its rank.
#[derive(Default)]
struct Lines {
    all: Mutex<Vec<(usize, Line)>>,
    more: Condvar,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Line)>> {
        self.all.lock().expect("no panic")
    }

    fn add(&self, rank: usize, line: Line) {
        self.lock().push((rank, line));
        self.more.notify_all();
    }

    /// The newest step that each of `ranks` ranks has ended.
    fn progress(all: &[(usize, Line)], ranks: usize) -> Vec<u32> {
        let mut progress = vec![0; ranks];
        for (rank, line) in all {
            if let Line::Progress(step) = line {
                progress[*rank] = *step;
            }
        }
        progress
    }

    /// Waits until all ranks have ended `step`.
    fn wait_for(&self, step: u32, ranks: usize) {
        let lags = |all: &mut Vec<_>| Self::progress(all, ranks).iter().any(|ended| *ended < step);
        let all = self.lock();
        let (all, waited) =
            (self.more.wait_timeout_while(all, STEP_LIMIT, lags)).expect("no panic");
        let progress = Self::progress(&all, ranks);
        assert!(
            !waited.timed_out(),
            "not all ended step {step}: {progress:?}"
        );
    }

    fn newest(&self, ranks: usize) -> u32 {
        let progress = Self::progress(&self.lock(), ranks);
        progress.into_iter().max().expect("several ranks")
    }
}

/// A rank's process. Dropping it ends the process.
struct Rank {
    process: Child,
    input: ChildStdin,
    reader: Option<JoinHandle<()>>,
}

impl Rank {
    fn start(part: &Part, lines: &Arc<Lines>) -> Self {
        let mut command = Command::new(env::current_exe().expect("this binary"));
        command
            .args([
                "stopped::rank_process",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(PART, serde_json::to_string(part).expect("JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let (rank, lines) = (part.rank, lines.clone());
        let reader = thread::spawn(move || {
            for line in output.lines().map(|line| line.expect("text")) {
                if line.starts_with('{') {
                    lines.add(rank, serde_json::from_str(&line).expect("a line of a rank"));
                }
            }
        });
        Self {
            input: process.stdin.take().expect("a pipe"),
            process,
            reader: Some(reader),
        }
    }

    fn signal(&self, signal: Signal) {
        signals::signal(self.process.id(), signal);
    }

    /// Waits until the process has ended well and all its lines are read.
    fn ended(&mut self) {
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{status}");
        let reader = self.reader.take().expect("not joined before");
        reader.join().expect("no panic");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // After the test it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A time in which a rank was stopped.
#[derive(Debug)]
struct Stop {
    rank: usize,
    /// A step that every rank had ended before.
    before: u32,
    /// The newest step that a rank is known to have ended meanwhile.
    until: u32,
}

/// Stops ranks at random moments, and checks every operation of every rank.
fn stop_at_random(ranks: usize, slot_bytes: Option<usize>, stops: usize) {
    // A run in which the machine stopped other ranks, too, shows nothing.
    let is_checked = (0..3).any(|_| try_to_stop(ranks, slot_bytes, stops));
    if !is_checked {
        skipped("the machine itself has stopped ranks for too long, three times");
    }
}

/// Returns false if the machine has stopped a rank, too.
fn try_to_stop(ranks: usize, slot_bytes: Option<usize>, stops: usize) -> bool {
    let mut random = rand::rng();
    // Steps between two stops, at least.
    let after = per_run(100, 400);
    let longest = per_run(1500, 3000);
    let addresses = addresses(ranks);
    let lines = Arc::new(Lines::default());
    let part = |rank| Part {
        rank,
        addresses: addresses.clone(),
        slot_bytes,
    };
    let mut processes: Vec<Rank> = (0..ranks)
        .map(|rank| Rank::start(&part(rank), &lines))
        .collect();
    lines.wait_for(REPORT_EVERY, ranks);
    let began = Instant::now();
    let mut done = Vec::new();
    for _ in 0..stops {
        let next = lines.newest(ranks) + random.random_range(REPORT_EVERY..after);
        lines.wait_for(next, ranks);
        let rank = random.random_range(0..ranks);
        let before = Lines::progress(&lines.lock(), ranks);
        processes[rank].signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(random.random_range(1000..longest)));
        let until = lines.newest(ranks);
        processes[rank].signal(Signal::SIGCONT);
        done.push(Stop {
            rank,
            before: before.into_iter().min().expect("several ranks"),
            until,
        });
        lines.wait_for(until + after, ranks);
    }
    // As many steps as a second has had.
    let newest = lines.newest(ranks);
    let last = newest + after + newest / began.elapsed().as_secs().max(1) as u32;
    for rank in &mut processes {
        writeln!(rank.input, "{last}").expect("it reads");
    }
    processes.iter_mut().for_each(Rank::ended);
    let lines = lines.lock();
    for rank in 0..ranks {
        let is_pause = |line: &&(usize, Line)| line.0 == rank && matches!(line.1, Line::Pause(_));
        let pauses: Vec<_> = lines.iter().filter(is_pause).collect();
        if pauses.len() > done.iter().filter(|stop| stop.rank == rank).count() {
            eprintln!("the machine has stopped rank {rank}, too: {pauses:?}");
            return false;
        }
    }
    check(&lines, ranks, &done, last);
    true
}

/// The incomplete operations of a step and the three before.
fn around(lines: &[(usize, Line)], at: u32) -> Vec<&(usize, Line)> {
    let is_near = |line: &&(usize, Line)| match &line.1 {
        Line::Incomplete { step, .. } => (at.saturating_sub(3)..=at).contains(step),
        _ => false,
    };
    lines.iter().filter(is_near).collect()
}

/// Checks the lines of all ranks, which ended `last`.
fn check(lines: &[(usize, Line)], ranks: usize, stops: &[Stop], last: u32) {
    let incomplete = |line: &(usize, Line)| match &line.1 {
        Line::Incomplete { step, .. } => Some(*step),
        _ => None,
    };
    let steps: BTreeSet<u32> = lines.iter().filter_map(incomplete).collect();
    let mut costs = vec![0; stops.len()];
    // Of each stop: the first step after the rank's return in which no rank misses anything. The rank may have stopped later than
    // in the step after `before`.
    let whole = |stop: &Stop| {
        let first = steps.range(stop.before..).next().copied();
        let first = first.expect("a stop has an effect").max(stop.until);
        (first + 1..)
            .find(|step| !steps.contains(step))
            .expect("the run ends")
    };
    let whole: Vec<u32> = stops.iter().map(whole).collect();
    for (rank, line) in lines {
        match line {
            Line::Progress(_) | Line::Pause(_) => {}
            Line::Incomplete {
                step,
                missing_from,
                fewest,
                ..
            } => {
                let within = |at: &usize| (stops[*at].before..whole[*at]).contains(step);
                let at = (0..stops.len()).find(within).unwrap_or_else(|| {
                    panic!(
                        "rank {rank}: {line:?}, but {stops:?} and whole from {whole:?}: {:#?}",
                        around(lines, *step)
                    )
                });
                costs[at] += 1;
                let stop = &stops[at];
                if *rank != stop.rank {
                    let only = [stop.rank as u16];
                    assert!(
                        [&[][..], &only].contains(&&missing_from[..]) && *fewest >= ranks - 1,
                        "rank {rank}: {line:?}, but {stop:?}; all of the three steps before: {:#?}",
                        around(lines, *step)
                    );
                }
            }
            Line::Ended {
                operations,
                rejected,
                not_sent,
                ..
            } => {
                let expected = u64::from(last + 1) * BUCKETS.len() as u64;
                assert_eq!((*operations, *rejected, *not_sent), (expected, 0, 0));
            }
        }
    }
    let ended = lines
        .iter()
        .filter(|(_, line)| matches!(line, Line::Ended { .. }));
    assert_eq!(ended.count(), ranks);
    for ((stop, whole), cost) in stops.iter().zip(&whole).zip(&costs) {
        assert!(
            *whole <= stop.until + REPORT_EVERY + STEPS_TO_RETURN,
            "{stop:?}: whole from step {whole}"
        );
        eprintln!("{stop:?}: whole from step {whole}, {cost} incomplete operations");
    }
}

/// The others end all operations and miss only its contributions and its shard. Nothing is missing on any rank,
/// itself included, once it has caught up.
#[test]
fn a_stopped_rank_costs_only_its_own_part() {
    stop_at_random(3, Some(Config::SLOT_BYTES), 1);
    if full_run() {
        for (ranks, slot_bytes) in [(3, None), (4, Some(Config::SLOT_BYTES)), (4, None)] {
            stop_at_random(ranks, slot_bytes, 8);
        }
    }
}
