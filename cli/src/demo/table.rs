//! The report as aligned plain text.

use super::options::{Impairments, Multicast};
use super::report::{Phase, Report};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use ultima_console::units::counted;
use ultima_host::{Estimation, underweight};

/// Width of the name column.
const NAME: usize = 18;

/// Width of the name column of packet counts.
const CAUSE: usize = 26;

/// Width of a column of packet counts.
const COUNT: usize = 14;

/// A row of packet counts: its name, and its value for a phase.
type Count = (&'static str, fn(&Phase) -> u64);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        result(self, f)?;
        timing(self, f)?;
        network(self, f)
    }
}

fn result(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "Result")?;
    let sealed = match report.sealed {
        true => "",
        false => ", packets not authenticated",
    };
    let trained = format!(
        "{} workers, {}, {} parameters, shards {}, seed {}{sealed}",
        report.workers,
        counted(report.steps, "step"),
        grouped(report.parameters as u64),
        report.shards.name(),
        report.seed
    );
    row(f, "training", &trained)?;
    row(f, "impairments", &impairments(&report.impairments))?;
    if !report.lost_workers.is_empty() {
        let ranks: Vec<String> = report.lost_workers.iter().map(u16::to_string).collect();
        row(f, "lost workers", &format!("rank {}", ranks.join(", ")))?;
    }
    let accuracy = format!(
        "{} % (worst worker); exact averaging {} %",
        percent(report.accuracy),
        percent(report.baseline_accuracy)
    );
    row(f, "accuracy", &accuracy)?;
    let digits: String = (0..report.accuracy_by_class.len())
        .map(|d| format!("{d:>6}"))
        .collect();
    row(f, "  by digit", &digits)?;
    row(f, "  worst worker", &percents(&report.accuracy_by_class))?;
    row(
        f,
        "  exact averaging",
        &percents(&report.baseline_accuracy_by_class),
    )?;
    let coding = if report.agreements.coding.is_some() {
        "Hadamard transform depends on loss"
    } else if report.hadamard {
        "with Hadamard transform"
    } else {
        "without Hadamard transform"
    };
    let error = small(report.update_error);
    row(
        f,
        "update error",
        &format!("{error} of an update's energy; {coding}"),
    )?;
    let estimator = match report.estimator == Estimation::default().name() {
        true => String::new(),
        false => format!("estimator {}, ", report.estimator),
    };
    let recycled = match &report.impairments.drop_slots {
        _ if !report.recycling => "lost values are not sent again".to_owned(),
        // Without the transform, the same values are lost again in later steps.
        Some(Range { start, end }) if !report.hadamard => format!(
            "lost values are sent again in later steps, but those of slots {start}..{end} never arrive"
        ),
        _ => "lost values are sent again in later steps".to_owned(),
    };
    row(
        f,
        "run error",
        &format!(
            "{} of all updates' energy; {estimator}{recycled}",
            small(report.run_error)
        ),
    )?;
    let spread = small(report.replica_spread);
    row(
        f,
        "replica spread",
        &format!("{spread} of the parameters' norm"),
    )?;
    agreed(report, f)?;
    weights(report, f)
}

/// The results of votes.
fn agreed(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let agreements = &report.agreements;
    // A short run measures nothing.
    if let Some(drift) = agreements.drift.as_ref().filter(|it| it.measured > 0) {
        let mut text = format!(
            "{} in {} during the run",
            small(drift.largest),
            counted(drift.measured, "measurement")
        );
        if let Some(last) = drift.healed.last() {
            let times = match drift.healed.len() {
                1 => "once".to_owned(),
                times => format!("{times} times"),
            };
            let after = match last.after == 0.0 {
                true => "0".to_owned(),
                false => small(last.after),
            };
            text += &format!(
                "; replicas averaged {times} (bound {}), last at step {} from {} to {after}",
                small(drift.bound),
                last.step,
                small(last.before),
            );
        }
        if let Some(slots) = &report.impairments.drop_slots {
            text += &format!(
                "; not averaged: slots {}..{} never arrive",
                slots.start, slots.end
            );
        }
        row(f, "  largest", &text)?;
    }
    if let Some(coding) = &agreements.coding {
        let switched = coding.iter().map(|switched| {
            let on = if switched.on { "on" } else { "off" };
            format!("{on} after step {}", switched.step)
        });
        let text = match coding.is_empty() {
            true => "never on".to_owned(),
            false => switched.collect::<Vec<_>>().join(", "),
        };
        row(f, "transform", &text)?;
    }
    if agreements.skipped_updates > 0 {
        row(f, "skipped updates", &agreements.skipped_updates)?;
    }
    if let Some(ended) = &agreements.ended {
        row(f, "voting stopped", ended)?;
    }
    Ok(())
}

