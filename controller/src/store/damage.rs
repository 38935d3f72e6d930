//! Turns the panics of `redb` on damaged files into errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// True while panics of this thread are reported as errors.
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. Returns the first line of the panic message if `work` panics, and prints nothing in
/// that case.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_CATCHING.get() {
                others(panic);
            }
        }));
    });
    let before = IS_CATCHING.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    IS_CATCHING.set(before);
    done.map_err(|panic| {
        let line = message_of(&*panic).lines().next().unwrap_or_default();
        format!("the file is damaged ({line})")
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (None, Some(message)) => message,
        (None, None) => "",
    }
}
