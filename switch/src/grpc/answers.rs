//! Responses to reads that clients have not fetched yet.
//!
//! An entity takes hundreds of bytes in memory and some tens on the wire, so responses wait in encoded form. Their total size
//! is bounded. A client that does not fetch its response in time loses it.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::{self, ReadResponse};

use super::ResponseStream;
use crate::target::Refusal;
use crate::translate::{Row, batch_status, entity};

/// Size at which a response is sent, in bytes: far below the clients' default limit of 4 MiB.
const RESPONSE_BYTES: usize = 1 << 20;
/// Largest size of all responses to one read, in bytes.
pub(super) const ANSWER_BYTES: usize = 256 << 20;
/// Largest size of all waiting responses, in bytes.
const WAITING_BYTES: usize = 512 << 20;
/// Deadline for a client to fetch the next response.
const FETCH: Duration = Duration::from_secs(60);

/// Returns the memory for all waiting responses.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(WAITING_BYTES))
}

/// The responses to a read.
pub(super) struct Answer {
    results: Vec<Result<(), Refusal>>,
    /// Encoded responses. The last one still grows.
    responses: Vec<Vec<u8>>,
    bytes: usize,
    room: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// Starts the responses to this many requests. All succeed until [`Answer::push`] records an error.
    pub(super) fn new(requests: usize, room: Arc<Semaphore>) -> Answer {
        Answer {
            results: vec![Ok(()); requests],
            responses: Vec::new(),
            bytes: 0,
            room,
            held: None,
        }
    }

    /// Adds the objects of a request. Returns false, and records an error, if the request failed or there is no memory.
    pub(super) fn push(&mut self, request: usize, found: Result<Vec<Row>, Refusal>) -> bool {
        let pushed = found.and_then(|found| {
            found
                .into_iter()
                .try_for_each(|row| self.append(entity(row)))
        });
        let succeeded = pushed.is_ok();
        if let Some(result) = self.results.get_mut(request).filter(|_| !succeeded) {
            *result = pushed;
        }
        succeeded
    }

    /// Records an error for a request and all later ones.
    pub(super) fn refuse_from(&mut self, request: usize, error: &Refusal) {
        for result in &mut self.results[request..] {
            *result = Err(error.clone());
        }
    }

    fn append(&mut self, entity: Entity) -> Result<(), Refusal> {
        let full = |last: &Vec<u8>| last.len() >= RESPONSE_BYTES;
        if self.responses.last().is_none_or(full) {
            self.responses.push(Vec::new());
        }
        let response = ReadResponse {
            entities: vec![v1::Entity {
                entity: Some(entity),
            }],
        };
        self.reserve(self.bytes + response.encoded_len())?;
        // Encoded messages one behind the other are one message with all their entities.
        if let Some(last) = self.responses.last_mut() {
            let before = last.len();
            last.extend_from_slice(&response.encode_to_vec());
            self.bytes += last.len() - before;
        }
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        let exhausted = |what: String| Refusal::new(Code::ResourceExhausted, what);
        if bytes > ANSWER_BYTES {
            return Err(exhausted(format!(
                "the response exceeds {ANSWER_BYTES} bytes; read less at once"
            )));
        }
        let held = self.held.as_ref().map_or(0, |held| held.num_permits());
        let missing = bytes.saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let more = u32::try_from(missing)
            .ok()
            .and_then(|missing| self.room.clone().try_acquire_many_owned(missing).ok());
        let more = more.ok_or_else(|| {
            exhausted(format!(
                "answers that were not fetched take {WAITING_BYTES} bytes; fetch them, or read \
                 less at once"
            ))
        })?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }

    /// Sends the responses as fast as the client fetches them.
    pub(super) fn stream(self) -> ResponseStream<ReadResponse> {
        let Answer {
            results,
            responses,
            held,
            ..
        } = self;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut end = batch_status(&results).err();
            for response in responses {
                let response = ReadResponse::decode(response.as_slice());
                let response = response.map_err(|error| Status::internal(error.to_string()));
                match sender.send_timeout(response, FETCH).await {
                    Ok(()) => {}
                    Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                        let late = format!("the client fetched no response for {FETCH:?}");
                        end = Some(Status::deadline_exceeded(late));
                        break;
                    }
                    // The client is gone.
                    Err(mpsc::error::SendTimeoutError::Closed(_)) => return,
                }
            }
            drop(held);
            if let Some(end) = end {
                // The client may have left.
                let _ = sender.send(Err(end)).await;
            }
        });
        Box::pin(ReceiverStream::new(receiver))
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;
    use ultima_p4runtime::batch;

    use super::*;
    use ultima_engine::CounterCell;

    fn counters(count: u64) -> Vec<Row> {
        let cells = (0..count).map(|index| Row::Counter(7, index, CounterCell::default()));
        cells.collect()
    }

    async fn fetch(answer: Answer) -> (Vec<Entity>, Vec<Code>) {
        let mut stream = answer.stream();
        let mut found = Vec::new();
        while let Some(response) = stream.next().await {
            match response {
                Ok(response) => {
                    assert!(response.encoded_len() < RESPONSE_BYTES + 100);
                    found.extend(response.entities.into_iter().filter_map(|one| one.entity));
                }
                Err(status) => {
                    let outcomes = batch::outcomes(&status).expect("outcomes");
                    let codes = outcomes.iter().map(|one| Code::from(one.canonical_code));
                    return (found, codes.collect());
                }
            }
        }
        (found, Vec::new())
    }

    #[tokio::test]
    async fn responses_are_sent_in_parts() {
        let mut answer = Answer::new(2, room());
        assert!(answer.push(0, Ok(counters(1200))));
        assert!(!answer.push(1, Err(Refusal::invalid("no"))));
        let (found, codes) = fetch(answer).await;
        let expected: Vec<_> = counters(1200).into_iter().map(entity).collect();
        assert_eq!(found, expected);
        assert_eq!(codes, [Code::Ok, Code::InvalidArgument]);
    }

    #[tokio::test]
    async fn answers_that_wait_share_their_room_and_give_it_back() {
        let room = Arc::new(Semaphore::new(128 << 10));
        let mut first = Answer::new(1, room.clone());
        assert!(first.push(0, Ok(counters(1000))), "64 KiB are enough");
        let mut second = Answer::new(1, room.clone());
        assert!(!second.push(0, Ok(counters(100_000))));
        let (_, codes) = fetch(second).await;
        assert_eq!(codes, [Code::ResourceExhausted]);
        fetch(first).await;
        assert_eq!(room.available_permits(), 128 << 10);
    }
}
