//! The chips' limits, from Intel's drivers, published as p4lang's open-p4studio (`bf-drivers`), and from Stratum
//! (`stratum/hal/lib/barefoot`), which lowers some of them.

use crate::v1::MeterConfig;

/// A chip. A device port's number has nine bits: the pipe in the upper two, the local port in the lower seven (`bf_types.h`:
/// `DEV_PORT_TO_PIPE`, `DEV_PORT_TO_LOCAL_PORT`).
#[derive(Debug, PartialEq, Eq)]
pub struct Chip {
    /// The chip's name.
    pub name: &'static str,
    /// Number of pipes of the largest chip of the family.
    pub pipes: u16,
    /// The lowest local port that leads to the front panel.
    pub first: u16,
    /// The highest local port that leads to the front panel.
    pub last: u16,
    /// The recirculation port of pipe 0.
    pub recirculation: u16,
    /// Number of multicast nodes (RIDs of groups) that always fit.
    pub nodes: u32,
    /// The highest id of a clone session, which is a mirror session of the chip.
    pub sessions: u32,
}

/// Local ports of a pipe (`bf_types.h`: `BF_PIPE_PORT_COUNT`).
const PLACES: u16 = 72;
const PIPE_SHIFT: u16 = 7;
const PLACE_MASK: u16 = (1 << PIPE_SHIFT) - 1;

/// Lines of 80 bits in one block of the replication descriptor memory (`mc_mgr_rdm.h`).
const RDM_BLOCK_LINES: u32 = 2048;
/// The most lines that a node takes: one for its RID and one for its ports, in each of four pipes.
const NODE_LINES: u32 = 2 * 4;

/// The most bits of a digest, its members rounded up to whole bytes. A learning quantum has 384 bits on both chips; 8 of them
/// hold the digest's number (p4c's `parde_phv_constraints.cpp`).
pub const MAX_DIGEST_BITS: u32 = 384 - 8;

/// The precision of a chip's meters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterPrecision {
    /// Unit of rates and bursts, in bytes per second and bytes.
    pub step: u32,
    /// Bits of a rate's mantissa.
    pub rate_bits: u32,
    /// Bits of a burst's mantissa.
    pub burst_bits: u32,
}

/// The precision of both chips' meters. Stratum converts to kilobits, 125 bytes each (`BytesPerSecondToKbits`). A rate has a
/// mantissa of nine bits, a burst of eight (`pipe_mgr_meter_drv_workflows.c`).
pub const METER: MeterPrecision = MeterPrecision {
    step: 125,
    rate_bits: 9,
    burst_bits: 8,
};

/// Tofino. Local ports 0 to 63 of a pipe lead to the front panel, in quads. 64 to 67 are the CPU's MAC in pipe 0, 68 to 71
/// recirculate (`lld_sku.c`; Stratum's `kTnaRecirculationPortBase`).
pub const TOFINO: Chip = Chip {
    name: "tofino",
    pipes: 4,
    first: 0,
    last: 63,
    recirculation: 68,
    // `TOF_MC_MGR_RDM_BLK_COUNT`.
    nodes: 204 * RDM_BLOCK_LINES / NODE_LINES,
    // Stratum's `kMaxCloneSessionId`.
    sessions: 1015,
};

/// Tofino 2. Local ports 8 to 71 of a pipe lead to the front panel, in octets. Those below are PCIe, the CPU's MAC and
/// recirculation (`port_mgr_tof2_map.c`).
pub const TOFINO2: Chip = Chip {
    name: "tofino2",
    pipes: 4,
    first: 8,
    last: 71,
    recirculation: 6,
    // `TOF2_MC_MGR_RDM_BLK_COUNT`.
    nodes: 256 * RDM_BLOCK_LINES / NODE_LINES,
    // `MirrorId_t` has eight bits (p4c's `tofino2_specs.p4`).
    sessions: 255,
};

/// Returns the pipe of a device port.
pub const fn pipe_of(port: u16) -> u16 {
    port >> PIPE_SHIFT
}