/// Workers whose data weigh too little, and silent workers.
fn weights(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (rank, weight) in underweight(&report.weights) {
        let text = format!(
            "rank {rank} is late in most steps: its data have weight {weight:.3} instead of {:.3}",
            1.0 / report.weights.len() as f64
        );
        row(f, "weights", &text)?;
    }
    if !report.suspected.is_empty() {
        let ranks: Vec<String> = report.suspected.iter().map(u16::to_string).collect();
        let text = format!(
            "rank {}: silent in the last steps, the others do not wait for it",
            ranks.join(", ")
        );
        row(f, "suspected", &text)?;
    }
    let passed = report.passed_steps.iter().enumerate();
    let passed: Vec<String> = passed
        .filter(|(_, steps)| **steps > 0)
        .map(|(rank, steps)| format!("{} on rank {rank}", counted(*steps, "step")))
        .collect();
    if !passed.is_empty() {
        let text = format!("{}, because the others were far ahead", passed.join(", "));
        row(f, "skipped steps", &text)?;
    }
    Ok(())
}

fn timing(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\nTiming")?;
    let took = report.allreduce_ms;
    let allreduce = format!(
        "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms; deadline {:.2} ms",
        took.p50, took.p99, took.max, report.deadline_ms
    );
    row(f, "AllReduce", &allreduce)?;
    let closed = report.closed_by;
    let closed = format!(
        "{} complete, {} known loss, {} early bound t_C, {} flush t_S, {} deadline t_B",
        grouped(closed.complete),
        grouped(closed.known_loss),
        grouped(closed.t_c),
        grouped(closed.t_s),
        grouped(closed.t_b)
    );
    row(f, "ended by", &closed)?;
    row(f, "total", &format!("{:.1} s", report.wall_s))
}

fn network(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (scatter, gather) = (&report.scatter, &report.gather);
    writeln!(
        f,
        "\n{:CAUSE$}  {:>COUNT$}{:>COUNT$}",
        "Network, packets", "scatter", "gather"
    )?;
    let counts: [Count; 6] = [
        ("slots", |phase| phase.slots),
        ("never sent", |phase| phase.never_sent),
        ("sent by hosts", |phase| phase.sent),
        ("copies", |phase| phase.copies),
        ("  in time", |phase| phase.delivered_in_time),
        ("  late", |phase| phase.delivered_late),
    ];
    for (name, count) in counts {
        packets(f, name, count(scatter), count(gather))?;
    }
    let causes: BTreeSet<&String> = scatter
        .dropped
        .keys()
        .chain(gather.dropped.keys())
        .collect();
    for cause in causes {
        let count = |phase: &Phase| phase.dropped.get(cause).copied().unwrap_or(0);
        packets(
            f,
            &format!("  dropped: {}", cause.replace('_', " ")),
            count(scatter),
            count(gather),
        )?;
    }
    let (sent, copies) = (grouped(gather.sent), grouped(gather.copies));
    match report.multicast {
        Multicast::Switch => writeln!(
            f,
            "\nHosts sent {sent} gather packets, of which the switch made {copies} copies; by unicast \
             hosts would send {}.",
            grouped(report.unicast_equivalent)
        ),
        Multicast::Unicast => writeln!(
            f,
            "\nHosts sent {sent} gather packets, one per receiver; with multicast hosts would send {}.",
            grouped(gather.sent / u64::from(report.workers.saturating_sub(1).max(1)))
        ),
    }
}

/// The impairments in one line.
fn impairments(impairments: &Impairments) -> String {
    let share = |share: f64| format!("{} %", (share * 1e8).round() / 1e6);
    let mut parts = Vec::new();
    if impairments.loss > 0.0 {
        parts.push(format!("{} loss", share(impairments.loss)));
    }
    if let Some((loss, length)) = impairments.burst_loss {
        parts.push(format!("{} loss in bursts of {length}", share(loss)));
    }
    if let Some(slots) = &impairments.drop_slots {
        parts.push(format!("slots {slots:?} lost"));
    }
    if let Some(rate) = impairments.link_rate {
        let (rate, queue) = (rate as f64 / 1e6, grouped(impairments.queue));
        parts.push(format!(
            "links of {rate} Mbit/s with queues of {queue} bytes"
        ));
    }
    if impairments.link_delay_ms > 0.0 {
        parts.push(format!("{} ms link delay", impairments.link_delay_ms));
    }
    let straggler = impairments.straggler;
    if straggler.probability > 0.0 && straggler.sleep_ms > 0.0 {
        let likely = share(straggler.probability);
        parts.push(format!(
            "stragglers ({likely} sleep {} ms)",
            straggler.sleep_ms
        ));
    }
    if let Some(late) = impairments.late {
        parts.push(format!("rank {} late by {} ms", late.rank, late.sleep_ms));
    }
    if parts.is_empty() {
        "none".into()
    } else {
        parts.join(", ")
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display) -> fmt::Result {
    writeln!(f, "  {name:NAME$}{value}")
}

fn packets(f: &mut fmt::Formatter<'_>, name: &str, scatter: u64, gather: u64) -> fmt::Result {
    writeln!(
        f,
        "  {name:CAUSE$}{:>COUNT$}{:>COUNT$}",
        grouped(scatter),
        grouped(gather)
    )
}

/// A number with thousands separators: 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn percent(share: f64) -> String {
    if share.is_nan() {
        "-".into()
    } else {
        format!("{:.1}", share * 100.0)
    }
}

