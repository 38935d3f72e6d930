//! Tofino and Tofino 2 behind Stratum, or another P4Runtime server on the SDE. The chips' numbers are
//! [`ultima_p4runtime::tofino`]'s.

use ultima_p4::names::cut;
use ultima_p4runtime::tofino::{self, Chip, MAX_DIGEST_BITS, METER};

use super::{
    Digests, FrontPanelPorts, Limits, MeterGrain, PortNumber, Ports, ProgramForm, Speed, Target,
};

/// Groups and RIDs have 16 bits: 0 is no group, and every rank has a RID of its own.
const fn limits(chip: &Chip) -> Limits {
    Limits {
        groups: u16::MAX as u32,
        group_replicas: u16::MAX as u32,
        nodes: chip.nodes,
    }
}

/// A number that is cut to so many bits loses less than 2 to the minus one less of it.
const METERS: MeterGrain = MeterGrain {
    step: METER.step,
    rate_bits: METER.rate_bits - 1,
    burst_bits: Some(METER.burst_bits - 1),
};

/// Stratum reads back of a subscription how long digests wait, acknowledges lists itself and has no bound of their length
/// (`BfrtTableManager::ReadDigestEntry`, `WriteDigestEntry`).
const DIGESTS: Digests = Digests {
    max_bits: Some(MAX_DIGEST_BITS),
    keeps_list_and_ack: false,
};

/// What goes there has been cut before, behind digest and tag at the most, and has what it tells in front.
const LOSS_BYTES: u16 = cut::SEALED_BYTES;

/// Tofino. The session by which egress tells of losses leads to pipe 0's recirculation port.
pub const TOFINO: Target = Target {
    name: tofino::TOFINO.name,
    program: ProgramForm::Tofino,
    ports: Ports::FrontPanel(FrontPanelPorts {
        chip: &tofino::TOFINO,
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
    limits: limits(&tofino::TOFINO),
    meters: METERS,
    digests: DIGESTS,
    sessions: tofino::TOFINO.sessions,
    loss_session: PortNumber(tofino::TOFINO.recirculation),
    loss_bytes: Some(LOSS_BYTES),
    line_rate_queues: true,
};

/// Tofino 2. A connector has eight lanes; ports of up to 100G take those that NRZ needs.
pub const TOFINO2: Target = Target {
    name: tofino::TOFINO2.name,
    program: ProgramForm::Tofino2,
    ports: Ports::FrontPanel(FrontPanelPorts {
        chip: &tofino::TOFINO2,
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
    limits: limits(&tofino::TOFINO2),
    meters: METERS,
    digests: DIGESTS,
    sessions: tofino::TOFINO2.sessions,
    loss_session: PortNumber(tofino::TOFINO2.recirculation),
    loss_bytes: Some(LOSS_BYTES),
    line_rate_queues: true,
};
