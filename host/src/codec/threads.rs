//! Sharing the work on a bucket among threads.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` with each item, on as many threads as there are `states`, and returns when all is done.
///
/// A thread that cannot be started leaves its work to the others.
pub(super) fn share_out<S: Send, T: Send>(
    states: &mut [S],
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(&mut S, T) + Sync,
) {
    let Some((own, others)) = states.split_first_mut() else {
        return;
    };
    let items = Mutex::new(items);
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = |state: &mut S| {
        while let Some(item) = next() {
            work(state, item);
        }
    };
    let run = &run;
    thread::scope(|scope| {
        for state in others {
            let thread = thread::Builder::new().name("ultima-codec".into());
            let _ = thread.spawn_scoped(scope, move || run(state));
        }
        run(own);
    });
}

/// An encoded bucket that several tiles are written to, each to columns of its own.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    start: *mut f32,
    len: usize,
    values: PhantomData<&'a mut [f32]>,
}

// SAFETY: as `&mut [f32]`, which can be sent. `Columns::get` is unsafe for what the copies must not do.
unsafe impl Send for Columns<'_> {}
// SAFETY: as above.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    pub(super) fn new(values: &'a mut [f32]) -> Self {
        Self {
            start: values.as_mut_ptr(),
            len: values.len(),
            values: PhantomData,
        }
    }

    /// The values from column `first` on.
    pub(super) fn from(self, first: usize) -> Self {
        assert!(first <= self.len);
        Self {
            // SAFETY: inside the slice.
            start: unsafe { self.start.add(first) },
            len: self.len - first,
            ..self
        }
    }

    /// The first of at least `len` values. Writing there needs what [`Columns::get`] needs.
    ///
    /// # Panics
    /// If the bucket has fewer.
    #[inline(always)]
    pub(super) fn until(&mut self, len: usize) -> *mut f32 {
        assert!(len <= self.len);
        self.start
    }

    /// `len` values from index `at` on.
    ///
    /// # Panics
    /// If the bucket has no such values.
    ///
    /// # Safety
    /// Nothing else refers to these values for as long as the result is in use.
    #[inline(always)]
    pub(super) unsafe fn get(&mut self, at: usize, len: usize) -> &mut [f32] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the slice of `new`, which lives for 'a; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
