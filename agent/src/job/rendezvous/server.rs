//! A store for jobs without torch, which rank 0 serves. It speaks version 2 of TCPStore's protocol.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::store::{MAGIC, Protocol, READY, Request, STOP_WAITING, VALIDATE};

/// The longest key or value that the server accepts.
const LONGEST: u64 = 1 << 20;
/// The most keys in one request.
const MOST_KEYS: u64 = 1 << 16;

/// A store with a thread for each connection. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddrV4,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    connections: Vec<TcpStream>,
    ending: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Listens on `address`.
    pub(super) fn bind(address: SocketAddrV4) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        let thread = thread::Builder::new()
            .name("ultima-store".into())
            .spawn(move || accept(&listener, &serving))?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        for connection in state.connections.drain(..) {
            // Fails if the client has closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        // Ends the wait for the next connection.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        let mut state = shared.lock();
        if state.ending {
            return;
        }
        // A connection that fails here is the client's to repeat.
        let Ok(connection) = connection else { continue };
        let Ok(other_end) = connection.try_clone() else {
            continue;
        };
        state.connections.push(other_end);
        drop(state);
        let shared = shared.clone();
        // It ends with the connection.
        let _ = thread::Builder::new()
            .name("ultima-store".into())
            .spawn(move || {
                // A client that is gone, or that speaks another protocol.
                let _ = Connection { connection, shared }.serve();
            });
    }
}

struct Connection {
    connection: TcpStream,
    shared: Arc<Shared>,
}

impl Connection {
    fn serve(mut self) -> io::Result<()> {
        let served = self.requests();
        // The server's clone would keep it open.
        let _ = self.connection.shutdown(Shutdown::Both);
        served
    }

    fn requests(&mut self) -> io::Result<()> {
        self.connection.set_nodelay(true)?;
        let [first] = self.read()?;
        let magic = u32::from_ne_bytes(self.read()?);
        if (first, magic) != (VALIDATE, MAGIC) {
            return Err(unexpected());
        }
        loop {
            let [number] = self.read()?;
            let is = |request: &Request| request.number(Protocol::V2) == number;
            match Request::ALL.into_iter().find(is) {
                Some(Request::Set) => {
                    let (key, value) = (self.bytes()?, self.bytes()?);
                    self.shared.lock().values.insert(key, value);
                    self.shared.changed.notify_all();
                }
                Some(Request::Get) => {
                    let key = self.bytes()?;
                    let value = self.shared.lock().values.get(&key).cloned();
                    let value = value.ok_or_else(unexpected)?;
                    let len = (value.len() as u64).to_ne_bytes();
                    self.connection.write_all(&[&len, &value[..]].concat())?;
                }
                Some(Request::Add) => {
                    let key = self.bytes()?;
                    let amount = i64::from_ne_bytes(self.read()?);
                    let sum = self.add(key, amount).ok_or_else(unexpected)?;
                    self.connection.write_all(&sum.to_ne_bytes())?;
                }
                Some(Request::Check) => {
                    let keys = self.keys()?;
                    let ready = has_all(&self.shared.lock(), &keys);
                    let answer = if ready { READY } else { READY + 1 };
                    self.connection.write_all(&[answer])?;
                }
                Some(Request::Wait) => {
                    let keys = self.keys()?;
                    if !self.wait(&keys) {
                        return Ok(());
                    }
                    self.connection.write_all(&[STOP_WAITING])?;
                }
                Some(Request::Keys) => {
                    let keys = self.shared.lock().values.len() as i64;
                    self.connection.write_all(&keys.to_ne_bytes())?;
                }
                None => return Err(unexpected()),
            }
        }
    }

    /// Adds to a number, which is stored as text.
    fn add(&self, key: Vec<u8>, amount: i64) -> Option<i64> {
        let mut state = self.shared.lock();
        let before = match state.values.get(&key) {
            Some(text) => std::str::from_utf8(text).ok()?.parse().ok()?,
            None => 0i64,
        };
        let sum = before.wrapping_add(amount);
        state.values.insert(key, sum.to_string().into_bytes());
        drop(state);
        self.shared.changed.notify_all();
        Some(sum)
    }

    /// Waits until all keys have values. Returns false if the server ends.
    fn wait(&self, keys: &[Vec<u8>]) -> bool {
        let mut state = self.shared.lock();
        while !state.ending && !has_all(&state, keys) {
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        !state.ending
    }

    fn keys(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let count = u64::from_ne_bytes(self.read()?);
        if count > MOST_KEYS {
            return Err(unexpected());
        }
        (0..count).map(|_| self.bytes()).collect()
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let len = u64::from_ne_bytes(self.read()?);
        if len > LONGEST {
            return Err(unexpected());
        }
        let mut bytes = vec![0; len as usize];
        self.connection.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.connection.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn has_all(state: &State, keys: &[Vec<u8>]) -> bool {
    keys.iter().all(|key| state.values.contains_key(key))
}

fn unexpected() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}
