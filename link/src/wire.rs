//! Configuration of one direction of a link: an egress queue and the wire after it.

use std::time::Duration;

use crate::background::{Background, BackgroundError};
use crate::ecn::EcnThreshold;
use crate::jitter::{Jitter, JitterError, MAX_DELAY};
use crate::loss::{Loss, LossError};
use crate::units::{show_bit_rate, show_duration};

/// Bytes that a wire may hold by its rate and delay.
pub const MAX_LINE: u64 = 1 << 30;
/// Minimum charge of a frame against a queue's limit in bytes. Ethernet pads frames to 60, and frames without
/// length must not fill the memory.
pub const MIN_CHARGE: u64 = 60;
/// Largest queue in bytes.
const MAX_QUEUE: u64 = 1 << 30;
/// Maximum number of loss models of a wire: each costs time per frame.
const MAX_LOSSES: usize = 16;

/// An egress port's queues and the wire after them, in the direction out of the switch.
#[derive(Debug, Clone, PartialEq)]
pub struct WireConfig {
    /// Bits per second. `None`: frames take no time.
    pub rate: Option<u64>,
    /// Frames per second, whatever their length: the time from one frame's start to the next is at least its inverse.
    /// `None`: only `rate` spaces frames.
    pub packet_rate: Option<u64>,
    /// Flows of other jobs that share the rate. They need one.
    pub background: Option<Background>,
    /// From the end of a frame's serialization to its arrival, at most a minute.
    pub delay: Duration,
    /// The variation of the delay from frame to frame.
    pub jitter: Option<Jitter>,
    /// True if a frame with less delay may overtake earlier ones. Otherwise it arrives right after them,
    /// later than drawn if frames follow each other faster than the jitter.
    pub reorder: bool,
    /// Models of loss, at most 16. A frame is lost if any of them loses it.
    pub loss: Vec<Loss>,
    /// Bytes in the queue of each priority, at most 1 GiB.
    pub queue_bytes: u64,
    /// Packets in the queue of each priority. `None`: only the bytes are limited.
    pub queue_packets: Option<u32>,
    /// Threshold above which frames are marked with ECN's Congestion Experienced.
    pub ecn: Option<EcnThreshold>,
}

impl Default for WireConfig {
    /// A perfect wire behind queues of 1 MiB.
    fn default() -> Self {
        WireConfig {
            rate: None,
            packet_rate: None,
            background: None,
            delay: Duration::ZERO,
            jitter: None,
            reorder: false,
            loss: Vec::new(),
            queue_bytes: 1 << 20,
            queue_packets: None,
            ecn: None,
        }
    }
}

/// The reason that a wire's configuration is rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// A rate of zero.
    #[error("rate 0 bit/s: expected at least 1, or none for a wire without a rate")]
    Rate,
    /// A packet rate of zero.
    #[error("packet rate 0: expected at least 1 packet per second, or none for no such limit")]
    PacketRate,
    /// Background flows on a wire without a rate.
    #[error("background flows on a wire without a rate: expected a rate to share")]
    Unrated,
    /// A delay that needs too much memory.
    #[error("delay {0:?}: expected at most {MAX_DELAY:?}")]
    Delay(Duration),
    /// A rate and a delay that need too much memory.
    #[error(
        "rate {} over a delay of {}: {bytes} bytes in flight, expected at most {MAX_LINE}",
        show_bit_rate(*.rate),
        show_duration(*.delay)
    )]
    Product {
        /// Bits per second.
        rate: u64,
        /// The delay.
        delay: Duration,
        /// Their product.
        bytes: u64,
    },
    /// A queue too small for a frame, or with too much memory.
    #[error("queue of {0} bytes: expected {MIN_CHARGE} (room for one frame) to {MAX_QUEUE}")]
    Queue(u64),
    /// A queue of zero packets.
    #[error("queue of 0 packets: expected at least 1, or none to limit its bytes alone")]
    QueuePackets,
    /// Invalid background flows.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// An invalid jitter.
    #[error(transparent)]
    Jitter(#[from] JitterError),
    /// An invalid loss model.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// Too many loss models.
    #[error("{0} loss models: expected at most {MAX_LOSSES}")]
    Losses(usize),
}

