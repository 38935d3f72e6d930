//! What a switch has counted for a job.

use std::collections::HashMap;

use ultima_p4::names::counter;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{Entity, entity};

use crate::api;
use crate::job::CounterIndex;
use crate::p4rt::{RpcError, SwitchClient};
use crate::plan::{CounterCell, SchemaError};

/// The cells to read for the job whose counts stand at `index`.
pub fn cells(names: &Names, index: CounterIndex) -> Result<Vec<Entity>, SchemaError> {
    let cell = |CounterCell { counter, index }| Ok(names.counter(counter)?.cell(index.into())?.into());
    CounterCell::of_job(index).map(cell).collect()
}

/// Reads `cells` from one switch.
pub async fn read(
    client: &SwitchClient,
    names: &Names,
    cells: Vec<Entity>,
) -> Result<api::SwitchCounters, RpcError> {
    let mut counts: HashMap<&str, api::Count> = HashMap::new();
    for read in client.read(cells).await? {
        let Some(entity::Entity::CounterEntry(entry)) = read.entity else {
            continue;
        };
        if let Some(counter) = names.counters.by_id(entry.counter_id) {
            let data = entry.data.unwrap_or_default();
            // The protocol's numbers are signed and never negative.
            let [packets, bytes] = [data.packet_count, data.byte_count]
                .map(|count| u64::try_from(count).unwrap_or_default());
            counts.insert(counter.name.as_str(), api::Count { packets, bytes });
        }
    }
    let mut count = |name| Some(counts.remove(name).unwrap_or_default());
    Ok(api::SwitchCounters {
        switch: client.device().name.clone(),
        received: count(counter::RECEIVED),
        rejected: count(counter::REJECTED),
        replicated: count(counter::REPLICATED),
        unicast: count(counter::UNICAST),
        delivered: count(counter::DELIVERED),
        own_copy: count(counter::OWN_COPY),
        unknown_rank: count(counter::UNKNOWN_RANK),
        reflected: count(counter::REFLECTED),
        late: count(counter::LATE),
        trimmed: count(counter::TRIMMED),
        cut_sealed: count(counter::CUT_SEALED),
    })
}
