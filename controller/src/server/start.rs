//! Starting a controller: it restores its jobs, connects to the switches, brings them up, and starts its tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{join_all, try_join_all};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::time::timeout;
use ultima_p4::names::job;
use ultima_planner::fabric::blackhole::Blackholes;
use ultima_planner::fabric::{Element, SwitchId};
use ultima_planner::plan;
use ultima_planner::routing::Routes;

use super::changes::ChangeLock;
use super::condition::Condition;
use super::config::Config;
use super::controller::Controller;
use super::counters::READS;
use super::error::{BringUpError, ServeError};
use super::event_log::EventLog;
use super::job_conditions::log_conditions;
use super::journal::{Journal, Lead};
use super::keeper::SeatKeeper;
use super::membership::change::follow_changes;
use super::membership::events::Events;
use super::membership::suspects::keep_suspecting;
use super::message_room::MessageRoom;
use super::registry::{Registry, Stranded};
use super::report::{date_drains, keep_events, logged_states};
use super::streams::{JOB_WATCHES, StreamLimit, TELEMETRY_WATCHES};
use super::switch::ManagedSwitch;
use super::switch_task::{restore, run as run_switch_task};
use crate::metrics::Metrics;
use crate::p4rt::{Checks, Owner, SwitchClient};
use crate::store::{Change, JobRecord, Store};

/// The switches that a controller needs to start. It reconnects to the others later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// All switches.
    All,
    /// Any switches.
    Any,
    /// Those that answer promptly: it takes over from another controller.
    Prompt,
}

/// Brings up the switches and starts the tasks that keep them up.
pub async fn start(
    config: Config,
    store: Arc<dyn Store>,
    lead: Lead,
) -> Result<Arc<Controller>, ServeError> {
    let Config {
        fabric,
        program,
        startup_timeout,
        audit_every,
        repair,
        agent_rate,
        jobs_per_client,
        damping,
        timers,
        take_over,
        replace_pipeline,
        ..
    } = config;
    let stored = store.load().await?;
    let mut condition = Condition::new(&fabric, damping, &stored.drained);
    let log = EventLog::restored(&stored.events);
    let now = Instant::now();
    let lossy = condition.restore(&fabric, logged_states(&fabric, &log), now);
    date_drains(&mut condition, &fabric, &log);
    let routes = Routes::new(&fabric, condition.health());
    for id in fabric.switch_ids() {
        plan::check_fabric(&fabric, &routes, &program, id)?;
        if let Some(warning) = plan::uncut(&fabric, program.names(), id) {
            tracing::warn!("{warning}");
        }
    }
    let election_id = lead.election_id();
    let jobs = program.names().table(job::TABLE).ok();
    let owner = (jobs.filter(|_| stored.id != 0)).map(|jobs| Owner {
        store: stored.id,
        is_new: stored.last_id == 0,
        takes_over: take_over,
        cookie: program.cookie(),
        table: jobs.id,
    });
    let metrics = Metrics::default();
    let switches_changed = watch::Sender::default();
    let switches: Arc<[ManagedSwitch]> = (fabric.switch_ids())
        .map(|id| {
            let checks = Checks {
                owner,
                cookie: (!replace_pipeline).then(|| program.cookie()),
            };
            ManagedSwitch::new(
                &fabric,
                id,
                election_id,
                checks,
                &metrics,
                &switches_changed,
                timers,
            )
        })
        .collect();
    let needs = match lead {
        Lead::Elected(_) => Needs::Prompt,
        // The operator who starts a fabric for the first time should see every problem. Later
        // on, jobs need what still works.
        Lead::Alone if stored.is_new() => Needs::All,
        Lead::Alone => Needs::Any,
    };
    let clients = connect(&switches, needs, startup_timeout, &mut condition).await?;
    let routes = Routes::new(&fabric, condition.health());
    let registry = Registry::restore_what_fits(
        &fabric,
        routes,
        program.names(),
        stored.clone(),
        timers.members,
    );
    for Stranded { reason, .. } in registry.stranded().values() {
        tracing::warn!("{reason}");
    }
    let mut records = registry.records(&fabric);
    let known: BTreeMap<u16, &JobRecord> = (stored.jobs.iter()).map(|it| (it.id, it)).collect();
    records.retain(|record| known.get(&record.id) != Some(&record));
    let (fabric, registry) = (Arc::new(fabric), Arc::new(Mutex::new(registry)));
    let journal = Arc::new(Journal::new(store, lead));
    let seats = SeatKeeper::new(
        Arc::clone(&fabric),
        Arc::clone(&registry),
        Arc::clone(&journal),
    );
    let blackholes = Blackholes::restored(&fabric, lossy, now);
    let controller = Arc::new(Controller {
        switches,
        switches_changed,
        fabric,
        program,
        audit_every,
        repair,
        agent_rate,
        jobs_per_client,
        burst_drops: Mutex::default(),
        timers,
        changes: ChangeLock::new(timers.change),
        condition: Mutex::new(condition),
        fabric_changed: watch::Sender::default(),
        seats,
        registry,
        journal,
        closed: watch::Sender::new(false),
        sessions: Arc::default(),
        message_room: MessageRoom::default(),
        events: Events::default(),
        checks: AsyncMutex::default(),
        storing_events: AsyncMutex::default(),
        job_watches: StreamLimit::new(JOB_WATCHES, "watch jobs"),
        telemetry_watches: StreamLimit::new(TELEMETRY_WATCHES, "watch telemetry"),
        telemetry_reads: Semaphore::new(READS),
        blackholes: Mutex::new(blackholes),
        keepers: Mutex::default(),
        metrics,
        log,
    });
    // The jobs as restored on the present fabric are the committed state from now on.
    let kept = controller.journal.write(Change::Update(records)).await;
    kept.map_err(ServeError::Keep)?;
    bring_up(&controller, clients, needs, startup_timeout).await?;
    controller.note_ready();
    for switch in controller.switches.iter() {
        let (keeper, id) = (Arc::clone(&controller), switch.id);
        controller.in_background(async move { run_switch_task(&keeper, id).await });
    }
    let mover = Arc::clone(&controller);
    controller.in_background(async move { mover.keep_rerouting().await });
    let storing = Arc::clone(&controller);
    controller.in_background(keep_events(storing));
    controller.in_background(log_conditions(Arc::clone(&controller)));
    let suspecting = Arc::clone(&controller);
    controller.in_background(keep_suspecting(suspecting));
    follow_changes(&controller);
    Ok(controller)
}