impl WireConfig {
    /// Checks all settings.
    pub fn validate(&self) -> Result<(), WireError> {
        if self.delay > MAX_DELAY {
            return Err(WireError::Delay(self.delay));
        }
        if let Some(rate) = self.rate {
            if rate == 0 {
                return Err(WireError::Rate);
            }
            let bytes = product(rate, self.delay);
            if bytes > MAX_LINE {
                return Err(WireError::Product {
                    rate,
                    delay: self.delay,
                    bytes,
                });
            }
        }
        if self.packet_rate == Some(0) {
            return Err(WireError::PacketRate);
        }
        if let Some(background) = &self.background {
            background.validate()?;
            if self.rate.is_none() {
                return Err(WireError::Unrated);
            }
        }
        if !(MIN_CHARGE..=MAX_QUEUE).contains(&self.queue_bytes) {
            return Err(WireError::Queue(self.queue_bytes));
        }
        if self.queue_packets == Some(0) {
            return Err(WireError::QueuePackets);
        }
        if let Some(jitter) = &self.jitter {
            jitter.validate()?;
        }
        if self.loss.len() > MAX_LOSSES {
            return Err(WireError::Losses(self.loss.len()));
        }
        self.loss
            .iter()
            .try_for_each(|loss| loss.validate().map_err(WireError::from))
    }
}

/// Bytes that a rate sends in a time.
pub fn product(rate: u64, time: Duration) -> u64 {
    let bits = u128::from(rate).saturating_mul(time.as_nanos()) / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowLengths;

    #[test]
    fn impossible_wires_are_rejected() {
        let perfect = WireConfig::default;
        assert_eq!(perfect().validate(), Ok(()));
        for (wrong, said) in [
            (
                WireConfig {
                    rate: Some(0),
                    ..perfect()
                },
                "rate 0 bit/s: expected at least 1",
            ),
            (
                WireConfig {
                    packet_rate: Some(0),
                    ..perfect()
                },
                "packet rate 0: expected at least 1",
            ),
            (
                WireConfig {
                    background: Some(Background {
                        share: 0.1,
                        flow: 1_000,
                        lengths: FlowLengths::Fixed,
                    }),
                    ..perfect()
                },
                "background flows on a wire without a rate",
            ),
            (
                WireConfig {
                    background: Some(Background {
                        share: 1.0,
                        flow: 1_000,
                        lengths: FlowLengths::Fixed,
                    }),
                    ..perfect()
                },
                "background flows with a share of 1: expected",
            ),
            (
                WireConfig {
                    delay: Duration::from_secs(61),
                    ..perfect()
                },
                "delay 61s: expected at most 60s",
            ),
            (
                WireConfig {
                    rate: Some(100_000_000_000),
                    delay: Duration::from_secs(1),
                    ..perfect()
                },
                "rate 100G over a delay of 1s: 12500000000 bytes in flight",
            ),
            (
                WireConfig {
                    queue_bytes: 59,
                    ..perfect()
                },
                "queue of 59 bytes",
            ),
            (
                WireConfig {
                    queue_bytes: (1 << 30) + 1,
                    ..perfect()
                },
                "queue of 1073741825 bytes: expected 60",
            ),
            (
                WireConfig {
                    loss: vec![Loss::Independent { probability: 0.1 }; 17],
                    ..perfect()
                },
                "17 loss models: expected at most 16",
            ),
            (
                WireConfig {
                    queue_packets: Some(0),
                    ..perfect()
                },
                "queue of 0 packets",
            ),
            (
                WireConfig {
                    jitter: Some(Jitter::Normal {
                        deviation: Duration::ZERO,
                    }),
                    ..perfect()
                },
                "jitter of 0s",
            ),
            (
                WireConfig {
                    loss: vec![Loss::Independent { probability: 2.0 }],
                    ..perfect()
                },
                "loss probability 2",
            ),
        ] {
            let error = wrong.validate().expect_err(said).to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
