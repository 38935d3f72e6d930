//! The report: results.json has everything, results.csv a line for each method of a cell, index.html a page that needs no network.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::Result;
use serde::Serialize;
use ultima_switch::units::show_bit_rate;

use super::bed::{Links, Losses};
use super::method::Method;
use super::options::Options;
use super::plan::{Condition, LabPlan, Plan};
use super::statistics::{Interval, interval, mean, p50, p95, p99, p99_over_p50, ratio};
use super::tail::Tail;
use ultima_console::output;

/// The test accuracy that a training has to reach.
const TARGET: f64 = 0.9;
/// Tests whose mean must reach it: one test of 360 images has a standard error of 1.6 points, and the curve crosses the target several times.
const TESTS: usize = 3;

/// The page, with a place for the data.
const PAGE: &str = include_str!("page.html");
const PLACE: &str = "/*DATA*/null";
/// Bytes by which a frame of Ethernet, without its checksum, is longer than an MTU, and UDP's payload shorter.
const ETHERNET: f64 = 14.0;
const IP_AND_UDP: f64 = 28.0;
/// The packages that Open MPI needs, by their names in the versions.
const MPI: [&str; 2] = ["mpirun", "mpi4py"];
/// Training steps before those that count as iterations.
const FIRST_STEPS: usize = 10;

/// Everything that a run measured, and where.
#[derive(Serialize)]
pub struct Report {
    ultima: &'static str,
    command: Vec<String>,
    /// Seconds since 1970 at the start.
    started: u64,
    wall_s: f64,
    machine: Machine,
    versions: BTreeMap<String, String>,
    settings: Settings,
    /// The measurements that were left out, and why.
    notes: Vec<String>,
    /// True if a lab ended early.
    failed: bool,
    /// The calibrated tails.
    pub tails: Vec<Tail>,
    /// The results to reach.
    pub targets: Vec<Target>,
    pub cells: Vec<Cell>,
    pub trainings: Vec<Training>,
    #[serde(skip)]
    clock: Instant,
}

#[derive(Serialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    /// The load average of the minute before the start.
    load: String,
}

#[derive(Serialize)]
struct Settings {
    switch: String,
    /// See [`Options::deadline_factor`].
    deadline_factor: Option<f64>,
    time_s: u64,
    rounds: u32,
    operations: u32,
    seeds: u32,
    steps: u32,
    target_accuracy: f64,
}

/// A ratio that the project wants to reach.
#[derive(Serialize)]
pub struct Target {
    name: String,
    must: f64,
    aim: f64,
    /// True if the value has to be at least `must`, false if at most.
    at_least: bool,
    value: Interval,
    reached: bool,
}

/// AllReduces of one size by all methods, in one state of the links.
#[derive(Serialize)]
pub struct Cell {
    /// Rate of links; `None` for links without emulation.
    rate_bps: Option<u64>,
    mtu: u16,
    ranks: u16,
    #[serde(flatten)]
    condition: Condition,
    pub bytes: u64,
    methods: Vec<Measured>,
}

/// The measurements of a method.
#[derive(Clone, Serialize)]
pub struct Measured {
    pub method: Method,
    /// Time of each operation at its slowest rank.
    #[serde(serialize_with = "rounded")]
    pub seconds: Vec<f64>,
    /// CPU time of all ranks.
    pub cpu_s: f64,
    /// Ultima's: packets that ranks owed each other, and those that were not there in time.
    pub owed: u64,
    pub not_in_time: u64,
    /// Lost packets by place, from the lab's counters.
    pub lost: Losses,
    /// The largest difference from the exact result, relative to the largest value.
    pub largest_error: f64,
    /// Ultima's last deadline, as learned; that of the rank with the longest one.
    pub deadline_s: Option<f64>,
    summary: Option<Summary>,
}

#[derive(Clone, Serialize)]
struct Summary {
    p50_ms: Interval,
    p95_ms: Interval,
    p99_ms: Interval,
    p99_over_p50: Interval,
    /// Bits of gradient per second, at p50.
    goodput_bps: f64,
    /// The time that links and headers need at least, divided by p50.
    share_of_bound: Option<f64>,
    cpu_s_per_gb: f64,
    /// Gloo ring's time divided by this one's.
    gloo_ratio_p50: Option<Interval>,
    gloo_ratio_p99: Option<Interval>,
}

