//! The v1model architecture, as in BMv2's `simple_switch_grpc` and the embedded switch.

use ultima_p4::names::loss;

use super::{Digests, Limits, MeterGrain, PortNumber, Ports, ProgramForm, Target};

/// The v1model target.
///
/// Ports have 9 bits. 0 is excluded because an unset port in a message reads as 0; 510 is the port
/// of the loss session (`names::loss::SESSION_PORT`), 511 the drop port. The limits of groups and
/// nodes are BMv2's defaults (`bm_sim/simple_pre.h`: `DEFAULT_MGID_TABLE_SIZE`,
/// `DEFAULT_L1_MAX_ENTRIES`), which only a recompilation changes; the limit of a group's replicas
/// is the embedded switch's (`engine::Limits`), which is lower. BMv2 keeps a meter's rate as
/// floating-point bytes per microsecond and reads it back rounded.
pub const V1MODEL: Target = Target {
    name: "v1model",
    program: ProgramForm::Bmv2,
    ports: Ports::Flat {
        first: 1,
        last: 509,
    },
    limits: Limits {
        groups: 4096,
        group_replicas: 1024,
        nodes: 4096,
    },
    meters: MeterGrain {
        step: 1,
        rate_bits: 20,
        burst_bits: None,
    },
    digests: Digests {
        max_bits: None,
        keeps_list_and_ack: true,
    },
    // `mirror_session_id` of BMv2's `clone` has 15 bits.
    sessions: (1 << 15) - 1,
    loss_session: PortNumber(loss::SESSION_PORT),
    loss_bytes: None,
    line_rate_queues: false,
};
