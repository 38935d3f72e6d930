//! A job, as a Python object.

use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use ultima_agent::job::{self, Addresses, JobBuilder, JobError};
use ultima_host::{Config, Element, Gather, Timeouts};

use crate::memory::Memory;
use crate::pending::Pending;
use crate::store::AtStore;
use crate::{error, signals};

/// A rank's part in a job.
#[pyclass(frozen, weakref, module = "ultima._native")]
pub struct Job {
    /// None after `close`.
    inner: Mutex<Option<Arc<job::Job>>>,
    /// The process that started the job: only there are its threads.
    process: u32,
    #[pyo3(get)]
    rank: u16,
    #[pyo3(get)]
    ranks: u16,
    /// The address and port that this rank sends from.
    #[pyo3(get)]
    address: String,
    #[pyo3(get)]
    seed: u64,
    #[pyo3(get)]
    slot_bytes: usize,
    /// Seconds.
    #[pyo3(get)]
    deadline: f64,
}

/// What the user sets of a job. `None` is the default.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    deadline: Option<f64>,
    timeout: Option<f64>,
    exact_timeout: Option<f64>,
    seed: Option<u64>,
    interface: Option<String>,
    recycling: Option<bool>,
    hadamard: Option<bool>,
    learning: Option<bool>,
    deadline_factor: Option<f64>,
    wire: Option<String>,
    rate: Option<u64>,
    slot_bytes: Option<usize>,
}

/// How the ranks meet, unless the environment says it.
#[derive(FromPyObject)]
pub enum Meeting {
    /// A rank, and all addresses.
    #[pyo3(transparent)]
    Addresses((usize, Vec<String>)),
    /// A store, with rank, ranks, prefix and local address.
    #[pyo3(transparent)]
    Store((Py<PyAny>, u16, u16, String, String)),
    /// As the environment says, with this number of ranks.
    #[pyo3(transparent)]
    Ranks(usize),
}

fn setting(py: Python<'_>, message: String) -> PyErr {
    error::new(py, "SettingError", message)
}

fn seconds(py: Python<'_>, name: &str, value: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(value).ok();
    let duration = duration.filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| {
        setting(
            py,
            format!("{name} is {value}: expected seconds, such as 0.5"),
        )
    })
}

impl Settings {
    /// Sets these in `builder`.
    fn apply(self, py: Python<'_>, mut builder: JobBuilder) -> PyResult<JobBuilder> {
        if let Some(value) = self.deadline {
            builder = builder.deadline(seconds(py, "deadline", value)?);
        }
        if let Some(value) = self.timeout {
            builder = builder.timeout(seconds(py, "timeout", value)?);
        }
        if let Some(value) = self.exact_timeout {
            builder = builder.exact_limit(seconds(py, "exact_timeout", value)?);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if let Some(interface) = self.interface {
            builder = builder.interface(interface);
        }
        // Before the ranks meet: others would wait for a rank that fails later.
        if let Some(bytes) = self.slot_bytes
            && bytes % 4 != 0
        {
            let message = format!("slot_bytes is {bytes}: expected a multiple of 4, 64 or more");
            return Err(setting(py, message));
        }
        let settings = builder.settings_mut();
        settings.recycling = self.recycling.unwrap_or(settings.recycling);
        settings.hadamard = self.hadamard.unwrap_or(settings.hadamard);
        settings.rate = self.rate.or(settings.rate);
        if self.learning == Some(false) {
            settings.policies.timeouts = Timeouts::Fixed;
        }
        if let Some(factor) = self.deadline_factor {
            if !Config::is_deadline_factor(factor) {
                let max = Config::MAX_DEADLINE_FACTOR;
                let message = format!(
                    "deadline_factor is {factor}: expected a multiple of an AllReduce's usual time, 1 to {max}"
                );
                return Err(setting(py, message));
            }
            if self.learning == Some(false) {
                let message = "deadline_factor needs learned times: expected learning=True, or no deadline_factor";
                return Err(setting(py, message.into()));
            }
            settings.deadline_factor = Some(factor);
        }
        settings.slot_bytes = self.slot_bytes.or(settings.slot_bytes);
        if let Some(name) = self.wire {
            let element = Element::ALL.into_iter().find(|e| e.name() == name);
            let expected = Element::ALL.map(Element::name).join(", ");
            settings.element = element.ok_or_else(|| {
                setting(py, format!("wire is {name:?}: expected one of {expected}"))
            })?;
        }
        Ok(builder)
    }
}

/// Writes a line to the logger `ultima`.
fn warn(line: &str) {
    Python::attach(|py| {
        let logger = (py.import("ultima._log")).and_then(|module| module.getattr("logger"));
        // A program may replace the logger; its error is not the job's.
        let _ = logger.and_then(|logger| logger.call_method1("warning", ("%s", line)));
    });
}

/// Checks settings and the variables of the environment.
#[pyfunction]
pub fn check(py: Python<'_>, settings: Settings) -> PyResult<()> {
    let builder = JobBuilder::settings_from_env();
    let builder = builder.map_err(|failed| error::of(py, &failed))?;
    settings.apply(py, builder).map(drop)
}

/// Meets the other ranks and starts the job.
#[pyfunction]
pub fn start(py: Python<'_>, settings: Settings, meeting: Option<Meeting>) -> PyResult<Job> {
    let failed = |failed: JobError| error::of(py, &failed);
    let builder = match meeting {
        None => JobBuilder::from_env().map_err(failed)?,
        Some(Meeting::Ranks(ranks)) => JobBuilder::from_env().map_err(failed)?.ranks(ranks),
        Some(Meeting::Addresses((rank, addresses))) => {
            let mut parsed = Vec::new();
            for address in addresses {
                let expected = || {
                    setting(
                        py,
                        format!("{address:?}: expected an address such as 10.0.0.1:9000"),
                    )
                };
                parsed.push(address.parse::<SocketAddr>().map_err(|_| expected())?);
            }
            let builder = JobBuilder::settings_from_env().map_err(failed)?;
            builder.rendezvous(Addresses::new(rank, parsed))
        }
        Some(Meeting::Store((store, rank, ranks, prefix, address))) => {
            let expected = |_| setting(py, format!("{address:?}: expected an IPv4 address"));
            let address: Ipv4Addr = address.parse().map_err(expected)?;
            let builder = JobBuilder::settings_from_env().map_err(failed)?;
            builder.rendezvous(AtStore {
                store,
                rank,
                ranks,
                prefix,
                address,
            })
        }
    };
    let builder = settings.apply(py, builder)?.notice(warn);
    let started = signals::run(py, move || builder.start())?;
    let job = started.map_err(failed)?;
    Ok(Job {
        process: process::id(),
        rank: job.rank(),
        ranks: job.ranks(),
        address: job.address().to_string(),
        seed: job.config().seed,
        slot_bytes: job.config().slot_bytes,
        deadline: job.config().t_b.as_secs_f64(),
        inner: Mutex::new(Some(Arc::new(job))),
    })
}

impl Job {
    fn is_elsewhere(&self) -> bool {
        process::id() != self.process
    }

