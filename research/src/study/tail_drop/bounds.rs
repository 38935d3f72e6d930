//! Searches the time limits of an operation at which a given share of its packets is late.

use std::time::Duration;

use anyhow::{Result, ensure};
use ultima_sim::{Experiment, ExperimentError, Report};

/// Largest relative error of the late share.
const NEAR: f64 = 0.02;
/// Halvings of the interval until the search ends: the late share changes in steps, and may never be exact.
const HALVINGS: u32 = 16;
/// Factor on [`Experiment::bounds`], which covers the tail's 99.9th percentile, after which no packet is late.
const AMPLE: u32 = 20;

/// `experiment` with time limits that no packet exceeds.
pub fn without_late(experiment: &Experiment) -> Experiment {
    let (t_s, t_b) = experiment.bounds();
    with(experiment, AMPLE * t_s, AMPLE * t_b)
}

/// `experiment` with the t_S at which `share` of the contributions is late, and the t_B at which `share` of the aggregates
/// is late. A share of 0 gives [`without_late`].
///
/// Searches both by repeated simulation, so all delays of the experiment count.
///
/// # Errors
/// If it cannot be simulated, or packets are late with any time limits.
pub fn with_late_share(experiment: &Experiment, share: f64) -> Result<Experiment> {
    let whole = without_late(experiment);
    if share == 0.0 {
        return Ok(whole);
    }
    let report = whole.run(&mut |_| ())?;
    ensure!(
        late(&report) == 0.0,
        "{:.4} of the packets are late even with the longest time limits; use a smaller --bytes or --tail",
        late(&report)
    );
    let longest = Duration::from_secs_f64(report.completion_ms.max * 1e-3);
    let ample = longest * 2;
    // Contributions are half of the expected packets.
    let t_s = search(Duration::ZERO, longest, share / 2.0, |t_s| {
        with(experiment, t_s, ample).run(&mut |_| ())
    })?;
    let t_b = search(t_s, longest, share, |t_b| {
        with(experiment, t_s, t_b).run(&mut |_| ())
    })?;
    Ok(with(experiment, t_s, t_b))
}

/// The share of contributions and aggregates that were late or not sent in time, without those that the network lost.
pub fn late(report: &Report) -> f64 {
    1.0 - report.arrived_share_of_not_lost
}

fn with(experiment: &Experiment, t_s: Duration, t_b: Duration) -> Experiment {
    Experiment {
        bounds: Some((t_s, t_b)),
        ..experiment.clone()
    }
}

/// The time limit between `least` and `most` at which `share` is late; longer limits give smaller shares.
fn search(
    mut least: Duration,
    mut most: Duration,
    share: f64,
    run: impl Fn(Duration) -> Result<Report, ExperimentError>,
) -> Result<Duration> {
    for _ in 0..HALVINGS {
        let middle = (least + most) / 2;
        let found = late(&run(middle)?);
        if (found / share - 1.0).abs() <= NEAR {
            return Ok(middle);
        }
        match found > share {
            true => least = middle,
            false => most = middle,
        }
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_sim::Algorithm;
    use ultima_testing::per_run;

    #[test]
    fn the_requested_share_is_late() {
        let experiment = Experiment {
            bytes: per_run(1 << 18, 1 << 20),
            slot: 1024,
            tail: 3.0,
            operations: 40,
            ..Experiment::new(Algorithm::Tar, 4)
        };
        let mean = |experiment: &Experiment| {
            let report = experiment.run(&mut |_| ()).expect("possible");
            (late(&report), report.completion_ms.mean)
        };
        let (none, mut longer) = mean(&with_late_share(&experiment, 0.0).expect("possible"));
        assert_eq!(none, 0.0);
        for share in [0.01, 0.1] {
            let limited = with_late_share(&experiment, share).expect("possible");
            let (t_s, t_b) = limited.bounds.expect("set");
            assert!(t_s < t_b);
            let (found, took) = mean(&limited);
            assert!((found / share - 1.0).abs() < 0.1, "{found} of {share}");
            assert!(took < longer, "{took} ms, {longer} ms with less dropped");
            longer = took;
        }
    }
}
