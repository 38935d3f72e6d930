//! Options that select policies of the transport by name.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ultima_host::{
    Config, Element, Estimation, GatherStart, IncastPolicy, LossDetection, Policies, Preset,
    RatePolicy, Timeouts,
};

/// The options of a rank's policies, which all commands share.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct PolicyOptions {
    /// Policies to start from: Ultima's (adaptive), or OptiReduce's for comparison (published: learned timeouts, no
    /// detection of losses, TIMELY, scaled estimates). The options below replace one each
    #[arg(long, value_name = "NAME", default_value = Preset::default().name(), value_parser = presets())]
    pub preset: Preset,
    /// Time limits of an operation: fixed, learned as in OptiReduce (published), or learned from the causes of loss
    /// (cause-aware). Learned ones never exceed the deadline [default: of --preset]
    #[arg(long, value_name = "POLICY", value_parser = timeouts())]
    pub timeouts: Option<Timeouts>,
    /// Adaptation of a limited rate: none (fixed), by round-trip time (timely), or by queueing time that switches report
    /// (in-band) [default: of --preset]
    #[arg(long, value_name = "POLICY", value_parser = rates())]
    pub rate_control: Option<RatePolicy>,
    /// Number of ranks that may send to one rank at a time: all, dynamic (adapts to loss), or 1 to 15 [default: of
    /// --preset]
    #[arg(long, value_name = "POLICY", value_parser = incast)]
    pub incast: Option<IncastPolicy>,
    /// Estimate of a slot if contributions are missing: mean of those that arrived (arrived-mean), or scaled by the loss
    /// as in OptiReduce (scaled), which excludes recycling [default: of --preset]
    #[arg(long, value_name = "POLICY", value_parser = estimators())]
    pub estimator: Option<Estimation>,
}

impl PolicyOptions {
    /// The policies.
    pub fn policies(&self) -> Policies {
        let preset = self.preset.policies();
        Policies {
            timeouts: self.timeouts.unwrap_or(preset.timeouts),
            rate: self.rate_control.unwrap_or(preset.rate),
            incast: self.incast.unwrap_or(preset.incast),
            estimation: self.estimator.unwrap_or(preset.estimation),
            ..preset
        }
    }
}

/// Parses the name of a preset.
fn presets() -> impl TypedValueParser<Value = Preset> {
    named(&Preset::ALL, Preset::name)
}

/// Parses the name of a timeout policy.
fn timeouts() -> impl TypedValueParser<Value = Timeouts> {
    named(&Timeouts::ALL, Timeouts::name)
}

/// Parses a deadline factor, a multiple of an AllReduce's usual time.
pub fn deadline_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok();
    let max = Config::MAX_DEADLINE_FACTOR;
    factor
        .filter(|factor| Config::is_deadline_factor(*factor))
        .ok_or_else(|| format!("expected a multiple of the usual time, 1 to {max}"))
}

/// Parses the name of an element type on the wire.
pub fn elements() -> impl TypedValueParser<Value = Element> {
    named(&Element::ALL, Element::name)
}

/// Parses the name of an estimator.
fn estimators() -> impl TypedValueParser<Value = Estimation> {
    named(&Estimation::ALL, Estimation::name)
}

/// Parses the name of a rate policy.
fn rates() -> impl TypedValueParser<Value = RatePolicy> {
    named(&RatePolicy::ALL, RatePolicy::name)
}

/// Parses the name of a loss-detection mode.
pub fn loss_detection() -> impl TypedValueParser<Value = LossDetection> {
    named(&LossDetection::ALL, LossDetection::name)
}

/// Parses the name of a gather start.
pub fn gather_starts() -> impl TypedValueParser<Value = GatherStart> {
    named(&GatherStart::ALL, GatherStart::name)
}

/// `all`, `dynamic` or a number of senders.
pub fn incast(text: &str) -> Result<IncastPolicy, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(IncastPolicy::All),
        ("dynamic", _) => Ok(IncastPolicy::Dynamic),
        (_, Ok(senders @ 1..=IncastPolicy::MOST)) => Ok(IncastPolicy::Fixed(senders)),
        _ => Err(format!(
            "expected all, dynamic, or a number of senders from 1 to {}",
            IncastPolicy::MOST
        )),
    }
}

/// The inverse of [`incast`].
pub fn incast_text(policy: IncastPolicy) -> String {
    match policy {
        IncastPolicy::All => "all".to_owned(),
        IncastPolicy::Dynamic => "dynamic".to_owned(),
        IncastPolicy::Fixed(senders) => senders.to_string(),
    }
}

/// A parser that accepts the names of `all`.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|value| name(*value))).map(move |given| {
        let found = all.iter().find(|value| name(**value) == given);
        *found.expect("a possible value")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        policies: PolicyOptions,
    }

    #[test]
    fn an_option_replaces_one_policy_of_the_preset() {
        let policies = |arguments: &[&str]| {
            let arguments = ["command"].iter().chain(arguments);
            let command = <Command as clap::Parser>::try_parse_from(arguments);
            command.expect("valid arguments").policies.policies()
        };
        assert_eq!(policies(&[]), Preset::Adaptive.policies());
        let published = Preset::Published.policies();
        assert_eq!(policies(&["--preset", "published"]), published);
        let fixed = Policies {
            timeouts: Timeouts::Fixed,
            incast: IncastPolicy::All,
            ..published
        };
        let given = [
            "--preset",
            "published",
            "--timeouts",
            "fixed",
            "--incast",
            "all",
        ];
        assert_eq!(policies(&given), fixed);
    }

    #[test]
    fn incasts() {
        assert_eq!(incast("all"), Ok(IncastPolicy::All));
        assert_eq!(incast("dynamic"), Ok(IncastPolicy::Dynamic));
        assert_eq!(incast("15"), Ok(IncastPolicy::Fixed(15)));
        for text in ["all", "dynamic", "15"] {
            assert_eq!(incast(text).map(incast_text).as_deref(), Ok(text));
        }
        for wrong in ["", "0", "16", "some", "-1"] {
            assert!(incast(wrong).is_err(), "{wrong}");
        }
    }
}
