//! Runs independent cases of one test concurrently: most of them wait most of the time.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::{FutureExt as _, StreamExt as _, stream};

/// The number of concurrent cases: so few that none of them waits for the processor. A quick run has fewer cases, and runs
/// all faults at once.
fn at_a_time() -> usize {
    ultima_testing::per_run(7, 4)
}

/// Runs all cases, and prints the name of one that fails.
pub async fn several<T>(
    cases: impl IntoIterator<Item = (impl Display, impl Future<Output = T>)>,
) -> Vec<T> {
    let cases = cases.into_iter().map(|(name, case)| named(name, case));
    stream::iter(cases).buffered(at_a_time()).collect().await
}

/// Runs one case, and prints its name if it fails.
pub async fn named<T>(name: impl Display, case: impl Future<Output = T>) -> T {
    match AssertUnwindSafe(case).catch_unwind().await {
        Ok(done) => done,
        Err(panic) => {
            eprintln!("the failed case: {name}");
            resume_unwind(panic)
        }
    }
}
