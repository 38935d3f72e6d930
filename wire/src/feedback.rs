//! FEEDBACK's payload: a receiver's report to senders.

use crate::Ticks;

/// The remaining wait of a rank, and the queues on the paths to it.
///
/// Queue and shares cover the SCATTER and GATHER packets of all sources since the rank's last report: these
/// share its own link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feedback {
    /// The time that the sender will still wait for the operation.
    pub wait: Ticks,
    /// Mean time of packets in their slowest queue. None without packets or stamps.
    pub queue: Option<Ticks>,
    /// The share of packets with CE, in 255ths, rounded up.
    pub marked: u8,
    /// The share of packets with TRIMMED, in 255ths, rounded up.
    pub trimmed: u8,
    /// True for a notice: all of the sender's SCATTER of the operation is sent, and with LAST all of its
    /// GATHER. False for a report that says nothing about sent packets.
    pub notice: bool,
}

impl Feedback {
    /// Bytes of the payload.
    pub const LEN: usize = 12;

    /// Parses a FEEDBACK's payload. None if it is too short.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let &[w0, w1, w2, w3, q0, q1, q2, q3, marked, trimmed, notice, _] =
            payload.first_chunk::<{ Feedback::LEN }>()?;
        let queue = Ticks(u32::from_be_bytes([q0, q1, q2, q3]));
        Some(Self {
            wait: Ticks(u32::from_be_bytes([w0, w1, w2, w3])),
            queue: (queue != Ticks::MAX).then_some(queue),
            marked,
            trimmed,
            notice: notice == 1,
        })
    }

    /// Writes it to the front of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Feedback::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let [w0, w1, w2, w3] = self.wait.0.to_be_bytes();
        let [q0, q1, q2, q3] = self.queue.unwrap_or(Ticks::MAX).0.to_be_bytes();
        let (marked, trimmed, notice) = (self.marked, self.trimmed, self.notice.into());
        buf[..Self::LEN]
            .copy_from_slice(&[w0, w1, w2, w3, q0, q1, q2, q3, marked, trimmed, notice, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_lines_can_be_read() {
        let feedback = Feedback {
            wait: Ticks(0x0102_0304),
            queue: Some(Ticks(0x0506_0708)),
            marked: 9,
            trimmed: 10,
            notice: true,
        };
        let mut bytes = [0xff; Feedback::LEN + 1];
        feedback.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 0, 0xff]);
        assert_eq!(Feedback::parse(&bytes), Some(feedback));
        for short in 0..Feedback::LEN {
            assert_eq!(Feedback::parse(&bytes[..short]), None);
        }
        let unknown = Feedback {
            queue: None,
            notice: false,
            ..feedback
        };
        unknown.emit(&mut bytes);
        assert_eq!(bytes[4..8], [0xff; 4]);
        assert_eq!(Feedback::parse(&bytes), Some(unknown));
    }
}
