//! Work for the task of a switch, whose result a reroute or a request waits for.

use std::mem;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};
use ultima_p4runtime::names::Names;

use super::{Audit, ManagedSwitch, Step, Write};
use crate::p4rt::Order;
use crate::server::error::BringUpError;

/// Updates per call: so few that a switch of the slowest accepted rate answers well within the
/// timeout. A switch that hangs is thus detected after one call, however many updates it is to get.
pub const UPDATES_PER_CALL: usize = 70;

impl ManagedSwitch {
    /// Asks the switch's task for a comparison.
    ///
    /// # Errors
    /// The switch is not connected.
    pub fn ask_audit(&self, audit: Audit) -> Result<(), String> {
        self.with_state(|state| {
            state.connection.as_ref().map_err(String::clone)?;
            state.audits.push(audit);
            Ok::<_, String>(())
        })?;
        self.wake();
        Ok(())
    }

    /// Returns the comparisons that the switch's task is asked for.
    pub fn take_audits(&self) -> Vec<Audit> {
        self.with_state(|state| mem::take(&mut state.audits))
    }

    /// Hands a step to the switch's task, with this timeout for each call. Returns the result; none if the task loses the
    /// connection or panics. A caller that does not wait for the result withdraws the step.
    pub async fn write_step(
        &self,
        call_timeout: Duration,
        write: Write,
    ) -> Option<Result<(), BringUpError>> {
        let (done, result) = oneshot::channel();
        self.with_state(|state| {
            let client = state.connection.as_ref().ok()?;
            state.step = Some(Step {
                client: client.with_limits(UPDATES_PER_CALL, call_timeout),
                write,
                span: Span::current(),
                done,
            });
            Some(())
        })?;
        self.has_step.notify_one();
        result.await.ok()
    }

    /// Returns the next step for the switch's task.
    pub async fn next_step(&self) -> Step {
        loop {
            if let Some(step) = self.with_state(|state| state.step.take()) {
                return step;
            }
            self.has_step.notified().await;
        }
    }
}

impl Step {
    /// Writes the step, unless the reroute withdraws it.
    pub async fn write(self, switch: &ManagedSwitch, names: &Names) {
        let Step {
            client,
            write,
            span,
            mut done,
        } = self;
        let written = async {
            match write {
                Write::Updates(updates) => {
                    let order = Order::AsGiven;
                    switch.change(&client, names, updates, order).await
                }
                Write::Division(division) => switch.divide(&client, names, division).await,
                Write::All(wanted) => switch.hold(&client, names, wanted).await.map(drop),
            }
        };
        let result = tokio::select! {
            biased;
            () = done.closed() => None,
            result = written.instrument(span) => Some(result),
        };
        // The reroute goes on without this switch.
        if result.is_none_or(|result| done.send(result).is_err()) {
            switch.mark_dirty();
        }
    }
}
