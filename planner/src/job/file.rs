//! A job's YAML form.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    DEFAULT_LOSS_THRESHOLD, DEFAULT_SEALED, Gather, GridSpec, JobPolicy, JobRequest, JobSpec,
    PolicyChange, Refusal,
};
use crate::membership::Eviction;
use crate::yaml;

/// A job of Ultima: its members and its options.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Ultima job")]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    /// The job's name, unique in the fabric.
    #[schemars(regex(pattern = yaml::NAME))]
    name: String,
    /// The members' hosts in rank order. A host may be listed as often as it has room for ranks.
    #[schemars(length(min = 2, max = 65535))]
    members: Vec<String>,
    /// How aggregates reach the members: by a multicast group, or as one packet to each member.
    #[serde(default)]
    gather: GatherFile,
    /// Seed of everything random that members must agree on. Default: random.
    seed: Option<u64>,
    /// Report an operation after this many losses at one hop; 0 for never.
    #[serde(default = "default_loss_threshold")]
    loss_threshold: u32,
    /// The job's share of links with a rate, in proportion to the weights of other jobs. Default:
    /// 1.
    #[schemars(range(min = 1, max = 100))]
    weight: Option<u32>,
    /// Seconds after which a suspected member is evicted. Default: 0, never.
    #[schemars(range(max = Eviction::MOST))]
    evict_after_s: Option<u32>,
    /// True if members seal their packets with a key from the controller and reject unsealed
    /// packets. Default: true.
    #[serde(default = "default_sealed")]
    sealed: bool,
    /// Makes the job a grid: one job for each of this many groups of equal size, and one for each
    /// position in the groups.
    #[schemars(range(min = 2))]
    groups: Option<u16>,
    /// The state of an existing job, as `ultima get -o yaml` prints it. Ignored in a file.
    #[serde(default, rename = "status")]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    _status: IgnoredAny,
}

/// The jobs of a YAML document: one, or a list as `ultima get jobs -o yaml` prints it.
pub(super) enum Document {
    /// One job.
    One(Box<JobFile>),
    /// A list.
    List(Vec<JobFile>),
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a job, or a list of jobs")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Document, A::Error> {
        let file = JobFile::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Document::One(Box::new(file)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Document, A::Error> {
        let files = Vec::deserialize(SeqAccessDeserializer::new(list))?;
        Ok(Document::List(files))
    }
}

fn default_loss_threshold() -> u32 {
    DEFAULT_LOSS_THRESHOLD
}

fn default_sealed() -> bool {
    DEFAULT_SEALED
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum GatherFile {
    #[default]
    Multicast,
    Unicast,
}

impl From<GatherFile> for Gather {
    fn from(gather: GatherFile) -> Self {
        match gather {
            GatherFile::Multicast => Gather::Multicast,
            GatherFile::Unicast => Gather::Unicast,
        }
    }
}

/// The index of a member in a field's path, such as `members[2]`.
pub(super) fn member(field: &str) -> Option<usize> {
    let index = field.strip_prefix("members[")?.strip_suffix(']')?;
    index.parse().ok()
}

/// Checks everything that does not depend on the fabric.
pub(super) fn check(file: JobFile) -> Result<JobRequest, Refusal> {
    let JobFile {
        name,
        members,
        gather,
        seed,
        loss_threshold,
        weight,
        evict_after_s,
        sealed,
        groups,
        _status: _,
    } = file;
    let policy = PolicyChange {
        loss_threshold: Some(loss_threshold),
        weight,
        evict_after_s,
    };
    let spec = JobSpec {
        name,
        members,
        gather: gather.into(),
        seed,
        policy: JobPolicy::default().with(policy)?,
        sealed,
        created_at: 0,
        request: 0,
        uid: 0,
        client: String::new(),
    };
    match groups {
        Some(groups) => GridSpec::new(spec, groups).map(JobRequest::Grid),
        None => spec.check().map(|()| JobRequest::Job(spec)),
    }
}
