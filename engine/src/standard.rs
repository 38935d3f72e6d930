//! The fields that v1model's architecture reads and writes, with simple_switch's meaning.

use super::bits::{Place, Slot, set_word_at};
use super::error::LoadError;
use super::json;
use super::layout::Layout;
use super::phv::Phv;

/// The port that drops (simple_switch's default).
pub(super) const DROP_PORT: u16 = 511;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstanceType {
    Normal = 0,
    IngressClone = 1,
    EgressClone = 2,
    Recirculated = 4,
    Replica = 5,
    Resubmitted = 6,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    Absent,
    /// A machine word; the mask has the field's bits.
    Word(u16, u64),
    Slot(Slot),
}

impl Field {
    fn of_slot(slot: Slot) -> Field {
        match slot.place() {
            Some(Place::Word(at)) => Field::Word(at, u64::MAX >> (64 - slot.width)),
            _ => Field::Slot(slot),
        }
    }

    #[inline(always)]
    pub fn set(self, phv: &mut Phv, value: u64) {
        match self {
            Field::Absent => {}
            Field::Word(at, mask) => set_word_at(phv.near(), at, value & mask),
            Field::Slot(slot) => slot.store_word(&mut phv.bytes, value),
        }
    }

    /// Zero if the program does not have it.
    #[inline(always)]
    pub fn get(self, phv: &Phv) -> u64 {
        match self {
            Field::Absent => 0,
            Field::Word(at, mask) => phv.word(at) & mask,
            Field::Slot(slot) => slot.load_word(&phv.bytes),
        }
    }
}

#[derive(Debug)]
pub(super) struct Standard {
    pub ingress_port: Field,
    pub egress_spec: Field,
    pub egress_port: Field,
    pub instance_type: Field,
    pub packet_length: Field,
    pub parser_error: Field,
    pub checksum_error: Field,
    pub mcast_grp: Field,
    pub egress_rid: Field,
    pub ingress_global_timestamp: Field,
    pub egress_global_timestamp: Field,
    pub priority: Field,
    pub enq_timestamp: Field,
    pub enq_qdepth: Field,
    pub deq_timedelta: Field,
    pub deq_qdepth: Field,
    pub qid: Field,
}

impl Standard {
    pub fn new(program: &json::Program, layout: &Layout) -> Result<Standard, LoadError> {
        // p4c marks the target's fields by aliases.
        let find = |header: &str, field: &str| {
            let name = format!("{header}.{field}");
            let alias = program
                .field_aliases
                .iter()
                .find(|(alias, _)| *alias == name);
            let slot = match alias {
                Some((_, (header, field))) => layout.field_if_any(header, field),
                None => layout.field_if_any(header, field),
            };
            let slot = slot.filter(|slot| slot.width <= 64);
            slot.map(Field::of_slot)
        };
        let required = |field: &str| {
            let found = find("standard_metadata", field);
            LoadError::found(found, "field", field, "standard_metadata")
        };
        let standard = |field: &str| find("standard_metadata", field).unwrap_or(Field::Absent);
        let intrinsic = |field: &str| find("intrinsic_metadata", field).unwrap_or(Field::Absent);
        let queueing = |field: &str| find("queueing_metadata", field).unwrap_or(Field::Absent);
        Ok(Standard {
            ingress_port: required("ingress_port")?,
            egress_spec: required("egress_spec")?,
            egress_port: required("egress_port")?,
            instance_type: required("instance_type")?,
            packet_length: required("packet_length")?,
            parser_error: standard("parser_error"),
            checksum_error: standard("checksum_error"),
            mcast_grp: intrinsic("mcast_grp"),
            egress_rid: intrinsic("egress_rid"),
            ingress_global_timestamp: intrinsic("ingress_global_timestamp"),
            egress_global_timestamp: intrinsic("egress_global_timestamp"),
            priority: intrinsic("priority"),
            enq_timestamp: queueing("enq_timestamp"),
            enq_qdepth: queueing("enq_qdepth"),
            deq_timedelta: queueing("deq_timedelta"),
            deq_qdepth: queueing("deq_qdepth"),
            qid: queueing("qid"),
        })
    }
}