/// Training of a model by each method, in turns.
#[derive(Serialize)]
pub struct Training {
    ranks: u16,
    rate_bps: Option<u64>,
    tail: f64,
    pub seed: u32,
    #[serde(skip)]
    pub links: Links,
    /// Size of the gradient.
    pub bytes: u64,
    pub methods: Vec<Trained>,
}

#[derive(Serialize)]
pub struct Trained {
    pub measured: Measured,
    /// Training steps so far, their seconds, and the share of test images that the model recognises.
    accuracy: Vec<(usize, f64, f64)>,
    /// Seconds of training until the last [`TESTS`] tests have the target accuracy on average.
    seconds_to_target: Option<f64>,
}

/// Microseconds are enough.
fn rounded<S: serde::Serializer>(seconds: &[f64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(seconds.iter().map(|it| (it * 1e6).round() / 1e6))
}

fn scaled(interval: Interval, by: f64) -> Interval {
    let Interval { value, low, high } = interval;
    let [value, low, high] = [value, low, high].map(|it| it * by);
    Interval { value, low, high }
}

impl Measured {
    pub fn new(method: Method) -> Measured {
        Measured {
            method,
            seconds: Vec::new(),
            cpu_s: 0.0,
            owed: 0,
            not_in_time: 0,
            lost: Losses::new(),
            largest_error: 0.0,
            deadline_s: None,
            summary: None,
        }
    }

    /// Computes the summary of `seconds` without the first `skip`. An operation averages `bytes`; the links need at least `bound_s`
    /// seconds for it.
    fn summarize(&mut self, skip: usize, bytes: u64, bound_s: Option<f64>, gloo: &[f64]) {
        let own = self.seconds.get(skip..).unwrap_or_default();
        let gloo = gloo.get(skip..).unwrap_or_default();
        let ms = |statistic| interval(own, statistic).map(|it| scaled(it, 1e3));
        let (Some(p50_ms), Some(p95_ms), Some(p99_ms), Some(p99_over_p50)) =
            (ms(p50), ms(p95), ms(p99), interval(own, p99_over_p50))
        else {
            return;
        };
        let p50_s = p50_ms.value / 1e3;
        let beside = |statistic| match self.method {
            Method::GlooRing => None,
            _ => ratio(gloo, own, statistic),
        };
        self.summary = Some(Summary {
            p50_ms,
            p95_ms,
            p99_ms,
            p99_over_p50,
            goodput_bps: 8.0 * bytes as f64 / p50_s,
            share_of_bound: bound_s.map(|bound| bound / p50_s),
            cpu_s_per_gb: self.cpu_s / (self.seconds.len() as f64 * bytes as f64 / 1e9),
            gloo_ratio_p50: beside(p50),
            gloo_ratio_p99: beside(p99),
        });
    }
}

impl Cell {
    pub fn new(lab: &LabPlan, condition: Condition, bytes: u64) -> Cell {
        Cell {
            rate_bps: lab.rate,
            mtu: lab.mtu,
            ranks: lab.ranks,
            condition,
            bytes,
            methods: Vec::new(),
        }
    }

    pub fn with(self, methods: Vec<Measured>) -> Cell {
        Cell { methods, ..self }
    }

    /// The least time of an AllReduce: each rank has to receive 2 (N − 1) / N of the gradient (Patarasuk and Yuan, 2009).
    fn bound_s(&self) -> Option<f64> {
        let (ranks, bits) = (f64::from(self.ranks), 8.0 * self.bytes as f64);
        let mtu = f64::from(self.mtu);
        let headers = (mtu + ETHERNET) / (mtu - IP_AND_UDP);
        let received = 2.0 * (ranks - 1.0) / ranks * bits * headers;
        self.rate_bps.map(|rate| received / rate as f64)
    }

    fn of(&self, method: Method) -> Option<&Measured> {
        self.methods.iter().find(|it| it.method == method)
    }

    fn summarize(&mut self) {
        let gloo = self.of(Method::GlooRing).map(|it| it.seconds.clone());
        let (gloo, bound_s, bytes) = (gloo.unwrap_or_default(), self.bound_s(), self.bytes);
        for measured in &mut self.methods {
            measured.summarize(0, bytes, bound_s, &gloo);
        }
    }

    /// Gloo ring's time divided by that of Ultima with multicast.
    fn gloo_ratio(&self, of: impl Fn(&Summary) -> Option<Interval>) -> Option<Interval> {
        of(self.of(Method::UltimaMulticast)?.summary.as_ref()?)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, Condition { tail, loss }) = (self.ranks, self.condition);
        let (links, size) = (links(self.rate_bps), size(self.bytes));
        write!(
            f,
            "{ranks} ranks, {links}, tail {tail}, loss {loss}, {size}"
        )
    }
}

