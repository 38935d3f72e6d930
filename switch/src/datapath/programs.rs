//! The active program, the saved one, and their messages to controllers.

use super::Datapath;
use crate::clock::Clock;
use crate::notify::{Event, Notifier};
use crate::pipeline::Pipeline;
use crate::tm::Nanos;

impl Datapath {
    /// Returns the program for reads and writes of the control plane: the saved one, if there is one. `None` without a P4Info.
    pub(crate) fn target(&mut self) -> Option<&mut Pipeline> {
        let target = self.saved.as_mut().or(self.active.as_mut());
        let target = target.filter(|target| target.config.p4info.is_some())?;
        target.engine.set_now(self.clock.now() / 1000);
        Some(target)
    }

    /// Returns the program that processes packets.
    pub(crate) fn active(&self) -> Option<&Pipeline> {
        self.active.as_ref()
    }

    /// Returns the program that processes packets, to change its messages to controllers.
    pub(crate) fn active_mut(&mut self) -> Option<&mut Pipeline> {
        self.active.as_mut()
    }

    /// Saves a program for a later [`Datapath::commit_saved`]. Returns the one saved before.
    pub(crate) fn save(&mut self, mut pipeline: Pipeline) -> Option<Pipeline> {
        self.introduce_ports(&mut pipeline);
        self.saved.replace(pipeline)
    }

    /// Commits the saved program. Returns `None` if there is none.
    pub(crate) fn commit_saved(&mut self) -> Option<[Option<Pipeline>; 2]> {
        let saved = self.saved.take()?;
        Some(self.commit(saved))
    }

    /// Commits a program. Copies in queues belong to the old program: they are dropped and counted. Returns the replaced
    /// programs. The caller frees them, because that takes longer than packets can wait.
    pub(crate) fn commit(&mut self, mut pipeline: Pipeline) -> [Option<Pipeline>; 2] {
        self.introduce_ports(&mut pipeline);
        for port in &mut self.ports {
            port.egress.discard_queue(&mut port.stats);
        }
        self.nowhere.egress.discard_queue(&mut self.nowhere.stats);
        let saved = self.saved.take();
        let headers = pipeline.engine.controller_headers().clone();
        self.controllers.notifier.headers.set(headers);
        pipeline.engine.start(self.clock.now() / 1000);
        let active = self.active.replace(pipeline);
        self.over_limit += (active.as_ref()).map_or(0, |active| active.engine.over_limit());
        self.note_fates(self.clock.now());
        [active, saved]
    }

    /// Sends messages to controllers that are due.
    pub(crate) fn notify_due(&mut self) {
        let Some(pipeline) = self.active.as_mut().filter(|one| one.next_due().is_some()) else {
            return;
        };
        let now = self.clock.now();
        let (notifier, made) = (&self.controllers.notifier, self.clock.time_of_day(now));
        while let Some(list) = pipeline.digests.due(now) {
            let digests = pipeline.digests.all().clone();
            notifier.notify(Event::Digests { list, digests }, made);
        }
        let idle = pipeline.take_idle(now);
        if !idle.is_empty() {
            notifier.notify(Event::Idle(idle), made);
        }
    }
}

/// Takes the digest messages that a packet left behind.
pub(super) fn tell_learned(
    pipeline: &mut Pipeline,
    notifier: &Notifier,
    clock: &Clock,
    now: Nanos,
) {
    for message in pipeline.engine.take_learned() {
        if let Some(list) = pipeline.digests.learn(message, now) {
            let digests = pipeline.digests.all().clone();
            notifier.notify(Event::Digests { list, digests }, clock.time_of_day(now));
        }
    }
}
