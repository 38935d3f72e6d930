//! All protocol cores of a job in this process, over a lossy network without delay.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use ultima_host::{
    Buffer, Carry, Codec, Config, ConfigError, Core, Destination, Event, OperationId, Time, Values,
};
use ultima_wire::{Header, Kind};

/// The bucket of all operations.
const BUCKET: u16 = 0;

/// True if the copy of a packet for a receiver is lost.
pub type Lost<'a> = dyn FnMut(&Header, u16) -> bool + 'a;

/// All ranks of a job.
pub struct Cores {
    ranks: Vec<Core>,
    /// Each rank's carry from step to step, with recycling.
    carries: Vec<Carry>,
    codec: Codec,
    now: Time,
    step: u32,
    buf: Vec<u8>,
    /// Repairs in flight with their receivers; they arrive after the operation has ended.
    repairs: Vec<(usize, Rc<[u8]>)>,
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
    /// If the configuration is invalid.
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
            carries: ranks.iter().map(|_| Carry::default()).collect(),
            ranks,
            codec: Codec::new(config.coding, config.seed),
            now: Time::ZERO,
            step: 0,
            repairs: Vec::new(),
        })
    }

    /// Averages the ranks' buckets, which have equal lengths; returns rank 0's result. All ranks start at the same time.
    ///
    /// # Errors
    /// If a core rejects the operation, or the operation cannot end.
    pub fn allreduce(&mut self, buckets: &[Vec<f32>], lost: &mut Lost<'_>) -> Result<Vec<f32>> {
        let id = self.next();
        let contributions = buckets
            .iter()
            .map(|bucket| encoded(&mut self.codec, id, bucket))
            .collect();
        let mut results = self.operate(id, contributions, lost)?;
        let mut mean = vec![0.0; buckets[0].len()];
        self.codec.decode(id, &results.swap_remove(0), &mut mean);
        Ok(mean)
    }

    /// Runs one training step: replaces each rank's bucket by its result of the mean. With recycling, the result includes
    /// repaired values of earlier steps. Repairs of this step arrive before the next step.
    ///
    /// # Errors
    /// As [`Cores::allreduce`].
    pub fn step(&mut self, buckets: &mut [Vec<f32>], lost: &mut Lost<'_>) -> Result<()> {
        let id = self.next();
        let contributing = self.carries.iter_mut().zip(&*buckets);
        let contributions = contributing
            .map(|(carry, gradient)| encoded(&mut self.codec, id, carry.contribute(id, gradient)))
            .collect();
        let results = self.operate(id, contributions, lost)?;
        for ((bucket, result), (core, carry)) in buckets
            .iter_mut()
            .zip(&results)
            .zip(self.ranks.iter_mut().zip(&mut self.carries))
        {
            self.codec.decode(id, result, bucket);
            if core.config().recycling.is_some() {
                let corrections = core.take_corrections(BUCKET);
                carry.apply(&mut self.codec, id, &corrections, bucket);
            }
        }
        self.now = self.now + self.ranks[0].config().t_b;
        for (receiver, datagram) in std::mem::take(&mut self.repairs) {
            self.ranks[receiver].handle_datagram(self.now, &datagram);
        }
        for core in &mut self.ranks {
            core.handle_timeout(self.now);
        }
        self.exchange(lost);
        Ok(())
    }

    fn next(&mut self) -> OperationId {
        self.step += 1;
        OperationId {
            step: self.step - 1,
            bucket: BUCKET,
        }
    }

    /// Runs an operation on encoded buckets; returns every rank's result.
    fn operate(
        &mut self,
        id: OperationId,
        contributions: Vec<Buffer>,
        lost: &mut Lost<'_>,
    ) -> Result<Vec<Values>> {
        for (core, contribution) in self.ranks.iter_mut().zip(contributions) {
            core.start(self.now, id, contribution)?;
        }
        let mut results: Vec<Option<Values>> = self.ranks.iter().map(|_| None).collect();
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
        // Packets of this operation that are sent later would count as losses of the next one.
        self.exchange(lost);
        Ok(results.into_iter().flatten().collect())
    }

    /// Delivers packets until none is ready to be sent.
    fn exchange(&mut self, lost: &mut Lost<'_>) {
        loop {
            let mut sent = Vec::new();
            for (from, core) in self.ranks.iter_mut().enumerate() {
                while let Some(transmit) = core.next_datagram(self.now, &mut self.buf) {
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
                    if lost(&header, receiver as u16) {
                        continue;
                    }
                    match header.kind {
                        Kind::Repair => self.repairs.push((receiver, Rc::clone(&datagram))),
                        _ => self.ranks[receiver].handle_datagram(self.now, &datagram),
                    }
                }
            }
        }
    }

    /// Advances the time to the next timer.
    fn wait(&mut self) -> Result<()> {
        let due = |core: &Core| [core.poll_timeout(), core.poll_transmit_at()];
        let next = self.ranks.iter().flat_map(due).flatten().min();
        let Some(next) = next else {
            bail!("the operation cannot progress: no packet or timer is pending");
        };
        self.now = next.max(self.now + Duration::from_nanos(1));
        for core in &mut self.ranks {
            core.handle_timeout(self.now);
        }
        Ok(())
    }
}

