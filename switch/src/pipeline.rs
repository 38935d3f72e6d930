//! A program with its state, and what P4Runtime wants remembered about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ultima_p4runtime::bmv2;
use ultima_p4runtime::v1::ForwardingPipelineConfig;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;

use crate::digests::Digests;
use crate::p4info;
use crate::target::{Refusal, Target};
use crate::tm::Nanos;
use ultima_engine::{Engine, EntryView, Limits, LoadError, Schema};

/// Time between two looks for idle entries, as long as there are any.
const SCAN_INTERVAL: Nanos = 10_000_000;
/// The most idle entries in one notification.
const MAX_IDLE: usize = 256;

/// The parameters with which every program of a switch is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Loader {
    pub(crate) limits: Limits,
    /// Seed of the program's random numbers.
    pub(crate) seed: u64,
    pub(crate) target: Option<Arc<dyn Target>>,
}

impl Loader {
    /// Loads what `config` describes.
    pub(crate) fn load(&self, config: ForwardingPipelineConfig) -> Result<Pipeline, ConfigError> {
        match config.p4info {
            Some(_) => self.load_bare(config),
            None => Err(ConfigError::NoP4Info),
        }
    }

    /// The same for a config that may lack the P4Info. Without it, packets run through the program, but controllers have no
    /// access to it.
    pub(crate) fn load_bare(
        &self,
        config: ForwardingPipelineConfig,
    ) -> Result<Pipeline, ConfigError> {
        let device_config = &config.p4_device_config;
        let converted = self.target.as_ref().map(|it| it.pipeline(device_config));
        let converted = converted.transpose()?;
        let json = bmv2::json(converted.as_ref().unwrap_or(device_config));
        let json = json.map_err(|_| ConfigError::NoDeviceConfig)?;
        if json.is_empty() {
            return Err(ConfigError::NoDeviceConfig);
        }
        let limits = self.limits.clone();
        let mut engine = match &config.p4info {
            Some(described) => p4info::load(&json, described, limits)?,
            None => Engine::load_bare(&json, limits)?,
        };
        engine.seed(self.seed);
        Ok(Pipeline {
            digests: Digests::new(engine.digests().clone()),
            target: self.target.clone(),
            next_scan: 0,
            engine,
            config: Arc::new(config),
            groups: BTreeMap::new(),
            sessions: BTreeMap::new(),
        })
    }
}

pub(crate) struct Pipeline {
    /// The interpreter with tables, counters, meters, registers and replication engine.
    pub(crate) engine: Engine,
    /// The config that it was loaded from. Without a P4Info, controllers have no access.
    pub(crate) config: Arc<ForwardingPipelineConfig>,
    pub(crate) groups: BTreeMap<u32, Written>,
    pub(crate) sessions: BTreeMap<u32, Written>,
    pub(crate) digests: Digests,
    pub(crate) target: Option<Arc<dyn Target>>,
    /// The earliest time of the next search for idle entries.
    next_scan: Nanos,
}

/// A multicast group or clone session as it was written. The engine has its replicas; a reader also wants the metadata and the
/// form in which ports were given (P4Runtime §9.5, read-write symmetry).
pub(crate) struct Written {
    pub(crate) replicas: usize,
    /// Only gRPC's threads look into it.
    pub(crate) message: Arc<PreType>,
}

/// Why a forwarding pipeline config is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The config has no P4Info.
    #[error("config.p4info is not set: expected the P4Info of the program")]
    NoP4Info,
    /// The config has no program, or none in a known format.
    #[error(
        "config.p4_device_config has no program in a known format: expected p4c's BMv2 JSON, or a p4.tmp.P4DeviceConfig with \
         it in device_data"
    )]
    NoDeviceConfig,
    /// The config is not for the emulated target.
    #[error(transparent)]
    Target(#[from] Refusal),
    /// The program does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Pipeline {
    /// Returns the tables to which controllers have access.
    pub(crate) fn schema(&self) -> Option<Arc<Schema>> {
        let described = self.config.p4info.is_some();
        described.then(|| self.engine.schema().clone())
    }

    /// When time alone makes something happen next.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let idle = self.engine.next_idle_us();
        let idle = idle.map(|us| us.saturating_mul(1000).max(self.next_scan));
        self.digests.next_due().into_iter().chain(idle).min()
    }

    /// Entries that have become idle, with the ids of their tables, if it is time to look: now and then, so that many of them
    /// make one message, and not too many at once.
    pub(crate) fn take_idle(&mut self, now: Nanos) -> Vec<(u32, EntryView)> {
        let mut found = Vec::new();
        if now < self.next_scan {
            return found;
        }
        while found.len() < MAX_IDLE
            && let Some((table, view)) = self.engine.pop_idle(now / 1000)
        {
            found.push((table.id(), view));
        }
        if !found.is_empty() {
            self.next_scan = now + SCAN_INTERVAL;
        }
        found
    }
}
