//! Keys of sealed jobs.

use rand::TryRng as _;
use rand::rngs::SysRng;
use ultima_wire::Key;

/// Draws a key: 128 bits of the system's randomness.
///
/// # Panics
/// If the system has no randomness.
pub fn draw() -> Key {
    let mut key = [0; 16];
    SysRng
        .try_fill_bytes(&mut key)
        .expect("the system has randomness");
    Key(key)
}
