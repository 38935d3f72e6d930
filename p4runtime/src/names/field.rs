//! Named fields of fixed width, in a key, an action, a controller header or a digest.

use super::{NameError, P4InfoError};
use crate::bytestring::{Bytestring, BytestringError};
use std::collections::HashSet;

/// One named field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Number in messages, unique among its neighbours.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Width in bits; 0 if values are not numbers to the control plane: a type that is translated to strings (§8.4.6), or one
    /// that is not a bit string.
    pub bitwidth: usize,
}

/// Why a value cannot be written to a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// There is no field of this name.
    #[error(transparent)]
    Unknown(#[from] NameError),
    /// A field is given twice.
    #[error("{place}: \"{field}\" is given twice")]
    Repeated {
        /// The object.
        place: String,
        /// The field.
        field: String,
    },
    /// Fields that need a value have none.
    #[error("{place}: no value for {fields}")]
    Missing {
        /// The object.
        place: String,
        /// The fields, quoted, separated by commas.
        fields: String,
    },
    /// The value has more bits than the field.
    #[error("{place}: \"{field}\" has {bitwidth} bits, too few for {value}")]
    TooWide {
        /// The object.
        place: String,
        /// The field.
        field: String,
        /// Its width.
        bitwidth: usize,
        /// The value.
        value: Bytestring,
    },
    /// The field's values are not numbers.
    #[error("{place}: the values of \"{field}\" are not numbers to the control plane")]
    NotANumber {
        /// The object.
        place: String,
        /// The field.
        field: String,
    },
}

/// Why a field of a received message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no field of this name.
    #[error(transparent)]
    Unknown(#[from] NameError),
    /// The message lacks the field, or does not have the form that the P4Info describes.
    #[error("{place}: the message does not hold \"{field}\" as the P4Info describes it")]
    Missing {
        /// The object.
        place: String,
        /// The field.
        field: String,
    },
    /// The field's values are not numbers.
    #[error("{place}: the values of \"{field}\" are not numbers to the control plane")]
    NotANumber {
        /// The object.
        place: String,
        /// The field.
        field: String,
    },
    /// The value does not fit the field.
    #[error("{place}: \"{field}\": {source}")]
    Invalid {
        /// The object.
        place: String,
        /// The field.
        field: String,
        /// The problem.
        source: BytestringError,
    },
}

impl Field {
    /// A field as a P4Info describes it.
    pub(super) fn new(place: &str, id: u32, name: &str, bits: i32) -> Result<Self, P4InfoError> {
        let bitwidth = usize::try_from(bits).map_err(|_| P4InfoError::Negative {
            place: place.into(),
            what: format!("the width of \"{name}\""),
            value: bits.into(),
        })?;
        Ok(Field {
            id,
            name: name.into(),
            bitwidth,
        })
    }

    /// Checks that the field can hold a value.
    pub(super) fn check(&self, place: &str, value: &Bytestring) -> Result<(), FieldError> {
        let (place, field, bitwidth) = (place.into(), self.name.clone(), self.bitwidth);
        if bitwidth == 0 {
            Err(FieldError::NotANumber { place, field })
        } else if value.bits() > bitwidth {
            Err(FieldError::TooWide {
                place,
                field,
                bitwidth,
                value: value.clone(),
            })
        } else {
            Ok(())
        }
    }

    /// Reads the field's bytes in a received message.
    pub(super) fn read(&self, place: &str, bytes: Option<&[u8]>) -> Result<Bytestring, ReadError> {
        let (place, field) = (place.into(), self.name.clone());
        match bytes {
            _ if self.bitwidth == 0 => Err(ReadError::NotANumber { place, field }),
            None => Err(ReadError::Missing { place, field }),
            Some(bytes) => {
                Bytestring::read(bytes, self.bitwidth).map_err(|source| ReadError::Invalid {
                    place,
                    field,
                    source,
                })
            }
        }
    }
}

/// Fields of one object in the order of declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldList {
    /// The object, for errors.
    pub(super) place: String,
    kind: &'static str,
    fields: Vec<Field>,
}

/// Rejects id 0, with which messages say that there is no id.
pub(super) fn check_field_id(place: &str, field: &str, id: u32) -> Result<(), P4InfoError> {
    match id {
        0 => Err(P4InfoError::NoFieldId {
            place: place.into(),
            field: field.into(),
        }),
        _ => Ok(()),
    }
}

impl FieldList {
    pub(super) fn new(
        place: String,
        kind: &'static str,
        fields: impl IntoIterator<Item = Result<Field, P4InfoError>>,
    ) -> Result<Self, P4InfoError> {
        let fields: Vec<Field> = fields.into_iter().collect::<Result<_, _>>()?;
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for Field { id, name, .. } in &fields {
            check_field_id(&place, name, *id)?;
            if !ids.insert(*id) {
                return Err(P4InfoError::RepeatedId { place, id: *id });
            }
            if !names.insert(name) {
                return Err(P4InfoError::RepeatedName {
                    kind,
                    name: name.clone(),
                });
            }
        }
        Ok(FieldList {
            place,
            kind,
            fields,
        })
    }

    /// Returns the field of this name.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn get(&self, name: &str) -> Result<&Field, NameError> {
        self.fields
            .iter()
            .find(|field| field.name == name)
            .ok_or_else(|| {
                let existing = self.fields.iter().map(|field| field.name.as_str());
                NameError::new(self.place.clone(), self.kind, name, existing)
            })
    }

    /// Returns the field of this id.
    pub fn by_id(&self, id: u32) -> Option<&Field> {
        self.fields.iter().find(|field| field.id == id)
    }

    /// Iterates over all fields in the order of declaration.
    pub fn iter(&self) -> std::slice::Iter<'_, Field> {
        self.fields.iter()
    }

    /// Returns ids and canonical bytes of one value for every field, in the order of declaration.
    pub(super) fn encode(
        &self,
        values: &[(&str, Bytestring)],
    ) -> Result<Vec<(u32, Vec<u8>)>, FieldError> {
        for (index, (name, _)) in values.iter().enumerate() {
            self.get(name)?;
            if values[..index].iter().any(|(earlier, _)| earlier == name) {
                let (place, field) = (self.place.clone(), name.to_string());
                return Err(FieldError::Repeated { place, field });
            }
        }
        let value_of = |field: &Field| values.iter().find(|(name, _)| *name == field.name);
        let missing: Vec<_> = self
            .fields
            .iter()
            .filter(|field| value_of(field).is_none())
            .collect();
        if !missing.is_empty() {
            return Err(missing_values(&self.place, missing));
        }
        let present = self
            .fields
            .iter()
            .filter_map(|field| Some((field, &value_of(field)?.1)));
        present
            .map(|(field, value)| {
                field.check(&self.place, value)?;
                Ok((field.id, value.as_bytes().to_vec()))
            })
            .collect()
    }
}

/// Returns the error for fields that lack a value.
pub(super) fn missing_values<'a>(
    place: &str,
    fields: impl IntoIterator<Item = &'a Field>,
) -> FieldError {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|field| format!("\"{}\"", field.name))
        .collect();
    FieldError::Missing {
        place: place.into(),
        fields: fields.join(", "),
    }
}
