//! What the YAML reader says, in words for those who write files.

use std::borrow::Cow;

use serde_yaml::{Error, MessageFormatter, UserMessageFormatter};

/// Says what is wrong in YAML's words (list, text, fields) instead of those of the reader and of Rust's types; the rest as the reader says it
/// to users.
pub(super) struct Words;

impl MessageFormatter for Words {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::Eof { .. } => "it ends where a value is expected".into(),
            Error::MultipleDocuments { .. } => {
                "a second document begins, where the file is to be one".into()
            }
            Error::Unexpected { expected, .. } => match *expected {
                "sequence start" => {
                    "expected a list, such as [a, b], or a line with `- ` for each".into()
                }
                "mapping start" => "expected fields, such as { name: value }".into(),
                "scalar" | "string scalar" => {
                    "expected one value, no list and no fields; text that begins with [ or { is quoted"
                        .into()
                }
                _ => UserMessageFormatter.format_message(error),
            },
            Error::NullIntoString { .. } => "expected a text, and nothing is there".into(),
            Error::InvalidScalar { ty, .. } => format!("expected {}", kind(ty)).into(),
            Error::InvalidBooleanStrict { .. } => "expected true or false".into(),
            Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
            | Error::ExpectedStringKeyForExternallyTaggedEnum { .. }
            | Error::UnexpectedValueForUnitEnumVariant { .. }
            | Error::ExpectedMappingEndAfterEnumVariantValue { .. } => "expected one word".into(),
            Error::SerdeUnknownVariant {
                variant, expected, ..
            } => format!("`{variant}` is unknown, expected one of {}", expected.join(", ")).into(),
            Error::DuplicateMappingKey { key, .. } => match key {
                Some(key) => format!("`{key}` stands here twice").into(),
                None => "a field stands here twice".into(),
            },
            Error::UnknownAnchor { .. } => "no such anchor stands before it".into(),
            Error::Budget { .. } => "there is too much in it, or it is nested too deeply".into(),
            _ => UserMessageFormatter.format_message(error),
        }
    }
}

/// What a type of Rust's is called, of those that forms have.
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
