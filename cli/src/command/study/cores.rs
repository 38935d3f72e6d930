//! A job's protocol cores in this process, over a network without delay that loses packets.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use ultima_host::{Codec, Config, ConfigError, Core, Destination, Event, OperationId, Time};
use ultima_wire::Header;

/// Whether the copy of a packet for a receiver is lost.
pub type Lost<'a> = dyn FnMut(&Header, u16) -> bool + 'a;

/// All ranks of a job.
pub struct Cores {
    ranks: Vec<Core>,
    codec: Codec,
    now: Time,
    step: u32,
    buf: Vec<u8>,
}

/// One rank's datagram.
struct Sent {
    to: Destination,
    from: usize,
    datagram: Rc<[u8]>,
}

impl Cores {
    /// `config` is rank 0's.
    ///
    /// # Errors
    /// If it cannot work.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let rank = |rank| {
            Core::new(Config {
                rank,
                ..config.clone()
            })
        };
        let ranks = (0..config.ranks).map(rank).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            buf: vec![0; ranks[0].max_datagram()],
            ranks,
            codec: Codec::new(config.coding, config.seed),
            now: Time::ZERO,
            step: 0,
        })
    }

    /// Averages the ranks' buckets, which are equally long; returns what rank 0 has. Every rank starts at once.
    ///
    /// # Errors
    /// If an operation does not end, which would be the transport's mistake.
    pub fn allreduce(&mut self, buckets: &[Vec<f32>], lost: &mut Lost<'_>) -> Result<Vec<f32>> {
        let id = OperationId {
            step: self.step,
            bucket: 0,
        };
        self.step += 1;
        for (core, bucket) in self.ranks.iter_mut().zip(buckets) {
            let mut encoded = Vec::new();
            self.codec.encode(id, bucket, &mut encoded);
            core.start(self.now, id, encoded)?;
        }
        let mut results: Vec<Option<Vec<f32>>> = vec![None; self.ranks.len()];
        while results.iter().any(Option::is_none) {
            self.exchange(lost);
            for (core, result) in self.ranks.iter_mut().zip(&mut results) {
                while let Some(event) = core.poll_event() {
                    if let Event::Done { result: mean, .. } = event {
                        *result = Some(mean);
                    }
                }
            }
            if results.iter().any(Option::is_none) {
                self.wait()?;
            }
        }
        // What is still to be sent of this operation would be taken for a later one's loss.
        self.exchange(lost);
        let encoded = results.swap_remove(0).unwrap_or_default();
        let mut mean = vec![0.0; buckets[0].len()];
        self.codec.decode(id, &encoded, &mut mean);
        Ok(mean)
    }

    /// Carries packets until none is ready to be sent.
    fn exchange(&mut self, lost: &mut Lost<'_>) {
        loop {
            let mut sent = Vec::new();
            for (from, core) in self.ranks.iter_mut().enumerate() {
                while let Some(transmit) = core.poll_transmit(self.now, &mut self.buf) {
                    sent.push(Sent {
                        to: transmit.to,
                        from,
                        datagram: self.buf[..transmit.len].into(),
                    });
                }
            }
            if sent.is_empty() {
                return;
            }
            for Sent { to, from, datagram } in sent {
                let receivers = match to {
                    Destination::Rank(rank) => usize::from(rank)..usize::from(rank) + 1,
                    Destination::Group => 0..self.ranks.len(),
                };
                let Ok((header, _)) = Header::parse(&datagram) else {
                    continue;
                };
                for receiver in receivers.filter(|receiver| *receiver != from) {
                    if !lost(&header, receiver as u16) {
                        self.ranks[receiver].handle_datagram(self.now, &datagram);
                    }
                }
            }
        }
    }

    /// Lets time pass until something is due.
    fn wait(&mut self) -> Result<()> {
        let due = |core: &Core| [core.poll_timeout(), core.poll_transmit_at()];
        let next = self.ranks.iter().flat_map(due).flatten().min();
        let Some(next) = next else {
            bail!("an operation waits for nothing and does not end");
        };
        self.now = next.max(self.now + Duration::from_nanos(1));
        for core in &mut self.ranks {
            core.handle_timeout(self.now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_wire::Kind;

    fn cores() -> Cores {
        let config = Config::new(1, 1, 0, 3, 5, Duration::from_millis(10));
        Cores::new(&config).expect("a good configuration")
    }

    fn buckets() -> Vec<Vec<f32>> {
        [1.0, 2.0, 6.0].map(|value| vec![value; 5000]).to_vec()
    }

    #[test]
    fn without_loss_it_is_the_mean() {
        let mut cores = cores();
        for _ in 0..3 {
            let mean = cores
                .allreduce(&buckets(), &mut |_, _| false)
                .expect("ends");
            assert!(mean.iter().all(|value| (value - 3.0).abs() < 1e-5));
        }
    }

    #[test]
    fn what_is_lost_is_not_in_it() {
        let mut cores = cores();
        let mut lost = |header: &Header, _| header.kind == Kind::Scatter && header.source == 2;
        let mean = cores.allreduce(&buckets(), &mut lost).expect("ends");
        // Rank 2's own shard has its contribution.
        let sum: f32 = mean.iter().sum();
        let expected = 5000.0 * (2.0 * 1.5 + 3.0) / 3.0;
        // A coded bucket's thirds are not quite thirds of its energy.
        assert!((sum / expected - 1.0).abs() < 0.05, "{sum} {expected}");
    }
}