impl Needs {
    /// True if the controller starts without a switch that has failed so.
    fn goes_on(self, error: &BringUpError) -> bool {
        match self {
            Needs::All => false,
            Needs::Prompt => true,
            Needs::Any => error.is_of_one_switch(),
        }
    }
}

/// Connects to all switches, and retries broken connections for `limit`. Switches that do not answer count as down before anything is
/// planned, so jobs that were rerouted around them stay so.
async fn connect(
    switches: &[ManagedSwitch],
    needs: Needs,
    limit: Duration,
    condition: &mut Condition,
) -> Result<BTreeMap<SwitchId, SwitchClient>, ServeError> {
    let asked = switches.iter().map(|switch| switch.connect_first(limit));
    let (mut clients, mut refusal) = (BTreeMap::new(), None);
    for (switch, client) in switches.iter().zip(join_all(asked).await) {
        let error = match client {
            Ok(client) => {
                clients.insert(switch.id, client);
                continue;
            }
            Err(error) => error,
        };
        if !needs.goes_on(&error) {
            return Err(error.into());
        }
        tracing::warn!(%error, "starting without this switch");
        match error.is_silence() {
            true => condition.mark_down(Element::Transit(switch.id), Instant::now()),
            false => refusal = refusal.or(Some(error)),
        }
    }
    match (needs, refusal) {
        // If all that answer refuse, another controller has them.
        (Needs::Any, Some(refusal)) if clients.is_empty() => Err(refusal.into()),
        _ => Ok(clients),
    }
}

/// Makes these switches match the desired state, and retries temporary failures for as long as `limit`. A switch that fails, and
/// without which the controller starts, is left to its task; so is one that is not prompt.
async fn bring_up(
    controller: &Arc<Controller>,
    clients: BTreeMap<SwitchId, SwitchClient>,
    needs: Needs,
    limit: Duration,
) -> Result<(), BringUpError> {
    let all = match needs {
        Needs::Prompt => limit,
        // Installing a program may take a minute.
        Needs::All | Needs::Any => Duration::MAX,
    };
    let brought_up = clients.into_iter().map(|(id, client)| async move {
        let switch = &controller.switches[id.0];
        let bring_up = |client| restore(controller, switch, client).boxed();
        let brought_up = switch.bring_up_first(client, limit, bring_up);
        let problem = match timeout(all, brought_up).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if !needs.goes_on(&error) => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not brought up within {} ms", limit.as_millis()),
        };
        tracing::warn!(
            switch = switch.name(),
            problem,
            "starting without this switch"
        );
        switch.disconnect(problem);
        Ok(())
    });
    try_join_all(brought_up).await.map(drop)
}
