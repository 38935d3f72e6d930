//! What of a running fabric is down, drained, or back for too short a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::fabric::damping::{Damping, Terms};
use crate::fabric::{Fabric, Health, Part, SwitchId};

/// What has been seen of a fabric's parts, and what an operator has asked for.
#[derive(Clone, Debug)]
pub struct Condition {
    terms: Terms,
    drained: BTreeSet<Part>,
    /// Parts that have failed.
    seen: BTreeMap<Part, Damping>,
    /// Of these, those that count as down.
    lost: Health,
}

impl Condition {
    /// All is well, but for what is drained, by name.
    pub fn new(fabric: &Fabric, terms: Terms, drained: &[String]) -> Self {
        let known = drained.iter().filter_map(|name| {
            let part = fabric.part_named(name);
            let forget = |error| tracing::warn!(%error, "what was drained is not there any more");
            part.map_err(forget).ok()
        });
        Condition {
            terms,
            drained: known.collect(),
            seen: BTreeMap::new(),
            lost: Health::default(),
        }
    }

    /// A part is seen to be there, or gone.
    pub fn see(&mut self, part: Part, is_there: bool, now: Instant) {
        match self.seen.get_mut(&part) {
            Some(damping) => damping.see(is_there, now),
            None if is_there => {}
            None => drop(self.seen.insert(part, Damping::gone(self.terms, now))),
        }
        self.pass(now);
    }

    /// Time goes by.
    pub fn pass(&mut self, now: Instant) {
        for (part, damping) in &mut self.seen {
            match damping.pass(now) {
                true => self.lost.fail(*part),
                false => self.lost.mend(*part),
            };
        }
        self.seen.retain(|_, damping| !damping.is_forgotten(now));
    }

    /// When something counts as something else than now, if nothing else is seen.
    pub fn due(&self) -> Option<Instant> {
        self.seen.values().filter_map(Damping::due).min()
    }

    /// A part is to be left alone, or no more.
    pub fn drain(&mut self, part: Part, drained: bool) {
        match drained {
            true => self.drained.insert(part),
            false => self.drained.remove(&part),
        };
    }

    /// Whether a part is to be left alone.
    pub fn is_drained(&self, part: Part) -> bool {
        self.drained.contains(&part)
    }

    /// What carries nothing.
    pub fn lost(&self) -> &Health {
        &self.lost
    }

    /// What is not to be used: lost or drained.
    pub fn health(&self) -> Health {
        self.lost
            .down()
            .chain(self.drained.iter().copied())
            .collect()
    }

    /// What of a switch is not in use, on one line; none if all of it is.
    pub fn of(&self, fabric: &Fabric, switch: SwitchId) -> Option<String> {
        let here = |part: &Part| match *part {
            Part::Switch(at) | Part::Transit(at) => at == switch,
            Part::Port(at) => at.switch == switch,
            Part::Trunk(trunk) => fabric
                .trunk(trunk)
                .ends
                .iter()
                .any(|end| end.switch == switch),
        };
        let health = self.health();
        let parts = health.down().filter(here).map(|part| {
            let lost = self.lost.down().any(|lost| lost == part);
            let is_back = |damping: &Damping| damping.due().is_some();
            let state = match (lost, self.seen.get(&part)) {
                (false, _) => "drained",
                (true, Some(damping)) if is_back(damping) => "back, not trusted yet",
                (true, _) => "down",
            };
            match part {
                Part::Switch(_) | Part::Transit(_) => state.to_owned(),
                _ => format!("{} {state}", fabric.name_of(part)),
            }
        });
        let parts: Vec<String> = parts.collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}