fn links(rate: Option<u64>) -> String {
    rate.map_or_else(|| "unlimited".to_owned(), show_bit_rate)
}

/// Bytes in decimal units.
fn size(bytes: u64) -> String {
    match bytes {
        1_000_000.. => format!("{} MB", bytes as f64 / 1e6),
        _ => format!("{} KB", bytes as f64 / 1e3),
    }
}

impl Training {
    pub fn new(lab: &LabPlan, tail: f64, seed: u32, links: Links) -> Training {
        Training {
            ranks: lab.ranks,
            rate_bps: lab.rate,
            tail,
            seed,
            links,
            bytes: 0,
            methods: Vec::new(),
        }
    }

    fn of(&self, method: Method) -> Option<&Trained> {
        self.methods.iter().find(|it| it.measured.method == method)
    }

    fn summarize(&mut self) {
        let gloo = self
            .of(Method::GlooRing)
            .map(|it| it.measured.seconds.clone());
        let (gloo, bytes) = (gloo.unwrap_or_default(), self.bytes);
        for trained in &mut self.methods {
            trained.measured.summarize(FIRST_STEPS, bytes, None, &gloo);
        }
    }
}

impl Trained {
    pub fn new(method: Method) -> Trained {
        Trained {
            measured: Measured::new(method),
            accuracy: Vec::new(),
            seconds_to_target: None,
        }
    }

    /// Records a test of the model after the steps so far.
    pub fn tested(&mut self, accuracy: f64) {
        let seconds = self.measured.seconds.iter().sum();
        let steps = self.measured.seconds.len();
        self.accuracy.push((steps, seconds, accuracy));
        let last = self.accuracy.last_chunk::<TESTS>();
        let mean = |tests: &[_; TESTS]| {
            let sum: f64 = tests.iter().map(|(_, _, accuracy)| accuracy).sum();
            sum / TESTS as f64
        };
        if last.is_some_and(|tests| mean(tests) >= TARGET) {
            self.seconds_to_target.get_or_insert(seconds);
        }
    }
}

impl Report {
    pub fn new(options: &Options, plan: &Plan, versions: BTreeMap<String, String>) -> Report {
        let mut notes = vec![
            "PyTorch selects Gloo's ring only; halving-doubling and TAR over TCP are the bench's own, with PyTorch's isend and irecv on \
             Gloo. For small sizes Python's time for each message is part of their time."
                .to_owned(),
        ];
        for missing in MPI {
            if plan.methods.contains(&Method::OpenMpi) && !versions.contains_key(missing) {
                notes.push(format!(
                    "Open MPI was left out: no {missing} (apt install openmpi-bin python3-mpi4py)"
                ));
            }
        }
        let odd = |lab: &LabPlan| !Method::HalvingDoubling.takes(lab.ranks);
        if plan.methods.contains(&Method::HalvingDoubling) && plan.labs.iter().any(odd) {
            notes.push("Halving-doubling was left out where ranks are not a power of two.".into());
        }
        Report {
            ultima: env!("CARGO_PKG_VERSION"),
            command: std::env::args().collect(),
            started: (SystemTime::UNIX_EPOCH.elapsed()).map_or(0, |since| since.as_secs()),
            wall_s: 0.0,
            machine: Machine::this(),
            versions,
            settings: Settings {
                switch: options.switch.to_string(),
                deadline_factor: options.deadline_factor(),
                time_s: plan.time.as_secs(),
                rounds: plan.rounds,
                operations: plan.operations,
                seeds: plan.seeds,
                steps: plan.steps,
                target_accuracy: TARGET,
            },
            notes,
            failed: false,
            tails: Vec::new(),
            targets: Vec::new(),
            cells: Vec::new(),
            trainings: Vec::new(),
            clock: Instant::now(),
        }
    }