    /// The job, in the process that started it and before its end.
    fn open(&self, py: Python<'_>) -> PyResult<Arc<job::Job>> {
        if self.is_elsewhere() {
            let message = "this process was forked after the job had started, and a fork has none of its threads: start a job \
                           in the new process, or start processes with the method \"spawn\"";
            return Err(error::new(py, "ForkError", message));
        }
        // Held for a clone only.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || {
            error::new(
                py,
                "ClosedError",
                "the job was closed: create a new State or Job",
            )
        };
        inner.clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Job {
    /// Averages the `len` values at `address`, of `owner`, in place. Without a bucket it is a step of its own.
    #[pyo3(signature = (address, len, owner, bucket = None))]
    fn reduce(
        &self,
        py: Python<'_>,
        address: usize,
        len: usize,
        owner: Py<PyAny>,
        bucket: Option<u16>,
    ) -> PyResult<Pending> {
        let job = self.open(py)?;
        // SAFETY: ultima's Python code passes arrays and tensors with as many values, and leaves them alone.
        let memory = unsafe { Memory::new(address, len, owner) };
        if bucket.is_none() {
            job.begin_step();
        }
        let operation = job.all_reduce_lent(bucket.unwrap_or(0), Box::new(memory));
        if bucket.is_none() {
            job.begin_step();
        }
        Ok(Pending::bounded(self.rank, operation))
    }

    /// Starts the exact operation `kind` with the values that are at `from`, and stores the result at `to`.
    fn exact(
        &self,
        py: Python<'_>,
        kind: (String, u16),
        from: (usize, usize, Py<PyAny>),
        to: (usize, usize, Py<PyAny>),
    ) -> PyResult<Pending> {
        let job = self.open(py)?;
        // SAFETY: as in `reduce`.
        let (mut from, to) = unsafe {
            (
                Memory::new(from.0, from.1, from.2),
                Memory::new(to.0, to.1, to.2),
            )
        };
        let values = from.as_mut().to_vec();
        let operation = match &kind.0[..] {
            "mean" => job.all_reduce_exact(values),
            "broadcast" => job.broadcast(kind.1, values),
            "gather" => job.all_gather(values),
            "barrier" => job.barrier(),
            other => return Err(setting(py, format!("no exact operation {other:?}"))),
        };
        Ok(Pending::exact(self.rank, operation, to))
    }

    /// Makes the next bucket the first one of a new step.
    fn begin_step(&self, py: Python<'_>) -> PyResult<()> {
        self.open(py)?.begin_step();
        Ok(())
    }

    /// Sets the factor by which gradients are multiplied from the next operation on.
    fn set_loss_scale(&self, py: Python<'_>, scale: f32) -> PyResult<()> {
        if !(scale.is_finite() && scale > 0.0) {
            return Err(setting(
                py,
                format!("loss scale {scale}: expected a positive number"),
            ));
        }
        self.open(py)?.set_loss_scale(scale);
        Ok(())
    }

    /// Sets the deadline from the next AllReduce on, at most that of the start.
    fn set_deadline(&self, py: Python<'_>, deadline: f64) -> PyResult<()> {
        let deadline = seconds(py, "deadline", deadline)?;
        self.open(py)?.set_deadline(deadline);
        Ok(())
    }

    /// Sets how this rank sends its results from the next operation on: by multicast, or in a packet for each rank.
    fn set_multicast(&self, py: Python<'_>, multicast: bool) -> PyResult<()> {
        let gather = match multicast {
            true => Gather::Multicast,
            false => Gather::Unicast,
        };
        let set = self.open(py)?.set_gather(gather);
        set.map_err(|failed| error::of(py, &failed))
    }

    /// Waits until all operations have ended, sends what other ranks still need, and ends the job.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_elsewhere() {
            return Ok(());
        }
        let inner = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match inner {
            Some(job) => signals::end(py, job),
            None => Ok(()),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let inner = self
            .inner
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if self.is_elsewhere() {
            // Waiting for threads that a fork does not have would never end.
            std::mem::forget(inner);
            return;
        }
        if let Some(job) = inner {
            // If no thread can start, the job ends here.
            let _ = Python::attach(|py| signals::end(py, job));
        }
    }
}
