//! Delivers the forwarding thread's messages to primary controllers.

use std::time::Duration;

use ultima_p4runtime::v1::stream_message_response::Update as Response;
use ultima_p4runtime::v1::{self, PacketMetadata};

use super::{Service, digests};
use crate::digests::DigestList;
use crate::engine::Digest;
use crate::notify::{Event, Notifications, PacketIn};

/// Runs until the forwarding thread ends.
pub(crate) async fn deliver(service: Service, queues: Notifications) {
    let Notifications {
        mut packets,
        mut events,
    } = queues;
    let tallies = &service.tallies;
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => {
                let (message, tally) = match event {
                    Event::Digests { list, made, digests } => {
                        (digest_list(list, made, &digests), &tallies.digest_lists)
                    }
                    Event::Idle(idle) => {
                        (Some(Response::IdleTimeoutNotification(idle)), &tallies.idle_timeouts)
                    }
                };
                tally.count(message.is_some_and(|message| service.notify(message)));
            }
            Some(packet) = packets.recv() => {
                // A frame shorter than its program's header cannot be told to anybody.
                let sent = packet_in(packet).is_some_and(|message| service.notify(message));
                tallies.packet_ins.count(sent);
            }
            else => return,
        }
    }
}

fn digest_list(list: DigestList, made: Duration, digests: &[Digest]) -> Option<Response> {
    let digest = digests.iter().find(|digest| digest.id() == list.digest)?;
    let data = list.messages.iter();
    let data = data.map(|values| digests::message(digest.value(values)));
    Some(Response::Digest(v1::DigestList {
        digest_id: list.digest,
        list_id: list.id,
        data: data.collect(),
        timestamp: i64::try_from(made.as_nanos()).unwrap_or(i64::MAX),
    }))
}

fn packet_in(packet: PacketIn) -> Option<Response> {
    let (values, payload) = packet.headers.packet_in.read(&packet.frame)?;
    let metadata = values
        .into_iter()
        .map(|(metadata_id, value)| PacketMetadata { metadata_id, value });
    Some(Response::Packet(v1::PacketIn {
        payload: payload.to_vec(),
        metadata: metadata.collect(),
    }))
}
