//! Digest entries and acknowledgements (P4Runtime §9.8).

use ultima_p4runtime::v1::digest_entry::Config;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{DigestEntry, P4Data, P4StructLike};

use super::edit::Edit;
use super::query::{Query, Row};
use crate::digests::DigestConfig;
use crate::target::Refusal;
use ultima_engine::DigestValue;

/// Converts a digest's value to a message (§8.4.3).
pub(super) fn message(value: DigestValue) -> P4Data {
    let members = |values: Vec<DigestValue>| P4StructLike {
        members: values.into_iter().map(message).collect(),
    };
    let data = match value {
        DigestValue::Bits(bytes) => Data::Bitstring(bytes),
        DigestValue::Bool(value) => Data::Bool(value),
        DigestValue::EnumValue(bytes) => Data::EnumValue(bytes),
        DigestValue::Enum(name) => Data::Enum(name),
        DigestValue::Error(name) => Data::Error(name),
        DigestValue::Struct(values) => Data::Struct(members(values)),
        DigestValue::Tuple(values) => Data::Tuple(members(values)),
    };
    P4Data { data: Some(data) }
}

pub(super) fn write(kind: UpdateType, entry: &DigestEntry) -> Result<Edit, Refusal> {
    let (id, config) = (entry.digest_id, config(entry));
    Edit::new(move |pipeline| match kind {
        UpdateType::Insert => pipeline.digests.enable(id, config?),
        UpdateType::Modify => pipeline.digests.configure(id, config?),
        _ => pipeline.digests.disable(id),
    })
}

/// Reads an entry's configuration. A missing one means all zeros (§8.1).
fn config(entry: &DigestEntry) -> Result<DigestConfig, Refusal> {
    let config = entry.config.unwrap_or_default();
    let negative =
        |name: &str, value: i64| Refusal::invalid(format!("digest: {name} {value} is negative"));
    let nanos = |value: i64, name| u64::try_from(value).map_err(|_| negative(name, value));
    Ok(DigestConfig {
        max_timeout: nanos(config.max_timeout_ns, "max_timeout_ns")?,
        max_list_size: usize::try_from(config.max_list_size)
            .map_err(|_| negative("max_list_size", config.max_list_size.into()))?,
        ack_timeout: nanos(config.ack_timeout_ns, "ack_timeout_ns")?,
    })
}

/// Converts the configuration of an enabled digest to a message.
pub(super) fn entry(digest_id: u32, config: DigestConfig) -> DigestEntry {
    // They were signed when they were written.
    let config = Some(Config {
        max_timeout_ns: config.max_timeout as i64,
        max_list_size: config.max_list_size as i32,
        ack_timeout_ns: config.ack_timeout as i64,
    });
    DigestEntry { digest_id, config }
}

/// Reads an enabled digest, or all of them with id 0.
pub(super) fn read(id: u32) -> Query {
    Box::new(move |pipeline, _, found| {
        let digests = &pipeline.digests;
        match id {
            0 => found.extend(
                digests
                    .enabled()
                    .map(|(id, config)| Row::Digest(id, config)),
            ),
            id => found.push(Row::Digest(id, digests.get(id)?)),
        }
        Ok(())
    })
}
