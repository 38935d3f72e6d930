//! Changes to a wire's settings, by name and as text: the common part of flags, files and `tm set`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::background::{Background, BackgroundError};
use crate::ecn::{EcnError, EcnThreshold};
use crate::jitter::{Jitter, JitterError};
use crate::loss::{Loss, LossError};
use crate::units::{self, UnitError};
use crate::wire::WireConfig;

/// Changes to some settings of a wire. All others keep their values.
///
/// ```
/// use ultima_link::{WireChange, WireConfig};
///
/// let mut wire = WireConfig::default();
/// "rate=1G,delay=50us,loss=0.01:8".parse::<WireChange>()?.apply(&mut wire);
/// "rate=none".parse::<WireChange>()?.apply(&mut wire);
/// assert_eq!((wire.rate, wire.loss.len()), (None, 1));
/// # Ok::<(), ultima_link::ChangeError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WireChange {
    rate: Option<Option<u64>>,
    packet_rate: Option<Option<u64>>,
    background: Option<Option<Background>>,
    delay: Option<Duration>,
    jitter: Option<Option<Jitter>>,
    reorder: Option<bool>,
    loss: Option<Vec<Loss>>,
    queue_bytes: Option<u64>,
    queue_packets: Option<Option<u32>>,
    ecn: Option<Option<EcnThreshold>>,
}

/// The names of the settings in text.
const SETTINGS: [&str; 10] = [
    "rate",
    "packet-rate",
    "background",
    "delay",
    "jitter",
    "reorder",
    "loss",
    "queue",
    "queue-packets",
    "ecn",
];

/// The reason that a setting is rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// An unknown setting.
    #[error("unknown setting `{0}`: expected one of {names}", names = SETTINGS.join(", "))]
    Name(String),
    /// Not NAME=VALUE.
    #[error("`{0}`: expected NAME=VALUE[,NAME=VALUE…], such as rate=1G,delay=50us")]
    Syntax(String),
    /// Neither true nor false.
    #[error("expected true or false")]
    Bool,
    /// Not a number of packets.
    #[error("expected a number of packets, such as 1000, or none")]
    Packets,
    /// Not a quantity of the expected kind.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Not background flows.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Not a jitter.
    #[error(transparent)]
    Jitter(#[from] JitterError),
    /// Not a loss model.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// Not an ECN threshold.
    #[error(transparent)]
    Ecn(#[from] EcnError),
}

/// None for `none`, else the parsed value.
fn unless_none<T, E>(text: &str, read: impl Fn(&str) -> Result<T, E>) -> Result<Option<T>, E> {
    match text {
        "none" => Ok(None),
        text => read(text).map(Some),
    }
}

impl WireChange {
    /// Changes the setting `name` (`_` may replace `-`). `none` removes it. A second loss model is added to
    /// the first; for other settings a second value replaces the first.
    ///
    /// # Errors
    /// If the setting is unknown, or cannot have this value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ChangeError> {
        match name.replace('_', "-").as_str() {
            "rate" => self.rate = Some(unless_none(value, units::bit_rate)?),
            "packet-rate" => self.packet_rate = Some(unless_none(value, units::packet_rate)?),
            "background" => self.background = Some(unless_none(value, str::parse)?),
            "delay" => self.delay = Some(unless_none(value, units::duration)?.unwrap_or_default()),
            "jitter" => self.jitter = Some(unless_none(value, str::parse)?),
            "reorder" => self.reorder = Some(value.parse().map_err(|_| ChangeError::Bool)?),
            "loss" => {
                let models = self.loss.get_or_insert_default();
                models.extend(unless_none(value, str::parse)?);
            }
            "queue" => self.queue_bytes = Some(units::bytes(value)?),
            "queue-packets" => {
                let packets = unless_none(value, str::parse).map_err(|_| ChangeError::Packets)?;
                self.queue_packets = Some(packets);
            }
            "ecn" => self.ecn = Some(unless_none(value, str::parse)?),
            _ => return Err(ChangeError::Name(name.to_owned())),
        }
        Ok(())
    }

    /// True if no setting changes.
    pub fn is_empty(&self) -> bool {
        *self == WireChange::default()
    }

    /// Applies the changes to a wire. The result may be invalid.
    pub fn apply(&self, wire: &mut WireConfig) {
        fn put<T: Clone>(said: &Option<T>, setting: &mut T) {
            if let Some(value) = said {
                setting.clone_from(value);
            }
        }
        put(&self.rate, &mut wire.rate);
        put(&self.packet_rate, &mut wire.packet_rate);
        put(&self.background, &mut wire.background);
        put(&self.delay, &mut wire.delay);
        put(&self.jitter, &mut wire.jitter);
        put(&self.reorder, &mut wire.reorder);
        put(&self.loss, &mut wire.loss);
        put(&self.queue_bytes, &mut wire.queue_bytes);
        put(&self.queue_packets, &mut wire.queue_packets);
        put(&self.ecn, &mut wire.ecn);
    }
}

/// `NAME=VALUE[,NAME=VALUE…]`.
impl FromStr for WireChange {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let mut change = WireChange::default();
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| ChangeError::Syntax(part.to_owned()))?;
            change.set(name.trim(), value.trim())?;
        }
        Ok(change)
    }
}

