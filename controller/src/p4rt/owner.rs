//! The store that a switch's jobs belong to. A controller writes its store's id into the field `metadata` of each entry of the
//! table of jobs, which a P4Runtime server keeps and returns unread (§9.1), and leaves jobs of another store alone.

use tonic::Status;
use tonic::transport::Channel;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    Entity, ReadRequest, TableEntry, Update, entity,
    get_forwarding_pipeline_config_request::ResponseType, update,
};

use super::program;

/// The most jobs that a switch can have: their ids have 16 bits.
const MOST: usize = 1 << 16;

/// A controller's store, as switches know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The store's id.
    pub store: u64,
    /// True if the store never had a job, so that no job on a switch can be its own.
    pub is_new: bool,
    /// True to remove the jobs of another store.
    pub takes_over: bool,
    /// The cookie of the program.
    pub cookie: u64,
    /// The id of the program's table of jobs.
    pub table: u32,
}

/// The reads before a client asks to be primary. Each protects the contents that another client has put on the switch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checks {
    /// Leaves a switch with jobs of another store than this owner's to its primary.
    pub owner: Option<Owner>,
    /// Leaves a switch with a [foreign](program::foreign) program to its primary, unless the program has this cookie.
    pub cookie: Option<u64>,
}

impl Owner {
    /// Marks the jobs in these updates as this store's.
    pub(super) fn mark(&self, updates: &mut [Update]) {
        for update in updates {
            let writes = update.r#type() != update::Type::Delete;
            let entity = update.entity.as_mut().and_then(|it| it.entity.as_mut());
            if let Some(entity::Entity::TableEntry(row)) = entity
                && writes
                && row.table_id == self.table
            {
                row.metadata = self.store.to_be_bytes().to_vec();
            }
        }
    }

    /// The job that a switch returned, if it is marked as another store's.
    pub fn foreign<'a>(&self, entity: &'a Entity) -> Option<&'a TableEntry> {
        let is_marked = |row: &TableEntry| store_of(row).is_some_and(|it| it != self.store);
        self.job(entity).filter(|row| is_marked(row))
    }

    fn job<'a>(&self, entity: &'a Entity) -> Option<&'a TableEntry> {
        match entity.entity.as_ref()? {
            entity::Entity::TableEntry(row) if row.table_id == self.table => Some(row),
            _ => None,
        }
    }

    /// Counts the jobs of other stores on a switch, which needs no primary role. Jobs without a mark belong to another store
    /// if this one is new: the switch does not keep `metadata`.
    pub(super) async fn count_foreign(
        &self,
        rpc: &mut P4RuntimeClient<Channel>,
        device_id: u64,
    ) -> Result<usize, Status> {
        let config = program::read(rpc, device_id, ResponseType::CookieOnly).await?;
        let cookie = config.and_then(|config| config.cookie);
        if cookie.is_none_or(|it| it.cookie != self.cookie) {
            return Ok(0);
        }
        let rows = TableEntry {
            table_id: self.table,
            ..Default::default()
        };
        let request = ReadRequest {
            device_id,
            entities: vec![rows.into()],
            ..Default::default()
        };
        let mut responses = rpc.read(request).await?.into_inner();
        let mut count = 0;
        while let Some(response) = responses.message().await? {
            let jobs = response.entities.iter().filter_map(|it| self.job(it));
            let is_foreign = |row: &&TableEntry| match store_of(row) {
                Some(store) => store != self.store,
                None => self.is_new,
            };
            count += jobs.filter(is_foreign).count();
            if count > MOST {
                break;
            }
        }
        Ok(count)
    }
}

/// The store that marked a job; none if the job has no mark.
fn store_of(row: &TableEntry) -> Option<u64> {
    let mark = <[u8; 8]>::try_from(&*row.metadata);
    mark.ok().map(u64::from_be_bytes)
}
