//! Payload digest and header tag under the job's key.
//!
//! Both are MACs of AEGIS (draft-irtf-cfrg-aegis-aead), which use the CPU's AES instructions and take no nonce:
//! AEGIS-128X4 of the payload, and AEGIS-128L, which is faster for so few bytes, of the digest and the header.
//!
//! The tag covers the fields that ranks read and switches do not write, and the payload only by its digest, so a
//! header whose payload a switch removed can still be verified. It does not cover the packet number, which the
//! sender's link assigns after the seal and only switches read: they have no key.

use std::fmt;

use aegis::aegis128l::Aegis128LMac;
use aegis::aegis128x4::Aegis128X4Mac;
use siphasher::sip::SipHasher24;

use crate::header::{AUTH_LEN, Auth, HEADER_LEN, HOST_FLAGS_AT, Header, SWITCH_FLAGS_AT};
use crate::types::{HostFlags, SwitchFlags};

/// Bytes of a header with [`Auth`].
const SEALED_LEN: usize = HEADER_LEN + AUTH_LEN;
/// The bits of the header that the tag covers: all but bytes 3 to 11 and 20 to 23.
const TAGGED: [u64; 7] = [
    0xffff_ff00_0000_0000,
    0x0000_0000_ffff_ffff,
    0xffff_ffff_0000_0000,
    u64::MAX,
    u64::MAX,
    u64::MAX,
    0xffff_ffff_0000_0000,
];

/// The digest in a packet whose payload nothing covers. No payload has it.
const UNCOVERED: u64 = 0;

/// A job's secret of 128 bits, shared by its members. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
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

/// A key, prepared to seal and verify packets.
#[derive(Clone)]
pub struct Sealer {
    /// For the header, before its first byte.
    tagger: Aegis128LMac<16>,
    /// For the payload, likewise.
    mac: Aegis128X4Mac<16>,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(..)")
    }
}

impl Sealer {
    /// Prepares `key`. The MACs of payloads and headers each have a key of their own, which SipHash-2-4 (Aumasson and
    /// Bernstein, 2012), a pseudorandom function, draws from it.
    pub fn new(key: &Key) -> Self {
        let drawer = SipHasher24::new_with_key(&key.0);
        let half = |number: u8| drawer.hash(&[number]).to_be_bytes();
        let draw = |first: u8| {
            let mut drawn = [0; 16];
            drawn[..8].copy_from_slice(&half(first));
            drawn[8..].copy_from_slice(&half(first + 1));
            drawn
        };
        Self {
            mac: Aegis128X4Mac::new(&draw(0)),
            tagger: Aegis128LMac::new(&draw(2)),
        }
    }

    /// Seals a datagram whose header has room for [`Auth`]; leaves any other unchanged. Call it last, except for
    /// the packet number.
    pub fn seal(&mut self, datagram: &mut [u8]) {
        if let Some((header, payload)) = datagram.split_at_mut_checked(SEALED_LEN) {
            self.seal_apart(header, payload);
        }
    }

    /// Seals as [`Sealer::seal`] does, for a header and a payload in different buffers.
    pub fn seal_apart(&mut self, header: &mut [u8], payload: &[u8]) {
        if let Some(header) = sealable(header) {
            let payload_digest = self.digest(payload);
            self.write(header, payload_digest);
        }
    }

    /// Seals the header alone, for memory that only trusted processes write.
    pub fn seal_header(&mut self, header: &mut [u8]) {
        if let Some(header) = sealable(header) {
            self.write(header, UNCOVERED);
        }
    }

    fn write(&mut self, header: &mut [u8; SEALED_LEN], payload_digest: u64) {
        let auth = Auth {
            payload_digest,
            tag: self.tag(header, payload_digest),
        };
        header[HEADER_LEN..].copy_from_slice(&auth.to_bytes());
    }

    /// Checks the tag of a datagram's header and the digest of its payload. Skips the payload if it is missing
    /// and a flag says that a switch removed it: the tag does not cover those flags, so they must not admit
    /// another payload.
    ///
    /// # Errors
    /// [`VerifyError`]: the packet must then be counted and dropped.
    pub fn verify(&mut self, datagram: &[u8]) -> Result<(), VerifyError> {
        let (header, payload_digest, payload) = self.tagged(datagram)?;
        let flags = SwitchFlags::from_bits(header[SWITCH_FLAGS_AT]);
        let is_gone = (flags.trimmed || flags.late) && payload.is_empty();
        if !is_gone && self.digest(payload) != payload_digest {
            return Err(VerifyError::Payload);
        }
        Ok(())
    }

