//! Messages of a worker to the demo's main process, over an inherited stream socket.
//!
//! A message is a line of JSON, followed by the tensors that it announces as little-endian f32. The main process gets the exact gradients
//! this way, outside the measured network.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use ultima_host::{ClosedBy, Totals};

use super::agreement::{Agreed, VoteResult};
use ultima_digits::metrics::Accuracy;

/// A worker's message.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// All workers have joined.
    Joined,
    /// The worker has applied a step. Tensors: its own gradient, the applied update.
    Step(Step),
    /// The worker has finished all steps. Tensor: its parameters.
    Trained {
        /// Accuracy on the held-out images.
        accuracy: Accuracy,
        /// The final weight of each worker's data in this worker's shard, by rank.
        weights: Vec<f32>,
        /// Ranks that were silent in the last three or more steps.
        suspected: Vec<u16>,
        /// Steps to which it contributed nothing because the others were far ahead.
        passed: u32,
    },
    /// The worker has failed, and its process ends.
    Failed {
        /// The reason, in one line.
        reason: String,
    },
    /// The worker has received all packets.
    Drained {
        /// Packet counts of the whole run.
        totals: Totals,
    },
}

/// One AllReduce of one worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Step {
    /// The step's number, from 0.
    pub step: u32,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The reason of its end.
    pub closed_by: ClosedBy,
    /// Packet counts so far.
    pub totals: Totals,
    /// The result of the vote after the step, or why it failed; none without a vote.
    pub agreed: Option<VoteResult<Agreed>>,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    message: Message,
    tensors: Vec<usize>,
}

/// The longest line and tensor. Workers are trusted, but a bound costs nothing.
const MAX_LINE: u64 = 64 * 1024;
const MAX_TENSOR: usize = 1 << 28;

/// Sends a message with its tensors.
///
/// # Errors
/// The other end has closed the stream.
pub fn send(stream: &mut impl Write, message: Message, tensors: &[&[f32]]) -> io::Result<()> {
    let envelope = Envelope {
        message,
        tensors: tensors.iter().map(|t| t.len()).collect(),
    };
    let mut line = serde_json::to_vec(&envelope)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    for tensor in tensors {
        stream.write_all(bytemuck::cast_slice(tensor))?;
    }
    stream.flush()
}

/// Receives the next message with its tensors; `None` when the worker has ended.
///
/// # Errors
/// The worker ended within a message, or the message is invalid.
pub async fn receive(
    stream: &mut (impl AsyncBufRead + Unpin),
) -> io::Result<Option<(Message, Vec<Vec<f32>>)>> {
    let mut line = Vec::new();
    if (&mut *stream)
        .take(MAX_LINE)
        .read_until(b'\n', &mut line)
        .await?
        == 0
    {
        return Ok(None);
    }
    let envelope: Envelope = serde_json::from_slice(&line)?;
    let mut tensors = Vec::with_capacity(envelope.tensors.len());
    for len in envelope.tensors {
        if len > MAX_TENSOR {
            return Err(io::Error::other(format!(
                "a tensor of {len} values is too large"
            )));
        }
        let mut tensor = vec![0.0_f32; len];
        stream
            .read_exact(bytemuck::cast_slice_mut(&mut tensor))
            .await?;
        tensors.push(tensor);
    }
    Ok(Some((envelope.message, tensors)))
}
