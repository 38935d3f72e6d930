//! The requests that an emulated Tofino rejects, and the fields that it does not keep.

use tonic::Status;
use ultima_emulation::Tofino;
use ultima_p4runtime::tofino::TofinoProgram;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type;
use ultima_p4runtime::v1::{Entity, SetForwardingPipelineConfigRequest, Update, entity, update};
use ultima_switch::target::{Refusal, Target as _};

use super::State;
use crate::target::Target;

fn status(refusal: Refusal) -> Status {
    Status::new(refusal.code, refusal.to_string())
}

pub fn check_read(target: Target, wanted: &Entity) -> Result<(), Status> {
    match (target.chip(), &wanted.entity) {
        (Some(chip), Some(wanted)) => Tofino(chip).check_read(wanted).map_err(status),
        _ => Ok(()),
    }
}

pub fn check_pipeline(
    target: Target,
    request: &SetForwardingPipelineConfigRequest,
) -> Result<(), Status> {
    let Some(config) = request.config.as_ref().filter(|_| target == Target::Tofino) else {
        return Ok(());
    };
    let program = TofinoProgram::unpack(&config.p4_device_config);
    program
        .map(|_| ())
        .map_err(|error| Status::invalid_argument(error.to_string()))
}

pub fn admit(target: Target, state: &State, update: &mut Update) -> Result<(), Refusal> {
    let kind = update.r#type();
    let (
        Some(chip),
        Some(Entity {
            entity: Some(entity),
        }),
    ) = (target.chip(), &mut update.entity)
    else {
        return Ok(());
    };
    let tofino = Tofino(chip);
    tofino.admit(kind, entity)?;
    let entity::Entity::PacketReplicationEngineEntry(entry) = entity else {
        return Ok(());
    };
    let Some(Type::MulticastGroupEntry(group)) = &entry.r#type else {
        return Ok(());
    };
    let mut groups = state.held.values().filter_map(|held| match &held.entity {
        Some(entity::Entity::PacketReplicationEngineEntry(entry)) => match &entry.r#type {
            Some(Type::MulticastGroupEntry(group)) => Some(group),
            _ => None,
        },
        _ => None,
    });
    match kind {
        update::Type::Delete => Ok(()),
        _ => tofino.check_room(&mut groups, group),
    }
}
