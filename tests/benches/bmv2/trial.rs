//! Measures one switch: rates, latencies and table writes.

use std::io;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use ultima_p4runtime::v1::Update;
use ultima_tests::stage::Stage;
use ultima_wire::Kind;

use crate::link::{self, Link};
use crate::threads::cpu_time;

/// The number of receivers of a multicast. The fabric has one more host.
pub const RECEIVERS: u8 = 8;
/// The job on all hosts.
pub const JOB: &str = "{ name: wide, members: [h1, h2, h3, h4, h5, h6, h7, h8, h9] }";

/// The first offered rate, in frames per second.
const FIRST_RATE: f64 = 4_000.0;
/// The factor between offered rates.
const STEP: f64 = 1.4;
/// The largest backlog at the end of a sustained rate, which loses no frame.
const BEHIND: f64 = 0.02;
/// The number of bisections for the highest sustained rate.
const HALVINGS: usize = 5;
/// The time without a frame after which an idle switch has no frame left.
const QUIET: Duration = Duration::from_millis(50);
/// The time after which a frame is lost.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The duration of table writes.
pub const WRITES_FOR: Duration = Duration::from_secs(3);
/// Numbers of jobs that do not exist, for the entries of one batch.
const IDLE_JOBS: RangeInclusive<u16> = 1000..=1499;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// True for multicast to all other hosts.
    pub multicast: bool,
    /// The frame's length in bytes.
    pub bytes: usize,
}

impl Traffic {
    /// All kinds, long frames first.
    pub fn all() -> impl Iterator<Item = Traffic> {
        [1400, 128]
            .into_iter()
            .flat_map(|bytes| [false, true].map(|multicast| Traffic { multicast, bytes }))
    }
}

/// Frames per second that leave the switch.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// The highest rate without loss.
    pub lossless: f64,
    /// The highest rate.
    pub most: f64,
    /// The highest rate per second of CPU time of the switch.
    pub per_cpu_second: f64,
}

impl Rates {
    /// The value for a missing switch.
    pub const UNKNOWN: Rates = Rates {
        lossless: f64::NAN,
        most: f64::NAN,
        per_cpu_second: f64::NAN,
    };
}

/// Table writes while frames flow.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    /// Updates per second.
    pub per_second: f64,
    /// Lost frames.
    pub lost: f64,
}

impl Writes {
    /// The value for a missing switch.
    pub const UNKNOWN: Writes = Writes {
        per_second: f64::NAN,
        lost: f64::NAN,
    };
}

/// A switch with a job, and its hosts' links.
pub struct Bench {
    stage: Stage,
    sender: Link,
    receivers: Vec<String>,
}

impl Bench {
    /// Opens the hosts' ends of the links, after a check of the forwarded frames.
    pub fn new(mut stage: Stage) -> io::Result<Self> {
        check(&mut stage);
        stage.testbed.release_ends();
        let mut names = stage
            .testbed
            .fabric
            .hosts
            .iter()
            .map(|host| host.name.clone());
        let sender = Link::sender(&names.next().expect("a fabric has hosts"))?;
        let receivers = names.collect();
        Ok(Self {
            stage,
            sender,
            receivers,
        })
    }

    /// Raises the offered rate until the received rate stops rising, then finds the highest rate without loss.
    pub fn rates(&self, traffic: Traffic, span: Duration) -> io::Result<Rates> {
        let frame = frame(&self.stage, traffic);
        let copies = if traffic.multicast {
            f64::from(RECEIVERS)
        } else {
            1.0
        };
        let mut offered = FIRST_RATE;
        let (mut most, mut low, mut high) = (Run::default(), 0.0, f64::INFINITY);
        let mut without_gain = 0;
        while without_gain < 3 {
            let run = self.run(&frame, offered, span, copies)?;
            if run.sustained {
                if high.is_infinite() {
                    low = offered;
                }
            } else {
                high = high.min(offered);
            }
            // The sender cannot reach a higher rate.
            without_gain = if run.rate > most.rate * 1.02 {
                0
            } else {
                without_gain + 1
            };
            most = most.or(run);
            offered *= STEP;
        }
        high = high.min(offered);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            let run = self.run(&frame, middle, span, copies)?;
            most = most.or(run);
            if run.sustained {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Rates {
            lossless: low * copies,
            most: most.rate,
            per_cpu_second: most.per_cpu_second,
        })
    }

    /// Sends as fast as possible.
    pub fn flood(&self, traffic: Traffic, span: Duration) -> io::Result<Rates> {
        let run = self.run(&frame(&self.stage, traffic), f64::MAX, span, 1.0)?;
        Ok(Rates {
            most: run.rate,
            per_cpu_second: run.per_cpu_second,
            ..Rates::UNKNOWN
        })
    }

