//! REPORT's payload: a switch's reply to a PROBE.

/// The first bytes of a REPORT, which a switch makes of a PROBE: counters of the port on which it arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// The switch's port, which is the requester's.
    pub port: u16,
    /// True if the switch still counts the operation in the PROBE. If false, the counts are 0.
    pub known: bool,
    /// Data packets of the operation that left the port, including those without payload.
    pub sent: u32,
    /// Those whose payload was removed because the port's queue was full.
    pub trimmed: u32,
    /// Those whose payload was removed because their budget was used up.
    pub late: u32,
    /// The requester's packets of any kind that were lost between the requester and the switch.
    pub upstream_lost: u32,
}

impl Report {
    /// Bytes of the report, for which a PROBE leaves room.
    pub const LEN: usize = 20;

    /// Parses a report from the front of a REPORT's payload. None if it is too short.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<{ Report::LEN }>()?;
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Self {
            port: u16_at(0),
            known: u16_at(2) == 1,
            sent: u32_at(4),
            trimmed: u32_at(8),
            late: u32_at(12),
            upstream_lost: u32_at(16),
        })
    }

    /// Writes it to the front of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Report::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0..2].copy_from_slice(&self.port.to_be_bytes());
        buf[2..4].copy_from_slice(&u16::from(self.known).to_be_bytes());
        let counts = [self.sent, self.trimmed, self.late, self.upstream_lost];
        for (place, count) in buf[4..Self::LEN].chunks_exact_mut(4).zip(counts) {
            place.copy_from_slice(&count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_lines_can_be_read() {
        let report = Report {
            port: 3,
            known: true,
            sent: 0x0102_0304,
            trimmed: 0x0506_0708,
            late: 0x090a_0b0c,
            upstream_lost: 0x0d0e_0f10,
        };
        let mut bytes = [0; Report::LEN + 1];
        report.emit(&mut bytes);
        let expected = [
            0, 3, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(Report::parse(&bytes), Some(report));
        assert_eq!(Report::parse(&bytes[..Report::LEN - 1]), None);
    }
}
