//! The transport's policies, as arguments name them.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ultima_host::Timeouts;

pub fn timeouts() -> impl TypedValueParser<Value = Timeouts> {
    named(&Timeouts::ALL, Timeouts::name)
}

/// One of `all`, by its name.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|value| name(*value))).map(move |given| {
        let found = all.iter().find(|value| name(**value) == given);
        *found.expect("a possible value")
    })
}
