//! Parses a frame with the program's parser, without processing it.

use num_bigint::BigUint;

use super::action::Verdict;
use super::{DropCause, Engine};

/// What the parser made of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The program's name for the error that ended it; `NoError` if none did.
    pub error: String,
    /// The valid headers, in the order in which the program declares them, and all metadata.
    pub headers: Vec<ParsedHeader>,
    /// Bytes extracted or skipped; the rest of the frame is payload.
    pub bytes: usize,
}

/// A header or metadata instance with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedHeader {
    /// The instance's name in the program.
    pub name: String,
    /// Whether it is metadata, which is always there.
    pub metadata: bool,
    /// Every field's name and value, unsigned, in order.
    pub fields: Vec<(String, BigUint)>,
}

impl Parsed {
    /// Whether a header is valid.
    pub fn is_valid(&self, header: &str) -> bool {
        self.headers.iter().any(|found| found.name == header)
    }

    /// A field of a valid header or of metadata.
    pub fn field(&self, header: &str, field: &str) -> Option<&BigUint> {
        let header = self.headers.iter().find(|found| found.name == header)?;
        header
            .fields
            .iter()
            .find(|(name, _)| name == field)
            .map(|(_, value)| value)
    }
}

impl Engine {
    /// Runs only the parser, and checksum verification, on a frame that enters at port 0.
    ///
    /// # Errors
    /// The packet exceeded a limit, or an assertion of the parser did not hold.
    pub fn parse(&mut self, frame: &[u8]) -> Result<Parsed, DropCause> {
        let mut phv = self.acquire();
        phv.reset(&self.program.layout);
        let length = frame.len() as u32;
        let mut verdict = Verdict {
            ingress_length: length,
            length,
            ..Verdict::default()
        };
        let parsed = self.parse_into(&mut phv, &mut verdict, frame, 0)?;
        let layout = &self.program.layout;
        let error = self
            .program
            .errors
            .iter()
            .find(|(_, number)| *number == parsed.error);
        let headers = (0..layout.instances.len())
            .filter(|at| phv.is_valid(*at))
            .map(|at| {
                let instance = &layout.instances[at];
                let shape = layout.shape(at);
                let field = |(index, field): (usize, &super::layout::FieldShape)| {
                    let value = match shape.varbit {
                        Some(varbit) if varbit.field == index => phv.varbit(layout, at).to_vec(),
                        _ => layout.slot(at, index).canonical(&phv.bytes),
                    };
                    (field.name.clone(), BigUint::from_bytes_be(&value))
                };
                ParsedHeader {
                    name: instance.name.clone(),
                    metadata: instance.metadata,
                    fields: shape.fields.iter().enumerate().map(field).collect(),
                }
            });
        let parsed = Parsed {
            error: error.map_or_else(|| parsed.error.to_string(), |(name, _)| name.clone()),
            headers: headers.collect(),
            bytes: parsed.bytes,
        };
        self.release(phv);
        Ok(parsed)
    }
}