    fn run(&self, frame: &[u8], offered: f64, span: Duration, copies: f64) -> io::Result<Run> {
        let before = link::received(&self.receivers)?;
        // The first part fills queues and caches. The second part is measured.
        let warm_up = span / 4;
        let mut sent = self.sender.generate(frame, offered, warm_up)?;
        let switches = self.stage.testbed.processes();
        let computed = cpu_time(&switches);
        let (start, at_start) = (Instant::now(), link::received(&self.receivers)?);
        sent += self.sender.generate(frame, offered, span)?;
        let (took, at_end) = (start.elapsed(), link::received(&self.receivers)?);
        let computed = cpu_time(&switches) - computed;
        let after = self.quiet()?;
        let expected = sent as f64 * copies;
        let behind = expected - (at_end - before) as f64;
        Ok(Run {
            rate: (at_end - at_start) as f64 / took.as_secs_f64(),
            per_cpu_second: (at_end - at_start) as f64 / computed.as_secs_f64(),
            sustained: (after - before) as f64 >= expected
                && behind <= expected * BEHIND
                // The sender must have kept up, too.
                && sent as f64 >= offered * (warm_up + span).as_secs_f64() * 0.97,
        })
    }

    /// Writes batches of table entries as fast as the switch accepts them, while frames flow at a fixed rate.
    pub fn writes(&self, rate: f64) -> io::Result<Writes> {
        let traffic = Traffic {
            multicast: false,
            bytes: 1400,
        };
        let (link, frame) = (&self.sender, frame(&self.stage, traffic));
        let before = link::received(&self.receivers)?;
        let (sent, per_second) = thread::scope(|scope| {
            let sender = scope.spawn(|| link.generate(&frame, rate, WRITES_FOR));
            let per_second = self.stage.operate(0, async |operator| {
                let entries = || operator.occupied(IDLE_JOBS);
                let inserts: Vec<Update> = entries().map(Update::insert).collect();
                let deletes: Vec<Update> = entries().map(Update::delete).collect();
                let mut both = operator.encoded([inserts, deletes]);
                let start = Instant::now();
                let mut batches = 0;
                while !sender.is_finished() {
                    both.write().await;
                    batches += 2;
                }
                (batches * IDLE_JOBS.len()) as f64 / start.elapsed().as_secs_f64()
            });
            let sent = sender.join().expect("the sender does not panic");
            sent.map(|sent| (sent, per_second))
        })?;
        let received = self.quiet()? - before;
        Ok(Writes {
            per_second,
            lost: sent as f64 - received as f64,
        })
    }

    /// Waits until no frame arrives.
    fn quiet(&self) -> io::Result<u64> {
        let mut count = link::received(&self.receivers)?;
        loop {
            thread::sleep(QUIET);
            let now = link::received(&self.receivers)?;
            if now == count {
                return Ok(count);
            }
            count = now;
        }
    }

    /// Sends frames one by one, each `pause` after the last has arrived at all receivers; returns the latencies.
    pub fn latencies(
        &self,
        traffic: Traffic,
        frames: usize,
        pause: Duration,
    ) -> io::Result<Vec<Duration>> {
        let frame = frame(&self.stage, traffic);
        let to = if traffic.multicast {
            self.receivers.len()
        } else {
            1
        };
        let links = self.receivers[..to]
            .iter()
            .map(|name| Link::open_both_ways(name))
            .collect::<io::Result<Vec<_>>>()?;
        let mut buffer = vec![0; 2048];
        (0..frames)
            .map(|_| {
                let start = Instant::now();
                self.sender.send(&frame)?;
                for link in &links {
                    link.receive(&mut buffer, TIMEOUT)?;
                }
                let took = start.elapsed();
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
                Ok(took)
            })
            .collect()
    }
}

#[derive(Clone, Copy, Default)]
struct Run {
    /// Frames received per second.
    rate: f64,
    /// Frames received per second of CPU time of the switch.
    per_cpu_second: f64,
    /// True if no frame was lost and the switch kept up.
    sustained: bool,
}

impl Run {
    /// Returns the trial with the higher rate.
    fn or(self, other: Run) -> Run {
        if other.rate > self.rate { other } else { self }
    }
}

/// Checks every forwarded frame byte by byte before measuring.
fn check(stage: &mut Stage) {
    let job = stage.jobs[0].clone();
    for traffic in [false, true] {
        let sent = datagram(
            stage,
            Traffic {
                multicast: traffic,
                bytes: 1400,
            },
        );
        let arrivals = stage.testbed.exchange(job.host_of(0), &[sent.emit()]);
        let receivers = if traffic { RECEIVERS.into() } else { 1 };
        assert_eq!(arrivals.len(), receivers, "a frame for each receiver");
        for rank in 1..=receivers as u16 {
            let expected = job.copy_for(&sent, rank).emit();
            assert_eq!(arrivals[&job.host_of(rank)], [expected], "rank {rank}");
        }
    }
}

fn frame(stage: &Stage, traffic: Traffic) -> Vec<u8> {
    datagram(stage, traffic).emit()
}

/// Rank 0's contribution to rank 1's shard, or its aggregate for all others.
fn datagram(stage: &Stage, traffic: Traffic) -> ultima_tests::generator::Datagram {
    let job = &stage.jobs[0];
    let kind = if traffic.multicast {
        Kind::Gather
    } else {
        Kind::Scatter
    };
    let header = job.header(kind, 0, 0);
    let data = vec![0x5a; traffic.bytes - ultima_wire::frame::FRAME_OVERHEAD - header.len()];
    if traffic.multicast {
        job.gather(0, &data)
    } else {
        job.scatter(0, 1, &data)
    }
}