    /// The links of a condition. A tail is calibrated before.
    pub fn links(&self, condition: Condition) -> Links {
        let tail = self.tails.iter().find(|it| it.tail == condition.tail);
        Links {
            loss: condition.loss,
            ..tail.map(Tail::links).unwrap_or_default()
        }
    }

    /// True if Open MPI is installed.
    pub fn has_mpi(&self) -> bool {
        MPI.iter().all(|it| self.versions.contains_key(*it))
    }

    /// Notes that a lab ended early.
    pub fn failed(&mut self, text: &str) {
        self.failed = true;
        self.note(text);
    }

    /// True if a lab ended early.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// Adds a note, once.
    pub fn note(&mut self, text: &str) {
        if !self.notes.iter().any(|note| note == text) {
            self.notes.push(text.to_owned());
        }
    }

    /// Computes the summaries and the targets.
    pub fn finish(&mut self) {
        self.wall_s = self.clock.elapsed().as_secs_f64();
        self.cells.iter_mut().for_each(Cell::summarize);
        self.trainings.iter_mut().for_each(Training::summarize);
        self.targets = self.targets_of();
        if (self.time_to_target(3.0)).is_some_and(|ratio| ratio.low == 0.0) {
            let note = "Time to accuracy is 0 for a seed where Gloo reached it in the measured iterations and Ultima did not; a larger \
                        --time measures more of them.";
            self.notes.push(note.to_owned());
        }
    }

    /// Seconds of all iterations of a method's trainings at a tail.
    fn iterations(&self, tail: f64, method: Method) -> Vec<f64> {
        let trainings = self.trainings.iter().filter(|it| it.tail == tail);
        let trained = trainings.filter_map(|training| training.of(method));
        let seconds = trained.flat_map(|it| it.measured.seconds.iter().skip(FIRST_STEPS));
        seconds.copied().collect()
    }

    fn targets_of(&self) -> Vec<Target> {
        use Method::{GlooRing, UltimaMulticast};
        let mut targets = Vec::new();
        let mut add = |name: String, must: f64, aim: f64, at_least: bool, value| {
            if let Some(value) = value {
                let Interval { value: it, .. } = value;
                let reached = if at_least { it >= must } else { it <= must };
                targets.push(Target {
                    name,
                    must,
                    aim,
                    at_least,
                    value,
                    reached,
                });
            }
        };
        let iteration = |tail| {
            let of = |method| self.iterations(tail, method);
            ratio(&of(GlooRing), &of(UltimaMulticast), mean)
        };
        let name = "Gloo ÷ Ultima, mean iteration time of training, tail";
        add(format!("{name} 3"), 2.0, 2.5, true, iteration(3.0));
        add(format!("{name} 1.5"), 1.3, 1.5, true, iteration(1.5));
        let ultima = |tail| self.iterations(tail, UltimaMulticast);
        let name = "Ultima, mean iteration time: tail 3 ÷ tail 1.5".to_owned();
        add(
            name,
            1.03,
            1.01,
            false,
            ratio(&ultima(3.0), &ultima(1.5), mean),
        );
        let name = format!(
            "Gloo ÷ Ultima, time to {:.0} % accuracy, tail 3 (of seeds)",
            100.0 * TARGET
        );
        add(name, 1.7, 2.0, true, self.time_to_target(3.0));
        for cell in &self.cells {
            let Condition { tail, loss } = cell.condition;
            let of = |what| format!("Gloo ÷ Ultima, {what} of an AllReduce: {cell}");
            if tail == 1.0 && loss == 0.0 && (400_000..=25_000_000).contains(&cell.bytes) {
                add(
                    of("p50"),
                    1.0,
                    1.2,
                    true,
                    cell.gloo_ratio(|it| it.gloo_ratio_p50),
                );
            }
            if tail == 3.0 && cell.rate_bps.is_some() {
                add(
                    of("p99"),
                    4.0,
                    6.0,
                    true,
                    cell.gloo_ratio(|it| it.gloo_ratio_p99),
                );
            }
        }
        targets
    }

    /// Gloo's time to the target accuracy divided by Ultima's: the median of seeds, the lowest and the highest. The ratio is 0 if
    /// only Gloo reaches the target.
    fn time_to_target(&self, tail: f64) -> Option<Interval> {
        let trainings = self.trainings.iter().filter(|it| it.tail == tail);
        let ratios = trainings.filter_map(|it| {
            let ultima = it.of(Method::UltimaMulticast)?.seconds_to_target;
            let gloo = it.of(Method::GlooRing)?.seconds_to_target?;
            Some(ultima.map_or(0.0, |ultima| gloo / ultima))
        });
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (*ratios.first()?, *ratios.last()?);
        Some(Interval {
            value: p50(&mut ratios),
            low,
            high,
        })
    }

