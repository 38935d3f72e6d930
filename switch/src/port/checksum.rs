//! The Internet checksum (RFC 1071).

/// A running sum of 16-bit words, in ones' complement.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds bytes as big-endian words; an odd last byte is the high half of a word.
    pub(super) fn add(self, bytes: &[u8]) -> Sum {
        let words = bytes.chunks_exact(2);
        let odd = words
            .remainder()
            .first()
            .map_or(0, |&byte| u64::from(byte) << 8);
        let sum: u64 = words
            .map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        Sum(self.0 + sum + odd)
    }

    /// Adds one word.
    pub(super) fn add_word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word))
    }

    /// The checksum: the folded sum's complement.
    pub(super) fn checksum(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_example() {
        // RFC 1071 §3: the words 0001 f203 f4f5 f6f7 add up to ddf2.
        let sum = Sum::default().add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.checksum(), !0xddf2);
        assert_eq!(Sum::default().add(&[0x12]).checksum(), !0x1200);
        assert_eq!(
            Sum::default().add_word(0xffff).add_word(0x0002).checksum(),
            !0x0002
        );
    }
}
