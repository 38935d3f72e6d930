//! Text formats of the studies' results.

use anyhow::Result;
use serde::Serialize;

use crate::chart::Spread;

/// `rows` as CSV, with a header.
pub fn csv<R: Serialize>(rows: impl IntoIterator<Item = R>) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// A share in percent, without trailing zeros.
pub fn percent(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A number for a tick: up to three decimals, without trailing zeros.
pub fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An accuracy in percent: the mean over the seeds ± the largest deviation.
pub fn accuracy(of: Spread) -> String {
    let deviation = (of.most - of.mean).max(of.mean - of.least);
    format!("{:.1} ±{:.1}", of.mean * 100.0, deviation * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_has_no_trailing_zeros() {
        let texts = [0.0, 0.001, 0.005, 0.1, 0.2].map(percent);
        assert_eq!(texts, ["0 %", "0.1 %", "0.5 %", "10 %", "20 %"]);
    }
}
