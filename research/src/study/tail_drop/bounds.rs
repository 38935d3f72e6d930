//! When an operation must end for a share of its packets to come too late.

use std::time::Duration;

use anyhow::{Result, ensure};
use ultima_sim::{Experiment, ExperimentError, Report};

/// How near the share that is late must come to the one that was asked for, in shares of that.
const NEAR: f64 = 0.02;
/// Halvings of an interval after which it is as near as it gets: operations are no continuum.
const HALVINGS: u32 = 16;
/// How many times the bounds that [`Experiment::bounds`] has are time enough for everything: those leave room for the
/// tail's 99.9th percentile.
const AMPLE: u32 = 20;

/// `experiment` with bounds that nothing is late for.
pub fn uncut(experiment: &Experiment) -> Experiment {
    let (t_s, t_b) = experiment.bounds();
    with(experiment, AMPLE * t_s, AMPLE * t_b)
}

/// `experiment` with t_S so that `share` of the contributions comes too late, and t_B so that `share` of the aggregates
/// does. With a share of 0 it is [`uncut`].
///
/// Both are found by simulating it again and again: whatever delays packets in it decides.
///
/// # Errors
/// If it cannot be simulated, or packets are late whatever the bounds.
pub fn cut(experiment: &Experiment, share: f64) -> Result<Experiment> {
    let whole = uncut(experiment);
    if share == 0.0 {
        return Ok(whole);
    }
    let report = whole.run(&mut |_| ())?;
    ensure!(
        late(&report) == 0.0,
        "{:.4} of the packets come too late although there is time for all; fewer bytes or a lesser tail are needed",
        late(&report)
    );
    let longest = Duration::from_secs_f64(report.completion_ms.max * 1e-3);
    let ample = longest * 2;
    // Contributions are half of all that is owed.
    let t_s = search(Duration::ZERO, longest, share / 2.0, |t_s| {
        with(experiment, t_s, ample).run(&mut |_| ())
    })?;
    let t_b = search(t_s, longest, share, |t_b| {
        with(experiment, t_s, t_b).run(&mut |_| ())
    })?;
    Ok(with(experiment, t_s, t_b))
}

/// The share of all contributions and aggregates, but those that the network lost, that came too late or was not sent in
/// time.
pub fn late(report: &Report) -> f64 {
    1.0 - report.arrived_share_of_not_lost
}

fn with(experiment: &Experiment, t_s: Duration, t_b: Duration) -> Experiment {
    Experiment {
        bounds: Some((t_s, t_b)),
        ..experiment.clone()
    }
}

/// The bound between `least` and `most` with which `share` is late: the longer a bound, the less is.
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

    #[test]
    fn as_much_is_late_as_was_asked_for() {
        let experiment = Experiment {
            bytes: 1 << 20,
            slot: 1024,
            tail: 3.0,
            operations: 40,
            ..Experiment::new(Algorithm::Tar, 4)
        };
        let mean = |experiment: &Experiment| {
            let report = experiment.run(&mut |_| ()).expect("possible");
            (late(&report), report.completion_ms.mean)
        };
        let (none, mut longer) = mean(&cut(&experiment, 0.0).expect("possible"));
        assert_eq!(none, 0.0);
        for share in [0.01, 0.1] {
            let cut = cut(&experiment, share).expect("possible");
            let (t_s, t_b) = cut.bounds.expect("set");
            assert!(t_s < t_b);
            let (found, took) = mean(&cut);
            assert!((found / share - 1.0).abs() < 0.1, "{found} of {share}");
            assert!(took < longer, "{took} ms, {longer} ms with less cut");
            longer = took;
        }
    }
}
