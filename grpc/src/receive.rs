//! Receives whole requests before a server makes room to answer them, so that a client that sends half a request keeps
//! no other client waiting.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, http::Request};

/// Length of the header of a gRPC message: compression flag and length.
const HEADER: usize = 5;

/// Limits on the requests of some calls.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest request, in bytes.
    pub longest: usize,
    /// The most requests that are being received.
    pub count: usize,
    /// The most memory of requests that are being received or wait for their answer, in bytes.
    pub memory: usize,
    /// The longest time without a part of a request.
    pub silence: Duration,
}

/// The requests of some calls. Clones share them.
#[derive(Clone, Debug)]
pub struct Receiver {
    limits: Limits,
    requests: Arc<Mutex<Requests>>,
}

#[derive(Debug, Default)]
struct Requests {
    /// The number of requests so far.
    count: u64,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    memory: usize,
    /// The last part's arrival.
    since: Instant,
    /// Dropping it ends the request. None if the request is complete.
    end: Option<oneshot::Sender<Infallible>>,
}

impl Requests {
    /// Ends the request that has been incomplete without a further part for the longest time. Returns false if there is none.
    fn evict(&mut self, but: u64) -> bool {
        let incomplete = (self.entries.iter())
            .filter(|(serial, entry)| **serial != but && entry.end.is_some())
            .min_by_key(|(_, entry)| entry.since);
        let serial = incomplete.map(|(serial, _)| *serial);
        serial.is_some_and(|serial| self.entries.remove(&serial).is_some())
    }
}

/// The memory of a request, until it is dropped.
#[derive(Debug)]
pub struct Received {
    receiver: Receiver,
    serial: u64,
}

impl Receiver {
    /// Returns a receiver of requests within these limits.
    pub fn new(limits: Limits) -> Self {
        Receiver {
            limits,
            requests: Arc::default(),
        }
    }

    /// Receives the body of a request. Ends the request of another client that has been silent for longer, where there is no
    /// room.
    ///
    /// # Errors
    /// The request is too long, the client is silent for too long, or another request needs the room.
    pub async fn receive(
        &self,
        request: Request<Body>,
    ) -> Result<(Request<Body>, Received), Status> {
        let (received, evicted) = self.begin();
        let (parts, body) = request.into_parts();
        let bytes = tokio::select! {
            biased;
            bytes = self.collect(body, received.serial) => bytes?,
            _ = evicted => return Err(no_room()),
        };
        let body = Body::new(Full::new(Bytes::from(bytes)));
        Ok((Request::from_parts(parts, body), received))
    }

    fn begin(&self) -> (Received, oneshot::Receiver<Infallible>) {
        let mut requests = self.lock();
        requests.count += 1;
        let serial = requests.count;
        let incomplete = (requests.entries.values()).filter(|entry| entry.end.is_some());
        if incomplete.count() >= self.limits.count {
            requests.evict(serial);
        }
        let (end, evicted) = oneshot::channel();
        let entry = Entry {
            memory: 0,
            since: Instant::now(),
            end: Some(end),
        };
        requests.entries.insert(serial, entry);
        let receiver = self.clone();
        (Received { receiver, serial }, evicted)
    }

    async fn collect(&self, mut body: Body, serial: u64) -> Result<Vec<u8>, Status> {
        let Limits {
            longest, silence, ..
        } = self.limits;
        let mut bytes = Vec::new();
        loop {
            let frame = timeout(silence, body.frame()).await.map_err(|_| {
                let what = format!("the rest of the request did not arrive within {silence:?}");
                Status::deadline_exceeded(what)
            })?;
            let Some(frame) = frame.transpose()? else {
                break;
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > longest + HEADER {
                let what = format!("the request is longer than {longest} bytes");
                return Err(Status::out_of_range(what));
            }
            self.grow(serial, data.len())?;
            bytes.extend_from_slice(&data);
        }
        if let Some(entry) = self.lock().entries.get_mut(&serial) {
            entry.end = None;
        }
        Ok(bytes)
    }

    fn grow(&self, serial: u64, more: usize) -> Result<(), Status> {
        let mut requests = self.lock();
        let memory = |requests: &Requests| -> usize {
            let entries = requests.entries.values();
            entries.map(|entry| entry.memory).sum()
        };
        while memory(&requests) + more > self.limits.memory {
            if !requests.evict(serial) {
                return Err(no_room());
            }
        }
        let entry = requests.entries.get_mut(&serial).ok_or_else(no_room)?;
        entry.memory += more;
        entry.since = Instant::now();
        Ok(())
    }

    /// Locks the requests. A poisoned lock is usable: every change is complete or did not begin.
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.receiver.lock().entries.remove(&self.serial);
    }
}

