//! Asking a switch what it holds.

use tonic::Code;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{CloneSessionEntry, DigestEntry, Entity, MulticastGroupEntry};

use super::held::Held;
use crate::p4rt::{RpcError, SwitchClient};

/// All that `client`'s switch holds that a reconciliation is about: every table of the program, groups, clone sessions,
/// digests and meters. Other programs' things it cannot have: a new program empties the switch.
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
            // BMv2 says so of a digest that nobody has subscribed to; and it can't read all of them at once.
            Err(RpcError::Status(status)) if status.code() == Code::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}
