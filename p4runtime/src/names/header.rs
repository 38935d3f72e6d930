//! The headers of packet-in and packet-out (§6.4.6, §16.1).

use super::{Field, FieldError, FieldList, P4InfoError, ReadError};
use crate::bytestring::Bytestring;
use crate::config::v1 as p4info;
use crate::v1;

/// A controller header, `packet_in` or `packet_out`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerHeader {
    /// Number in P4Info.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its fields.
    pub fields: FieldList,
}

impl ControllerHeader {
    pub(super) fn new(
        id: u32,
        name: &str,
        header: &p4info::ControllerPacketMetadata,
    ) -> Result<Self, P4InfoError> {
        let place = format!("controller header \"{name}\"");
        let fields = header
            .metadata
            .iter()
            .map(|field| Field::new(&place, field.id, &field.name, field.bitwidth));
        let fields = FieldList::new(place.clone(), "field", fields)?;
        Ok(ControllerHeader {
            id,
            name: name.into(),
            fields,
        })
    }

    /// Returns the metadata of a packet-out with one value for each field.
    ///
    /// # Errors
    /// [`FieldError`] when a field is unknown, missing, given twice or too narrow.
    pub fn pack(
        &self,
        values: &[(&str, Bytestring)],
    ) -> Result<Vec<v1::PacketMetadata>, FieldError> {
        let fields = self.fields.encode(values)?.into_iter();
        Ok(fields
            .map(|(metadata_id, value)| v1::PacketMetadata { metadata_id, value })
            .collect())
    }

    /// Returns one field of a packet-in's metadata.
    ///
    /// # Errors
    /// [`ReadError`] when the field is unknown, missing or out of range.
    pub fn read(
        &self,
        metadata: &[v1::PacketMetadata],
        name: &str,
    ) -> Result<Bytestring, ReadError> {
        let field = self.fields.get(name)?;
        let found = metadata
            .iter()
            .find(|metadata| metadata.metadata_id == field.id);
        field.read(
            &self.fields.place,
            found.map(|metadata| &metadata.value[..]),
        )
    }
}
