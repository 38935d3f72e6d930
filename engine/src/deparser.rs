//! The deparser: checksums to update, then the valid headers in order.

use std::ops::Range;

use super::DropCause;
use super::action::Machine;
use super::checksum::Checksum;
use super::code::Blocks;
use super::error::LoadError;
use super::json;
use super::layout::MAX_BYTES;
use super::primitive::Names;

#[derive(Debug)]
pub(super) struct Deparser {
    /// The headers, and where they stand in the header vector; `None` where that varies.
    order: Vec<(usize, Option<Range<usize>>)>,
    /// The primitives before the headers, by their position among the program's actions; `None` if there are none.
    block: Option<usize>,
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
                false => Some(names.block(&deparser.primitives, &at)?),
            },
        })
    }

    /// Writes the packet to `out`, which is empty.
    pub fn run(
        &self,
        machine: &mut Machine,
        blocks: &Blocks,
        checksums: &[Checksum],
        out: &mut Vec<u8>,
    ) -> Result<(), DropCause> {
        let mut scratch = std::mem::take(&mut machine.state.scratch);
        let shortest = machine
            .verdict
            .truncate
            .map_or(usize::MAX, |bytes| bytes as usize);
        // As in BMv2, which cuts what is left of the packet before it puts the headers in front.
        let covered = &machine.payload[..machine.payload.len().min(shortest)];
        for (at, checksum) in checksums.iter().enumerate() {
            if !checksum.update {
                continue;
            }
            let env = machine.env(&[]);
            let result = checksum.compute(env, machine.calculations, covered, &mut scratch);
            if let Some((target, value)) = result {
                if let Some(recorder) = &mut machine.state.trace {
                    recorder.updated(at, checksum, value, machine.layout, machine.phv);
                }
                target.store(&mut machine.phv.bytes, u128::from(value));
            }
        }
        machine.state.scratch = scratch;
        if let Some(block) = self.block {
            blocks.run(block, machine)?;
        }
        self.emit(machine, out);
        out.extend_from_slice(machine.payload);
        let whole = out.len();
        // What is recirculated is not cut, as in BMv2.
        if machine.verdict.recirculate.is_none() {
            out.truncate(shortest);
        }
        if let Some(recorder) = &mut machine.state.trace {
            let valid = |header: &usize| machine.phv.is_valid(*header);
            let headers = self.order.iter().map(|(header, _)| *header).filter(valid);
            let (payload, cut) = (machine.payload.len(), whole - out.len());
            recorder.deparsed(machine.layout, headers, payload, cut, out);
        }
        Ok(())
    }

    /// Appends the valid headers. Those that follow each other in the vector too, as most do, are
    /// copied at once.
    fn emit(&self, machine: &Machine, out: &mut Vec<u8>) {
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
