//! The wiring of known boards: which device port is behind which connector of the front panel. It
//! differs between boards, and between chips on the same board.

use super::{TOFINO, TOFINO2, Target};

/// A board with known wiring. Connectors count from 1; channel *n* of a connector is *n* device
/// ports after its first.
#[derive(Debug)]
pub struct Board {
    /// The name in fabric files.
    pub name: &'static str,
    /// The chip.
    pub target: &'static Target,
    /// The first device port of each connector.
    pub first_ports: &'static [u16],
}

/// The known boards; for each chip, the usual one first. The first ports are computed from the MAC
/// block of each connector and the device port of each MAC block (open-p4studio:
/// `bf_switchd/accton_wedge_*_port_map.json`, `lld_sku.c`; the 65X's wiring from Stratum's
/// `config/x86-64-accton-wedge100bf-65x-r0/port_map.json`). The 32X is listed twice because its
/// chip is sold with either half of its MACs; on the usual one, connector 1 is device port 132.
pub const BOARDS: &[Board] = &[
    Board {
        name: "wedge100bf-32x",
        target: &TOFINO,
        first_ports: &[
            132, 140, 148, 156, 164, 172, 180, 188, 56, 48, 40, 32, 24, 16, 8, 0, // 1 to 16
            4, 12, 20, 28, 36, 44, 52, 60, 184, 176, 168, 160, 144, 152, 128, 136,
        ],
    },
    Board {
        name: "wedge100bf-32x-odd",
        target: &TOFINO,
        first_ports: &[
            128, 136, 144, 152, 160, 168, 176, 184, 60, 52, 44, 36, 28, 20, 12, 4, // 1 to 16
            0, 8, 16, 24, 32, 40, 48, 56, 188, 180, 172, 164, 148, 156, 132, 140,
        ],
    },
    Board {
        name: "wedge100bf-65x",
        target: &TOFINO,
        first_ports: &[
            188, 184, 180, 176, 172, 168, 164, 160, 156, 152, 148, 144, 140, 136, 132,
            128, // 1 to 16
            0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, // 17 to 32
            284, 280, 276, 272, 268, 264, 260, 256, 316, 312, 308, 304, 300, 296, 292,
            288, // 33 to 48
            416, 420, 424, 428, 432, 436, 440, 444, 384, 388, 392, 396, 400, 404, 408, 412,
        ],
    },
    Board {
        name: "tofino2-32x400g",
        target: &TOFINO2,
        first_ports: &[
            136, 144, 152, 160, 168, 176, 184, 192, 320, 312, 304, 296, 288, 280, 272,
            264, // 1 to 16
            400, 392, 416, 408, 432, 424, 448, 440, 56, 64, 40, 48, 24, 32, 8, 16,
        ],
    },
];
