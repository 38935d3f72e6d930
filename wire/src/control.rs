//! CONTROL's payload: messages between members of a job, outside the collective.

/// A check packet, which shows whether a path works. Padding in the payload gives the packet the length to
/// test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    /// The round of the packet.
    pub token: u32,
    /// True if it was sent to the job's group, false if to one rank.
    pub by_group: bool,
}

impl Check {
    /// Bytes of a check packet's payload without padding.
    pub const LEN: usize = 8;

    /// The first byte of its payload.
    const MESSAGE: u8 = 1;

    /// Parses a payload. None if it is not a check packet's.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let &[message, by_group, _, _, a, b, c, d] = payload.first_chunk()?;
        (message == Self::MESSAGE && by_group <= 1).then_some(Self {
            token: u32::from_be_bytes([a, b, c, d]),
            by_group: by_group == 1,
        })
    }

    /// Writes the payload to `buf` and fills the rest with zeros as padding.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Check::LEN`]: the caller sizes its buffers.
    pub fn emit(&self, buf: &mut [u8]) {
        let [a, b, c, d] = self.token.to_be_bytes();
        let (message, padding) = buf.split_at_mut(Self::LEN);
        message.copy_from_slice(&[Self::MESSAGE, self.by_group.into(), 0, 0, a, b, c, d]);
        padding.fill(0);
    }
}

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Requested {
    /// Aggregates of the receiver's shard: each is sent as a REPAIR.
    Aggregates = 2,
    /// The receiver's contributions to the requester's shard, in an exact operation: each is sent as a
    /// SCATTER.
    Contributions = 3,
}

impl Requested {
    /// From the first byte of a request's payload.
    fn of(message: u8) -> Option<Self> {
        [Requested::Aggregates, Requested::Contributions]
            .into_iter()
            .find(|requested| *requested as u8 == message)
    }
}

/// A request for missing slots. The header names the operation and the number of slots in the owner's shard.
/// The receiver sends each slot that it still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RepairRequest<'a> {
    /// The phase.
    pub of: Requested,
    /// The slot of the bitmap's first bit.
    pub first: u32,
    /// The requested slots, counted from `first`: see [`crate::bitmap`].
    pub wanted: &'a [u8],
}

impl<'a> RepairRequest<'a> {
    /// Bytes before the bitmap.
    pub const PREFIX: usize = 8;

    /// Parses a payload. None if it is not a request.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (&[message, _, _, _, a, b, c, d], wanted) = payload.split_first_chunk()?;
        Some(Self {
            of: Requested::of(message)?,
            first: u32::from_be_bytes([a, b, c, d]),
            wanted,
        })
    }

    /// Writes the payload to the front of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`RepairRequest::PREFIX`] and the bitmap.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let [a, b, c, d] = self.first.to_be_bytes();
        let end = Self::PREFIX + self.wanted.len();
        let (prefix, bitmap) = buf[..end].split_at_mut(Self::PREFIX);
        prefix.copy_from_slice(&[self.of as u8, 0, 0, 0, a, b, c, d]);
        bitmap.copy_from_slice(self.wanted);
        end
    }
}

/// Flow control between a sender and a receiver of SCATTER, GATHER and REPAIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Credit {
    /// From the receiver: the sender may have `window` packets outstanding after `taken`.
    Grant {
        /// The newest sequence number of the addressed rank that this rank has taken from its socket; 0 for none.
        taken: u32,
        /// Packets, 1 or more.
        window: u16,
        /// The number of the addressed rank's packets with a sequence number that have arrived, wrapping.
        arrived: u32,
    },
    /// From a sender without credit: the receiver answers with a grant.
    Request {
        /// The sequence number of the last packet that the sender sent to the receiver; 0 for none.
        last: u32,
    },
}

impl Credit {
    /// Bytes of the longer payload, that of a grant.
    pub const LEN: usize = 12;

    const GRANT: u8 = 4;
    const REQUEST: u8 = 5;

