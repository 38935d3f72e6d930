//! Traces of checksums and the deparser.

use super::super::DropCause;
use super::super::checksum::Checksum;
use super::super::layout::Layout;
use super::super::phv::Phv;
use super::event::Event;
use super::value::{Octets, Value};
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
        self.note(Event::Verify {
            field: field_at(layout, checksum.target),
            value: Value::new(&checksum.target.canonical(&phv.bytes)),
            computed: Value::from(computed),
        });
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
        self.note(Event::Update {
            field: field_at(layout, checksum.target),
            old: Value::new(&checksum.target.canonical(&phv.bytes)),
            new: Value::from(computed),
        });
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
        let headers = headers.map(|header| layout.instances[header].name.clone());
        let fits = self.bytes + frame.len() <= MAX_BYTES;
        self.conclude(Event::Deparse {
            headers: headers.collect(),
            payload,
            cut,
            bytes: frame.len(),
            frame: fits.then(|| Octets(frame.to_vec())),
        });
    }

    /// Records the end of the packet or copy.
    pub(crate) fn dropped(&mut self, cause: DropCause) {
        self.source = None;
        self.conclude(Event::Dropped { cause });
    }
}
