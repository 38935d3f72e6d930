//! Parsers for options that select a policy of the transport by name.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ultima_host::{Answers, Element, Estimation, GatherStart, IncastPolicy, RatePolicy, Timeouts};

/// Parses the name of a timeout policy.
pub fn timeouts() -> impl TypedValueParser<Value = Timeouts> {
    named(&Timeouts::ALL, Timeouts::name)
}

/// Parses the name of an element type on the wire.
pub fn elements() -> impl TypedValueParser<Value = Element> {
    named(&Element::ALL, Element::name)
}

/// Parses the name of an estimator.
pub fn estimators() -> impl TypedValueParser<Value = Estimation> {
    named(&Estimation::ALL, Estimation::name)
}

/// Parses the name of a rate policy.
pub fn rates() -> impl TypedValueParser<Value = RatePolicy> {
    named(&RatePolicy::ALL, RatePolicy::name)
}

/// Parses the name of a loss-detection mode.
pub fn loss_detection() -> impl TypedValueParser<Value = Answers> {
    named(&Answers::ALL, Answers::name)
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
