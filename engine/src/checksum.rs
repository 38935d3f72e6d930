//! Calculations over fields, headers and payload, and the checksums that use them.

use num_bigint::BigInt;
use serde_json::Value as Json;

use super::bits::{MAX_BITS, MAX_KEY_BITS, Place, SLACK, Slot, Wire, low_bits};
use super::compile::Scope;
use super::error::LoadError;
use super::expression::Test;
use super::hash::Algorithm;
use super::json::{self, Term};
use super::layout::Layout;
use super::phv::Phv;

/// A named calculation: an algorithm and what goes into it.
#[derive(Debug)]
pub(super) struct Calculation {
    pub name: String,
    algorithm: Algorithm,
    input: Vec<Input>,
    payload: bool,
}

/// A piece of input. Fields of invalid headers are left out.
#[derive(Debug)]
enum Input {
    Field {
        header: usize,
        slot: Slot,
    },
    /// The variable-length field of a header.
    Varbit {
        header: usize,
    },
    Header(usize),
    Constant {
        bytes: Vec<u8>,
        slot: Slot,
    },
}

impl Calculation {
    pub fn new(calculation: &json::Calculation, layout: &Layout) -> Result<Calculation, LoadError> {
        let at = format!("calculation {}", calculation.name);
        let name = calculation.name.clone();
        Calculation::over(name, &calculation.algo, &calculation.input, layout, at)
    }

    /// Returns the calculation of a selector's hash.
    pub fn of_selector(
        profile: &str,
        selector: &json::Selector,
        layout: &Layout,
    ) -> Result<Calculation, LoadError> {
        let at = format!("selector of {profile}");
        Calculation::over(profile.into(), &selector.algo, &selector.input, layout, at)
    }

    fn over(
        name: String,
        algorithm: &str,
        parts: &[Json],
        layout: &Layout,
        at: String,
    ) -> Result<Calculation, LoadError> {
        let algorithm = Algorithm::named(algorithm, &at)?;
        let (mut input, mut payload) = (Vec::<Input>::new(), false);
        let mut bits = 0;
        for part in parts {
            if payload {
                return Err(LoadError::unsupported("input behind the payload", at));
            }
            match Input::new(part, layout, &at)? {
                Some(next) => {
                    bits += next.bits(layout);
                    let what = "number of bits before the payload";
                    LoadError::check(what, bits, MAX_BITS.into(), &at)?;
                    if !input.last_mut().is_some_and(|last| last.join(&next)) {
                        input.push(next);
                    }
                }
                None => payload = true,
            }
        }
        Ok(Calculation {
            name,
            algorithm,
            input,
            payload,
        })
    }

    /// The result for a packet. `scratch` is working memory.
    pub fn compute(
        &self,
        phv: &Phv,
        layout: &Layout,
        payload: &[u8],
        scratch: &mut Vec<u8>,
    ) -> u64 {
        scratch.clear();
        let mut bits = 0;
        for part in &self.input {
            match part {
                Input::Field { header, .. } if !phv.is_valid(*header) => {}
                Input::Field { slot, .. } => push_bits(scratch, &mut bits, *slot, &phv.bytes),
                Input::Constant { bytes, slot } => push_bits(scratch, &mut bits, *slot, bytes),
                Input::Varbit { header } | Input::Header(header) if !phv.is_valid(*header) => {}
                Input::Varbit { header } => {
                    push_bytes(scratch, &mut bits, phv.varbit(layout, *header));
                }
                Input::Header(header) if bits % 8 == 0 => {
                    phv.emit(layout, *header, scratch);
                    bits = scratch.len() * 8;
                }
                Input::Header(header) => {
                    let mut wire = Vec::new();
                    phv.emit(layout, *header, &mut wire);
                    push_bytes(scratch, &mut bits, &wire);
                }
            }
        }
        if self.payload {
            scratch.extend_from_slice(payload);
        }
        self.algorithm.hash(scratch)
    }

    /// Fields of 16 and 32 bits whose sum an Internet checksum over this header alone folds.
    fn fields(&self, header: usize) -> Option<Vec<Wire>> {
        if self.algorithm != Algorithm::Csum16 || self.payload {
            return None;
        }
        let mut fields = Vec::new();
        for part in &self.input {
            let whole = match part {
                Input::Field { header: of, slot } if *of == header => slot.whole_bytes(),
                _ => None,
            };
            let whole = whole.filter(|bytes| bytes.len().is_multiple_of(2))?;
            for at in whole.clone().step_by(4) {
                let bytes = (whole.end - at).min(4);
                match Slot::new(at * 8, bytes as u32 * 8, false).place() {
                    Some(Place::Wire(wire)) if fields.len() < MAX_FIELDS => fields.push(wire),
                    _ => return None,
                }
            }
        }
        Some(fields)
    }
}

/// The most fields of a sum. The sum of as many fits 38 bits.
const MAX_FIELDS: usize = 64;

impl Input {
    fn bits(&self, layout: &Layout) -> u64 {
        match self {
            Input::Field { slot, .. } | Input::Constant { slot, .. } => u64::from(slot.width),
            Input::Varbit { header } | Input::Header(header) => {
                layout.shape(*header).bytes as u64 * 8
            }
        }
    }

