//! A limit of concurrent calls that clients share.
//!
//! Where the limit is reached, a call of a client with few calls ends one of a client with more. So no client keeps another one
//! out. A client is an IP address, and within an address a connection.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The origin of a request, which [`Services`](crate::server::Services) adds to its extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The client's IP address, if it did not connect to a Unix socket.
    pub address: Option<IpAddr>,
    /// The connection's number.
    pub connection: u64,
}

impl Origin {
    /// Returns a request's origin.
    pub fn of<T>(request: &tonic::Request<T>) -> Origin {
        let origin = request.extensions().get::<Origin>();
        origin.copied().unwrap_or_default()
    }
}

/// The limit is reached, and no client has more than the new one would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limit is reached, and no other client has more")]
pub struct Full;

/// Items of clients, as many as the limit allows.
#[derive(Debug)]
pub struct FairLimit<T> {
    limit: usize,
    count: u64,
    /// By age.
    items: BTreeMap<u64, (Origin, T)>,
}

impl<T> FairLimit<T> {
    /// Returns an empty limit.
    pub fn new(limit: usize) -> Self {
        FairLimit {
            limit,
            count: 0,
            items: BTreeMap::new(),
        }
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an item. Returns its number, and the item that it replaces, if one must go.
    ///
    /// # Errors
    /// [`Full`].
    pub fn add(&mut self, origin: Origin, item: T) -> Result<(u64, Option<T>), Full> {
        let mut replaced = None;
        if self.items.len() >= self.limit {
            let victim = self.victim(origin).ok_or(Full)?;
            replaced = self.remove(victim);
        }
        self.count += 1;
        self.items.insert(self.count, (origin, item));
        Ok((self.count, replaced))
    }

    /// Removes an item by its number.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.items.remove(&number).map(|(_, item)| item)
    }

    /// Removes the oldest item of the fullest connection of the fullest address.
    pub fn remove_of_fullest(&mut self) -> Option<T> {
        let (address, _) = fullest(self.origins().map(|origin| origin.address))?;
        let (connection, _) = fullest(self.origins().filter(|it| it.address == address))?;
        self.remove(self.oldest_of(connection)?)
    }

    /// Returns the oldest item of the fullest connection, of the address that has at least two more than the new item's, or of
    /// its own address if one of its connections has at least two more than the new item's.
    fn victim(&self, new: Origin) -> Option<u64> {
        let (address, most) = fullest(self.origins().map(|origin| origin.address))?;
        let of_it = self
            .origins()
            .filter(|origin| origin.address == new.address);
        let is_other = most >= of_it.count() + 2;
        let address = if is_other { address } else { new.address };
        let (connection, most) = fullest(self.origins().filter(|it| it.address == address))?;
        let of_it = self.origins().filter(|origin| *origin == new);
        let is_fuller = is_other || most >= of_it.count() + 2;
        is_fuller.then(|| self.oldest_of(connection)).flatten()
    }

    fn origins(&self) -> impl Iterator<Item = Origin> {
        self.items.values().map(|(origin, _)| *origin)
    }

    fn oldest_of(&self, connection: Origin) -> Option<u64> {
        let mut items = self.items.iter();
        items.find_map(|(number, (origin, _))| (*origin == connection).then_some(*number))
    }
}

/// Returns the most frequent element, and how often it occurs.
fn fullest<K: Ord>(all: impl Iterator<Item = K>) -> Option<(K, usize)> {
    let mut counts = BTreeMap::new();
    for one in all {
        *counts.entry(one).or_insert(0) += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

/// A [`FairLimit`] of calls in progress. Clones share it.
#[derive(Clone, Debug)]
pub struct CallLimit(Arc<Mutex<FairLimit<oneshot::Sender<Infallible>>>>);

impl CallLimit {
    /// Returns a limit without calls.
    pub fn new(limit: usize) -> Self {
        CallLimit(Arc::new(Mutex::new(FairLimit::new(limit))))
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// True if there are no calls.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Admits a call.
    ///
    /// # Errors
    /// [`Full`].
    pub fn admit(&self, origin: Origin) -> Result<Admitted, Full> {
        let (end, evicted) = oneshot::channel();
        let (number, _) = self.lock().add(origin, end)?;
        Ok(Admitted {
            limit: self.clone(),
            number,
            evicted,
        })
    }

    /// Admits a call in any case. If no client has more than the new one, the oldest call of a client with the most ends.
    pub fn admit_newest(&self, origin: Origin) -> Admitted {
        loop {
            if let Ok(admitted) = self.admit(origin) {
                return admitted;
            }
            self.lock().remove_of_fullest();
        }
    }

    fn lock(&self) -> MutexGuard<'_, FairLimit<oneshot::Sender<Infallible>>> {
        // No thread panics while it holds the lock, and every change is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An admitted call. Dropping it makes room.
#[derive(Debug)]
pub struct Admitted {
    limit: CallLimit,
    number: u64,
    evicted: oneshot::Receiver<Infallible>,
}

impl Admitted {
    /// Waits until another client's call takes the place of this one.
    pub async fn evicted(&mut self) {
        // The sender only ever is dropped.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.limit.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: u8, connection: u64) -> Origin {
        Origin {
            address: Some(IpAddr::from([192, 0, 2, address])),
            connection,
        }
    }

    #[test]
    fn a_client_with_fewer_calls_replaces_the_oldest_of_one_with_more() {
        let mut limit = FairLimit::new(4);
        for item in 0..3 {
            assert_eq!(limit.add(origin(1, item % 2), item), Ok((item + 1, None)));
        }
        limit.add(origin(2, 9), 3).expect("room");
        // Address 1 has 3 calls, connection 0 of them 2.
        assert_eq!(limit.add(origin(3, 7), 4), Ok((5, Some(0))));
        // Address 1 has 2 and a new address none.
        assert_eq!(limit.add(origin(4, 8), 5), Ok((6, Some(1))));
        assert_eq!(limit.add(origin(5, 8), 6), Err(Full));
        assert_eq!(limit.remove(4), Some(3));
        assert_eq!(limit.add(origin(5, 8), 6), Ok((7, None)));
    }

    #[test]
    fn connections_of_one_address_share_its_calls() {
        let mut limit = FairLimit::new(2);
        limit.add(origin(1, 1), 'a').expect("room");
        limit.add(origin(1, 1), 'b').expect("room");
        assert_eq!(limit.add(origin(1, 1), 'c'), Err(Full));
        assert_eq!(limit.add(origin(1, 2), 'c'), Ok((3, Some('a'))));
        assert_eq!(limit.add(origin(1, 3), 'd'), Err(Full));
    }

    #[tokio::test]
    async fn an_evicted_call_is_notified_and_a_dropped_one_makes_room() {
        let limit = CallLimit::new(2);
        let mut first = limit.admit(origin(1, 1)).expect("room");
        let second = limit.admit(origin(1, 1)).expect("room");
        let third = limit.admit(origin(2, 2)).expect("a place of address 1");
        first.evicted().await;
        drop(first);
        assert_eq!(limit.len(), 2);
        limit.admit(origin(1, 1)).expect_err("one each");
        drop(third);
        let mut fourth = limit.admit(origin(1, 1)).expect("room");
        let fifth = limit.admit_newest(origin(1, 1));
        let sixth = limit.admit_newest(origin(1, 1));
        fourth.evicted().await;
        drop((second, fifth, sixth));
        drop(fourth);
        assert!(limit.is_empty());
    }
}
