//! What of a running fabric is down, drained, or back for too short a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::fabric::damping::{Damping, Terms};
use crate::fabric::{Fabric, Health, Part, SwitchId};
use crate::p4rt::HURRIED;

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
    /// By when others are to have made way for what has counted as down since it was last [made](Self::settle).
    owed: Option<Instant>,
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
            owed: None,
            swallowing: BTreeSet::new(),
        }
    }

    /// A part is seen to be there, or gone; whether it was seen otherwise before, or anything counts as something else by now.
    pub fn see(&mut self, part: Part, is_there: bool, now: Instant) -> bool {
        if is_there {
            self.swallowing.remove(&part);
        }
        let expected = self.expected();
        let is_news = match self.seen.get_mut(&part) {
            Some(damping) => damping.see(is_there, now),
            None if is_there => false,
            None => {
                self.seen.insert(part, Damping::gone(self.terms, now));
                true
            }
        };
        // Whoever waits for when something is due does not find it any more.
        self.pass_to(now, expected) || is_news
    }

    /// A part is gone, for long enough or nobody knows since when: it is down.
    pub fn lose(&mut self, part: Part, now: Instant) {
        let (terms, expected) = (self.terms, self.expected());
        let seen = self.seen.entry(part);
        seen.and_modify(|damping| damping.lose(now))
            .or_insert_with(|| Damping::down(terms, now));
        self.pass_to(now, expected);
    }

    /// A part is there as far as anybody knows who is asked, and what is sent into it is lost: it is down.
    pub fn swallow(&mut self, part: Part, now: Instant) {
        self.swallowing.insert(part);
        self.lose(part, now);
    }

    /// Time goes by.
    pub fn pass(&mut self, now: Instant) {
        self.pass_to(now, self.expected());
    }

    /// The same, where a move was `expected` before; whether anything counts as something else than before.
    fn pass_to(&mut self, now: Instant, expected: Option<Instant>) -> bool {
        let (mut falls, mut rises) = (false, false);
        for (part, damping) in &mut self.seen {
            match damping.pass(now) {
                true => falls |= self.lost.fail(*part),
                false => rises |= self.lost.mend(*part),
            };
        }
        self.seen.retain(|_, damping| !damping.is_forgotten(now));
        if falls {
            let at_once = now + HURRIED;
            self.owed = Some(expected.map_or(at_once, |at| at.min(at_once)));
        }
        falls || rises
    }

    /// When what is under way is to have ended, as a move is due, or will be if what is gone does not come back; none where nothing is gone that
    /// is in use. Whoever is under way has at least [as long](HURRIED) as if a move waited from when it went.
    pub fn expected(&self) -> Option<Instant> {
        let used = self
            .seen
            .iter()
            .filter(|(part, _)| !self.is_drained(**part));
        let falls = used.filter_map(|(_, damping)| damping.falls(HURRIED));
        falls.chain(self.owed).min()
    }

    /// All that counts as down now has been moved off, or is about to be by who has the turn.
    pub fn settle(&mut self) {
        self.owed = None;
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

    /// What is seen of another part may come just when one is down, or trusted again: nobody else tells of that.
    #[test]
    fn time_that_goes_by_is_news_with_whatever_is_seen() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = crate::fabric::parse(text, "two.yaml").unwrap();
        let [one, other] = ["s1", "s2"].map(|name| fabric.part_named(name).unwrap());
        let mut condition = Condition::new(&fabric, Terms::default(), &[]);
        let start = Instant::now();
        assert!(condition.see(one, false, start));
        let down = condition.due().unwrap();
        assert!(condition.see(other, true, down) && condition.is_lost(one));
        assert!(!condition.see(other, true, down));
        assert!(condition.see(one, true, down));
        let up = condition.due().unwrap();
        assert!(condition.see(other, true, up) && !condition.is_lost(one));
        assert!(!condition.see(other, true, up));
    }

    /// It is said as soon as something goes, and is owed until it is made; what comes back in time, or was not in use, is none.
    #[test]
    fn a_move_is_expected_as_soon_as_something_goes() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = crate::fabric::parse(text, "two.yaml").unwrap();
        let [one, other] = ["s1", "s2"].map(|name| fabric.part_named(name).unwrap());
        let terms = Terms::default();
        let mut condition = Condition::new(&fabric, terms, &[]);
        let start = Instant::now();
        assert_eq!(condition.expected(), None);
        condition.see(one, false, start);
        let due = start + terms.grace.max(HURRIED);
        assert_eq!(condition.expected(), Some(due));
        condition.see(one, true, start + terms.grace / 2);
        assert_eq!(condition.expected(), None);

        // One after the other, with calm before; whoever looks at them first.
        let start = start + 2 * terms.hold_first;
        let due = start + terms.grace.max(HURRIED);
        condition.see(one, false, start);
        condition.see(other, false, start + terms.grace / 3);
        assert_eq!(condition.expected(), Some(due));
        condition.see(other, false, due);
        assert!(condition.is_lost(one) && !condition.is_lost(other));
        assert_eq!(condition.expected(), Some(due), "it is not made yet");
        condition.settle();
        assert_eq!(condition.expected(), Some(due + terms.grace / 3));
        condition.drain(other, true);
        assert_eq!(condition.expected(), None);

        // What nobody has seen go has given no notice; nor has what comes back.
        condition.see(one, true, due);
        condition.pass(due + 2 * terms.hold_first);
        assert!(!condition.is_lost(one));
        condition.settle();
        let now = due + 2 * terms.hold_first;
        condition.lose(one, now);
        assert_eq!(condition.expected(), Some(now + HURRIED));
    }
}
