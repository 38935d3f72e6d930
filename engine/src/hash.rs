//! The hash and checksum algorithms of v1model, by their names in p4c's output.

use crc::{CRC_16_ARC, CRC_16_IBM_3740, CRC_32_ISO_HDLC, Crc, Table};

use super::error::LoadError;
use super::value::word_of;

static CRC16: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_ARC);
static CRC_CCITT: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_IBM_3740);
static CRC32: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISO_HDLC);

/// An algorithm from bytes to at most 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// The Internet checksum (RFC 1071): complement of the one's complement sum.
    Csum16,
    /// CRC-16/ARC.
    Crc16,
    /// CRC-16 with the CCITT polynomial, starting at 0xffff.
    CrcCcitt,
    /// CRC-32 of Ethernet.
    Crc32,
    /// Exclusive or of 16-bit words.
    Xor16,
    /// Exclusive or of 32-bit words.
    Xor32,
    /// The first eight bytes.
    Identity,
}

impl Algorithm {
    /// The algorithm of a name. The `_custom` ones are what they are in BMv2 until its Thrift
    /// interface, which this switch does not have, gives them other parameters.
    pub fn named(name: &str, at: &str) -> Result<Algorithm, LoadError> {
        Ok(match name {
            "csum16" | "cksum16" => Algorithm::Csum16,
            "crc16" | "crc16_custom" => Algorithm::Crc16,
            "crcCCITT" => Algorithm::CrcCcitt,
            "crc32" | "crc32_custom" => Algorithm::Crc32,
            "xor16" => Algorithm::Xor16,
            "xor32" => Algorithm::Xor32,
            "identity" => Algorithm::Identity,
            other => {
                return Err(LoadError::unsupported(
                    format!("hash algorithm {other}"),
                    at,
                ));
            }
        })
    }

    pub fn hash(self, bytes: &[u8]) -> u64 {
        match self {
            Algorithm::Csum16 => u64::from(csum16(sum16(bytes))),
            Algorithm::Crc16 => u64::from(CRC16.checksum(bytes)),
            Algorithm::CrcCcitt => u64::from(CRC_CCITT.checksum(bytes)),
            Algorithm::Crc32 => u64::from(CRC32.checksum(bytes)),
            Algorithm::Xor16 => words::<2>(bytes).fold(0, |sum, word| sum ^ word),
            Algorithm::Xor32 => words::<4>(bytes).fold(0, |sum, word| sum ^ word),
            Algorithm::Identity => word_of(&bytes[..bytes.len().min(8)]),
        }
    }
}

/// Big-endian words of `N` bytes, the last one padded with zeros at its end.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .chunks(N)
        .map(|chunk| word_of(chunk) << (8 * (N - chunk.len())))
}

/// The sum that the Internet checksum of some bytes folds ([`csum16`]). The sum of pieces of even length is the sum of their
/// sums.
pub fn sum16(bytes: &[u8]) -> u64 {
    // A frame has fewer than 2^16 words of 32 bits, so the sum cannot overflow.
    let (whole, rest) = bytes.as_chunks::<4>();
    let whole = whole
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)));
    let rest = match *rest {
        [] => 0,
        [a, b] => u64::from(u32::from_be_bytes([a, b, 0, 0])),
        _ => words::<4>(rest).sum(),
    };
    whole.sum::<u64>() + rest
}

/// The Internet checksum with this sum (RFC 1071).
pub fn csum16(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &str, bytes: &[u8]) -> u64 {
        Algorithm::named(name, "t").unwrap().hash(bytes)
    }

    #[test]
    fn check_values() {
        // The check values that CRC catalogues give for this input.
        let digits = b"123456789";
        assert_eq!(hash("crc16", digits), 0xbb3d);
        assert_eq!(hash("crc32", digits), 0xcbf43926);
        assert_eq!(hash("crcCCITT", digits), 0x29b1);
        assert_eq!(hash("xor16", &[0x12, 0x34, 0x56]), 0x1234 ^ 0x5600);
        assert_eq!(hash("xor32", &[1, 2, 3, 4, 5]), 0x0102_0304 ^ 0x0500_0000);
        assert_eq!(hash("identity", &[1, 2, 3]), 0x010203);
        assert_eq!(hash("identity", &[1; 9]), 0x0101_0101_0101_0101);
    }

    #[test]
    fn internet_checksum_of_the_rfc() {
        // RFC 1071 §3: these bytes sum to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(hash("csum16", &bytes), !0xddf2 & 0xffff);
        assert_eq!(hash("csum16", &[]), 0xffff);
        assert_eq!(hash("csum16", &[0xff; 65_535]), !0xff00 & 0xffff);
    }

    #[test]
    fn unknown_algorithms_are_refused() {
        assert!(Algorithm::named("toeplitz", "calculation c").is_err());
    }
}