    /// Parses a payload. None if it is neither message.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (&[message, _, w0, w1, a, b, c, d], rest) = payload.split_first_chunk()?;
        let sequence = u32::from_be_bytes([a, b, c, d]);
        let window = u16::from_be_bytes([w0, w1]);
        match message {
            Self::GRANT if window > 0 => Some(Credit::Grant {
                taken: sequence,
                window,
                arrived: u32::from_be_bytes(*rest.first_chunk()?),
            }),
            Self::REQUEST => Some(Credit::Request { last: sequence }),
            _ => None,
        }
    }

    /// Writes the payload to the front of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Credit::LEN`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let (message, window, sequence, arrived) = match *self {
            Credit::Grant {
                taken,
                window,
                arrived,
            } => (Self::GRANT, window, taken, Some(arrived)),
            Credit::Request { last } => (Self::REQUEST, 0, last, None),
        };
        let ([w0, w1], [a, b, c, d]) = (window.to_be_bytes(), sequence.to_be_bytes());
        buf[..8].copy_from_slice(&[message, 0, w0, w1, a, b, c, d]);
        match arrived {
            Some(arrived) => {
                buf[8..Self::LEN].copy_from_slice(&arrived.to_be_bytes());
                Self::LEN
            }
            None => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_comes_back_and_other_messages_are_refused() {
        let mut buf = [0xff; Credit::LEN + 1];
        let grant = Credit::Grant {
            taken: 0x0102_0304,
            window: 0x0506,
            arrived: 0x0708_090a,
        };
        assert_eq!(grant.emit(&mut buf), 12);
        assert_eq!(buf, [4, 0, 5, 6, 1, 2, 3, 4, 7, 8, 9, 10, 0xff]);
        assert_eq!(Credit::parse(&buf), Some(grant));
        assert_eq!(Credit::parse(&buf[..11]), None);
        buf[2..4].fill(0);
        assert_eq!(Credit::parse(&buf), None, "a window of 0");
        let request = Credit::Request { last: 0x0102_0304 };
        assert_eq!(request.emit(&mut buf), 8);
        assert_eq!(buf[..8], [5, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(Credit::parse(&buf[..8]), Some(request));
        assert_eq!(Credit::parse(&buf[..7]), None);
        assert_eq!(Credit::parse(&[6; 8]), None);
    }

    #[test]
    fn requests_come_back_and_other_messages_are_refused() {
        let request = RepairRequest {
            of: Requested::Aggregates,
            first: 0x0102_0304,
            wanted: &[5, 6],
        };
        let mut buf = [0xff; 12];
        assert_eq!(request.emit(&mut buf), 10);
        assert_eq!(buf, [2, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0xff, 0xff]);
        assert_eq!(RepairRequest::parse(&buf[..10]), Some(request));
        let of_contributions = RepairRequest {
            of: Requested::Contributions,
            ..request
        };
        assert_eq!(of_contributions.emit(&mut buf), 10);
        assert_eq!(buf[..8], [3, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(RepairRequest::parse(&buf[..10]), Some(of_contributions));
        assert_eq!(RepairRequest::parse(&buf[..7]), None);
        assert_eq!(RepairRequest::parse(&[4; 10]), None);
        assert_eq!(RepairRequest::parse(&[1; 10]), None);
    }

    #[test]
    fn padding_is_ignored_and_other_messages_are_refused() {
        let check = Check {
            token: 0x0102_0304,
            by_group: true,
        };
        let mut buf = [0xff; 20];
        check.emit(&mut buf);
        assert_eq!(buf[..8], [1, 1, 0, 0, 1, 2, 3, 4]);
        assert_eq!(buf[8..], [0; 12]);
        assert_eq!(Check::parse(&buf), Some(check));
        assert_eq!(Check::parse(&buf[..7]), None);
        buf[1] = 2;
        assert_eq!(Check::parse(&buf), None);
        assert_eq!(Check::parse(&[3, 0, 0, 0, 1, 2, 3, 4]), None);
    }
}
