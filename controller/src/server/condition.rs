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
    /// What was drained and is not in the fabric's file now.
    unknown: BTreeSet<String>,
    /// Parts that have failed.
    seen: BTreeMap<Part, Damping>,
    /// Of these, those that count as down.
    lost: Health,
    /// Parts that lose what is sent into them.
    swallowing: BTreeSet<Part>,
}

impl Condition {
    /// All is well, but for what is drained, by name.
    pub fn new(fabric: &Fabric, terms: Terms, drained: &[String]) -> Self {
        let mut unknown = BTreeSet::new();
        let known = drained.iter().filter_map(|name| {
            let part = fabric.part_named(name);
            let note = |error| {
                tracing::warn!(%error, "what was drained is not there any more; undrain it to forget it");
                unknown.insert(name.clone());
            };
            part.map_err(note).ok()
        });
        Condition {
            terms,
            drained: known.collect(),
            unknown,
            seen: BTreeMap::new(),
            lost: Health::default(),
            swallowing: BTreeSet::new(),
        }
    }

    /// A part is seen to be there, or gone; whether it was seen otherwise before.
    pub fn see(&mut self, part: Part, is_there: bool, now: Instant) -> bool {
        if is_there {
            self.swallowing.remove(&part);
        }
        let is_news = match self.seen.get_mut(&part) {
            Some(damping) => damping.see(is_there, now),
            None if is_there => false,
            None => {
                self.seen.insert(part, Damping::gone(self.terms, now));
                true
            }
        };
        self.pass(now);
        is_news
    }

    /// A part is gone, for long enough or nobody knows since when: it is down.
    pub fn lose(&mut self, part: Part, now: Instant) {
        let terms = self.terms;
        let seen = self.seen.entry(part);
        seen.and_modify(|damping| damping.lose(now))
            .or_insert_with(|| Damping::down(terms, now));
        self.pass(now);
    }

    /// A part is there as far as anybody knows who is asked, and what is sent into it is lost: it is down.
    pub fn swallow(&mut self, part: Part, now: Instant) {
        self.swallowing.insert(part);
        self.lose(part, now);
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

    /// What was not to be used if that were so.
    pub fn with(&self, part: Part, drained: bool) -> Health {
        let mut then = self.clone();
        then.drain(part, drained);
        then.health()
    }

    /// Whether this was drained once, and is not in the fabric's file now.
    pub fn knew(&self, name: &str) -> bool {
        self.unknown.contains(name)
    }

    /// That is forgotten.
    pub fn forget(&mut self, name: &str) {
        self.unknown.remove(name);
    }

    /// What carries nothing.
    pub fn lost(&self) -> &Health {
        &self.lost
    }

    /// Whether a part counts as down.
    pub fn is_lost(&self, part: Part) -> bool {
        self.lost.down().any(|lost| lost == part)
    }

    /// What is not to be used: lost or drained.
    pub fn health(&self) -> Health {
        self.lost
            .down()
            .chain(self.drained.iter().copied())
            .collect()
    }

    /// What of a switch is not in use.
    pub fn of(&self, fabric: &Fabric, switch: SwitchId) -> Vec<PartState> {
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
            let is_back = |damping: &Damping| damping.due().is_some();
            let lost =
                self.is_lost(part)
                    .then(|| match self.seen.get(&part).is_some_and(is_back) {
                        true => "back, not trusted yet",
                        false if self.swallowing.contains(&part) => "loses what is sent into it",
                        false => "down",
                    });
            let drained = self.drained.contains(&part).then_some("drained");
            let states: Vec<&str> = lost.into_iter().chain(drained).collect();
            PartState {
                part: fabric.name_of(part),
                state: states.join(", "),
            }
        });
        parts.collect()
    }
}

/// A part that is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartState {
    /// Its name.
    pub part: String,
    /// How it stands, on one line.
    pub state: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_both_down_and_drained_is_said_to_be_both() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = crate::fabric::parse(text, "two.yaml").unwrap();
        let now = Instant::now();
        let part = fabric.part_named("s1").unwrap();
        let mut condition = Condition::new(&fabric, Terms::default(), &["s9".into()]);
        let of = |condition: &Condition| {
            let parts = condition.of(&fabric, SwitchId(0));
            let said = parts
                .into_iter()
                .map(|it| format!("{} {}", it.part, it.state));
            said.collect::<Vec<_>>().join("; ")
        };
        condition.drain(part, true);
        assert_eq!(of(&condition), "s1 drained");
        condition.lose(part, now);
        assert_eq!(of(&condition), "s1 down, drained");
        assert!(condition.see(part, true, now) && !condition.see(part, true, now));
        assert_eq!(of(&condition), "s1 back, not trusted yet, drained");
        condition.drain(part, false);
        assert_eq!(of(&condition), "s1 back, not trusted yet");
        condition.swallow(part, now);
        assert_eq!(of(&condition), "s1 loses what is sent into it");
        condition.see(part, true, now);
        assert_eq!(of(&condition), "s1 back, not trusted yet");
        // With what is not there any more it is as with what was never there, until it is forgotten.
        assert!(condition.knew("s9") && !condition.knew("s8"));
        condition.forget("s9");
        assert!(!condition.knew("s9"));
    }
}
