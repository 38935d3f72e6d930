//! The settings that all ranks of a job must share, by name, and their hash.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use ultima_host::{Coding, Config, Gather, IncastPolicy};
use ultima_wire::VERSION;

use crate::job::error::Refusal;

/// The version of the rendezvous, and of what its fields mean. 2: the codec interleaves large buckets in units. 3: blocks with less
/// padding, slots that fill an MTU of 1,500. 4: units from 16 blocks on. 5: large buckets in parts, tags by AEGIS. 6: grants of credit count
/// arrived packets. 7: packets have a check of their bucket's length.
const RENDEZVOUS_VERSION: u32 = 7;

/// Fields that a rank may leave open: it takes rank 0's value.
const SEED: &str = "seed";
const SLOT: &str = "slot size";
const RUN: &str = "run";
/// Differs between the epochs of a job.
const RANKS: &str = "number of ranks";

/// A rank's settings, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(BTreeMap<String, String>);

/// A user's choices, which rank 0 makes for ranks without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chosen<'a> {
    pub(crate) seed: Option<u64>,
    pub(crate) slot_bytes: Option<usize>,
    pub(crate) run: Option<&'a str>,
}

impl Fingerprint {
    /// The settings of `config`, and what the user chose of those that rank 0 may decide.
    pub(crate) fn new(config: &Config, chosen: &Chosen<'_>) -> Self {
        let (coding, block) = match config.coding {
            Coding::Identity => ("none", "none".to_owned()),
            Coding::Hadamard { log2_block } => ("Hadamard", format!("2^{log2_block}")),
        };
        let recycling = match config.recycling {
            None => "off".to_owned(),
            Some(recycling) => format!("for {} steps", recycling.keep),
        };
        let incast = match config.incast {
            IncastPolicy::All => "all".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        let gather = match config.gather {
            Gather::Multicast => "multicast",
            Gather::Unicast => "unicast",
        };
        let sealed = if config.key.is_some() { "on" } else { "off" };
        let fields = [
            ("protocol", format!("{VERSION}.{RENDEZVOUS_VERSION}")),
            (RANKS, config.ranks.to_string()),
            ("element", config.element.name().to_owned()),
            ("coding", coding.to_owned()),
            ("block size", block),
            ("recycling", recycling),
            ("estimator", config.estimation.name().to_owned()),
            ("timeouts", config.timeouts.name().to_owned()),
            ("deadline", format!("{:?}", config.t_b)),
            ("incast", incast),
            ("gather", gather.to_owned()),
            ("sealing", sealed.to_owned()),
        ];
        let open = [
            (SEED, chosen.seed.map(|seed| seed.to_string())),
            (SLOT, chosen.slot_bytes.map(|bytes| bytes.to_string())),
            (RUN, chosen.run.map(str::to_owned)),
        ];
        let open = open
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let fields = fields.into_iter().chain(open);
        Self(
            fields
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    /// The settings that all ranks of a controller's job share in all of its epochs.
    pub(crate) fn between_epochs(self) -> HashMap<String, String> {
        let shared = self.0.into_iter().filter(|(name, _)| name != RANKS);
        shared.collect()
    }

    /// Compares the settings of `rank` with rank 0's, which are `self`.
    pub(crate) fn check(&self, rank: u16, other: &Self) -> Result<(), Refusal> {
        const NONE: &str = "none";
        let Self(expected) = self;
        let Self(has) = other;
        let mut names: Vec<&String> = expected.keys().chain(has.keys()).collect();
        // A difference of versions explains all others.
        // Without coding there are no blocks.
        names.sort_by_key(|name| (*name != "protocol", *name == "block size"));
        for name in names {
            let (mine, theirs) = (expected.get(name), has.get(name));
            let is_open = theirs.is_none() && [SEED, SLOT, RUN].contains(&&name[..]);
            if mine != theirs && !is_open {
                let text = |value: Option<&String>| value.map_or(NONE, |value| value).to_owned();
                return Err(Refusal::Mismatch {
                    rank,
                    field: name.clone(),
                    has: text(theirs),
                    expected: text(mine),
                });
            }
        }
        Ok(())
    }

    /// The epoch of a job without a controller: a hash of its settings and the random number of its run, but
    /// never 0. Packets of another run have another epoch.
    pub(crate) fn epoch(&self, run: u64) -> u16 {
        let mut hasher = SipHasher13::new_with_keys(run, u64::from(RENDEZVOUS_VERSION));
        for (name, value) in &self.0 {
            hasher.write(name.as_bytes());
            hasher.write(b"=");
            hasher.write(value.as_bytes());
            hasher.write(b"\n");
        }
        (hasher.finish() % u64::from(u16::MAX)) as u16 + 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ultima_host::{Element, Estimation, Recycling};

    use super::*;

    fn config() -> Config {
        Config::new(1, 1, 0, 4, 42, Duration::from_secs(1))
    }

    fn of(config: &Config, seed: Option<u64>) -> Fingerprint {
        let chosen = Chosen {
            seed,
            ..Chosen::default()
        };
        Fingerprint::new(config, &chosen)
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        let zero = of(&config(), Some(42));
        assert_eq!(zero.check(2, &of(&config(), Some(42))), Ok(()));
        assert_eq!(zero.check(2, &of(&config(), None)), Ok(()));
        let refused = |config: &Config, seed| {
            let refusal = zero.check(2, &of(config, seed)).unwrap_err();
            refusal.to_string()
        };
        let seeds = refused(&config(), Some(7));
        assert!(
            seeds.starts_with("rank 2 has seed 7, rank 0 has 42"),
            "{seeds}"
        );
        let with = |change: fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            refused(&config, None)
        };
        assert!(with(|c| c.ranks = 3).contains("number of ranks 3, rank 0 has 4"));
        assert!(with(|c| c.element = Element::Bf16).contains("element bf16, rank 0 has f32"));
        let uncoded = with(|c| c.coding = Coding::Identity);
        assert!(
            uncoded.contains("coding none, rank 0 has Hadamard"),
            "{uncoded}"
        );
        let blocks = with(|c| c.coding = Coding::Hadamard { log2_block: 10 });
        assert!(
            blocks.contains("block size 2^10, rank 0 has 2^12"),
            "{blocks}"
        );
        let estimator = with(|c| c.estimation = Estimation::Scaled);
        let expected = "estimator scaled, rank 0 has arrived-mean";
        assert!(estimator.contains(expected), "{estimator}");
        let slots = |bytes| {
            let slot_bytes = Some(bytes);
            let chosen = Chosen {
                slot_bytes,
                ..Chosen::default()
            };
            Fingerprint::new(&config(), &chosen)
        };
        let slot = slots(1408).check(2, &slots(7616)).unwrap_err().to_string();
        assert!(slot.contains("slot size 7616, rank 0 has 1408"), "{slot}");
        let recycles = with(|c| c.recycling = Some(Recycling { keep: 5 }));
        assert!(recycles.contains("recycling for 5 steps, rank 0 has off"));
        // An earlier version, of another coding: the version is the reason.
        let mut earlier = of(&config(), Some(7));
        earlier.0.insert("protocol".to_owned(), "1.1".to_owned());
        let refusal = zero.check(2, &earlier).unwrap_err().to_string();
        let versions = format!("protocol 1.1, rank 0 has {VERSION}.{RENDEZVOUS_VERSION}");
        assert!(refusal.contains(&versions), "{refusal}");
    }

    #[test]
    fn the_epoch_depends_on_run_and_settings() {
        let of_run = |run, seed| of(&config(), Some(seed)).epoch(run);
        assert_eq!(of_run(1, 42), of_run(1, 42));
        assert_ne!(of_run(1, 42), of_run(2, 42));
        assert_ne!(of_run(1, 42), of_run(1, 7));
        assert!((0..100_000).all(|run| of_run(run, 42) != 0));
    }
}
