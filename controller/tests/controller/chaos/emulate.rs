//! The requests that an emulated Tofino rejects, and the fields that it does not keep.

use tonic::Status;
use ultima_emulation::Tofino;
use ultima_p4runtime::tofino::TofinoProgram;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type;
use ultima_p4runtime::v1::{
    self, Entity, MulticastGroupEntry, SetForwardingPipelineConfigRequest, Update, entity, update,
};
use ultima_switch::engine::Replica;
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
    let held = state.held.values().filter_map(|held| match &held.entity {
        Some(entity::Entity::PacketReplicationEngineEntry(entry)) => match &entry.r#type {
            Some(Type::MulticastGroupEntry(other)) => Some(other),
            _ => None,
        },
        _ => None,
    });
    let id = group.multicast_group_id;
    let others = held.filter(|other| other.multicast_group_id != id);
    let others: Vec<_> = others
        .map(|other| (other.multicast_group_id, replicas(other)))
        .collect();
    let mut others = others.iter().map(|(id, replicas)| (*id, &replicas[..]));
    match kind {
        update::Type::Delete => Ok(()),
        _ => tofino.check_room(&mut others, (id, &replicas(group))),
    }
}

/// The replicas of a group of the controller, whose ports are small numbers.
fn replicas(group: &MulticastGroupEntry) -> Vec<Replica> {
    let replica = |message: &v1::Replica| {
        let replica = ultima_p4runtime::replication::Replica::try_from(message).expect("valid");
        Replica {
            port: replica.port.try_into().expect("a port"),
            rid: message.instance.try_into().expect("an egress_rid"),
        }
    };
    group.replicas.iter().map(replica).collect()
}