fn encoded(codec: &mut Codec, id: OperationId, bucket: &[f32]) -> Buffer {
    let mut encoded = Buffer::default();
    codec.encode(id, bucket, &mut encoded);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_host::Recycling;

    fn cores() -> Cores {
        let config = Config::new(1, 1, 0, 3, 5, Duration::from_millis(10));
        Cores::new(&config).expect("a good configuration")
    }

    fn buckets() -> Vec<Vec<f32>> {
        [1.0, 2.0, 6.0].map(|value| vec![value; 5000]).to_vec()
    }

    #[test]
    fn without_loss_the_result_is_the_mean() {
        let mut cores = cores();
        for _ in 0..3 {
            let mean = cores
                .allreduce(&buckets(), &mut |_, _| false)
                .expect("ends");
            assert!(mean.iter().all(|value| (value - 3.0).abs() < 1e-5));
        }
    }

    #[test]
    fn lost_contributions_are_not_in_the_mean() {
        let mut cores = cores();
        let mut lost = |header: &Header, _| header.kind == Kind::Scatter && header.source == 2;
        let mean = cores.allreduce(&buckets(), &mut lost).expect("ends");
        // Rank 2's own shard has its contribution.
        let sum: f32 = mean.iter().sum();
        let expected = 5000.0 * (2.0 * 1.5 + 3.0) / 3.0;
        // A coded bucket's thirds are not quite thirds of its energy.
        assert!((sum / expected - 1.0).abs() < 0.05, "{sum} {expected}");
    }

    /// Each rank's mean of its results over ten lossy steps and five empty steps without loss.
    fn applied(recycling: Option<Recycling>) -> [f64; 3] {
        let config = Config {
            recycling,
            ..Config::new(1, 1, 0, 3, 5, Duration::from_millis(10))
        };
        let mut cores = Cores::new(&config).expect("a good configuration");
        let mut sums = [0.0; 3];
        for step in 0..15 {
            let mut buckets = match step {
                0..10 => buckets(),
                _ => vec![vec![0.0; 5000]; 3],
            };
            let mut lost = |header: &Header, receiver| {
                step < 10
                    && header.slot == 1
                    && match header.kind {
                        Kind::Scatter => header.source == 2,
                        Kind::Gather => receiver == 0,
                        _ => false,
                    }
            };
            cores.step(&mut buckets, &mut lost).expect("ends");
            for (sum, bucket) in sums.iter_mut().zip(&buckets) {
                *sum += bucket.iter().map(|value| f64::from(*value)).sum::<f64>() / 5e4;
            }
        }
        sums
    }

    #[test]
    fn steps_recycle_what_was_lost() {
        for mean in applied(Some(Recycling::default())) {
            assert!((mean - 3.0).abs() < 1e-4, "{mean}");
        }
        let without = applied(None);
        assert!(without[0] < without[1] && without[1] < 2.99, "{without:?}");
    }
}
