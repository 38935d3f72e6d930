//! Where every packet went: [`traffic`] of every fate, a [`model`] of its own of what switches make of it, and the
//! equations of `docs/dataplane.md`, which [`audit`] checks.

pub mod audit;
pub mod model;
pub mod traffic;

/// Losses of one operation at one place of which the controller is told, for all jobs.
pub const THRESHOLD: u32 = 3;
/// The step of all packets; operations are its buckets, as few as a window has cells.
pub const STEP: u32 = 5;
/// Buckets of it.
pub const BUCKETS: u16 = 8;
/// Bytes of a frame that was cut.
pub const CUT: usize = ultima_wire::frame::FRAME_OVERHEAD + ultima_wire::HEADER_LEN;
/// Bytes more of one that keeps digest and tag.
pub const SEAL: usize = 16;
