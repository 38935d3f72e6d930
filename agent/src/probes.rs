//! A rank's part in the checks of its job.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use ultima_api::member_session;
use ultima_api::v1::{CheckRound, Heard, RoundReport};
use ultima_host::{CheckPacket, Destination, OperationId, Prober, Report};

use crate::kernel::UdpCounts;
use crate::quiet::Quiet;

/// Sends check packets through a rank's collective, and reports the received ones.
pub struct Probes {
    prober: Prober,
    all_here: watch::Sender<bool>,
    quiet: Quiet,
    /// Counters at the start of the round.
    before: (Report, UdpCounts),
}

impl Probes {
    /// Creates the probes for the collective of `prober`.
    pub fn new(prober: Prober) -> Self {
        Self {
            prober,
            all_here: watch::Sender::new(false),
            quiet: Quiet::default(),
            before: Default::default(),
        }
    }

    /// Becomes true when all members of the job attend, with their sockets open.
    pub fn all_here(&self) -> watch::Receiver<bool> {
        self.all_here.subscribe()
    }

    /// The pause that checks request. Operations wait for it.
    pub fn quiet(&self) -> Quiet {
        self.quiet.clone()
    }
}

impl member_session::Prober for Probes {
    fn all_here(&mut self) {
        self.all_here.send_replace(true);
    }

    fn begin(&mut self, round: &CheckRound, lasts: Duration) {
        if round.quiet {
            self.quiet.begin(lasts);
        }
        // A collective that has ended counts nothing. The controller notices that it sends nothing.
        let report = self.prober.heard(0).map(|(_, report)| report);
        self.before = (report.unwrap_or_default(), UdpCounts::now());
    }

    fn send(&mut self, round: &CheckRound) {
        let ranks = round.to.iter().filter_map(|rank| u16::try_from(*rank).ok());
        let group = round.to_group.then_some(Destination::Group);
        let packet = |to, probe| CheckPacket {
            to,
            probe,
            about: OperationId::default(),
            token: round.token,
            payload: round.payload as usize,
        };
        let probe = round.probe.and_then(|rank| u16::try_from(rank).ok());
        let packets = ranks
            .map(Destination::Rank)
            .chain(group)
            .map(|to| packet(to, false))
            .chain(probe.map(|rank| packet(Destination::Rank(rank), true)));
        // As above.
        let _ = self.prober.send(packets.collect());
    }

    fn report<'a>(&'a mut self, round: &'a CheckRound) -> BoxFuture<'a, RoundReport> {
        let (prober, token) = (self.prober.clone(), round.token);
        async move {
            // The data thread answers soon, but the runtime's thread must not wait.
            let asked = tokio::task::spawn_blocking(move || prober.heard(token)).await;
            let (heard, report) = asked.ok().and_then(Result::ok).unwrap_or_default();
            let (before, kernel) = self.before;
            let now = UdpCounts::now();
            RoundReport {
                token,
                reports: heard.reports,
                heard: heard
                    .ranks
                    .into_iter()
                    .map(|heard| Heard {
                        source: heard.source.into(),
                        by_group: heard.by_group,
                        packets: heard.packets,
                        hops: heard.hops.into(),
                    })
                    .collect(),
                send_errors: report
                    .link
                    .send_errors
                    .saturating_sub(before.link.send_errors),
                too_long: report.link.too_long.saturating_sub(before.link.too_long),
                rejected: report
                    .totals
                    .rejected
                    .total()
                    .saturating_sub(before.totals.rejected.total()),
                no_port: now.no_port.saturating_sub(kernel.no_port),
                buffer_full: now.buffer_full.saturating_sub(kernel.buffer_full),
            }
        }
        .boxed()
    }
}
