//! Payload digest and header tag: SipHash-2-4 (Aumasson and Bernstein, 2012) under the job's key.
//!
//! The tag covers the fields that switches do not write, and the payload only through its digest, so
//! that a header whose payload a switch cut can still be verified.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::header::{AUTH_LEN, HEADER_LEN, Header};

/// A job's secret, shared by its members: 128 bits.
#[derive(Clone, Copy)]
pub struct Key(pub [u8; 16]);

/// The 16 bytes that follow the header when the AUTH flag is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Auth {
    /// SipHash-2-4 of the payload as it was sent.
    pub payload_digest: u64,
    /// SipHash-2-4 of the header, with the bytes that switches write (3 to 11) as zero, and of the digest.
    pub tag: u64,
}

/// Why a packet is not what a member of the job sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No digest and tag where the job requires them.
    #[error("the packet carries no tag")]
    Missing,
    /// The header was changed, or sent by one without the key.
    #[error("the header's tag does not match")]
    Tag,
    /// The payload was changed.
    #[error("the payload's digest does not match")]
    Payload,
}

impl Auth {
    pub(crate) fn from_bytes(bytes: &[u8; AUTH_LEN]) -> Self {
        let [digest @ .., _, _, _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, tag @ ..] = *bytes;
        Self {
            payload_digest: u64::from_be_bytes(digest),
            tag: u64::from_be_bytes(tag),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; AUTH_LEN] {
        let mut bytes = [0; AUTH_LEN];
        bytes[..8].copy_from_slice(&self.payload_digest.to_be_bytes());
        bytes[8..].copy_from_slice(&self.tag.to_be_bytes());
        bytes
    }
}

impl Header {
    /// Sets [`Header::auth`] for `payload` under `key`. Call it last: the tag covers the other fields.
    pub fn seal(&mut self, key: &Key, payload: &[u8]) {
        let payload_digest = siphash(key, payload);
        self.auth = Some(Auth {
            payload_digest,
            tag: 0,
        });
        let tag = self.tag(key);
        self.auth = Some(Auth {
            payload_digest,
            tag,
        });
    }

    /// Checks the header's tag and, unless a switch trimmed it, the payload's digest.
    ///
    /// # Errors
    /// [`VerifyError`]: the packet must then be counted and dropped.
    pub fn verify(&self, key: &Key, payload: &[u8]) -> Result<(), VerifyError> {
        let auth = self.auth.ok_or(VerifyError::Missing)?;
        if self.tag(key) != auth.tag {
            return Err(VerifyError::Tag);
        }
        let cut = self.switch_flags.trimmed || self.switch_flags.late;
        if !cut && siphash(key, payload) != auth.payload_digest {
            return Err(VerifyError::Payload);
        }
        Ok(())
    }

    fn tag(&self, key: &Key) -> u64 {
        let mut bytes = [0; HEADER_LEN + AUTH_LEN];
        self.emit(&mut bytes);
        bytes[3..12].fill(0);
        siphash(key, &bytes[..HEADER_LEN + 8])
    }
}

fn siphash(key: &Key, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&key.0);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Kind;
    use crate::{SwitchFlags, Ticks};

    const KEY: Key = Key(*b"0123456789abcdef");

    #[test]
    fn a_sealed_packet_verifies_whatever_switches_wrote() {
        let mut header = Header::new(Kind::Gather, 7, 1, 2, 2);
        header.seal(&KEY, b"payload");
        assert_eq!(header.verify(&KEY, b"payload"), Ok(()));
        header.budget = Ticks(17);
        header.path_queue = Ticks(99);
        header.switch_flags = SwitchFlags {
            trimmed: true,
            hops: 3,
            ..Default::default()
        };
        assert_eq!(header.verify(&KEY, b""), Ok(()));
    }

    #[test]
    fn changes_show() {
        let mut header = Header::new(Kind::Gather, 7, 1, 2, 2);
        assert_eq!(header.verify(&KEY, b""), Err(VerifyError::Missing));
        header.seal(&KEY, b"payload");
        assert_eq!(header.verify(&KEY, b"pAyload"), Err(VerifyError::Payload));
        assert_eq!(
            header.verify(&Key([0; 16]), b"payload"),
            Err(VerifyError::Tag)
        );
        header.slot += 1;
        assert_eq!(header.verify(&KEY, b"payload"), Err(VerifyError::Tag));
    }
}