    /// Takes the next piece in if it follows this one in the packet.
    fn join(&mut self, next: &Input) -> bool {
        match (self, next) {
            (
                Input::Field { header, slot },
                Input::Field {
                    header: other,
                    slot: behind,
                },
            ) if header == other
                && !slot.is_word()
                && slot.bit() + slot.width as usize == behind.bit() =>
            {
                *slot = Slot::new(slot.bit(), slot.width + behind.width, false);
                true
            }
            _ => false,
        }
    }

    /// `None` for the payload.
    fn new(part: &Json, layout: &Layout, at: &str) -> Result<Option<Input>, LoadError> {
        Ok(Some(match Term::parse(part, at)? {
            Term::Field(header, field) => {
                let instance = layout.find(&header, at)?;
                let slot = layout.field(&header, &field, at)?;
                match layout.shape(instance).varbit {
                    Some(varbit) if layout.slot(instance, varbit.field) == slot => {
                        Input::Varbit { header: instance }
                    }
                    _ => Input::Field {
                        header: instance,
                        slot,
                    },
                }
            }
            Term::Header(header) => Input::Header(layout.find_on_wire(&header, at)?),
            Term::Hex(value) => {
                let width = json::bitwidth(part)
                    .filter(|width| u64::from(*width) <= MAX_KEY_BITS)
                    .ok_or_else(|| {
                        LoadError::malformed(
                            "a constant needs a bitwidth, no more than a key has",
                            at,
                        )
                    })?;
                let slot = Slot::new(0, width, false);
                let mut bytes = vec![0; slot.bytes() + SLACK];
                slot.store_big(&mut bytes, &BigInt::from(low_bits(&value, width)));
                Input::Constant { bytes, slot }
            }
            Term::Payload => return Ok(None),
            other => return Err(LoadError::unsupported(format!("input {other:?}"), at)),
        }))
    }
}

/// Appends a field behind `bits` bits. The last byte is padded with zeros.
fn push_bits(out: &mut Vec<u8>, bits: &mut usize, slot: Slot, from: &[u8]) {
    if let (0, Some(bytes)) = (*bits % 8, slot.whole_bytes()) {
        out.extend_from_slice(&from[bytes]);
        *bits += slot.width as usize;
        return;
    }
    let mut left = slot.width;
    while left > 0 {
        // To the next byte boundary first, then in words.
        let room = 8 - (*bits % 8) as u32;
        let piece = left.min(if room == 8 { 64 } else { room });
        let value = slot.part(left - piece, piece).load_word(from);
        if room == 8 {
            let bytes = (value << (64 - piece)).to_be_bytes();
            out.extend_from_slice(&bytes[..piece.div_ceil(8) as usize]);
        } else if let Some(last) = out.last_mut() {
            *last |= (value << (room - piece)) as u8;
        }
        left -= piece;
        *bits += piece as usize;
    }
}

fn push_bytes(out: &mut Vec<u8>, bits: &mut usize, bytes: &[u8]) {
    if bits.is_multiple_of(8) {
        out.extend_from_slice(bytes);
        *bits += bytes.len() * 8;
        return;
    }
    let mut padded = bytes.to_vec();
    padded.extend([0; SLACK]);
    push_bits(
        out,
        bits,
        Slot::new(0, bytes.len() as u32 * 8, false),
        &padded,
    );
}

/// A checksum field and the calculation that it should agree with.
#[derive(Debug)]
pub(super) struct Checksum {
    pub header: usize,
    pub target: Slot,
    pub calculation: usize,
    /// Fields of 16 and 32 bits whose sum an Internet checksum over this header alone folds.
    pub fields: Option<Vec<Wire>>,
    pub condition: Option<Test>,
    pub update: bool,
    pub verify: bool,
}

impl Checksum {
    pub fn new(
        checksum: &json::Checksum,
        scope: Scope,
        calculations: &[Calculation],
    ) -> Result<Checksum, LoadError> {
        if checksum.kind != "generic" {
            return Err(LoadError::unsupported(
                format!("type {}", checksum.kind),
                scope.at,
            ));
        }
        let (header, field) = &checksum.target;
        let target = scope.layout.field(header, field, scope.at)?;
        if target.width > 64 {
            let what = format!("a target of {} bits", target.width);
            return Err(LoadError::unsupported(what, scope.at));
        }
        let name = &checksum.calculation;
        let found = calculations
            .iter()
            .position(|calculation| calculation.name == *name);
        let instance = scope.layout.find(header, scope.at)?;
        let calculation = LoadError::found(found, "calculation", name, scope.at)?;
        let condition = match &checksum.if_cond {
            Some(json) => Some(scope.test(&Term::parse(json, scope.at)?)?),
            None => None,
        };
        Ok(Checksum {
            header: instance,
            target,
            fields: calculations[calculation].fields(instance),
            calculation,
            condition,
            update: checksum.update,
            verify: checksum.verify,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_each_other_bit_by_bit() {
        let mut from = vec![0x45, 0xab, 0xcd, 0xef, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc];
        from.extend([0; SLACK]);
        let (mut out, mut bits) = (Vec::new(), 0);
        push_bits(&mut out, &mut bits, Slot::new(0, 4, false), &from);
        push_bits(&mut out, &mut bits, Slot::new(8, 72, false), &from);
        push_bits(&mut out, &mut bits, Slot::new(4, 3, false), &from);
        assert_eq!(bits, 79);
        assert_eq!(
            out,
            [0x4a, 0xbc, 0xde, 0xf1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xc4]
        );
        push_bytes(&mut out, &mut bits, &[0xff, 0x00]);
        assert_eq!(out[9..], [0xc5, 0xfe, 0x00]);
    }
}
