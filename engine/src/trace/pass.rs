//! Traces of checksums and the deparser.

use super::super::checksum::Checksum;
use super::super::layout::Layout;
use super::super::octets::{Octets, hex, plural};
use super::super::phv::Phv;
use super::{MAX_BYTES, Recorder, field_at};

impl Recorder {
    /// Records the actual and the correct checksum.
    pub(crate) fn verified(
        &mut self,
        at: usize,
        checksum: &Checksum,
        computed: u64,
        layout: &Layout,
        phv: &Phv,
    ) {
        self.checksum_source(at);
        let (field, value) = target(checksum, layout, phv);
        let computed = format!("{computed:#x}");
        let verdict = match value == computed {
            true => "correct",
            false => "wrong",
        };
        self.note(
            2,
            format_args!("checksum {field} {value}, computed {computed}: {verdict}"),
        );
    }

    /// Records a checksum before and after its update.
    pub(crate) fn updated(
        &mut self,
        at: usize,
        checksum: &Checksum,
        computed: u64,
        layout: &Layout,
        phv: &Phv,
    ) {
        self.checksum_source(at);
        let (field, old) = target(checksum, layout, phv);
        self.note(2, format_args!("checksum {field}: {old} -> {computed:#x}"));
    }

    fn checksum_source(&mut self, at: usize) {
        let symbols = self.symbols();
        self.source = symbols.checksums.get(at).cloned().flatten();
    }

    /// Records the deparsed frame.
    pub(crate) fn deparsed(
        &mut self,
        layout: &Layout,
        headers: impl Iterator<Item = usize>,
        payload: usize,
        cut: usize,
        frame: &[u8],
    ) {
        let headers = headers.map(|header| layout.instances[header].name.as_str());
        let headers = headers.collect::<Vec<_>>().join(" + ");
        let [payload, length] = [payload, frame.len()].map(|it| plural(it as u64, "byte"));
        let cut = match cut {
            0 => String::new(),
            cut => format!(", truncated by {cut}"),
        };
        self.conclude(
            1,
            format_args!("deparser: {headers} + {payload} of payload{cut} = {length}"),
        );
        if self.bytes + frame.len() <= MAX_BYTES
            && let Some(copy) = self.copy()
        {
            copy.frame = Some(Octets(frame.to_vec()));
            self.bytes += frame.len();
        }
    }
}

/// Returns the name of a checksum's field, and the packet's value.
fn target(checksum: &Checksum, layout: &Layout, phv: &Phv) -> (String, String) {
    let value = checksum.target.canonical(&phv.bytes);
    (field_at(layout, checksum.target), hex(&value))
}
