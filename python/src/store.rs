//! A rendezvous at a store that Python code reaches, such as that of a torch process group.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ultima_agent::job::JobError;
use ultima_agent::job::rendezvous::{Local, Member, Place, Rendezvous, Request, Store, meet_at};

/// A Python object with `set(key, value)`, `get(key, seconds)` and `count(key)`.
struct PythonStore(Py<PyAny>);

impl PythonStore {
    fn call<T>(
        &self,
        call: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Result<T, JobError> {
        Python::attach(|py| {
            call(self.0.bind(py)).map_err(|error| JobError::Store {
                address: "the process group's store".into(),
                problem: error.value(py).to_string(),
            })
        })
    }
}

impl Store for PythonStore {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), JobError> {
        self.call(|store| {
            let value = PyBytes::new(store.py(), value);
            store.call_method1("set", (key, value)).map(drop)
        })
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, JobError> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.call(|store| {
            let value = store.call_method1("get", (key, left.as_secs_f64()))?;
            value.extract()
        })
    }

    fn count(&mut self, key: &str) -> Result<i64, JobError> {
        self.call(|store| store.call_method1("count", (key,))?.extract())
    }
}

/// A rendezvous at a Python object.
pub struct AtStore {
    /// An object with the methods of [`PythonStore`].
    pub store: Py<PyAny>,
    /// This rank.
    pub rank: u16,
    /// Ranks of the job.
    pub ranks: u16,
    /// What all keys of this job begin with.
    pub prefix: String,
    /// The local address for packets, unless the user sets an interface.
    pub address: Ipv4Addr,
}

impl Rendezvous for AtStore {
    fn meet(self: Box<Self>, request: &Request) -> Result<Place, JobError> {
        let ip = match &request.local {
            Local::Routed => self.address,
            local => local.address(SocketAddrV4::new(self.address, 0))?,
        };
        let address = SocketAddrV4::new(ip, 0);
        let socket = UdpSocket::bind(address).map_err(|error| JobError::Socket {
            what: "UDP",
            address,
            error,
        })?;
        let member = Member {
            rank: self.rank,
            ranks: self.ranks,
            prefix: self.prefix,
            run: None,
            hosted: false,
        };
        meet_at(&mut PythonStore(self.store), &member, request, socket)
    }
}
