//! Write requests whose updates a server decodes one by one.

use prost::bytes::Bytes;
use prost::{Message, Name};

use crate::v1::{Uint128, WriteRequest};

/// A [`WriteRequest`] with encoded updates, which is the same on the wire. A decoded update takes hundreds of bytes; a server
/// that converts each update at once needs memory for one of them.
#[derive(Clone, PartialEq, Message)]
pub struct EncodedWriteRequest {
    /// [`WriteRequest::device_id`].
    #[prost(uint64, tag = "1")]
    pub device_id: u64,
    /// [`WriteRequest::election_id`].
    #[prost(message, optional, tag = "3")]
    pub election_id: Option<Uint128>,
    /// [`WriteRequest::updates`], encoded.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub updates: Vec<Bytes>,
    /// [`WriteRequest::atomicity`].
    #[prost(int32, tag = "5")]
    pub atomicity: i32,
    /// [`WriteRequest::role`].
    #[prost(string, tag = "6")]
    pub role: String,
}

impl Name for EncodedWriteRequest {
    const NAME: &'static str = WriteRequest::NAME;
    const PACKAGE: &'static str = WriteRequest::PACKAGE;
}

impl From<WriteRequest> for EncodedWriteRequest {
    fn from(request: WriteRequest) -> Self {
        let updates = request.updates.iter();
        EncodedWriteRequest {
            device_id: request.device_id,
            election_id: request.election_id,
            updates: updates
                .map(|update| update.encode_to_vec().into())
                .collect(),
            atomicity: request.atomicity,
            role: request.role,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{TableEntry, Update};

    #[test]
    fn both_forms_are_equal_on_the_wire() {
        let entry = |table_id| TableEntry {
            table_id,
            ..TableEntry::default()
        };
        let request = WriteRequest {
            device_id: 7,
            election_id: Some(Uint128 { high: 1, low: 2 }),
            updates: vec![Update::insert(entry(3)), Update::default()],
            atomicity: 1,
            role: "r".into(),
            ..WriteRequest::default()
        };
        let form = EncodedWriteRequest::decode(request.encode_to_vec().as_slice());
        let form = form.expect("it decodes");
        assert_eq!(form, EncodedWriteRequest::from(request.clone()));
        assert_eq!(form.encode_to_vec(), request.encode_to_vec());
        assert_eq!(EncodedWriteRequest::full_name(), WriteRequest::full_name());
        let updates: Result<Vec<_>, _> = form.updates.into_iter().map(Update::decode).collect();
        assert_eq!(updates.expect("they decode"), request.updates);
    }
}
