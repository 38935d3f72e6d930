//! Controller headers: metadata of packet-in and packet-out (P4Runtime §6.4.6, §16.1).
//!
//! A program marks two header types with `@controller_header`. P4Info lists their fields in order, which defines the encoding
//! of metadata as bits in front of a packet.

use std::collections::HashSet;

use super::bits::{MAX_BITS, SLACK, Slot};
use super::error::{ControlError, LoadError};
use super::layout::Layout;
use super::p4info::{MetadataInfo, P4Info};
use super::value::check_bytes;

/// Both headers of a program. One that it does not have has no fields.
#[derive(Debug, Default)]
pub struct ControllerHeaders {
    /// In front of packets to the controller.
    pub packet_in: ControllerHeader,
    /// In front of packets from the controller.
    pub packet_out: ControllerHeader,
}

/// The fields of a controller header.
#[derive(Debug, Default)]
pub struct ControllerHeader {
    fields: Vec<Field>,
    bytes: usize,
}

/// Values by field id.
pub type Metadata = Vec<(u32, Vec<u8>)>;

#[derive(Debug)]
struct Field {
    id: u32,
    name: String,
    slot: Slot,
}

impl ControllerHeaders {
    pub(super) fn new(p4info: &P4Info, layout: &Layout) -> Result<ControllerHeaders, LoadError> {
        Ok(ControllerHeaders {
            packet_in: ControllerHeader::new("packet_in", &p4info.packet_in, layout)?,
            packet_out: ControllerHeader::new("packet_out", &p4info.packet_out, layout)?,
        })
    }
}

impl ControllerHeader {
    fn new(
        name: &str,
        header: &[MetadataInfo],
        layout: &Layout,
    ) -> Result<ControllerHeader, LoadError> {
        let widths = widths(name, header, layout)?;
        let mut ids = HashSet::new();
        let mut bits = 0usize;
        let mut fields = Vec::new();
        for (field, width) in header.iter().zip(widths) {
            let at = format!("controller header {name}, field {}", field.name);
            if !ids.insert(field.id) {
                return Err(LoadError::p4info(format!("{at}: id {} is taken", field.id)));
            }
            let left = MAX_BITS as usize - bits;
            if width == 0 || width as usize > left {
                let what = format!("{at}: expected a width of 1 to {left} bits, found {width}");
                return Err(LoadError::p4info(what));
            }
            fields.push(Field {
                id: field.id,
                name: field.name.clone(),
                slot: Slot::new(bits, width, false),
            });
            bits += width as usize;
        }
        Ok(ControllerHeader {
            fields,
            bytes: bits.div_ceil(8),
        })
    }

    /// Appends the header with these values, by field id, to `frame`. Nothing is appended on an
    /// error.
    ///
    /// # Errors
    /// A field has no value, or two, or one that does not fit; or a value has no field (P4Runtime §16.1).
    pub fn write<'a>(
        &self,
        values: impl Iterator<Item = (u32, &'a [u8])>,
        frame: &mut Vec<u8>,
    ) -> Result<(), ControlError> {
        let wrong = |id: u32, what: &str| ControlError::invalid(format!("metadata {id}{what}"));
        let mut given = vec![false; self.fields.len()];
        let mut header = vec![0; self.bytes + SLACK];
        for (id, value) in values {
            let at = self.fields.iter().position(|field| field.id == id);
            let at = at.ok_or_else(|| wrong(id, ": packet_out has no field of this id"))?;
            let Field { name, slot, .. } = &self.fields[at];
            if std::mem::replace(&mut given[at], true) {
                return Err(wrong(id, &format!(" ({name}) is given twice")));
            }
            check_bytes(value, slot.width, || format!("metadata {id} ({name})"))?;
            slot.store_bytes(&mut header, value);
        }
        if let Some(at) = given.iter().position(|given| !given) {
            let Field { id, name, .. } = &self.fields[at];
            return Err(wrong(*id, &format!(" ({name}) is missing")));
        }
        frame.extend_from_slice(&header[..self.bytes]);
        Ok(())
    }

    /// The values in the header in front of `frame`, by field id and canonical, and what follows
    /// it. `None`: the frame is shorter than the header.
    pub fn read<'a>(&self, frame: &'a [u8]) -> Option<(Metadata, &'a [u8])> {
        let (header, payload) = frame.split_at_checked(self.bytes)?;
        let mut buffer = header.to_vec();
        buffer.resize(self.bytes + SLACK, 0);
        let values = self
            .fields
            .iter()
            .map(|field| (field.id, field.slot.canonical(&buffer)));
        Some((values.collect(), payload))
    }
}

