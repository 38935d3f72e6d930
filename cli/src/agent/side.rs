//! A rank in one job, with its socket open: a flat job's, or a grid's row or column.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use ultima_agent::{Membership, Metrics, Probes, Quiet};
use ultima_controller::client::Client;
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{Collective, Config};

use super::options::Options;

/// The pause before a rank that lost the controller tries to attend again.
const ATTEND_AGAIN: Duration = Duration::from_secs(1);

pub struct Side {
    pub membership: Membership,
    pub collective: Collective,
    pub quiet: Quiet,
    here: watch::Receiver<bool>,
    pub attending: JoinHandle<()>,
}

/// What ranks of a process share.
pub struct Shared<'a> {
    pub client: &'a Client,
    pub options: &'a Options,
    /// The fabric's name for this host.
    pub host: &'a str,
    pub metrics: &'a Metrics,
}

impl Side {
    /// Takes the next free rank of `job` on this host; `configure` makes its configuration of what the controller said.
    pub async fn join(
        shared: &Shared<'_>,
        job: &str,
        trace: &mut Option<TraceFile>,
        configure: impl Fn(Config) -> Config,
    ) -> Result<Self> {
        let Shared { client, host, .. } = shared;
        let membership = Membership::join(client, job, host, Duration::ZERO).await?;
        let config = configure(membership.config(shared.options.deadline));
        let opened = Self::open(shared, membership.clone(), trace, config);
        if opened.is_err() {
            give_up(client, &membership).await;
        }
        opened
    }

    /// The first one begins the trace, which has what all of them do.
    fn open(
        shared: &Shared<'_>,
        membership: Membership,
        trace: &mut Option<TraceFile>,
        config: Config,
    ) -> Result<Self> {
        let udp = membership.udp()?;
        let attendance = membership.attendance(config.slot_bytes);
        if let (Some(path), None) = (&shared.options.trace, &trace) {
            let head = Head::new(&config, Clock::Real, &format!("job {}", membership.job));
            let file = TraceFile::create(path, &head, WhenFull::Drop);
            *trace = Some(file.with_context(|| path.display().to_string())?);
        }
        let mut collective = Collective::over_udp(config, udp)?;
        if let Some(trace) = trace {
            collective.trace(Box::new(trace.sink()));
        }
        let Membership { job, rank, .. } = &membership;
        shared.metrics.watch(job, *rank, collective.observer());
        let mut probes = Probes::new(collective.prober());
        let all_here = probes.all_here();
        let quiet = probes.quiet();
        let client = shared.client.clone();
        let attending = tokio::spawn(async move {
            loop {
                if let Err(error) = client.attend(attendance.clone(), &mut probes).await {
                    tracing::debug!(%error, "not in touch with the controller");
                }
                sleep(ATTEND_AGAIN).await;
            }
        });
        Ok(Self {
            membership,
            collective,
            here: all_here,
            quiet,
            attending,
        })
    }

    /// Waits until all members of the job have their sockets open.
    pub async fn all_here(&mut self) -> Result<()> {
        self.here.wait_for(|all_here| *all_here).await?;
        Ok(())
    }
}

/// Gives a rank back.
pub async fn give_up(client: &Client, membership: &Membership) {
    let Membership {
        job, epoch, rank, ..
    } = membership;
    let left = client.leave(job, (*epoch).into(), (*rank).into()).await;
    if let Err(error) = left {
        // The job may have been deleted meanwhile.
        tracing::debug!(%error, rank, "not left");
    }
}
