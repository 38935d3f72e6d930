//! Values in the memory of a Python object.

use std::slice;

use pyo3::prelude::*;

/// Values (f32) in the memory of a Python object, which it keeps alive.
pub struct Memory {
    /// Never null, aligned.
    address: usize,
    len: usize,
    _owner: Py<PyAny>,
}

impl Memory {
    /// Creates it from `ultima`'s own Python code.
    ///
    /// # Safety
    /// At `address` are `len` values that are valid for reads and writes while `owner` lives, and that nothing
    /// else accesses while this does.
    pub unsafe fn new(address: usize, len: usize, owner: Py<PyAny>) -> Self {
        // Empty arrays may have no memory.
        let address = if len == 0 { align_of::<f32>() } else { address };
        Self {
            address,
            len,
            _owner: owner,
        }
    }
}

impl AsMut<[f32]> for Memory {
    fn as_mut(&mut self) -> &mut [f32] {
        // SAFETY: the conditions of `new` hold while `_owner` lives.
        unsafe { slice::from_raw_parts_mut(self.address as *mut f32, self.len) }
    }
}