/// The changed settings, as they are parsed; empty if there are none.
impl fmt::Display for WireChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_none(setting: Option<impl fmt::Display>) -> String {
            setting.map_or_else(|| "none".to_owned(), |value| value.to_string())
        }
        let loss = self.loss.iter().flat_map(|models| match &models[..] {
            [] => vec!["none".to_owned()],
            models => models.iter().map(ToString::to_string).collect(),
        });
        let packet_rate = |rate: Option<u64>| or_none(rate.map(units::show_packet_rate));
        let settings = [
            (
                "rate",
                self.rate
                    .map(|rate| or_none(rate.map(units::show_bit_rate))),
            ),
            ("packet-rate", self.packet_rate.map(packet_rate)),
            ("background", self.background.map(or_none)),
            ("delay", self.delay.map(units::show_duration)),
            ("jitter", self.jitter.map(or_none)),
            ("reorder", self.reorder.map(|reorder| reorder.to_string())),
        ];
        let queues = [
            ("queue", self.queue_bytes.map(units::show_bytes)),
            ("queue-packets", self.queue_packets.map(or_none)),
            ("ecn", self.ecn.map(or_none)),
        ];
        let settings = settings.into_iter();
        let all = settings
            .chain(loss.map(|loss| ("loss", Some(loss))))
            .chain(queues);
        let mut separator = "";
        for (name, value) in all {
            if let Some(value) = value {
                write!(f, "{separator}{name}={value}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

/// All settings, in the format of [`WireChange`].
impl fmt::Display for WireConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = WireChange {
            rate: Some(self.rate),
            packet_rate: Some(self.packet_rate),
            background: Some(self.background),
            delay: Some(self.delay),
            jitter: Some(self.jitter),
            reorder: Some(self.reorder),
            loss: Some(self.loss.clone()),
            queue_bytes: Some(self.queue_bytes),
            queue_packets: Some(self.queue_packets),
            ecn: Some(self.ecn),
        };
        all.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "rate=1G,packet-rate=2.5k,background=0.02:1M:fixed,delay=50us,jitter=pareto:10us:3,reorder=true,loss=0.01,\
                        loss=0.02:8,queue=64k,queue-packets=65,ecn=time:500us";

    fn applied(text: &str, mut wire: WireConfig) -> WireConfig {
        text.parse::<WireChange>().expect(text).apply(&mut wire);
        wire
    }

    #[test]
    fn a_wire_is_shown_as_it_is_read() {
        let wire = applied(FULL, WireConfig::default());
        assert_eq!(wire.to_string(), FULL);
        let perfect = WireConfig::default();
        assert_eq!(
            perfect.to_string(),
            "rate=none,packet-rate=none,background=none,delay=0s,jitter=none,reorder=false,loss=none,queue=1M,queue-packets=none,\
             ecn=none"
        );
        assert_eq!(applied(&perfect.to_string(), wire), perfect);
    }

    #[test]
    fn unnamed_settings_keep_their_values() {
        let wire = applied(FULL, WireConfig::default());
        for (name, value) in [
            ("rate", "none"),
            ("packet_rate", "none"),
            ("background", "none"),
            ("delay", "none"),
            ("jitter", "none"),
            ("reorder", "false"),
            ("loss", "none"),
            ("queue", "1M"),
            ("queue_packets", "none"),
            ("ecn", "none"),
        ] {
            let mut change = WireChange::default();
            assert!(change.is_empty());
            change.set(name, value).expect(name);
            let mut changed = wire.clone();
            change.apply(&mut changed);
            let parts = |wire: &WireConfig| -> Vec<String> {
                wire.to_string().split(',').map(str::to_owned).collect()
            };
            let now = parts(&changed);
            let gone: Vec<_> = parts(&wire)
                .into_iter()
                .filter(|part| !now.contains(part))
                .collect();
            let expected = name.replace('_', "-");
            assert!(
                gone.iter()
                    .all(|part| part.split('=').next() == Some(&expected)),
                "{gone:?}"
            );
            assert!(!gone.is_empty() && !change.is_empty());
        }
    }

    #[test]
    fn refuses_by_name() {
        for (wrong, said) in [
            (
                "speed=1G",
                "unknown setting `speed`: expected one of rate, packet-rate, background, delay,",
            ),
            ("rate", "`rate`: expected NAME=VALUE"),
            ("", "``: expected NAME=VALUE"),
            ("rate=1G,", "``: expected NAME=VALUE"),
            ("rate=fast", "expected bits per second"),
            ("packet-rate=0", "expected packets per second"),
            ("reorder=maybe", "expected true or false"),
            ("queue-packets=-1", "expected a number of packets"),
            ("queue=none", "expected bytes"),
            ("background=0.5", "background flows `0.5`: expected"),
            ("jitter=normal", "jitter `normal`: expected"),
            ("loss=2", "loss probability 2"),
            ("ecn=5", "ECN threshold `5`"),
        ] {
            let error = wrong.parse::<WireChange>().expect_err(wrong).to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
