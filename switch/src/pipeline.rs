//! A program with its state, and what P4Runtime wants remembered about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ultima_p4runtime::v1::{
    CloneSessionEntry, ForwardingPipelineConfig, MulticastGroupEntry, TableEntry,
};

use crate::device_config;
use crate::digests::Digests;
use crate::engine::{Engine, Limits, LoadError};
use crate::grpc;
use crate::p4info;
use crate::target::{Refusal, Target};
use crate::tm::Nanos;

/// Time between two looks for idle entries, as long as there are any.
const SCAN_INTERVAL: Nanos = 10_000_000;
/// Idle entries that are told at once.
const MAX_IDLE: usize = 256;

/// What every program of a switch is loaded with.
#[derive(Debug, Clone)]
pub(crate) struct Loader {
    pub(crate) limits: Limits,
    /// Of what the program draws at random.
    pub(crate) seed: u64,
    /// The target that the switch emulates.
    pub(crate) target: Option<Arc<dyn Target>>,
}

impl Loader {
    /// Loads what `config` describes.
    pub(crate) fn load(&self, config: ForwardingPipelineConfig) -> Result<Pipeline, ConfigError> {
        let mut pipeline = match &self.target {
            None => Pipeline::load(config, self.limits.clone())?,
            Some(target) => {
                let forwards = ForwardingPipelineConfig {
                    p4_device_config: target.pipeline(&config.p4_device_config)?,
                    ..config.clone()
                };
                let pipeline = Pipeline::load(forwards, self.limits.clone())?;
                Pipeline {
                    config,
                    target: Some(target.clone()),
                    ..pipeline
                }
            }
        };
        pipeline.engine.seed(self.seed);
        Ok(pipeline)
    }

    /// Loads a program without its P4Info. Packets run through it, but controllers have no access to it.
    pub(crate) fn load_bare(&self, json: Vec<u8>) -> Result<Pipeline, ConfigError> {
        let converted = match &self.target {
            None => None,
            Some(target) => Some(target.pipeline(&json)?),
        };
        let program = converted.as_ref().unwrap_or(&json);
        let engine = Engine::load_bare(program, self.limits.clone())?;
        let config = ForwardingPipelineConfig {
            p4_device_config: json,
            ..ForwardingPipelineConfig::default()
        };
        let mut pipeline = Pipeline::new(engine, config);
        pipeline.target.clone_from(&self.target);
        pipeline.engine.seed(self.seed);
        Ok(pipeline)
    }
}

/// A loaded program.
pub(crate) struct Pipeline {
    /// The interpreter with tables, counters, meters, registers and replication engine.
    pub(crate) engine: Engine,
    /// The config that it was loaded from. Without a P4Info, controllers have no access.
    pub(crate) config: ForwardingPipelineConfig,
    /// Multicast groups and clone sessions as they were written: the interpreter knows their
    /// replicas, a reader also wants the metadata and the form in which ports were given (P4Runtime
    /// §9.5, read-write symmetry).
    pub(crate) groups: BTreeMap<u32, MulticastGroupEntry>,
    /// As `groups`.
    pub(crate) sessions: BTreeMap<u32, CloneSessionEntry>,
    /// Digests on their way to controllers.
    pub(crate) digests: Digests,
    /// The target that the switch emulates.
    pub(crate) target: Option<Arc<dyn Target>>,
    /// Before that, nobody looks for idle entries.
    next_scan: Nanos,
}

/// Why a forwarding pipeline config is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The config has no P4Info.
    #[error("config.p4info is not set: expected the P4Info of the program")]
    NoP4Info,
    /// The config has no program.
    #[error(
        "config.p4_device_config has no program: expected p4c's BMv2 JSON, or a p4.tmp.P4DeviceConfig with it in device_data"
    )]
    NoDeviceConfig,
    /// The device config has an unknown format.
    #[error(
        "config.p4_device_config has an unknown format: expected p4c's BMv2 JSON, or a p4.tmp.P4DeviceConfig with it in \
         device_data"
    )]
    UnknownDeviceConfig,
    /// The config is not for the emulated target.
    #[error(transparent)]
    Target(#[from] Refusal),
    /// The program does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Pipeline {
    /// When time alone makes something happen next.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let idle = self.engine.next_idle_us();
        let idle = idle.map(|us| us.saturating_mul(1000).max(self.next_scan));
        self.digests.next_due().into_iter().chain(idle).min()
    }

    /// Entries that have become idle, if it is time to look: now and then, so that many of them
    /// make one message, and not too many at once.
    pub(crate) fn take_idle(&mut self, now: Nanos) -> Vec<TableEntry> {
        let mut found = Vec::new();
        if now < self.next_scan {
            return found;
        }
        while found.len() < MAX_IDLE
            && let Some((table, view)) = self.engine.pop_idle(now / 1000)
        {
            found.push(grpc::idle_entry(table, &view));
        }
        if !found.is_empty() {
            self.next_scan = now + SCAN_INTERVAL;
        }
        found
    }

    /// Loads what `config` describes.
    pub(crate) fn load(
        config: ForwardingPipelineConfig,
        limits: Limits,
    ) -> Result<Pipeline, ConfigError> {
        let described = config.p4info.as_ref().ok_or(ConfigError::NoP4Info)?;
        let json = device_config::json(&config.p4_device_config)?;
        if json.is_empty() {
            return Err(ConfigError::NoDeviceConfig);
        }
        let engine = p4info::load(&json, described, limits)?;
        Ok(Pipeline::new(engine, config))
    }

    fn new(engine: Engine, config: ForwardingPipelineConfig) -> Pipeline {
        Pipeline {
            digests: Digests::new(engine.digests().clone()),
            target: None,
            next_scan: 0,
            engine,
            config,
            groups: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }
}