    /// The results as tables for a terminal, and for docs/results.md.
    pub fn summary(&self, out: &Path) -> String {
        let mut text = String::new();
        if !self.tails.is_empty() {
            let header = [
                "TAIL",
                "DELAY-MS",
                "BURST-KB",
                "EVERY-S",
                "N",
                "GLOO-P50-MS",
                "GLOO-P99-MS",
                "GLOO-P99÷P50",
            ];
            let rows = self.tails.iter().map(|it| {
                [
                    it.tail.to_string(),
                    (1e3 * it.delay.as_secs_f64()).to_string(),
                    format!("{:.0}", it.burst_bytes as f64 / 1e3),
                    format!("{:.1}", it.interval_s),
                    it.operations.to_string(),
                    format!("{:.1}", it.p50_ms),
                    format!("{:.1}", it.p99_ms),
                    it.measured.to_string(),
                ]
            });
            text += &output::table(header, rows);
            text.push('\n');
        }
        let mut add = |of: &str, seventh: &str, rows: Vec<[String; 10]>| {
            let header = [
                of,
                "METHOD",
                "N",
                "P50-MS",
                "P99-MS",
                "GLOO÷P50",
                "GLOO÷P99",
                seventh,
                "CPU-S/GB",
                "LATE",
            ];
            if !rows.is_empty() {
                text += &output::table(header, rows.into_iter());
                text.push('\n');
            }
        };
        let cells = self.cells.iter().flat_map(|cell| {
            let title = |index| {
                if index == 0 {
                    cell.to_string()
                } else {
                    String::new()
                }
            };
            let rows = cell.methods.iter().enumerate();
            rows.filter_map(move |(index, it)| it.row(title(index)))
        });
        add("CELL", "BOUND", cells.collect());
        let trainings = self.trainings.iter().flat_map(|training| {
            let title = format!("tail {}, seed {}", training.tail, training.seed);
            training.methods.iter().filter_map(move |it| {
                let mut row = it.measured.row(title.clone())?;
                row[7] = it
                    .seconds_to_target
                    .map_or_else(|| "-".to_owned(), |it| format!("{it:.1}"));
                Some(row)
            })
        });
        add("TRAINING", "S-TO-ACCURACY", trainings.collect());
        let targets = self.targets.iter().map(|it| {
            let sign = if it.at_least { "≥" } else { "≤" };
            [
                it.name.clone(),
                format!("{sign} {}", it.must),
                format!("{sign} {}", it.aim),
                it.value.to_string(),
                if it.reached { "reached" } else { "missed" }.to_owned(),
            ]
        });
        text += &output::table(["TARGET", "MUST", "AIM", "MEASURED", "RESULT"], targets);
        for note in &self.notes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{note}");
        }
        let page = out.join("index.html");
        let _ = writeln!(text, "{:.0} s; report: {}", self.wall_s, page.display());
        text
    }

    fn csv(&self) -> String {
        let mut text = String::from(
            "kind,ranks,rate_bps,tail,loss,bytes,seed,method,operations,p50_ms,p50_low,p50_high,p95_ms,p95_low,p95_high,p99_ms,p99_low,\
             p99_high,p99_over_p50,p99_over_p50_low,p99_over_p50_high,goodput_bps,share_of_bound,cpu_s_per_gb,gloo_ratio_p50,gloo_ratio_p50_low,gloo_ratio_p50_high,gloo_ratio_p99,\
             gloo_ratio_p99_low,gloo_ratio_p99_high,packets_owed,packets_not_in_time,packets_lost,lost_where,largest_error,\
             deadline_s,accuracy,seconds_to_accuracy\n",
        );
        for cell in &self.cells {
            let Condition { tail, loss } = cell.condition;
            for it in &cell.methods {
                let rate = cell.rate_bps.map_or_else(String::new, |it| it.to_string());
                text += &format!(
                    "allreduce,{},{rate},{tail},{loss},{},,",
                    cell.ranks, cell.bytes
                );
                text += &format!("{},,\n", it.line());
            }
        }
        for training in &self.trainings {
            let Training {
                ranks,
                tail,
                bytes,
                seed,
                ..
            } = training;
            for it in &training.methods {
                let rate = training
                    .rate_bps
                    .map_or_else(String::new, |it| it.to_string());
                let last = it.accuracy.last().map_or(0.0, |last| last.2);
                let seconds = it
                    .seconds_to_target
                    .map_or_else(String::new, |it| it.to_string());
                text += &format!("iteration,{ranks},{rate},{tail},0,{bytes},{seed},");
                text += &format!("{},{last},{seconds}\n", it.measured.line());
            }
        }
        text
    }
}

