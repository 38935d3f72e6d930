//! The codec of P4Runtime's calls: it bounds a message's memory before decoding it.
//!
//! An empty element of a repeated field takes two bytes on the wire and hundreds in memory, so a limit on the encoded length
//! is not enough. The codec walks the encoded bytes with the message descriptors, allocates nothing, and adds up the memory
//! of the decoded structure: messages in repeated fields, numbers, and strings without their bytes. Bytes of strings take as
//! much memory as on the wire; the gRPC limits on message length bound them.

mod shape;

use std::marker::PhantomData;

use prost::bytes::Buf;
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

use shape::{Malformed, Shapes};

/// Largest size of a request's structure in memory, in bytes. During decoding, vectors may reserve twice as much.
pub const MAX_REQUEST_STRUCTURE: usize = 32 << 20;
/// Largest size of a response's structure in memory, in bytes. BMv2 answers a wildcard read with a single message.
pub const MAX_RESPONSE_STRUCTURE: usize = 256 << 20;

/// Encodes `T` and decodes `U` like prost, and rejects a `U` whose structure is too large.
#[derive(Debug, Clone)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// The decoding half.
#[derive(Debug, Clone)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, encoded: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = encoded.copy_to_bytes(encoded.remaining());
        check::<U>(&bytes).map_err(|error| Status::resource_exhausted(error.to_string()))?;
        // The gRPC specification assigns INTERNAL to messages that cannot be parsed.
        let decoded = U::decode(bytes).map_err(|error| Status::internal(error.to_string()));
        decoded.map(Some)
    }
}

/// A message whose structure takes too much memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{message}: {encoded} bytes decode to a structure of more than {limit} bytes; split the message"
)]
pub struct TooLarge {
    /// The message's full name.
    pub message: String,
    /// Bytes on the wire.
    pub encoded: usize,
    /// Bytes that its structure may take.
    pub limit: usize,
}

/// Checks the memory that an encoded message takes once decoded. A malformed message passes: the decoder rejects it, and
/// allocates no more than the part before the fault takes.
///
/// # Errors
/// A request takes more than [`MAX_REQUEST_STRUCTURE`], or another message more than [`MAX_RESPONSE_STRUCTURE`].
pub fn check<M: Name>(encoded: &[u8]) -> Result<(), TooLarge> {
    let shapes = Shapes::get();
    let Some(shape) = shapes.find(&M::full_name()) else {
        return Ok(());
    };
    let limit = match shapes.is_request(shape) {
        true => MAX_REQUEST_STRUCTURE,
        false => MAX_RESPONSE_STRUCTURE,
    };
    // Most requests are so short that no structure of their length takes too much.
    if encoded.len().saturating_mul(shapes.densest()) <= limit {
        return Ok(());
    }
    let mut room = limit;
    match shapes.charge(shape, encoded, &mut room) {
        Err(Malformed::TooLarge) => Err(TooLarge {
            message: M::full_name(),
            encoded: encoded.len(),
            limit,
        }),
        Ok(()) | Err(Malformed::Other) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::v1::{P4Info, Table};
    use crate::v1::{
        ActionProfileAction, Entity, FieldMatch, ReadRequest, Replica,
        SetForwardingPipelineConfigRequest, TableEntry, Update, ValueSetMember, WriteRequest,
    };

    /// A message of `count` empty elements in the repeated field with this number.
    fn empties(field: u8, count: usize) -> Vec<u8> {
        [field << 3 | 2, 0].repeat(count)
    }

    /// `inner` as the field with this number.
    fn wrapped(field: u8, inner: &[u8]) -> Vec<u8> {
        let mut outer = vec![field << 3 | 2];
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend_from_slice(inner);
        outer
    }

    #[test]
    fn the_computed_size_is_at_least_the_real_size() {
        fn compare<M: Name>() {
            let shapes = Shapes::get();
            let shape = shapes.find(&M::full_name()).expect("it is known");
            let (charged, real) = (shapes.size(shape), size_of::<M>());
            let name = M::NAME;
            assert!(
                (real..=2 * real + 16).contains(&charged),
                "{name}: {charged}, in memory {real}"
            );
        }
        compare::<Update>();
        compare::<Entity>();
        compare::<TableEntry>();
        compare::<FieldMatch>();
        compare::<ActionProfileAction>();
        compare::<ValueSetMember>();
        compare::<Replica>();
        compare::<Table>();
        compare::<P4Info>();
    }

    #[test]
    fn requests_of_many_empty_elements_are_rejected() {
        let many = 2 << 20;
        let says = check::<WriteRequest>(&empties(4, many)).expect_err("updates");
        assert_eq!(
            says.to_string(),
            "p4.v1.WriteRequest: 4194304 bytes decode to a structure of more than 33554432 bytes; \
             split the message"
        );
        check::<ReadRequest>(&empties(2, many)).expect_err("entities");
        // Update 4, entity 2, table entry 2, match 2; group 4, members 3.
        let update = |entity: u8, inner: &[u8]| wrapped(4, &wrapped(2, &wrapped(entity, inner)));
        check::<WriteRequest>(&update(2, &empties(2, many))).expect_err("match fields");
        check::<WriteRequest>(&update(4, &empties(3, many))).expect_err("members");
        check::<WriteRequest>(&update(10, &empties(2, many))).expect_err("members of a value set");
        // Config 5, P4Info 1, tables 2.
        let tables = wrapped(5, &wrapped(1, &empties(2, many)));
        check::<SetForwardingPipelineConfigRequest>(&tables).expect_err("tables");
    }

    #[test]
    fn a_batch_of_usual_entries_passes() {
        let update = Update::insert(TableEntry {
            table_id: 1,
            r#match: vec![FieldMatch::default(); 5],
            ..TableEntry::default()
        });
        let request = WriteRequest {
            updates: vec![update; 16_384],
            ..WriteRequest::default()
        };
        assert_eq!(check::<WriteRequest>(&request.encode_to_vec()), Ok(()));
        // Large strings are not structure.
        let config = SetForwardingPipelineConfigRequest {
            config: Some(crate::v1::ForwardingPipelineConfig {
                p4_device_config: vec![0; MAX_REQUEST_STRUCTURE + 1],
                ..Default::default()
            }),
            ..Default::default()
        };
        let encoded = config.encode_to_vec();
        assert_eq!(
            check::<SetForwardingPipelineConfigRequest>(&encoded),
            Ok(())
        );
    }

    /// Charges a write request no more than a message of its length can take.
    fn charge_densest(encoded: &[u8]) -> Result<(), Malformed> {
        let shapes = Shapes::get();
        let shape = shapes.find(&WriteRequest::full_name());
        let mut room = encoded.len() * shapes.densest();
        shapes.charge(shape.expect("it is known"), encoded, &mut room)
    }

    #[test]
    fn no_message_is_denser_than_the_densest() {
        let matches = wrapped(4, &wrapped(2, &wrapped(2, &empties(2, 100))));
        for encoded in [empties(4, 100), matches] {
            assert_eq!(charge_densest(&encoded), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_not_denser(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_ne!(charge_densest(&bytes), Err(Malformed::TooLarge));
        }
    }
}