fn no_room() -> Status {
    Status::resource_exhausted("no room to receive this request beside others; try again later")
}

#[cfg(test)]
mod tests {
    use http_body_util::channel::{Channel, Sender};
    use tokio::task::yield_now;
    use tonic::Code;

    use super::*;

    const LIMITS: Limits = Limits {
        longest: 100,
        count: 2,
        memory: 150,
        silence: Duration::from_secs(5),
    };

    type Receiving = tokio::task::JoinHandle<Result<(Request<Body>, Received), Status>>;

    /// A client that has sent the first part of its request.
    async fn client(
        receiver: &Receiver,
        part: &'static [u8],
    ) -> (Sender<Bytes, Status>, Receiving) {
        let (mut sender, body) = Channel::new(8);
        sender.send_data(part.into()).await.expect("room");
        let (receiver, body) = (receiver.clone(), Body::new(body));
        let receiving = tokio::spawn(async move { receiver.receive(Request::new(body)).await });
        yield_now().await;
        (sender, receiving)
    }

    async fn code(receiving: Receiving) -> Code {
        let received = receiving.await.expect("no panic");
        received.err().map_or(Code::Ok, |status| status.code())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_ended() {
        let start = Instant::now();
        let (_sender, receiving) = client(&Receiver::new(LIMITS), b"part").await;
        assert_eq!(code(receiving).await, Code::DeadlineExceeded);
        assert_eq!(start.elapsed(), LIMITS.silence);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_request_replaces_the_one_that_was_silent_for_longest() {
        let receiver = Receiver::new(LIMITS);
        let (mut first, active) = client(&receiver, b"a").await;
        let (_second, silent) = client(&receiver, b"b").await;
        tokio::time::advance(Duration::from_millis(1)).await;
        first
            .send_data(Bytes::from_static(b"a"))
            .await
            .expect("room");
        yield_now().await;
        let (third, honest) = client(&receiver, b"c").await;
        drop((first, third));
        assert_eq!(code(silent).await, Code::ResourceExhausted);
        let (request, _) = active.await.expect("no panic").expect("received");
        let body = request.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), b"aa"[..]);
        assert_eq!(code(honest).await, Code::Ok);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_has_a_bound() {
        let receiver = Receiver::new(LIMITS);
        let (first, complete) = client(&receiver, &[0; 80]).await;
        drop(first);
        let complete = complete.await.expect("no panic").expect("received");
        let (_second, silent) = client(&receiver, &[0; 60]).await;
        let (third, next) = client(&receiver, &[0; 70]).await;
        drop(third);
        assert_eq!(code(silent).await, Code::ResourceExhausted);
        assert_eq!(code(next).await, Code::Ok);
        // A complete request keeps its memory until it is answered.
        let (_fourth, refused) = client(&receiver, &[0; 90]).await;
        assert_eq!(code(refused).await, Code::ResourceExhausted);
        drop(complete);
        let (fifth, next) = client(&receiver, &[0; 90]).await;
        drop(fifth);
        assert_eq!(code(next).await, Code::Ok);
        let (_sixth, long) = client(&receiver, &[0; 106]).await;
        assert_eq!(code(long).await, Code::OutOfRange);
    }
}