    /// Checks the tag of a datagram's header alone, with or without a digest of its payload: for memory that only trusted processes
    /// write.
    ///
    /// # Errors
    /// [`VerifyError`]: the packet must then be counted and dropped.
    pub fn verify_header(&mut self, datagram: &[u8]) -> Result<(), VerifyError> {
        self.tagged(datagram).map(drop)
    }

    /// Returns the header of a datagram, whose tag matches, with its payload's digest, and the payload.
    fn tagged<'a>(
        &mut self,
        datagram: &'a [u8],
    ) -> Result<(&'a [u8; SEALED_LEN], u64, &'a [u8]), VerifyError> {
        let (header, payload) = datagram
            .split_first_chunk::<SEALED_LEN>()
            .filter(|(header, _)| header[HOST_FLAGS_AT] & HostFlags::AUTH != 0)
            .ok_or(VerifyError::Missing)?;
        let auth = header
            .last_chunk()
            .map(Auth::from_bytes)
            .unwrap_or_default();
        match self.tag(header, auth.payload_digest) == auth.tag {
            true => Ok((header, auth.payload_digest, payload)),
            false => Err(VerifyError::Tag),
        }
    }

    /// The tag of a header and its payload's digest. Ignores the present digest and tag, and the bytes that
    /// change after the seal.
    fn tag(&mut self, header: &[u8; SEALED_LEN], payload_digest: u64) -> u64 {
        let mut message = [payload_digest.to_be_bytes(); 1 + TAGGED.len()];
        let (words, _) = header.as_chunks();
        // Whole words: to load what several stores wrote takes longer.
        for ((word, mask), masked) in words.iter().zip(TAGGED).zip(&mut message[1..]) {
            *masked = (u64::from_be_bytes(*word) & mask).to_be_bytes();
        }
        self.tagger.update(message.as_flattened());
        first_half(self.tagger.finalize_and_reset())
    }

    fn digest(&mut self, payload: &[u8]) -> u64 {
        self.mac.update(payload);
        first_half(self.mac.finalize_and_reset()).max(UNCOVERED + 1)
    }
}

/// A header with room for [`Auth`].
fn sealable(header: &mut [u8]) -> Option<&mut [u8; SEALED_LEN]> {
    let header = header.first_chunk_mut::<SEALED_LEN>();
    header.filter(|header| header[HOST_FLAGS_AT] & HostFlags::AUTH != 0)
}

fn first_half([half @ .., _, _, _, _, _, _, _, _]: [u8; 16]) -> u64 {
    u64::from_be_bytes(half)
}

