//! Presets: the policies of a rank, chosen together.

use serde::{Deserialize, Serialize};

use crate::config::{Config, GatherStart};
use crate::estimator::Estimation;
use crate::incast::IncastPolicy;
use crate::loss_detection::LossDetection;
use crate::rate::RatePolicy;
use crate::timeout::Timeouts;

/// A named set of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Ultima's own policies.
    #[default]
    Adaptive,
    /// The policies of OptiReduce (NSDI 2025), for comparison. Its lossy transport has no flow control; receiver credit
    /// stays on, because kernel sockets would drop packets without it.
    Published,
}

/// A rank's policies for waiting, sending and averaging. `timeouts`, `incast` and `estimation` must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies {
    /// The choice of t_S and t_B.
    pub timeouts: Timeouts,
    /// The choice of a paced rank's rate.
    pub rate: RatePolicy,
    /// The number of ranks that send to one at a time.
    pub incast: IncastPolicy,
    /// True if losses shrink a window of outstanding packets: [`Config::congestion_window`].
    pub congestion_window: bool,
    /// The start of owners' aggregates.
    pub gather_start: GatherStart,
    /// The events that show a loss.
    pub loss_detection: LossDetection,
    /// The estimator of the mean from the contributions that arrive.
    pub estimation: Estimation,
}

impl Preset {
    /// All variants.
    pub const ALL: [Preset; 2] = [Preset::Adaptive, Preset::Published];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Adaptive => "adaptive",
            Preset::Published => "published",
        }
    }

    /// The policies.
    pub fn policies(self) -> Policies {
        match self {
            Preset::Adaptive => Policies {
                timeouts: Timeouts::CauseAware,
                rate: RatePolicy::InBand,
                incast: IncastPolicy::Dynamic,
                congestion_window: true,
                gather_start: GatherStart::Turns,
                loss_detection: LossDetection::InOrder,
                estimation: Estimation::ArrivedMean,
            },
            Preset::Published => Policies {
                timeouts: Timeouts::Published,
                rate: RatePolicy::Timely,
                incast: IncastPolicy::Dynamic,
                congestion_window: false,
                gather_start: GatherStart::AtOnce,
                loss_detection: LossDetection::TimeoutOnly,
                estimation: Estimation::Scaled,
            },
        }
    }
}

impl Default for Policies {
    fn default() -> Self {
        Preset::default().policies()
    }
}

impl Policies {
    /// Sets these policies in a configuration. `rate` has no effect without pacing.
    pub fn apply(self, config: Config) -> Config {
        let Policies {
            timeouts,
            rate,
            incast,
            congestion_window,
            gather_start,
            loss_detection,
            estimation,
        } = self;
        let mut pacing = config.pacing;
        if let Some(pacing) = &mut pacing {
            pacing.policy = rate;
        }
        Config {
            timeouts,
            incast,
            congestion_window,
            gather_start,
            loss_detection,
            estimation,
            pacing,
            ..config
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::Pacing;

    use super::*;

    #[test]
    fn a_preset_sets_every_policy() {
        let paced = Config {
            pacing: Some(Pacing {
                bits_per_second: 1,
                burst: 0,
                policy: RatePolicy::Fixed,
            }),
            ..Config::new(1, 1, 0, 2, 7, Duration::from_secs(1))
        };
        let of = |preset: Preset| preset.policies().apply(paced.clone());
        let (ours, published) = (of(Preset::Adaptive), of(Preset::Published));
        for config in [&ours, &published] {
            assert_eq!(config.validate(), Ok(()));
            assert_eq!(config.incast, IncastPolicy::Dynamic);
        }
        let rate = |config: &Config| config.pacing.map(|pacing| pacing.policy);
        assert_eq!(ours.timeouts, Timeouts::CauseAware);
        assert_eq!(rate(&ours), Some(RatePolicy::InBand));
        assert_eq!(ours.loss_detection, LossDetection::InOrder);
        assert!(ours.congestion_window && !published.congestion_window);
        assert_eq!(published.timeouts, Timeouts::Published);
        assert_eq!(rate(&published), Some(RatePolicy::Timely));
        assert_eq!(published.gather_start, GatherStart::AtOnce);
        assert_eq!(published.loss_detection, LossDetection::TimeoutOnly);
        assert_eq!(published.estimation, Estimation::Scaled);
    }
}
