//! Cases of one test that have nothing to do with each other and mostly wait: some of them at a time.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::{FutureExt as _, StreamExt as _, stream};

/// How many: few enough that none of them waits for the processor.
const AT_A_TIME: usize = 4;

/// Does all of them, and says which one has failed.
pub async fn several<T>(
    cases: impl IntoIterator<Item = (impl Display, impl Future<Output = T>)>,
) -> Vec<T> {
    let cases = cases.into_iter().map(|(name, case)| async move {
        match AssertUnwindSafe(case).catch_unwind().await {
            Ok(done) => done,
            Err(panic) => {
                eprintln!("that was {name}");
                resume_unwind(panic)
            }
        }
    });
    stream::iter(cases).buffered(AT_A_TIME).collect().await
}
