//! Conversion between a wire's configuration and its gRPC messages.

use std::time::Duration;

use prost_types::FieldMask;
use ultima_link::{EcnThreshold, Jitter, Loss, WireChange, WireConfig, WireError};

use crate::proto::{self, Change, Settings};
use crate::proto::{ecn::Threshold, jitter::Distribution, loss::Model};

/// Why settings are invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// A oneof without a value.
    #[error("{0}: no kind is set, expected one")]
    Kind(&'static str),
    /// A number that does not fit.
    #[error("loss.field: offset {0}: expected an offset within a frame")]
    Offset(u64),
    /// An unknown name in a mask.
    #[error("mask: unknown setting `{0}`: expected one of {names}", names = NAMES.join(", "))]
    Name(String),
    /// Settings that a wire cannot have.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Names of settings in a mask, as in `traffic_manager.proto`.
pub const NAMES: [&str; 9] = [
    "rate_bps",
    "packets_per_second",
    "delay_ns",
    "jitter",
    "reorder",
    "loss",
    "queue_bytes",
    "queue_packets",
    "ecn",
];

/// Returns the configuration `present` with the settings in `mask` (all, if the mask is empty) replaced by those in
/// `settings`.
///
/// # Errors
/// The result is invalid, or the mask contains an unknown name.
pub fn merge(
    present: &WireConfig,
    settings: Settings,
    mask: Option<&FieldMask>,
) -> Result<WireConfig, SettingsError> {
    let new = WireConfig::try_from(settings)?;
    let Some(mask) = mask else {
        return Ok(new);
    };
    let mut merged = present.clone();
    for name in &mask.paths {
        match name.as_str() {
            "rate_bps" => merged.rate = new.rate,
            "packets_per_second" => merged.packet_rate = new.packet_rate,
            "delay_ns" => merged.delay = new.delay,
            "jitter" => merged.jitter = new.jitter,
            "reorder" => merged.reorder = new.reorder,
            "loss" => merged.loss.clone_from(&new.loss),
            "queue_bytes" => merged.queue_bytes = new.queue_bytes,
            "queue_packets" => merged.queue_packets = new.queue_packets,
            "ecn" => merged.ecn = new.ecn,
            _ => return Err(SettingsError::Name(name.clone())),
        }
    }
    merged.validate()?;
    Ok(merged)
}

/// Returns the request to apply a change to these ports, or to all if none are given.
pub fn request(change: &WireChange, ports: Vec<u32>) -> Change {
    let mut wire = WireConfig::default();
    change.apply(&mut wire);
    Change {
        ports,
        settings: Some(Settings::from(&wire)),
        mask: Some(FieldMask {
            paths: change.names(),
        }),
    }
}

impl From<&WireConfig> for Settings {
    fn from(wire: &WireConfig) -> Settings {
        Settings {
            rate_bps: wire.rate,
            packets_per_second: wire.packet_rate,
            delay_ns: nanos(wire.delay),
            jitter: wire.jitter.map(Into::into),
            reorder: wire.reorder,
            loss: wire.loss.iter().map(Into::into).collect(),
            queue_bytes: Some(wire.queue_bytes),
            queue_packets: wire.queue_packets,
            ecn: wire.ecn.map(Into::into),
        }
    }
}

/// Validates the settings.
impl TryFrom<Settings> for WireConfig {
    type Error = SettingsError;

    fn try_from(settings: Settings) -> Result<WireConfig, SettingsError> {
        let perfect = WireConfig::default();
        let wire = WireConfig {
            rate: settings.rate_bps,
            packet_rate: settings.packets_per_second,
            delay: Duration::from_nanos(settings.delay_ns),
            jitter: settings.jitter.map(TryInto::try_into).transpose()?,
            reorder: settings.reorder,
            loss: settings
                .loss
                .into_iter()
                .map(TryInto::try_into)
                .collect::<Result<_, _>>()?,
            queue_bytes: settings.queue_bytes.unwrap_or(perfect.queue_bytes),
            queue_packets: settings.queue_packets,
            ecn: settings.ecn.map(TryInto::try_into).transpose()?,
        };
        wire.validate()?;
        Ok(wire)
    }
}

impl From<Jitter> for proto::Jitter {
    fn from(jitter: Jitter) -> proto::Jitter {
        use proto::jitter::{LogNormal, Normal, Pareto, Uniform};
        let distribution = match jitter {
            Jitter::Uniform { spread } => Distribution::Uniform(Uniform {
                spread_ns: nanos(spread),
            }),
            Jitter::Normal { deviation } => Distribution::Normal(Normal {
                deviation_ns: nanos(deviation),
            }),
            Jitter::Pareto { mean, shape } => Distribution::Pareto(Pareto {
                mean_ns: nanos(mean),
                shape,
            }),
            Jitter::LogNormal { mean, sigma } => Distribution::LogNormal(LogNormal {
                mean_ns: nanos(mean),
                sigma,
            }),
        };
        proto::Jitter {
            distribution: Some(distribution),
        }
    }
}

impl TryFrom<proto::Jitter> for Jitter {
    type Error = SettingsError;

    fn try_from(jitter: proto::Jitter) -> Result<Jitter, SettingsError> {
        let distribution = jitter.distribution.ok_or(SettingsError::Kind("jitter"))?;
        Ok(match distribution {
            Distribution::Uniform(uniform) => Jitter::Uniform {
                spread: Duration::from_nanos(uniform.spread_ns),
            },
            Distribution::Normal(normal) => Jitter::Normal {
                deviation: Duration::from_nanos(normal.deviation_ns),
            },
            Distribution::Pareto(pareto) => Jitter::Pareto {
                mean: Duration::from_nanos(pareto.mean_ns),
                shape: pareto.shape,
            },
            Distribution::LogNormal(log_normal) => Jitter::LogNormal {
                mean: Duration::from_nanos(log_normal.mean_ns),
                sigma: log_normal.sigma,
            },
        })
    }
}

impl From<&Loss> for proto::Loss {
    fn from(loss: &Loss) -> proto::Loss {
        use proto::loss::{Burst, Field, GilbertElliott};
        let model = match *loss {
            Loss::Independent { probability } => Model::Independent(probability),
            Loss::Burst {
                probability,
                mean_length,
            } => Model::Burst(Burst {
                probability,
                mean_length,
            }),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                bad_loss,
                good_loss,
            } => Model::GilbertElliott(GilbertElliott {
                to_bad,
                to_good,
                bad_loss,
                good_loss,
            }),
            Loss::Field {
                offset,
                bytes,
                ref range,
            } => Model::Field(Field {
                offset: offset as u64,
                // Validated: at most 8.
                bytes: bytes as u32,
                start: range.start,
                end: range.end,
            }),
        };
        proto::Loss { model: Some(model) }
    }
}

