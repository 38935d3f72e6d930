//! How things stand, for Prometheus.

use super::controller::Controller;
use crate::fabric::SwitchId;
use crate::ledger::Fill;
use crate::metrics::{Standing, SwitchStanding};
use crate::plan::LimitError;

impl Controller {
    /// Everything counted and measured since the start, and how things stand, as OpenMetrics text.
    pub fn metrics_text(&self) -> String {
        let (lost, out_of_use) = {
            let condition = self.condition();
            (
                condition.lost().down().len(),
                condition.health().down().len(),
            )
        };
        let fills = self.fills().unwrap_or_else(|error| {
            // The program was checked at the start.
            tracing::warn!(%error, "how full switches are is not known");
            Vec::new()
        });
        let (jobs, waiting_jobs) = {
            let registry = self.registry();
            let waiting = registry.iter().filter(|record| record.stays.is_some());
            (registry.iter().count(), waiting.count())
        };
        let switches = self.switches.iter().map(|switch| {
            let client = switch.client().ok();
            let here = fills.iter().filter(|(id, _)| *id == switch.id);
            SwitchStanding {
                switch: switch.name().to_owned(),
                is_connected: client.is_some(),
                is_in_doubt: switch.is_in_doubt(),
                digest_lists_dropped: client.map_or(0, |it| it.digest_lists_dropped()),
                fills: here.map(|(_, fill)| *fill).collect(),
            }
        });
        let standing = Standing {
            jobs,
            waiting_jobs,
            lost,
            out_of_use,
            switches: switches.collect(),
        };
        self.metrics.text(standing)
    }

    /// How full each switch is.
    ///
    /// # Errors
    /// The program lacks a table or a counter.
    pub fn fills(&self) -> Result<Vec<(SwitchId, Fill)>, LimitError> {
        let registry = self.registry();
        let mut fills = Vec::new();
        for id in self.fabric().switch_ids() {
            let here = (registry.ledger()).fills(self.fabric(), self.program().names(), id)?;
            fills.extend(here.into_iter().map(|fill| (id, fill)));
        }
        Ok(fills)
    }
}
