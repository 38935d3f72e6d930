//! Delivers the forwarding thread's messages to primary controllers.

use super::Service;
use crate::notify::Notifications;
use crate::translate::{self, packet_in};

/// Runs until the forwarding thread ends.
pub(crate) async fn deliver(service: Service, mut queues: Notifications) {
    let tallies = &service.tallies;
    loop {
        tokio::select! {
            biased;
            Some((event, made)) = queues.events.recv() => {
                let tally = event.tally(tallies);
                let message = translate::event(event, made);
                tally.count(message.is_some_and(|message| service.notify(message)));
            }
            Some(packet) = queues.packets.recv() => {
                let sent = packet_in(packet).is_some_and(|message| service.notify(message));
                tallies.packet_ins.count(sent);
            }
            else => return,
        }
    }
}
