//! Parallel runs with a progress bar.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

/// Runs `each` on all `items`, on all cores; returns the results in the items' order.
pub fn all<T: Sync, R: Send>(
    what: &'static str,
    items: &[T],
    each: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len}, {elapsed}")?;
    let bar = ProgressBar::new(items.len() as u64)
        .with_style(style)
        .with_message(what);
    let results = items
        .par_iter()
        .with_max_len(1)
        .map(|item| {
            let result = each(item);
            bar.inc(1);
            result
        })
        .collect();
    bar.finish_and_clear();
    results
}
