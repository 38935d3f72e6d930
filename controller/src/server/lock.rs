//! Locking a mutex whose holders do not panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // No thread panics while it holds the lock, and every change is complete.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
