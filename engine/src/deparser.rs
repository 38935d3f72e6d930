//! The deparser: the valid headers in order. [`Code`](super::code::Code) updates checksums before.

use std::ops::Range;

use super::action::Machine;
use super::error::LoadError;
use super::json;
use super::layout::MAX_BYTES;
use super::primitive::Names;

#[derive(Debug)]
pub(super) struct Deparser {
    /// The headers, and where they stand in the header vector; `None` where that varies.
    order: Vec<(usize, Option<Range<usize>>)>,
    /// The primitives before the headers, by their position among the program's actions; `None` if there are none.
    pub block: Option<usize>,
}

impl Deparser {
    pub fn new(deparser: &json::Deparser, names: &Names) -> Result<Deparser, LoadError> {
        let at = format!("deparser {}", deparser.name);
        let layout = names.layout;
        let order = deparser.order.iter().map(|header| {
            let header = layout.find_on_wire(header, &at)?;
            let (base, shape) = (layout.instances[header].base, layout.shape(header));
            let place = shape.varbit.is_none().then(|| base..base + shape.bytes);
            Ok((header, place))
        });
        let order = order.collect::<Result<Vec<_>, _>>()?;
        let bytes = order
            .iter()
            .map(|(header, _)| layout.shape(*header).bytes as u64);
        LoadError::check("size in bytes", bytes.sum(), MAX_BYTES, &at)?;
        Ok(Deparser {
            order,
            block: match deparser.primitives.is_empty() {
                true => None,
                false => Some(names.block(names.code(&deparser.primitives, &[], &at)?)),
            },
        })
    }

    /// The headers in order.
    pub fn headers(&self) -> impl Iterator<Item = usize> {
        self.order.iter().map(|(header, _)| *header)
    }

    /// Appends the valid headers, after the deparser's code has run. Those that follow each other in the vector too, as most do, are
    /// copied at once.
    pub fn emit(&self, machine: &Machine, out: &mut Vec<u8>) {
        let bytes = &machine.phv.bytes;
        let mut run = 0..0;
        for (header, place) in &self.order {
            if !machine.phv.is_valid(*header) {
                continue;
            }
            match place {
                Some(place) if place.start == run.end => run.end = place.end,
                place => {
                    out.extend_from_slice(&bytes[std::mem::take(&mut run)]);
                    match place {
                        Some(place) => run = place.clone(),
                        None => machine.phv.emit(machine.layout, *header, out),
                    }
                }
            }
        }
        out.extend_from_slice(&bytes[run]);
    }
}
