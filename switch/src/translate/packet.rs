//! Messages of controllers' streams: packets, digest lists, idle-timeout notifications (P4Runtime §16).

use std::time::Duration;

use ultima_p4runtime::v1::stream_message_response::Update as Response;
use ultima_p4runtime::v1::{self, DigestList, IdleTimeoutNotification, PacketMetadata, PacketOut};

use super::digests::message as digest_message;
use super::query::EntryRow;
use super::table_entry::idle_entry;
use crate::notify::{Event, PacketIn};
use crate::port::mmsg::MAX_FRAME;
use crate::target::Refusal;
use ultima_engine::ControllerHeaders;

/// Returns the frame of a packet-out, with its metadata in front.
pub(crate) fn packet_out(
    headers: &ControllerHeaders,
    packet: &PacketOut,
) -> Result<Vec<u8>, Refusal> {
    let values = packet.metadata.iter();
    let values = values.map(|value| (value.metadata_id, value.value.as_slice()));
    let mut frame = Vec::new();
    let written = headers.packet_out.write(values, &mut frame);
    written.map_err(|error| {
        let Refusal { code, message } = error.into();
        Refusal::new(code, format!("packet-out: {message}"))
    })?;
    frame.extend_from_slice(&packet.payload);
    match frame.len() {
        0..=MAX_FRAME => Ok(frame),
        bytes => Err(Refusal::invalid(format!(
            "packet-out: {bytes} bytes with its header, expected at most {MAX_FRAME}"
        ))),
    }
}

/// Converts a packet. Returns `None` for a frame that is shorter than its program's header.
pub(crate) fn packet_in(packet: PacketIn) -> Option<Response> {
    let (values, payload) = packet.headers.packet_in.read(&packet.frame)?;
    let metadata = values
        .into_iter()
        .map(|(metadata_id, value)| PacketMetadata { metadata_id, value });
    Some(Response::Packet(v1::PacketIn {
        payload: payload.to_vec(),
        metadata: metadata.collect(),
    }))
}

/// Converts an event. Returns `None` for a digest that its program does not have.
pub(crate) fn event(event: Event, made: Duration) -> Option<Response> {
    let timestamp = i64::try_from(made.as_nanos()).unwrap_or(i64::MAX);
    match event {
        Event::Digests { list, digests } => {
            let digest = digests.iter().find(|digest| digest.id() == list.digest)?;
            let data = list.messages.iter();
            let data = data.map(|values| digest_message(digest.value(values)));
            Some(Response::Digest(DigestList {
                digest_id: list.digest,
                list_id: list.id,
                data: data.collect(),
                timestamp,
            }))
        }
        Event::Idle(entries) => {
            let entry = |(table, view)| {
                idle_entry(EntryRow {
                    table,
                    is_default: false,
                    view,
                })
            };
            Some(Response::IdleTimeoutNotification(IdleTimeoutNotification {
                table_entry: entries.into_iter().map(entry).collect(),
                timestamp,
            }))
        }
    }
}
