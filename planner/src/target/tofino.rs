//! Tofino and Tofino 2 behind Stratum or another P4Runtime server on the SDE. The chips' numbers
//! are in [`ultima_p4runtime::tofino`].

use ultima_p4::names::cut;
use ultima_p4runtime::tofino::{self, Chip, MAX_DIGEST_BITS, METER};

use super::{
    Digests, FrontPanelPorts, Limits, MeterGrain, PortNumber, Ports, ProgramForm, Speed, Target,
};

/// Groups and RIDs have 16 bits. Group 0 is reserved, and every rank has its own RID.
const fn limits(chip: &Chip) -> Limits {
    Limits {
        groups: u16::MAX as u32,
        group_replicas: u16::MAX as u32,
        nodes: chip.nodes,
    }
}

/// Truncation to *n* bits loses less than 2 to the minus (*n* − 1) of a number.
const METERS: MeterGrain = MeterGrain {
    step: METER.step,
    rate_bits: METER.rate_bits - 1,
    burst_bits: Some(METER.burst_bits - 1),
};

/// Stratum reads back only a subscription's maximum timeout, acknowledges lists itself and does not
/// bound their length (`BfrtTableManager::ReadDigestEntry`, `WriteDigestEntry`).
const DIGESTS: Digests = Digests {
    max_bits: Some(MAX_DIGEST_BITS),
    keeps_list_and_ack: false,
};

/// Packets of the loss session are already trimmed, at most behind digest and tag, and carry the
/// loss report in front.
const LOSS_BYTES: u16 = cut::SEALED_BYTES;

/// Tofino. The loss session's egress port is the recirculation port of pipe 0.
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

/// Tofino 2. A connector has eight lanes; ports of up to 100G take as many as NRZ needs.
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