impl Header {
    /// Sets [`Header::auth`] for `payload`. Call it last: the tag covers the other fields.
    pub fn seal(&mut self, sealer: &mut Sealer, payload: &[u8]) {
        let payload_digest = sealer.digest(payload);
        self.auth = Some(Auth::default());
        let mut bytes = [0; SEALED_LEN];
        self.emit(&mut bytes);
        self.auth = Some(Auth {
            payload_digest,
            tag: sealer.tag(&bytes, payload_digest),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Ticks;
    use crate::types::Kind;

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
    /// The tag of a header with the first digest.
    const TAG: u64 = 0x7e14_4984_45e7_cdd4;

    fn sealer() -> Sealer {
        Sealer::new(&Key(*b"0123456789abcdef"))
    }

    /// `header` and `payload`, as they are sent.
    fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; header.len()];
        header.emit(&mut datagram);
        datagram.extend(payload);
        datagram
    }

    fn verified(header: &Header, payload: &[u8]) -> Result<(), VerifyError> {
        sealer().verify(&datagram(header, payload))
    }

    #[test]
    fn a_sealed_packet_verifies_after_links_and_switches_wrote_to_it() {
        let mut header = Header::new(Kind::Gather, 7, 1, 2, 2);
        header.seal(&mut sealer(), b"payload");
        assert_eq!(verified(&header, b"payload"), Ok(()));
        header.packet_number = 5;
        header.budget = Ticks(17);
        header.path_queue = Ticks(99);
        header.switch_flags = SwitchFlags {
            trimmed: true,
            hops: 3,
            ..Default::default()
        };
        assert_eq!(verified(&header, b""), Ok(()));
        // The tag does not cover the flag, so setting it must not admit another payload.
        assert_eq!(verified(&header, b"pAyload"), Err(VerifyError::Payload));
    }

    #[test]
    fn a_sealed_header_verifies_alone() {
        let mut header = Header::new(Kind::Gather, 7, 1, 2, 2);
        header.auth = Some(Auth::default());
        let mut alone = datagram(&header, b"payload");
        sealer().seal_header(&mut alone);
        assert_eq!(sealer().verify_header(&alone), Ok(()));
        assert_eq!(sealer().verify(&alone), Err(VerifyError::Payload));
        alone[HEADER_LEN - 1] ^= 1;
        assert_eq!(sealer().verify_header(&alone), Err(VerifyError::Tag));
        let mut whole = datagram(&header, b"payload");
        sealer().seal(&mut whole);
        assert_eq!(sealer().verify_header(&whole), Ok(()));
    }

    #[test]
    fn digests_and_tags_stay_the_same() {
        let payload: Vec<u8> = (0..200).collect();
        let digest = |len| sealer().digest(&payload[..len]);
        assert_eq!([0, 1, 16, 64, 65, 200].map(digest), DIGESTS);
        let mut header = Header::new(Kind::Scatter, 7, 1, 2, 3);
        header.seal(&mut sealer(), &[]);
        assert_eq!(header.auth.map(|auth| auth.tag), Some(TAG));
    }

    #[test]
    fn a_payload_with_more_zeros_has_another_digest() {
        let digests: BTreeSet<u64> = (0..100)
            .map(|len| sealer().digest(&[0; 100][..len]))
            .collect();
        assert_eq!(digests.len(), 100);
    }

    /// A digest of bytes that a member chose must never be the tag of a header.
    #[test]
    fn a_digest_of_what_a_tag_covers_is_not_the_tag() {
        let mut header = Header::new(Kind::Scatter, 7, 1, 2, 3);
        header.seal(&mut sealer(), b"payload");
        let sealed = datagram(&header, b"payload");
        let auth = header.auth.expect("sealed");
        let tag_of = |values: &[u8]| {
            let mut sealer = sealer();
            sealer.tagger.update(values);
            first_half(sealer.tagger.finalize())
        };
        // The digest and the header as sent, and each alone, cover what the tag covers: no other field is set.
        let digest = auth.payload_digest.to_be_bytes();
        let fields = &sealed[..HEADER_LEN];
        let covered = [&digest, fields, &[0; 4]].concat();
        for values in [covered.clone(), fields.to_vec(), digest.to_vec()] {
            let forged = sealer().digest(&values);
            assert_ne!(forged, auth.tag);
            assert_ne!(forged, tag_of(&values));
        }
        // They are what the tag covers.
        assert_eq!(tag_of(&covered), auth.tag);
    }

    #[test]
    fn datagrams_are_sealed_where_they_lie() {
        let payload = b"payload";
        let mut header = Header::new(Kind::Scatter, 7, 1, 2, 3);
        let unsealed = datagram(&header, payload);
        let mut unchanged = unsealed.clone();
        sealer().seal(&mut unchanged);
        sealer().seal(&mut unchanged[..HEADER_LEN]);
        assert_eq!(unchanged, unsealed);

        header.auth = Some(Auth::default());
        let mut sealed = datagram(&header, payload);
        sealer().seal(&mut sealed);
        header.seal(&mut sealer(), payload);
        assert_eq!(sealed, datagram(&header, payload));
        // Its unread bits are covered, too.
        sealed[HOST_FLAGS_AT] ^= 0x80;
        assert_eq!(sealer().verify(&sealed), Err(VerifyError::Tag));
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
        assert_eq!(verified(&header, b""), Err(VerifyError::Missing));
        header.seal(&mut sealer(), b"payload");
        assert_eq!(verified(&header, b"pAyload"), Err(VerifyError::Payload));
        let mut other = Sealer::new(&Key([0; 16]));
        let sealed = datagram(&header, b"payload");
        assert_eq!(other.verify(&sealed), Err(VerifyError::Tag));
        header.slot += 1;
        assert_eq!(verified(&header, b"payload"), Err(VerifyError::Tag));
    }
}
