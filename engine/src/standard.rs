//! The fields that v1model's architecture reads and writes, with simple_switch's meaning.

use super::bits::Slot;
use super::error::LoadError;
use super::json;
use super::layout::Layout;
use super::phv::Phv;

/// The port that drops (simple_switch's default).
pub(super) const DROP_PORT: u16 = 511;

/// `standard_metadata.instance_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstanceType {
    Normal = 0,
    IngressClone = 1,
    EgressClone = 2,
    Recirculated = 4,
    Replica = 5,
    Resubmitted = 6,
}

/// A field that a program may not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Optional(Option<Slot>);

impl Optional {
    #[inline]
    pub fn set(self, phv: &mut Phv, value: u64) {
        if let Some(slot) = self.0 {
            slot.store_word(&mut phv.bytes, value);
        }
    }

    /// Zero if the program does not have it.
    pub fn get(self, phv: &Phv) -> u64 {
        self.0.map_or(0, |slot| slot.load(&phv.bytes) as u64)
    }
}

#[derive(Debug)]
pub(super) struct Standard {
    pub ingress_port: Slot,
    pub egress_spec: Slot,
    pub egress_port: Slot,
    pub instance_type: Slot,
    pub packet_length: Slot,
    pub parser_error: Optional,
    pub checksum_error: Optional,
    pub mcast_grp: Optional,
    pub egress_rid: Optional,
    pub ingress_global_timestamp: Optional,
    pub egress_global_timestamp: Optional,
    pub priority: Optional,
    pub enq_timestamp: Optional,
    pub enq_qdepth: Optional,
    pub deq_timedelta: Optional,
    pub deq_qdepth: Optional,
    pub qid: Optional,
}

impl Standard {
    pub fn new(program: &json::Program, layout: &Layout) -> Result<Standard, LoadError> {
        // p4c tells by aliases which of its fields are the target's.
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
            slot.filter(|slot| slot.is_narrow())
        };
        let required = |field: &str| {
            find("standard_metadata", field).ok_or_else(|| {
                LoadError::malformed(format!("there is no field {field}"), "standard_metadata")
            })
        };
        let standard = |field: &str| Optional(find("standard_metadata", field));
        let intrinsic = |field: &str| Optional(find("intrinsic_metadata", field));
        let queueing = |field: &str| Optional(find("queueing_metadata", field));
        let found = Standard {
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
        };
        let known = KNOWN_ALIASES;
        let alias = program
            .field_aliases
            .iter()
            .find(|(alias, _)| !known.contains(&&**alias));
        match alias {
            Some((alias, _)) => Err(LoadError::unsupported(
                format!("field alias {alias}"),
                "field_aliases",
            )),
            None => Ok(found),
        }
    }
}

/// What a program may alias. `lf_field_list`, `resubmit_flag` and `recirculate_flag` are what
/// older compilers kept of requests that primitives make now; nothing reads them.
const KNOWN_ALIASES: [&str; 13] = [
    "intrinsic_metadata.egress_global_timestamp",
    "intrinsic_metadata.egress_rid",
    "intrinsic_metadata.ingress_global_timestamp",
    "intrinsic_metadata.lf_field_list",
    "intrinsic_metadata.mcast_grp",
    "intrinsic_metadata.priority",
    "intrinsic_metadata.recirculate_flag",
    "intrinsic_metadata.resubmit_flag",
    "queueing_metadata.deq_qdepth",
    "queueing_metadata.deq_timedelta",
    "queueing_metadata.enq_qdepth",
    "queueing_metadata.enq_timestamp",
    "queueing_metadata.qid",
];
