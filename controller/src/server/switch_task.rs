//! The task of a switch: it connects to the switch, and makes it match the desired state.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument as _;
use ultima_planner::fabric::{Element, SwitchId};

use super::audit::Purpose;
use super::controller::Controller;
use super::error::BringUpError;
use super::gnmi::listen_to;
use super::own_task::restarted;
use super::port_counters::PortCounters;
use super::port_status::PortStatus;
use super::report::record_switch;
use super::switch::{Found, Lost, ManagedSwitch};
use super::telemetry::listen;
use crate::p4rt::SwitchClient;

/// The pause after a first failed attempt to write to a switch.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Subscribes to a switch's reports of losses, port states and port counters while the controller is connected to it.
fn subscribe(controller: &Arc<Controller>, switch: &ManagedSwitch) {
    listen(controller, switch);
    listen_to::<PortStatus>(controller, switch.id);
    listen_to::<PortCounters>(controller, switch.id);
}

/// Runs [`serve`] and restarts it after a panic.
pub async fn run(controller: &Arc<Controller>, id: SwitchId) {
    let switch = &controller.switches[id.0];
    let disconnect = || {
        tracing::error!(
            switch = switch.name(),
            "the switch's task has panicked; reconnecting"
        );
        switch.mark_dirty();
        switch.disconnect("the controller's task for this switch has panicked".into());
    };
    restarted(|| serve(controller, id), disconnect).await;
}

/// Reconnects a switch whenever the connection is lost, and makes it match the desired state: then,
/// when it is woken, again after a failure, periodically, and when an interrupted write may have
/// taken effect late.
async fn serve(controller: &Arc<Controller>, id: SwitchId) {
    let switch = &controller.switches[id.0];
    // A random pause spreads the audits, which take long for a whole fabric.
    let next_audit = || {
        Instant::now()
            + controller
                .audit_every
                .mul_f64(rand::random_range(0.5..=1.0))
    };
    // After a failed attempt to write.
    let pauses = ExponentialBuilder::new()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(10 * controller.timers.retry)
        .without_max_times();
    let (mut audit, mut retries, mut retry_at) = (next_audit(), pauses.build(), None);
    loop {
        let retry = async {
            match retry_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let work = async {
            let is_periodic = tokio::select! {
                () = switch.woken() => false,
                () = retry => false,
                () = sleep_until(audit) => true,
                () = switch.needs_read() => true,
            };
            if is_periodic {
                let audited = controller.audit_one(switch, Purpose::Periodic).await;
                return audited.is_ok();
            }
            let is_current = catch_up(controller, switch).await;
            controller.answer_audits(switch, switch.take_audits()).await && is_current
        };
        let worked = beside_steps(controller, switch, work).await;
        match worked {
            Err(lost) => {
                record_switch(controller, switch);
                if lost == Lost::Silent {
                    // It may have restarted, and then has no entries.
                    switch.mark_dirty();
                    controller.observe(Element::Transit(id), false);
                }
            }
            Ok(is_current) => {
                retry_at = match is_current {
                    true => {
                        retries = pauses.build();
                        None
                    }
                    false => retries.next().map(|pause| Instant::now() + pause),
                };
                if audit <= Instant::now() {
                    audit = next_audit();
                }
                continue;
            }
        }
        let failed = |error: &BringUpError| {
            record_switch(controller, switch);
            if error.is_silence() {
                switch.mark_dirty();
                controller.observe(Element::Transit(id), false);
            }
        };
        let client = switch.reconnect(failed).await;
        // A short interruption ends here, not only when the switch has been resynced.
        let element = Element::Transit(id);
        if !controller.condition().is_down(element) {
            controller.observe(element, true);
        }
        let span = tracing::info_span!("restore", switch = switch.name());
        match restore(controller, switch, client).instrument(span).await {
            Ok(()) => {
                tracing::info!(switch = switch.name(), "switch reconnected");
                // The desired state may have changed while the switch was away.
                switch.wake();
                controller.observe(element, true);
                record_switch(controller, switch);
            }
            Err(error) => {
                controller.observe(element, false);
                switch.note(&error);
                record_switch(controller, switch);
                sleep(switch.pause_after(&error)).await;
            }
        }
    }
}

/// Does the work of a switch's task, and writes the steps of reroutes. During a reroute, the work waits for the right to
/// write. An error means that the connection is lost.
async fn beside_steps(
    controller: &Controller,
    switch: &ManagedSwitch,
    work: impl Future<Output = bool>,
) -> Result<bool, Lost> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            // It may answer that the connection is lost.
            is_current = &mut work => return Ok(is_current),
            lost = switch.lost() => return Err(lost),
            step = switch.next_step() => {
                step.write(switch, controller.program().names()).await;
            }
        }
    }
}

/// Writes the differences between a switch and the desired state. Returns false if the switch does
/// not match it.
#[tracing::instrument(name = "write", skip_all, fields(switch = switch.name()))]
async fn catch_up(controller: &Controller, switch: &ManagedSwitch) -> bool {
    let Ok(client) = switch.client() else {
        return true;
    };
    let writing = controller.changes.write_to(&switch.writer).await;
    if controller.open().is_err() {
        return true;
    }
    let asked = switch.asked();
    let client = writing.client(&client);
    let attempt = switch.catch_up(&client, &controller.desired()).await;
    drop(writing);
    if let Err(error) = &attempt {
        tracing::warn!(switch = switch.name(), %error, "not as desired yet; retrying");
    }
    switch.attempted(asked, &attempt);
    controller.note_ready();
    match attempt.is_ok() {
        true => controller.retry_waiting(),
        // Only some jobs' entries may have been refused.
        false => controller.finish_waiting(),
    }
    attempt.is_ok()
}

/// Makes a switch match the desired state after the client has connected to it.
pub async fn restore(
    controller: &Arc<Controller>,
    switch: &ManagedSwitch,
    client: SwitchClient,
) -> Result<(), BringUpError> {
    // Without the right to write: loading a program may take a minute.
    let mut found = switch.load(&client, &controller.desired()).await?;
    let _writing = loop {
        let writing = controller.changes.write_to(&switch.writer).await;
        let with_deadline = writing.client(&client);
        match switch
            .come_up(&with_deadline, found, &controller.desired())
            .await
        {
            // A reroute interrupted this, the switch is healthy. It may have some of its
            // entries by now.
            Err(error) if error.is_abandoned() => found = Found::OurProgram,
            come_up => {
                come_up?;
                break writing;
            }
        }
    };
    switch.is_up(client);
    subscribe(controller, switch);
    controller.note_ready();
    controller.retry_waiting();
    Ok(())
}