/// Widths of a header's fields on the wire, in bits.
fn widths(name: &str, header: &[MetadataInfo], layout: &Layout) -> Result<Vec<u32>, LoadError> {
    if !header.iter().any(|field| field.is_translated) {
        return Ok(header.iter().map(|field| field.width).collect());
    }
    // For a translated type, P4Info has the controller's width; the program's own is in the header
    // type whose fields these are, without what p4c adds to fill its last byte.
    let same = |shape: &&super::layout::Shape| {
        let names = shape.fields.iter().map(|field| field.name.as_str());
        let names = names.filter(|name| !name.starts_with("_padding"));
        names.eq(header.iter().map(|field| field.name.as_str()))
    };
    let mut shapes = layout.shapes.iter().filter(same);
    let slots = |shape: &super::layout::Shape| {
        let fields = shape.fields.iter().take(header.len());
        fields.map(|field| field.slot.width).collect::<Vec<_>>()
    };
    let found = shapes.next().map(slots);
    match found {
        Some(widths) if shapes.all(|other| slots(other) == widths) => Ok(widths),
        _ => Err(LoadError::unsupported(
            "a translated type without a header type of the same fields",
            format!("controller header {name}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ErrorKind;
    use super::*;

    fn header(widths: &[u32]) -> ControllerHeader {
        let mut bit = 0;
        let fields = widths.iter().zip(1..).map(|(&width, id)| {
            let slot = Slot::new(bit, width, false);
            bit += width as usize;
            let name = format!("f{id}");
            Field { id, name, slot }
        });
        let fields: Vec<_> = fields.collect();
        let bytes = bit.div_ceil(8);
        ControllerHeader { fields, bytes }
    }

    #[test]
    fn values_are_packed_in_order_and_come_back_canonical() {
        let header = header(&[9, 7, 16, 130, 6]);
        let values: [(u32, &[u8]); 5] = [
            (5, &[0x3f]),
            (1, &[0x01, 0xfe]),
            (2, &[0x00, 0x05]),
            (3, &[0x12, 0x34]),
            (
                4,
                &[2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
            ),
        ];
        let mut frame = vec![0xee];
        header
            .write(values.into_iter(), &mut frame)
            .expect("written");
        assert_eq!(frame.len(), 1 + 21);
        // 111111110 0000101 0x1234, then 10 and sixteen bytes shifted by two, then 111111.
        assert_eq!(frame[1..7], [0xff, 0x05, 0x12, 0x34, 0x80, 0x40]);
        assert_eq!(frame[21], 16 << 6 | 0x3f);
        frame.extend([7, 7]);
        let (read, payload) = header.read(&frame[1..]).expect("long enough");
        assert_eq!(payload, [7, 7]);
        assert_eq!(read[0], (1, vec![0x01, 0xfe]));
        assert_eq!(read[1], (2, vec![0x05]));
        assert_eq!(read[3].1, values[4].1);
        assert_eq!(read[4], (5, vec![0x3f]));
        assert!(header.read(&frame[1..21]).is_none());
    }

    #[test]
    fn metadata_that_are_not_the_headers_are_refused() {
        let header = header(&[9, 7]);
        let write = |values: &[(u32, &[u8])]| {
            let mut frame = Vec::new();
            let result = header.write(values.iter().copied(), &mut frame);
            assert!(result.is_ok() || frame.is_empty());
            result
        };
        let refused = |values: &[(u32, &[u8])]| {
            let error = write(values).unwrap_err();
            (error.kind(), error.to_string())
        };
        let invalid = |text: &str| (ErrorKind::InvalidArgument, text.to_owned());
        assert_eq!(write(&[(1, &[1]), (2, &[0])]), Ok(()));
        assert_eq!(
            refused(&[(3, &[1])]),
            invalid("metadata 3: packet_out has no field of this id")
        );
        assert_eq!(refused(&[(1, &[1])]), invalid("metadata 2 (f2) is missing"));
        assert_eq!(
            refused(&[(1, &[1]), (1, &[1])]),
            invalid("metadata 1 (f1) is given twice")
        );
        // §8.3.
        for value in [&[2, 0][..], &[]] {
            assert_eq!(refused(&[(1, value), (2, &[0])]).0, ErrorKind::OutOfRange);
        }
    }
}
