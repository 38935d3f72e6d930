//! Protobuf's text format, in which p4c writes P4Info (`*.p4info.txtpb`).
//!
//! It reads and prints every message of this crate, by the embedded descriptors. It reads an `Any` in the form
//! `[URL] { fields }` if the message is one of this crate, and prints an `Any` by its fields `type_url` and `value`.

use crate::FILE_DESCRIPTOR_SET;
use miette::Diagnostic as _;
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage};
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::sync::LazyLock;

/// Deepest nesting of messages that the parser accepts. It recurses once per level. The binary decoder has the same limit.
const MAX_DEPTH: usize = 100;

/// Why a text is not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text breaks the format or does not fit the message.
    #[error("line {line}, column {column}: {reason} (reading {message} in protobuf text format)")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The problem.
        reason: String,
        /// Full name of the message that was expected.
        message: String,
    },
    /// Messages are nested deeper than any P4 program needs.
    #[error("line {line}: messages are nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// Line, from 1.
        line: usize,
    },
}

/// Reads a message in text format.
///
/// ```
/// use ultima_p4runtime::{config::v1::P4Info, text};
/// let p4info: P4Info = text::parse(r#"pkg_info { arch: "v1model" }"#)?;
/// assert_eq!(p4info.pkg_info.unwrap().arch, "v1model");
/// # Ok::<(), text::TextError>(())
/// ```
///
/// # Errors
/// [`TextError`], with the place, when the text breaks the format, names a field that the message
/// does not have, or gives a value that the field cannot hold.
pub fn parse<M: Message + Name + Default>(text: &str) -> Result<M, TextError> {
    check_depth(text)?;
    let descriptor = descriptor::<M>();
    let dynamic = DynamicMessage::parse_text_format(descriptor, text).map_err(|error| {
        // Errors at the end of the input carry no place.
        let offset = error
            .labels()
            .and_then(|mut l| l.next())
            .map_or(text.len(), |l| l.offset());
        let (line, column) = place(text, offset);
        TextError::Syntax {
            line,
            column,
            reason: error.to_string(),
            message: M::full_name(),
        }
    })?;
    Ok(dynamic
        .transcode_to()
        .expect("both follow the same descriptor"))
}

/// Prints a message in text format, one field per line. Equal messages print equally.
pub fn print<M: Message + Name>(message: &M) -> String {
    let mut dynamic = DynamicMessage::new(descriptor::<M>());
    dynamic
        .transcode_from(message)
        .expect("both follow the same descriptor");
    let options = prost_reflect::text_format::FormatOptions::new()
        .pretty(true)
        .expand_any(false);
    let mut text = dynamic.to_text_format_with_options(&options);
    text.push('\n');
    text
}

fn descriptor<M: Name>() -> prost_reflect::MessageDescriptor {
    POOL.get_message_by_name(&M::full_name())
        .expect("every message here has a descriptor")
}

/// The crate's descriptors with maps as repeated entries: a `DynamicMessage` keeps lists in order, but not maps.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut files =
        FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("written by the build script");
    for file in &mut files.file {
        file.message_type
            .iter_mut()
            .for_each(map_entries_to_messages);
    }
    DescriptorPool::from_file_descriptor_set(files).expect("compiled by the build script")
});

fn map_entries_to_messages(message: &mut DescriptorProto) {
    if let Some(options) = &mut message.options {
        options.map_entry = None;
    }
    message
        .nested_type
        .iter_mut()
        .for_each(map_entries_to_messages);
}

/// Returns the line and column of a byte offset, both from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// Rejects text whose nesting would exhaust the recursive parser's stack. Braces in strings and comments do not nest.
fn check_depth(text: &str) -> Result<(), TextError> {
    let mut depth = 0usize;
    let mut line = 1;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\n' => line += 1,
            b'{' | b'<' | b'[' => depth += 1,
            b'}' | b'>' | b']' => depth = depth.saturating_sub(1),
            b'#' if bytes.by_ref().any(|b| b == b'\n') => line += 1,
            // A string ends on its line; otherwise the parser reports an error.
            quote @ (b'"' | b'\'') => {
                while let Some(b) = bytes.next() {
                    match b {
                        b'\\' => drop(bytes.next()),
                        b'\n' => {
                            line += 1;
                            break;
                        }
                        b if b == quote => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(TextError::TooDeep { line });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::v1::{P4Info, P4StructTypeSpec, P4TypeInfo, PkgInfo, Preamble, Table};
    use crate::{rpc, v1};

    #[test]
    fn printed_text_reads_back() {
        let structs = ["zeta", "alpha", "mid"].map(|n| (n.into(), P4StructTypeSpec::default()));
        let p4info = P4Info {
            pkg_info: Some(PkgInfo {
                name: "quote \" and \\ and é\n".into(),
                ..Default::default()
            }),
            tables: vec![Table {
                preamble: Some(Preamble {
                    id: 33_554_433,
                    name: "I.t".into(),
                    ..Default::default()
                }),
                size: -1,
                other_properties: Some(
                    prost_types::Any::from_msg(&v1::Uint128 { high: 1, low: 2 }).unwrap(),
                ),
                ..Default::default()
            }],
            type_info: Some(P4TypeInfo {
                structs: structs.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let text = print(&p4info);
        assert_eq!(parse::<P4Info>(&text), Ok(p4info.clone()));
        assert_eq!(print(&p4info), text);
        assert!(text.find("alpha") < text.find("mid") && text.find("mid") < text.find("zeta"));
    }

    #[test]
    fn bytes_and_any_survive() {
        let error = v1::Error {
            canonical_code: 5,
            message: "no such entry".into(),
            ..Default::default()
        };
        let status = rpc::Status {
            code: 2,
            details: vec![prost_types::Any::from_msg(&error).unwrap()],
            ..Default::default()
        };
        let expanded = r#"code: 2 details {
            [type.googleapis.com/p4.v1.Error] { canonical_code: 5 message: "no such entry" }
        }"#;
        assert_eq!(parse::<rpc::Status>(&print(&status)), Ok(status.clone()));
        assert_eq!(parse::<rpc::Status>(expanded), Ok(status));

        let every_byte = v1::PacketOut {
            payload: (0..=255).collect(),
            ..Default::default()
        };
        assert_eq!(parse::<v1::PacketOut>(&print(&every_byte)), Ok(every_byte));
    }

    #[test]
    fn errors_have_line_and_column() {
        let wrong_field = "# P4Info\ntables {\n  preamble { id: 1 }\n  sise: 3\n}\n";
        let error = parse::<P4Info>(wrong_field).unwrap_err().to_string();
        assert!(
            error.starts_with("line 4, column 3: ") && error.contains("sise"),
            "{error}"
        );

        let cut = "tables {\n  size: 3\n";
        let error = parse::<P4Info>(cut).unwrap_err().to_string();
        assert!(error.starts_with("line 3, column 1: "), "{error}");
    }

    #[test]
    fn deep_nesting_is_rejected_and_braces_in_strings_do_not_nest() {
        let deep = "type_info: { new_types: { value: ".repeat(100_000);
        assert_eq!(parse::<P4Info>(&deep), Err(TextError::TooDeep { line: 1 }));

        let braces = "{".repeat(200);
        let text = format!("# {braces}\npkg_info {{ name: \"\\\"{braces}\" version: '{braces}' }}");
        assert_eq!(
            parse::<P4Info>(&text).unwrap().pkg_info.unwrap().version,
            braces
        );
    }
}
