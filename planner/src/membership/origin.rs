//! The origin of an epoch.

use std::sync::Arc;

use super::{ChangeOptions, Succession};
use crate::job::JobId;

/// The committed part of a change: the origin of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The job's id in the previous epoch.
    pub of: JobId,
    /// The succession of members.
    pub succession: Arc<Succession>,
    /// The options of the change.
    pub options: ChangeOptions,
    /// True if operations had begun when the change was requested.
    pub has_begun: bool,
    /// The epoch's first operation, once it is decided.
    pub first: Option<u32>,
}
