//! A user's settings of a job, before it starts.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ultima_host::Preset;

use super::env::Variables;
use super::rendezvous::{Controller, Local, Rendezvous, Request, TcpStore};
use super::sequence::Sequence;
use super::worker::Worker;
use super::{Job, JobError};
use crate::Settings;

/// The deadline of an operation, unless the user sets one.
const DEADLINE: Duration = Duration::from_secs(5);
/// The default time to wait for other ranks: processes that load a training framework
/// start slowly.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The limit of an exact operation, unless the user sets one.
const EXACT_LIMIT: Duration = Duration::from_secs(60);

/// Sets up a [`Job`].
#[must_use = "a job starts with JobBuilder::start"]
pub struct JobBuilder {
    rendezvous: Option<Box<dyn Rendezvous>>,
    request: Request,
    exact_limit: Duration,
}

impl Default for JobBuilder {
    fn default() -> Self {
        Self {
            rendezvous: None,
            request: Request {
                settings: Settings::new(DEADLINE),
                seed: None,
                seal: true,
                local: Local::Routed,
                timeout: TIMEOUT,
                ranks: None,
                notice: |line| tracing::warn!("{line}"),
            },
            exact_limit: EXACT_LIMIT,
        }
    }
}

impl JobBuilder {
    /// Applies the environment's variables:
    ///
    /// | variable | meaning |
    /// | --- | --- |
    /// | `ULTIMA_CONTROLLER`, `ULTIMA_JOB`, `ULTIMA_HOST` | a [`Controller`]; the host is this one's name unless set |
    /// | `ULTIMA_TLS_CA`, `ULTIMA_TLS_CERT`, `ULTIMA_TLS_KEY` | PEM files for TLS to the controller |
    /// | `WORLD_SIZE`, with a controller | [`JobBuilder::ranks`] |
    /// | else `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` … | [`TcpStore::from_env`] |
    ///
    /// and the variables of [`JobBuilder::settings_from_env`].
    ///
    /// # Errors
    /// [`JobError::Variable`].
    pub fn from_env() -> Result<Self, JobError> {
        Self::from_variables(&Variables::of_process())
    }

    /// Applies the environment's variables, but for the rendezvous:
    ///
    /// | variable | meaning |
    /// | --- | --- |
    /// | `ULTIMA_DEADLINE`, `ULTIMA_TIMEOUT` | seconds, see [`JobBuilder::deadline`] and [`JobBuilder::timeout`] |
    /// | `ULTIMA_SEED` | [`JobBuilder::seed`] |
    /// | `ULTIMA_SEAL` | 0 or 1, see [`JobBuilder::seal`] |
    /// | `ULTIMA_SHARED_MEMORY` | 0 or 1, see [`Settings::shared_memory`] |
    /// | `ULTIMA_INTERFACE` | [`JobBuilder::interface`] |
    ///
    /// # Errors
    /// [`JobError::Variable`].
    pub fn settings_from_env() -> Result<Self, JobError> {
        Self::from_setting_variables(&Variables::of_process())
    }

    pub(super) fn from_variables(variables: &Variables<'_>) -> Result<Self, JobError> {
        let mut builder = Self::from_setting_variables(variables)?;
        Ok(match variables.get("ULTIMA_CONTROLLER") {
            Some(address) => {
                let job = variables.required("ULTIMA_JOB", "expected the job's name")?;
                let host = match variables.get("ULTIMA_HOST") {
                    Some(host) => host,
                    None => hostname()?,
                };
                builder.request.ranks = variables.number("WORLD_SIZE", "expected a number")?;
                let controller = Controller::new(address, job, host).of_variable();
                builder.rendezvous(match variables.tls()? {
                    Some(tls) => controller.tls(tls),
                    None => controller,
                })
            }
            None => builder.rendezvous(TcpStore::from_variables(variables)?),
        })
    }

    fn from_setting_variables(variables: &Variables<'_>) -> Result<Self, JobError> {
        let mut builder = Self::default();
        if let Some(deadline) = variables.seconds("ULTIMA_DEADLINE")? {
            builder = builder.deadline(deadline);
        }
        if let Some(timeout) = variables.seconds("ULTIMA_TIMEOUT")? {
            builder = builder.timeout(timeout);
        }
        if let Some(seed) = variables.number("ULTIMA_SEED", "expected a number")? {
            builder = builder.seed(seed);
        }
        if let Some(seal) = variables.flag("ULTIMA_SEAL")? {
            builder = builder.seal(seal);
        }
        if let Some(shared_memory) = variables.flag("ULTIMA_SHARED_MEMORY")? {
            builder.settings_mut().shared_memory = shared_memory;
        }
        if let Some(interface) = variables.get("ULTIMA_INTERFACE") {
            builder = builder.interface(interface);
        }
        Ok(builder)
    }

    /// Sets how the ranks find each other.
    pub fn rendezvous(mut self, rendezvous: impl Rendezvous + 'static) -> Self {
        self.rendezvous = Some(Box::new(rendezvous));
        self
    }

