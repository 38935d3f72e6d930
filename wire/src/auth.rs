//! Payload digest and header tag under the job's key.
//!
//! The digest is the payload's AEGIS-128X4 MAC (draft-irtf-cfrg-aegis-aead), which uses the CPU's AES
//! instructions and takes no nonce. The tag is SipHash-2-4 (Aumasson and Bernstein, 2012) of the header and the
//! digest: for so few bytes it is faster.
//!
//! The tag covers the fields that switches do not write, and the payload only by its digest, so a header
//! whose payload a switch removed can still be verified.

use std::fmt;

use aegis::aegis128x4::Aegis128X4Mac;
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
    /// The first half of the payload's MAC, as it was sent.
    pub payload_digest: u64,
    /// SipHash-2-4 of the header, with the bytes that switches write (3 to 11) as zero, and of the digest.
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

/// A key, prepared to seal and verify packets.
#[derive(Clone)]
pub struct Sealer {
    tagger: SipHasher24,
    /// Before the first byte: a copy takes each payload.
    mac: Aegis128X4Mac<16>,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(..)")
    }
}

impl Sealer {
    /// Prepares `key`. The MAC of payloads has a key of its own, drawn from it.
    pub fn new(key: &Key) -> Self {
        let tagger = SipHasher24::new_with_key(&key.0);
        let mut mac_key = [0; 16];
        for (half, bytes) in (0..).zip(mac_key.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&tagger.hash(&[half]).to_be_bytes());
        }
        Self {
            tagger,
            mac: Aegis128X4Mac::new(&mac_key),
        }
    }

    /// Seals a datagram whose header has room for [`Auth`]; leaves any other unchanged. Call it last.
    pub fn seal(&self, datagram: &mut [u8]) {
        if let Some((header, payload)) = sealed_parts(datagram) {
            let digest = self.digest(payload);
            header[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&digest.to_be_bytes());
            self.write_tag(header);
        }
    }

    /// Seals a datagram again after its header changed; leaves an unsealed one unchanged.
    pub fn seal_header(&self, datagram: &mut [u8]) {
        if let Some((header, _)) = sealed_parts(datagram) {
            self.write_tag(header);
        }
    }

    fn write_tag(&self, header: &mut [u8; SEALED_LEN]) {
        let tag = self.tag(header);
        header[HEADER_LEN + 8..].copy_from_slice(&tag.to_be_bytes());
    }

    /// The tag of a header with its digest. Bytes that switches write count as zero, and the present tag is
    /// ignored.
    fn tag(&self, header: &[u8; SEALED_LEN]) -> u64 {
        let mut bytes = *header;
        bytes[3..12].fill(0);
        self.tagger.hash(&bytes[..HEADER_LEN + 8])
    }

    fn digest(&self, payload: &[u8]) -> u64 {
        let mut mac = self.mac.clone();
        mac.update(payload);
        let [digest @ .., _, _, _, _, _, _, _, _] = mac.finalize();
        u64::from_be_bytes(digest)
    }
}

