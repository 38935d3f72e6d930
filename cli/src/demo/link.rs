//! What a worker tells the demo's main process, over an inherited stream socket.
//!
//! A message is a line of JSON, then the tensors that it announces as little-endian f32. The measurement
//! takes the exact gradients this way, beside the network that is measured.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use ultima_host::{ClosedBy, Totals};

use super::agreement::{Agreed, Told};
use ultima_digits::metrics::Accuracy;

/// A worker's message.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// It has its rank; all others have theirs too.
    Joined,
    /// It has applied a step. Tensors: its own gradient, the update that it applied.
    Step(Step),
    /// It has done all steps. Tensor: its parameters.
    Trained {
        /// On the held-out images.
        accuracy: Accuracy,
        /// What each worker's data weighed at last, by rank, in this one's shard.
        weights: Vec<f32>,
        /// Who was silent in the last three steps or more.
        suspected: Vec<u16>,
        /// Steps that it contributed nothing of its own to, because the others were long past them.
        passed: u32,
    },
    /// It cannot go on; its process ends.
    Failed {
        /// Why, in one line.
        reason: String,
    },
    /// It has read all that will ever arrive.
    Drained {
        /// Packets, over the whole run.
        totals: Totals,
    },
}

/// One AllReduce of one worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Step {
    /// From 0.
    pub step: u32,
    /// From start to result, nanoseconds.
    pub took_ns: u64,
    /// What ended it.
    pub closed_by: ClosedBy,
    /// Packets so far.
    pub totals: Totals,
    /// What all workers agreed on after it, or why they could not; none where they were not asked.
    pub agreed: Option<Told<Agreed>>,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    message: Message,
    tensors: Vec<usize>,
}

/// The longest line and tensor that are read: a worker is our own process, but a bound costs nothing.
const MAX_LINE: u64 = 64 * 1024;
const MAX_TENSOR: usize = 1 << 28;

/// Sends a message with its tensors.
///
/// # Errors
/// If the other end is gone.
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

/// The next message with its tensors; `None` when the worker has ended.
///
/// # Errors
/// If the worker ended in the middle of one, or sent something else.
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
            return Err(io::Error::other(format!("a tensor of {len} values")));
        }
        let mut tensor = vec![0.0_f32; len];
        stream
            .read_exact(bytemuck::cast_slice_mut(&mut tensor))
            .await?;
        tensors.push(tensor);
    }
    Ok(Some((envelope.message, tensors)))
}