impl TryFrom<proto::Loss> for Loss {
    type Error = SettingsError;

    fn try_from(loss: proto::Loss) -> Result<Loss, SettingsError> {
        Ok(match loss.model.ok_or(SettingsError::Kind("loss"))? {
            Model::Independent(probability) => Loss::Independent { probability },
            Model::Burst(burst) => Loss::Burst {
                probability: burst.probability,
                mean_length: burst.mean_length,
            },
            Model::GilbertElliott(chain) => Loss::GilbertElliott {
                to_bad: chain.to_bad,
                to_good: chain.to_good,
                bad_loss: chain.bad_loss,
                good_loss: chain.good_loss,
            },
            Model::Field(field) => Loss::Field {
                offset: usize::try_from(field.offset)
                    .map_err(|_| SettingsError::Offset(field.offset))?,
                bytes: field.bytes as usize,
                range: field.start..field.end,
            },
        })
    }
}

impl From<EcnThreshold> for proto::Ecn {
    fn from(threshold: EcnThreshold) -> proto::Ecn {
        let threshold = match threshold {
            EcnThreshold::Packets(packets) => Threshold::Packets(packets),
            EcnThreshold::Bytes(bytes) => Threshold::Bytes(bytes),
            EcnThreshold::Time(span) => Threshold::TimeNs(nanos(span)),
        };
        proto::Ecn {
            threshold: Some(threshold),
        }
    }
}

impl TryFrom<proto::Ecn> for EcnThreshold {
    type Error = SettingsError;