impl Header {
    /// Sets [`Header::auth`] for `payload`. Call it last: the tag covers the other fields.
    pub fn seal(&mut self, sealer: &Sealer, payload: &[u8]) {
        let payload_digest = sealer.digest(payload);
        self.auth = Some(Auth {
            payload_digest,
            tag: 0,
        });
        let tag = self.tag(sealer);
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
    pub fn verify(&self, sealer: &Sealer, payload: &[u8]) -> Result<(), VerifyError> {
        let auth = self.auth.ok_or(VerifyError::Missing)?;
        if self.tag(sealer) != auth.tag {
            return Err(VerifyError::Tag);
        }
        let cut = self.switch_flags.trimmed || self.switch_flags.late;
        let gone = cut && payload.is_empty();
        if !gone && sealer.digest(payload) != auth.payload_digest {
            return Err(VerifyError::Payload);
        }
        Ok(())
    }

    fn tag(&self, sealer: &Sealer) -> u64 {
        let mut bytes = [0; SEALED_LEN];
        self.emit(&mut bytes);
        sealer.tag(&bytes)
    }
}

/// Header and payload, if the header says that digest and tag are between them.
fn sealed_parts(datagram: &mut [u8]) -> Option<(&mut [u8; SEALED_LEN], &mut [u8])> {
    let parts = datagram.split_first_chunk_mut::<SEALED_LEN>();
    parts.filter(|(header, _)| header[HOST_FLAGS_AT] & HostFlags::AUTH != 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::types::Kind;
    use crate::{PACKET_NUMBER_AT, SwitchFlags, Ticks};

    /// Digests of 0, 1, 16, 64, 65 and 200 bytes, of values from 0 on: pinned, so that versions understand each
    /// other. The MAC's crate checks itself against the specification's vectors.
    const DIGESTS: [u64; 6] = [
        0x9bee_9581_e92b_ba1c,
        0x2f7a_1fea_357e_804c,
        0x5a6b_d956_c8ff_c9ea,
        0xeb23_fee9_29d2_bd53,
        0x90c0_7386_974f_0539,
        0xac2d_e28b_f596_6f87,
    ];

    fn sealer() -> Sealer {
        Sealer::new(&Key(*b"0123456789abcdef"))
    }

    #[test]
    fn a_sealed_packet_verifies_after_switches_wrote_to_it() {
        let mut header = Header::new(Kind::Gather, 7, 1, 2, 2);
        header.seal(&sealer(), b"payload");
        assert_eq!(header.verify(&sealer(), b"payload"), Ok(()));
        header.budget = Ticks(17);
        header.path_queue = Ticks(99);
        header.switch_flags = SwitchFlags {
            trimmed: true,
            hops: 3,
            ..Default::default()
        };
        assert_eq!(header.verify(&sealer(), b""), Ok(()));
        // The tag does not cover the flag, so setting it must not admit another payload.
        assert_eq!(
            header.verify(&sealer(), b"pAyload"),
            Err(VerifyError::Payload)
        );
    }

    #[test]
    fn digests_are_those_of_the_vectors() {
        let payload: Vec<u8> = (0..200).collect();
        let digest = |len| sealer().digest(&payload[..len]);
        assert_eq!([0, 1, 16, 64, 65, 200].map(digest), DIGESTS);
    }

    #[test]
    fn a_payload_with_more_zeros_has_another_digest() {
        let digests: BTreeSet<u64> = (0..100)
            .map(|len| sealer().digest(&[0; 100][..len]))
            .collect();
        assert_eq!(digests.len(), 100);
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
            header.verify(&sealer(), payload)
        };
        let mut datagram = written(Some(Auth::default()));
        sealer().seal(&mut datagram);
        assert_eq!(verified(&datagram), Ok(()));
        let mut header = Header::new(Kind::Scatter, 7, 1, 2, 3);
        header.seal(&sealer(), payload);
        assert_eq!(Header::parse(&datagram).unwrap().0, header);

        datagram[PACKET_NUMBER_AT] ^= 1;
        assert_eq!(verified(&datagram), Err(VerifyError::Tag));
        sealer().seal_header(&mut datagram);
        assert_eq!(verified(&datagram), Ok(()));

        let mut unsealed = written(None);
        for seal in [Sealer::seal, Sealer::seal_header] {
            seal(&sealer(), &mut unsealed);
            seal(&sealer(), &mut unsealed[..HEADER_LEN]);
        }
        assert_eq!(unsealed, written(None));
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(
            format!("{:?} {:?}", sealer(), Key([1; 16])),
            "Sealer(..) Key(..)"
        );
    }

    #[test]
    fn changes_show() {
        let mut header = Header::new(Kind::Gather, 7, 1, 2, 2);
        assert_eq!(header.verify(&sealer(), b""), Err(VerifyError::Missing));
        header.seal(&sealer(), b"payload");
        assert_eq!(
            header.verify(&sealer(), b"pAyload"),
            Err(VerifyError::Payload)
        );
        assert_eq!(
            header.verify(&Sealer::new(&Key([0; 16])), b"payload"),
            Err(VerifyError::Tag)
        );
        header.slot += 1;
        assert_eq!(header.verify(&sealer(), b"payload"), Err(VerifyError::Tag));
    }
}
