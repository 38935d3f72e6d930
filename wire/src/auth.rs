//! Payload digest and header tag: SipHash-2-4 (Aumasson and Bernstein, 2012) under the job's key. A last byte
//! separates the two.
//!
//! The tag covers the fields that switches do not write, and the payload only by its digest, so a header
//! whose payload a switch removed can still be verified.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::header::{AUTH_LEN, HEADER_LEN, HOST_FLAGS_AT, Header};
use crate::types::HostFlags;

/// Bytes of a header with [`Auth`].
const SEALED_LEN: usize = HEADER_LEN + AUTH_LEN;

/// A job's secret of 128 bits, shared by its members. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The 16 bytes that follow the header when the AUTH flag is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Auth {
    /// SipHash-2-4 of the payload as it was sent, and of a byte 0.
    pub payload_digest: u64,
    /// SipHash-2-4 of the header, with the bytes that switches write (3 to 11) as zero, of the digest, and of
    /// a byte 1.
    pub tag: u64,
}

/// The reason that a packet is not authentic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No digest and tag, although the job requires them.
    #[error("the packet has no tag")]
    Missing,
    /// The header was changed, or the sender lacks the key.
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
        let payload_digest = siphash(key, payload, Domain::Digest);
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

    /// Checks the header's tag and the payload's digest. Skips the payload if it is missing and a flag says
    /// that a switch removed it: the tag does not cover those flags, so they must not admit another payload.
    ///
    /// # Errors
    /// [`VerifyError`]: the packet must then be counted and dropped.
    pub fn verify(&self, key: &Key, payload: &[u8]) -> Result<(), VerifyError> {
        let auth = self.auth.ok_or(VerifyError::Missing)?;
        if self.tag(key) != auth.tag {
            return Err(VerifyError::Tag);
        }
        let cut = self.switch_flags.trimmed || self.switch_flags.late;
        let gone = cut && payload.is_empty();
        if !gone && siphash(key, payload, Domain::Digest) != auth.payload_digest {
            return Err(VerifyError::Payload);
        }
        Ok(())
    }

    fn tag(&self, key: &Key) -> u64 {
        let mut bytes = [0; SEALED_LEN];
        self.emit(&mut bytes);
        tag(key, &bytes)
    }
}

/// Seals a datagram whose header has room for [`Auth`]; leaves any other unchanged. Call it last.
pub fn seal(datagram: &mut [u8], key: &Key) {
    if let Some((header, payload)) = sealed_parts(datagram) {
        let digest = siphash(key, payload, Domain::Digest);
        header[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&digest.to_be_bytes());
        write_tag(header, key);
    }
}

/// Seals a datagram again after its header changed; leaves an unsealed one unchanged.
pub fn seal_header(datagram: &mut [u8], key: &Key) {
    if let Some((header, _)) = sealed_parts(datagram) {
        write_tag(header, key);
    }
}

/// Header and payload, if the header says that digest and tag are between them.
fn sealed_parts(datagram: &mut [u8]) -> Option<(&mut [u8; SEALED_LEN], &mut [u8])> {
    let parts = datagram.split_first_chunk_mut::<SEALED_LEN>();
    parts.filter(|(header, _)| header[HOST_FLAGS_AT] & HostFlags::AUTH != 0)
}

fn write_tag(header: &mut [u8; SEALED_LEN], key: &Key) {
    let tag = tag(key, header);
    header[HEADER_LEN + 8..].copy_from_slice(&tag.to_be_bytes());
}

/// The tag of a header with its digest. Bytes that switches write count as zero, and the present tag is
/// ignored.
fn tag(key: &Key, header: &[u8; SEALED_LEN]) -> u64 {
    let mut bytes = *header;
    bytes[3..12].fill(0);
    siphash(key, &bytes[..HEADER_LEN + 8], Domain::Tag)
}

/// What a value is for. Without it, a payload of a header's length would have the tag of that header as its digest.
#[derive(Clone, Copy)]
enum Domain {
    Digest = 0,
    Tag = 1,
}

fn siphash(key: &Key, bytes: &[u8], domain: Domain) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&key.0);
    hasher.write(bytes);
    hasher.write(&[domain as u8]);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Kind;
    use crate::{PACKET_NUMBER_AT, SwitchFlags, Ticks};

    const KEY: Key = Key(*b"0123456789abcdef");

    #[test]
    fn a_sealed_packet_verifies_after_switches_wrote_to_it() {
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
        // The tag does not cover the flag, so setting it must not admit another payload.
        assert_eq!(header.verify(&KEY, b"pAyload"), Err(VerifyError::Payload));
    }

    #[test]
    fn a_payload_cannot_be_a_header() {
        let mut forged = Header::new(Kind::Gather, 7, 1, 2, 2);
        forged.auth = Some(Auth::default());
        let mut bytes = [0; SEALED_LEN];
        forged.emit(&mut bytes);
        bytes[3..12].fill(0);
        let mut carrier = Header::new(Kind::Scatter, 7, 1, 2, 3);
        carrier.seal(&KEY, &bytes[..HEADER_LEN + 8]);
        let tag = carrier.auth.map_or(0, |auth| auth.payload_digest);
        forged.auth = Some(Auth {
            payload_digest: 0,
            tag,
        });
        assert_eq!(forged.verify(&KEY, b""), Err(VerifyError::Tag));
    }

    #[test]
    fn datagrams_are_sealed_where_they_lie() {
        let payload = b"payload";
        let written = |auth| {
            let mut header = Header::new(Kind::Scatter, 7, 1, 2, 3);
            header.auth = auth;
            let mut datagram = vec![0; header.len()];
            header.emit(&mut datagram);
            datagram.extend(payload);
            datagram
        };
        let verified = |datagram: &[u8]| {
            let (header, payload) = Header::parse(datagram).unwrap();
            header.verify(&KEY, payload)
        };
        let mut datagram = written(Some(Auth::default()));
        seal(&mut datagram, &KEY);
        assert_eq!(verified(&datagram), Ok(()));
        let mut header = Header::new(Kind::Scatter, 7, 1, 2, 3);
        header.seal(&KEY, payload);
        assert_eq!(Header::parse(&datagram).unwrap().0, header);

        datagram[PACKET_NUMBER_AT] ^= 1;
        assert_eq!(verified(&datagram), Err(VerifyError::Tag));
        seal_header(&mut datagram, &KEY);
        assert_eq!(verified(&datagram), Ok(()));

        let mut unsealed = written(None);
        for seal in [seal, seal_header] {
            seal(&mut unsealed, &KEY);
            seal(&mut unsealed[..HEADER_LEN], &KEY);
        }
        assert_eq!(unsealed, written(None));
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{KEY:?} {:?}", Some(KEY)), "Key(..) Some(Key(..))");
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
