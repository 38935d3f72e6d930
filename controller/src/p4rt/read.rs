//! Reads a switch's entities.

use tonic::Code;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{CloneSessionEntry, DigestEntry, Entity, MulticastGroupEntry};
use ultima_planner::reconcile::Held;

use super::client::SwitchClient;
use super::error::RpcError;

/// Reads all reconciled entities of `client`'s switch: the program's tables, groups, clone
/// sessions, digests and meters. Entities of other programs cannot exist, because a new program
/// clears the switch.
///
/// # Errors
/// A call fails.
pub async fn read(client: &SwitchClient, names: &Names) -> Result<Held, RpcError> {
    let tables = names.tables.iter().map(|table| table.all_entries().into());
    let meters = names.meters.iter().map(|meter| meter.cells().into());
    let replication = [
        Entity::from(MulticastGroupEntry::default()),
        Entity::from(CloneSessionEntry::default()),
    ];
    let wanted = tables.chain(meters).chain(replication);
    let mut held = Held::default();
    held.extend(client.read(wanted.collect()).await?);
    for digest in names.digests.iter() {
        let asked = DigestEntry {
            digest_id: digest.id,
            ..Default::default()
        };
        match client.read(vec![asked.into()]).await {
            Ok(read) => held.extend(read),
            // The answer for a digest without a subscription. BMv2 cannot read all digests at once.
            Err(RpcError::Status(status)) if status.code() == Code::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}