    /// Replaces all settings of the transport, the deadline included.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.request.settings = settings;
        self
    }

    /// The settings of the transport, to change some of them.
    pub fn settings_mut(&mut self) -> &mut Settings {
        &mut self.request.settings
    }

    /// Sets when an AllReduce ends at the latest, with the contributions that arrived. Default: 5 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.request.settings.t_b = deadline;
        self
    }

    /// Sets the policies of a preset: how ranks wait, send and average. Equal on all ranks. Default: [`Preset::Adaptive`].
    pub fn preset(mut self, preset: Preset) -> Self {
        self.request.settings.policies = preset.policies();
        self
    }

    /// Sets the seed of signs and rotations, equal on all ranks. Default: rank 0 draws one.
    pub fn seed(mut self, seed: u64) -> Self {
        self.request.seed = Some(seed);
        self
    }

    /// Seals packets if true: ranks then reject packets of anyone who cannot read the rendezvous
    /// store. Equal on all ranks. Default: true. With a [`Controller`], the job's file decides instead.
    pub fn seal(mut self, seal: bool) -> Self {
        self.request.seal = seal;
        self
    }

    /// Sets the local address for packets. Default: the one that routes to the rendezvous.
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.request.local = Local::Address(address);
        self
    }

    /// Sets the interface for packets.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.request.local = Local::Interface(name.into());
        self
    }

    /// Sets how long to wait for the other ranks. Default: 5 minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = timeout;
        self
    }

    /// Sets the number of ranks that the caller expects. A [`Controller`]'s job with another number of members is refused
    /// before this rank joins.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.request.ranks = Some(ranks);
        self
    }

    /// Sets the function that reports why the rendezvous waits. Default: a warning of `tracing`.
    pub fn notice(mut self, notice: fn(&str)) -> Self {
        self.request.notice = notice;
        self
    }

    /// Sets how long exact operations wait for every rank. Default: 60 s.
    pub fn exact_limit(mut self, limit: Duration) -> Self {
        self.exact_limit = limit;
        self
    }

    /// Meets the other ranks and starts the job. Blocks until all ranks are there, for at most about
    /// [`JobBuilder::timeout`].
    ///
    /// # Errors
    /// [`JobError`]: ranks are missing, differ in a setting, or cannot reach each other.
    pub fn start(self) -> Result<Job, JobError> {
        let rendezvous = self.rendezvous.ok_or(JobError::NoRendezvous)?;
        let mut place = rendezvous.meet(&self.request)?;
        let config = place.collective().config().clone();
        let observer = place.collective().observer();
        let (address, first) = (place.address(), place.first_step());
        let (messages, received) = channel();
        let worker = Worker::new(place, received, messages.clone());
        let thread = thread::Builder::new().name("ultima-job".into());
        let thread = thread
            .spawn(|| worker.run())
            .map_err(|error| JobError::Io {
                what: "start the job's thread",
                error,
            })?;
        Ok(Job {
            sequence: Mutex::new(Sequence::new(first, &config)),
            messages,
            thread: Some(thread),
            config,
            address,
            observer,
            exact_limit: self.exact_limit,
        })
    }
}

/// This host's name: in most fabrics, also in the fabric's file.
fn hostname() -> Result<String, JobError> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.map_err(|error| JobError::Io {
        what: "read this host's name (or set ULTIMA_HOST)",
        error,
    })?;
    Ok(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCHRUN: [(&str, &str); 4] = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
    ];

    fn refused(more: &[(&str, &str)]) -> String {
        let variables = [more, &TORCHRUN].concat();
        let builder = JobBuilder::from_variables(&Variables::of(&variables));
        builder.err().expect("an error").to_string()
    }

    #[test]
    fn wrong_variables_are_named() {
        let missing = JobBuilder::from_variables(&Variables::of(&TORCHRUN[..3]));
        let missing = missing.err().expect("an error").to_string();
        assert!(missing.contains("WORLD_SIZE is not set"), "{missing}");
        assert!(refused(&[("RANK", "x")]).contains("RANK is \"x\": expected a number"));
        assert!(refused(&[("ULTIMA_DEADLINE", "-1")]).contains("expected seconds"));
        assert!(refused(&[("ULTIMA_SEAL", "no")]).contains("expected 0 or 1"));
        assert!(refused(&[("ULTIMA_STORE", "me")]).contains("\"join\""));
        assert!(refused(&[("ULTIMA_STORE_PROTOCOL", "3")]).contains("torch 2.1"));
        assert!(refused(&[("ULTIMA_CONTROLLER", "c:1")]).contains("ULTIMA_JOB is not set"));
    }

    #[test]
    fn a_training_expects_its_ranks_of_the_controllers_job() {
        let job = [("ULTIMA_CONTROLLER", "c:1"), ("ULTIMA_JOB", "train")];
        let ranks = |more: &[(&str, &str)]| {
            let variables = [&job, more].concat();
            let builder = JobBuilder::from_variables(&Variables::of(&variables)).expect("valid");
            builder.request.ranks
        };
        assert_eq!((ranks(&TORCHRUN), ranks(&[])), (Some(4), None));
    }

    #[test]
    fn variables_set_the_request() {
        let variables = [
            &[
                ("ULTIMA_DEADLINE", "0.5"),
                ("ULTIMA_TIMEOUT", "7"),
                ("ULTIMA_SEED", "42"),
                ("ULTIMA_SEAL", "0"),
                ("ULTIMA_SHARED_MEMORY", "0"),
                ("ULTIMA_INTERFACE", "eth1"),
            ][..],
            &TORCHRUN,
        ];
        let variables = variables.concat();
        let builder = JobBuilder::from_variables(&Variables::of(&variables)).expect("valid");
        let Request {
            settings,
            seed,
            seal,
            local,
            timeout,
            ranks,
            ..
        } = builder.request;
        assert_eq!(
            ranks, None,
            "torch's store has as many ranks as the training"
        );
        assert!(!seal && !settings.shared_memory);
        assert_eq!(settings.t_b, Duration::from_millis(500));
        assert_eq!((seed, timeout), (Some(42), Duration::from_secs(7)));
        assert_eq!(local, Local::Interface("eth1".into()));
    }
}
