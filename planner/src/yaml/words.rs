//! The YAML reader's messages, in the words of YAML.

use std::borrow::Cow;

use serde_yaml::{Error, MessageFormatter, UserMessageFormatter};

/// Replaces the reader's messages that use its own terms or Rust's type names. Other messages stay
/// as the reader prints them for users.
pub(super) struct Words;

impl MessageFormatter for Words {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::Eof { .. } => "the file ends where a value is expected".into(),
            Error::MultipleDocuments { .. } => {
                "a second document begins; the file must have one".into()
            }
            Error::Unexpected { expected, .. } => match *expected {
                "sequence start" => {
                    "expected a list, such as [a, b], or a line with `- ` for each".into()
                }
                "mapping start" => "expected fields, such as { name: value }".into(),
                "scalar" | "string scalar" => {
                    "expected one value, not a list or fields; quote a text that begins with [ or {"
                        .into()
                }
                _ => UserMessageFormatter.format_message(error),
            },
            Error::NullIntoString { .. } => "expected a text, found nothing".into(),
            Error::InvalidScalar { ty, .. } => format!("expected {}", kind(ty)).into(),
            Error::InvalidBooleanStrict { .. } => "expected true or false".into(),
            Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
            | Error::ExpectedStringKeyForExternallyTaggedEnum { .. }
            | Error::UnexpectedValueForUnitEnumVariant { .. }
            | Error::ExpectedMappingEndAfterEnumVariantValue { .. } => "expected one word".into(),
            Error::SerdeUnknownVariant {
                variant, expected, ..
            } => format!(
                "unknown value `{variant}`, expected one of {}",
                expected.join(", ")
            )
            .into(),
            Error::DuplicateMappingKey { key, .. } => match key {
                Some(key) => format!("duplicate field `{key}`").into(),
                None => "duplicate field".into(),
            },
            Error::UnknownAnchor { .. } => "unknown anchor; define it before this line".into(),
            Error::Budget { .. } => "the text is too long or nested too deeply".into(),
            _ => UserMessageFormatter.format_message(error),
        }
    }
}

/// The name of a Rust type in messages.
fn kind(of: &str) -> Cow<'_, str> {
    let most = match of {
        "u8" => u64::from(u8::MAX),
        "u16" => u64::from(u16::MAX),
        "u32" => u64::from(u32::MAX),
        "u64" => u64::MAX,
        "floating point" | "f32" | "f64" => return "a number".into(),
        "boolean" | "bool" => return "true or false".into(),
        other => return other.into(),
    };
    format!("a whole number from 0 to {most}").into()
}