fn percents(shares: &[f64]) -> String {
    shares
        .iter()
        .map(|&share| format!("{:>6}", percent(share)))
        .collect()
}

/// Four decimal places, or an exponent for smaller numbers.
fn small(value: f64) -> String {
    if value == 0.0 || value >= 1e-3 {
        format!("{value:.4}")
    } else {
        format!("{value:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::tests::example;

    #[test]
    fn a_report_reads_as_a_table() {
        let expected = "\
Result
  training          4 workers, 300 steps, 104,842 parameters, shards by-class, seed 1
  impairments       1 % loss, stragglers (1 % sleep 250 ms), rank 3 late by 30 ms
  accuracy          97.5 % (worst worker); exact averaging 98.2 %
    by digit             0     1     2     3     4     5     6     7     8     9
    worst worker     100.0  99.0  98.0  97.0  96.0  95.0  94.0  93.0  92.0  91.0
    exact averaging  100.0 100.0 100.0 100.0 100.0 100.0 100.0 100.0 100.0 100.0
  update error      0.0123 of an update's energy; with Hadamard transform
  run error         4.0e-4 of all updates' energy; lost values are sent again in later steps
  replica spread    0.0186 of the parameters' norm
    largest         0.0071 in 6 measurements during the run; replicas averaged once (bound 0.0050), last at step 99 from 0.0071 to 0
  skipped updates   2
  weights           rank 3 is late in most steps: its data have weight 0.010 instead of 0.250
  suspected         rank 2: silent in the last steps, the others do not wait for it
  skipped steps     12 steps on rank 3, because the others were far ahead

Timing
  AllReduce         p50 4.25 ms, p99 11.50 ms, max 20.02 ms; deadline 20.00 ms
  ended by          150 complete, 1,000 known loss, 2 early bound t_C, 45 flush t_S, 5 deadline t_B
  total             6.5 s

Network, packets                   scatter        gather
  slots                            270,000        90,000
  never sent                            10             0
  sent by hosts                    269,990        90,000
  copies                           269,990       270,000
    in time                        267,000       267,300
    late                               290             0
    dropped: queue                      50             0
    dropped: wire                    2,650         2,700

Hosts sent 90,000 gather packets, of which the switch made 270,000 copies; by unicast hosts would send 270,000.
";
        assert_eq!(example().to_string(), expected);
    }

    #[test]
    fn lost_workers_and_unicast_are_reported() {
        let mut report = example();
        report.lost_workers = vec![1, 3];
        (report.estimator, report.recycling) = ("scaled", false);
        report.multicast = Multicast::Unicast;
        report.gather.sent = 270_000;
        let text = report.to_string();
        assert!(text.contains("lost workers      rank 1, 3\n"), "{text}");
        assert!(
            text.contains("; estimator scaled, lost values are not sent again\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "270,000 gather packets, one per receiver; with multicast hosts would send 90,000."
            ),
            "{text}"
        );
    }

    #[test]
    fn without_the_transform_values_of_dropped_slots_are_lost_for_good() {
        let mut report = example();
        report.impairments.drop_slots = Some(3..9);
        let text = report.to_string();
        assert!(text.contains("sent again in later steps\n"), "{text}");
        report.hadamard = false;
        let text = report.to_string();
        assert!(
            text.contains("sent again in later steps, but those of slots 3..9 never arrive\n"),
            "{text}"
        );
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        for (number, text) in [(0.0, "0.0000"), (0.25, "0.2500"), (1.2e-13, "1.2e-13")] {
            assert_eq!(small(number), text);
        }
    }

    #[test]
    fn a_share_of_nothing_is_a_dash() {
        assert_eq!(percents(&[0.5, f64::NAN]), "  50.0     -");
    }

    #[test]
    fn impairments_are_one_line() {
        let mut done = example().impairments;
        done.burst_loss = Some((0.005, 8.0));
        done.drop_slots = Some(3..7);
        done.link_rate = Some(2_500_000_000);
        done.link_delay_ms = 0.25;
        assert_eq!(
            impairments(&done),
            "1 % loss, 0.5 % loss in bursts of 8, slots 3..7 lost, links of 2500 Mbit/s with \
             queues of 1,048,576 bytes, 0.25 ms link delay, stragglers (1 % sleep 250 ms), \
             rank 3 late by 30 ms"
        );
        let mut none = example().impairments;
        none.loss = 0.0;
        none.straggler.probability = 0.0;
        none.late = None;
        assert_eq!(impairments(&none), "none");
    }
}
