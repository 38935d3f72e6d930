//! Tofino and Tofino 2 behind Stratum.
//!
//! Numbers are those of Intel's own drivers, published as p4lang's open-p4studio (`bf-drivers`), and of Stratum
//! (`stratum/hal/lib/barefoot`), which limits some further.

use super::{
    Digests, FrontPanelPorts, Limits, MeterGrain, PortNumber, Ports, ProgramForm, Speed, Target,
};

/// Groups: ids have 16 bits, and 0 is none (`bf_types.h`: `BF_MGID_COUNT`; Stratum's `kMaxMulticastGroupId`).
const GROUPS: u32 = u16::MAX as u32;
/// RIDs have 16 bits, and a rank has one of its own.
const GROUP_REPLICAS: u32 = u16::MAX as u32;
/// Lines of 80 bits in one block of the replication descriptor memory (`mc_mgr_rdm.h`).
const RDM_BLOCK_LINES: u32 = 2048;
/// What a node takes of them at the most: one for its RID and one for its ports, in each of four pipes. One whose ports are in one
/// pipe takes two, so that more may fit than the limit says, never fewer.
const NODE_LINES: u32 = 2 * 4;

/// Meters: Stratum tells the SDE kilobits, 125 bytes each (`BytesPerSecondToKbits`). The chip's own rates have nine
/// bits and an exponent, bursts eight and one of at most 31 (`pipe_mgr_meter_drv_workflows.c`), so that
/// a number that is rounded down is within 2^-8 and 2^-7 of what it was.
const METERS: MeterGrain = MeterGrain {
    step: 125,
    rate_bits: 8,
    burst_bits: Some(7),
};

/// Digests: a learning quantum has 384 bits on both chips (p4c's `parde_phv_constraints.h`). Stratum reads back of a
/// subscription how long digests wait, acknowledges lists itself and has no bound of their length
/// (`BfrtTableManager::ReadDigestEntry`, `WriteDigestEntry`).
const DIGESTS: Digests = Digests {
    max_bits: Some(384),
    keeps_list_and_ack: false,
};

/// Tofino: places 0 to 63 of a pipe are the front panel's, in quads; 64 to 67 are the CPU's MAC in pipe 0, 68 to 71
/// recirculate (`lld_sku.c`; Stratum's `kTnaRecirculationPortBase`). The session by which egress tells of losses leads to pipe 0's recirculation port.
pub const TOFINO: Target = Target {
    name: "tofino",
    program: ProgramForm::Tofino,
    ports: Ports::FrontPanel(FrontPanelPorts {
        pipes: 4,
        first: 0,
        last: 63,
        lanes: 4,
        speeds: &[
            (Speed::G1, 1),
            (Speed::G10, 1),
            (Speed::G25, 1),
            (Speed::G40, 4),
            (Speed::G50, 2),
            (Speed::G100, 4),
        ],
        usual_speed: Speed::G100,
    }),
    limits: Limits {
        groups: GROUPS,
        group_replicas: GROUP_REPLICAS,
        // `TOF_MC_MGR_RDM_BLK_COUNT`.
        nodes: 204 * RDM_BLOCK_LINES / NODE_LINES,
    },
    meters: METERS,
    digests: DIGESTS,
    loss_session: PortNumber(68),
    line_rate_queues: true,
};

/// Tofino 2: places 8 to 71 of a pipe are the front panel's, in octets; those below are PCIe, the CPU's MAC and
/// recirculation (`port_mgr_tof2_map.c`). A connector has eight lanes; ports of up to 100G take those that NRZ needs.
pub const TOFINO2: Target = Target {
    name: "tofino2",
    program: ProgramForm::Tofino2,
    ports: Ports::FrontPanel(FrontPanelPorts {
        pipes: 4,
        first: 8,
        last: 71,
        lanes: 8,
        speeds: &[
            (Speed::G1, 1),
            (Speed::G10, 1),
            (Speed::G25, 1),
            (Speed::G40, 4),
            (Speed::G50, 2),
            (Speed::G100, 4),
            (Speed::G200, 4),
            (Speed::G400, 8),
        ],
        usual_speed: Speed::G100,
    }),
    limits: Limits {
        groups: GROUPS,
        group_replicas: GROUP_REPLICAS,
        // `TOF2_MC_MGR_RDM_BLK_COUNT`.
        nodes: 256 * RDM_BLOCK_LINES / NODE_LINES,
    },
    meters: METERS,
    digests: DIGESTS,
    loss_session: PortNumber(6),
    line_rate_queues: true,
};
