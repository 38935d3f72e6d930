//! A store for jobs without torch, which rank 0 serves. It speaks version 2 of TCPStore's protocol.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::store::{MAGIC, Protocol, READY, Request, STOP_WAITING, VALIDATE};

/// The longest key that the server accepts.
const LONGEST_KEY: u64 = 1 << 10;
/// The longest value that the server accepts.
const LONGEST_VALUE: u64 = 1 << 20;
/// The most keys in one request.
const MOST_KEYS: u64 = 1 << 10;
/// The most bytes of keys and values at the server.
const MOST_BYTES: usize = 256 << 20;
/// The most connections at a time, with a thread each.
const MOST_CONNECTIONS: usize = 8192;

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
    /// Bytes of all keys and values.
    bytes: usize,
    /// By number.
    connections: HashMap<u64, TcpStream>,
    /// Number of the next connection.
    next: u64,
    ending: bool,
}

impl State {
    /// Sets a value. None if there is no room.
    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> Option<()> {
        let before = self
            .values
            .get(&key)
            .map_or(0, |value| key.len() + value.len());
        let bytes = self.bytes - before + key.len() + value.len();
        if bytes > MOST_BYTES {
            return None;
        }
        self.bytes = bytes;
        self.values.insert(key, value);
        Some(())
    }
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
        for connection in state.connections.values() {
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
        if state.connections.len() >= MOST_CONNECTIONS {
            continue;
        }
        let Ok(other_end) = connection.try_clone() else {
            continue;
        };
        let number = state.next;
        state.next += 1;
        state.connections.insert(number, other_end);
        drop(state);
        let mut connection = Connection {
            number,
            connection,
            shared: shared.clone(),
        };
        // It ends with the connection.
        let _ = thread::Builder::new()
            .name("ultima-store".into())
            .spawn(move || {
                // A client that has closed its connection, or that speaks another protocol.
                let _ = connection.requests();
            });
    }
}

struct Connection {
    number: u64,
    connection: TcpStream,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The server's clone would keep it open.
        self.shared.lock().connections.remove(&self.number);
    }
}

impl Connection {
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
                    let (key, value) = (self.key()?, self.bytes(LONGEST_VALUE)?);
                    let set = self.shared.lock().set(key, value);
                    set.ok_or_else(unexpected)?;
                    self.shared.changed.notify_all();
                }
                Some(Request::Get) => {
                    let key = self.key()?;
                    let value = self.shared.lock().values.get(&key).cloned();
                    let value = value.ok_or_else(unexpected)?;
                    let len = (value.len() as u64).to_ne_bytes();
                    self.connection.write_all(&[&len, &value[..]].concat())?;
                }
                Some(Request::Add) => {
                    let key = self.key()?;
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
        state.set(key, sum.to_string().into_bytes())?;
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
        (0..count).map(|_| self.key()).collect()
    }

    fn key(&mut self) -> io::Result<Vec<u8>> {
        self.bytes(LONGEST_KEY)
    }

    fn bytes(&mut self, longest: u64) -> io::Result<Vec<u8>> {
        let len = u64::from_ne_bytes(self.read()?);
        if len > longest {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bounded_and_replaced_values_are_not_counted() {
        let mut state = State::default();
        let value = || vec![0; 1 << 20];
        for _ in 0..1000 {
            assert!(state.set(b"key".to_vec(), value()).is_some());
        }
        assert_eq!(state.bytes, 3 + (1 << 20));
        let refused = (0u32..1000).find(|key| {
            let key = key.to_be_bytes().to_vec();
            state.set(key, value()).is_none()
        });
        assert_eq!(refused, Some(254));
    }
}