impl Measured {
    /// A row of [`Report::summary`].
    fn row(&self, title: String) -> Option<[String; 10]> {
        let summary = self.summary.as_ref()?;
        let ratio = |it: Option<Interval>| it.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let share =
            |it: Option<f64>| it.map_or_else(|| "-".to_owned(), |it| format!("{:.1}%", 100.0 * it));
        let late = (self.owed > 0).then(|| self.not_in_time as f64 / self.owed as f64);
        Some([
            title,
            self.method.name().to_owned(),
            self.seconds.len().to_string(),
            format!("{:.2}", summary.p50_ms.value),
            format!("{:.2}", summary.p99_ms.value),
            ratio(summary.gloo_ratio_p50),
            ratio(summary.gloo_ratio_p99),
            share(summary.share_of_bound),
            format!("{:.1}", summary.cpu_s_per_gb),
            share(late),
        ])
    }

    /// The columns from `method` to `largest_error`.
    fn line(&self) -> String {
        let mut fields = vec![
            self.method.name().to_owned(),
            self.seconds.len().to_string(),
        ];
        let summary = self.summary.as_ref();
        let number = |it: Option<f64>| it.map_or_else(String::new, |it| format!("{it:.4}"));
        let three = |it: Option<Interval>| {
            [
                it.map(|it| it.value),
                it.map(|it| it.low),
                it.map(|it| it.high),
            ]
            .map(number)
        };
        let of = |of: fn(&Summary) -> Interval| three(summary.map(of));
        fields.extend(of(|it| it.p50_ms));
        fields.extend(of(|it| it.p95_ms));
        fields.extend(of(|it| it.p99_ms));
        fields.extend(of(|it| it.p99_over_p50));
        fields.push(number(summary.map(|it| it.goodput_bps)));
        fields.push(number(summary.and_then(|it| it.share_of_bound)));
        fields.push(number(summary.map(|it| it.cpu_s_per_gb)));
        fields.extend(three(summary.and_then(|it| it.gloo_ratio_p50)));
        fields.extend(three(summary.and_then(|it| it.gloo_ratio_p99)));
        let counts = [self.owed, self.not_in_time, self.lost.values().sum()];
        fields.extend(counts.map(|it| it.to_string()));
        let places = self.lost.iter().map(|(place, it)| format!("{place} {it}"));
        fields.push(places.collect::<Vec<_>>().join("; "));
        fields.push(format!("{:e}", self.largest_error));
        fields.push(number(self.deadline_s));
        fields.join(",")
    }
}

impl Machine {
    fn this() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            cpu: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// Writes the three files.
///
/// # Errors
/// One of them cannot be written.
pub fn write(report: &Report, out: &Path) -> Result<()> {
    let json = serde_json::to_string(report)?;
    // No text may end the page's script.
    let page = PAGE.replace(PLACE, &json.replace("</", "<\\/"));
    output::write_whole(out, "results.json", &json)?;
    output::write_whole(out, "results.csv", &report.csv())?;
    output::write_whole(out, "index.html", &page)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tests_in_a_row_reach_the_target_on_average() {
        let mut trained = Trained::new(Method::UltimaMulticast);
        for accuracy in [0.95, 0.8, 0.9] {
            trained.measured.seconds.push(1.0);
            trained.tested(accuracy);
            assert_eq!(trained.seconds_to_target, None);
        }
        for accuracy in [0.95, 0.88, 0.99] {
            trained.measured.seconds.push(1.0);
            trained.tested(accuracy);
        }
        // 0.8, 0.9 and 0.95 are too low on average; 0.9, 0.95 and 0.88 are not.
        assert_eq!(trained.seconds_to_target, Some(5.0));
    }
}