/// Why a device port cannot have a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// The port is in a pipe that the chip does not have.
    #[error("device port {port} is in pipe {pipe}, expected pipe 0 to {}", pipes - 1)]
    NoPipe {
        /// The device port.
        port: u16,
        /// The port's pipe.
        pipe: u16,
        /// Number of pipes.
        pipes: u16,
    },
    /// The port does not lead to the front panel.
    #[error(
        "device port {port} is port {place} of pipe {pipe}, expected a front-panel port, {first} to {last} of each pipe"
    )]
    Internal {
        /// The device port.
        port: u16,
        /// The port's pipe.
        pipe: u16,
        /// The local port.
        place: u16,
        /// The lowest local port of the front panel.
        first: u16,
        /// The highest local port of the front panel.
        last: u16,
    },
}

impl Chip {
    /// Checks that a device port leads to the front panel.
    ///
    /// # Errors
    /// It does not.
    pub fn check_front_panel(&self, port: u16) -> Result<(), PortFault> {
        let &Chip {
            pipes, first, last, ..
        } = self;
        let (pipe, place) = (pipe_of(port), port & PLACE_MASK);
        match place {
            _ if pipe >= pipes => Err(PortFault::NoPipe { port, pipe, pipes }),
            place if (first..=last).contains(&place) => Ok(()),
            _ => Err(PortFault::Internal {
                port,
                pipe,
                place,
                first,
                last,
            }),
        }
    }

    /// True if packets can be sent to a device port: to the front panel, to the CPU, or to recirculation.
    pub fn has_port(&self, port: u16) -> bool {
        pipe_of(port) < self.pipes && port & PLACE_MASK < PLACES
    }

    /// Returns the end of the range of device ports.
    pub fn ports_end(&self) -> u16 {
        self.pipes << PIPE_SHIFT
    }
}

impl MeterPrecision {
    /// Returns the configuration that a meter keeps after a write of `config`.
    pub fn kept(&self, config: &MeterConfig) -> MeterConfig {
        let kept = |value: i64, bits: u32| {
            // Servers reject negative values.
            let told = value.unsigned_abs();
            let told = told - told % u64::from(self.step);
            let beyond = (u64::BITS - told.leading_zeros()).saturating_sub(bits);
            (told >> beyond << beyond) as i64
        };
        MeterConfig {
            cir: kept(config.cir, self.rate_bits),
            cburst: kept(config.cburst, self.burst_bits),
            pir: kept(config.pir, self.rate_bits),
            pburst: kept(config.pburst, self.burst_bits),
            ..*config
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_recirculation_ports_are_rejected() {
        assert_eq!(TOFINO.check_front_panel(0), Ok(()));
        assert_eq!(TOFINO.check_front_panel(3 << 7 | 63), Ok(()));
        // The CPU's MAC in pipe 0, recirculation in pipe 1, a fifth pipe.
        for (port, text) in [
            (
                64,
                "device port 64 is port 64 of pipe 0, expected a front-panel port, 0 to 63 of each pipe",
            ),
            (
                196,
                "device port 196 is port 68 of pipe 1, expected a front-panel port, 0 to 63 of each pipe",
            ),
            (512, "device port 512 is in pipe 4, expected pipe 0 to 3"),
        ] {
            let fault = TOFINO.check_front_panel(port).unwrap_err();
            assert_eq!(fault.to_string(), text);
        }
        assert_eq!(TOFINO2.check_front_panel(8), Ok(()));
        assert_eq!(TOFINO2.check_front_panel(128 | 71), Ok(()));
        for port in [0, 7, 128, 72, 127] {
            assert!(TOFINO2.check_front_panel(port).is_err(), "{port}");
        }
        for chip in [TOFINO, TOFINO2] {
            assert!(chip.has_port(chip.recirculation));
            assert!(chip.check_front_panel(chip.recirculation).is_err());
            assert!(!chip.has_port(72) && !chip.has_port(512));
        }
    }

    #[test]
    fn meters_keep_leading_bits_of_kilobits() {
        let told = |rate, burst| MeterConfig {
            cir: rate,
            cburst: burst,
            pir: rate,
            pburst: burst,
            ..MeterConfig::default()
        };
        // 1,000 bytes are 8 kilobits. The remainder is lost, then the bits that do not fit the mantissa.
        let kept = METER.kept(&told(1_124, 1_249));
        assert_eq!((kept.cir, kept.cburst), (1_000, 1_120));
        let kept = METER.kept(&told(0x1FF00_u64 as i64, 11_875_000_000));
        assert_eq!(kept.cir, 0x1FE00);
        assert_eq!(kept.pburst >> 26, 11_875_000_000 >> 26);
        assert_eq!(kept.pburst % (1 << 26), 0);
    }
}