    fn try_from(ecn: proto::Ecn) -> Result<EcnThreshold, SettingsError> {
        Ok(match ecn.threshold.ok_or(SettingsError::Kind("ecn"))? {
            Threshold::Packets(packets) => EcnThreshold::Packets(packets),
            Threshold::Bytes(bytes) => EcnThreshold::Bytes(bytes),
            Threshold::TimeNs(nanos) => EcnThreshold::Time(Duration::from_nanos(nanos)),
        })
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> WireConfig {
        WireConfig {
            rate: Some(1_000_000_000),
            packet_rate: Some(2_500),
            delay: Duration::from_micros(50),
            jitter: Some("pareto:10us:3".parse().expect("valid")),
            reorder: true,
            loss: ["0.01", "0.02:8", "ge:0.1:0.2:0.9:0.01", "field:74:4:3..7"]
                .map(|text| text.parse().expect("valid"))
                .into(),
            queue_bytes: 100_000,
            queue_packets: Some(64),
            ecn: Some(EcnThreshold::Packets(20)),
        }
    }

    fn mask(names: &[&str]) -> FieldMask {
        let paths = names.iter().map(|name| (*name).to_owned()).collect();
        FieldMask { paths }
    }

    #[test]
    fn settings_survive_conversion() {
        for wire in [wire(), WireConfig::default()] {
            let back = WireConfig::try_from(Settings::from(&wire));
            assert_eq!(back, Ok(wire));
        }
        for jitter in ["uniform:1ms", "normal:1ms", "lognormal:1ms:1"] {
            let jitter: Jitter = jitter.parse().expect("valid");
            assert_eq!(Jitter::try_from(proto::Jitter::from(jitter)), Ok(jitter));
        }
        for ecn in ["bytes:90k", "time:1ms"] {
            let ecn: EcnThreshold = ecn.parse().expect("valid");
            assert_eq!(EcnThreshold::try_from(proto::Ecn::from(ecn)), Ok(ecn));
        }
        assert_eq!(
            WireConfig::try_from(Settings::default()),
            Ok(WireConfig::default())
        );
    }

    #[test]
    fn each_name_changes_its_setting_and_no_other() {
        let (present, new) = (WireConfig::default(), Settings::from(&wire()));
        for name in NAMES {
            let changed = merge(&present, new.clone(), Some(&mask(&[name]))).expect(name);
            assert_ne!(changed, present, "{name}");
            let back = merge(&changed, Settings::default(), Some(&mask(&[name])));
            assert_eq!(back, Ok(present.clone()), "{name}");
        }
        assert_eq!(
            merge(&present, new.clone(), Some(&mask(&NAMES))),
            Ok(wire())
        );
        assert_eq!(merge(&present, new.clone(), None), Ok(wire()));
        assert_eq!(
            merge(&present, new, Some(&mask(&["rate"]))),
            Err(SettingsError::Name("rate".to_owned()))
        );
    }

    #[test]
    fn changes_and_masks_have_the_same_names() {
        let all: WireChange = wire().to_string().parse().expect("as it is shown");
        assert_eq!(all.names(), NAMES);
    }

    #[test]
    fn a_request_changes_what_was_said() {
        let change: WireChange = "delay=2ms,loss=none".parse().expect("valid");
        let Change {
            ports,
            settings,
            mask,
        } = request(&change, vec![3]);
        assert_eq!(ports, [3]);
        let merged = merge(&wire(), settings.expect("settings"), mask.as_ref());
        let mut expected = wire();
        change.apply(&mut expected);
        assert_eq!(merged, Ok(expected));
    }

    #[test]
    fn refuses_what_cannot_be() {
        let perfect = WireConfig::default();
        let refused = |settings, names: &[&str]| {
            let merged = merge(&perfect, settings, Some(&mask(names)));
            merged.expect_err("refused").to_string()
        };
        let rate = Settings {
            rate_bps: Some(0),
            ..Settings::default()
        };
        assert!(refused(rate, &["rate_bps"]).contains("rate 0 bit/s"));
        let jitter = Settings {
            jitter: Some(proto::Jitter::default()),
            ..Settings::default()
        };
        assert!(refused(jitter, &["jitter"]).contains("jitter: no kind is set"));
        // Each is possible, but not together with what is there.
        let far = WireConfig {
            delay: Duration::from_secs(60),
            ..perfect.clone()
        };
        let fast = Settings {
            rate_bps: Some(100_000_000_000),
            ..Settings::default()
        };
        let error = merge(&far, fast, Some(&mask(&["rate_bps"]))).expect_err("refused");
        assert!(matches!(
            error,
            SettingsError::Wire(WireError::Product { .. })
        ));
    }
}
