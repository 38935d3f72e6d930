//! Takes the measurements of a plan, the methods in turns.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use nix::unistd::Uid;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinHandle;
use ultima_lab::{Cancel, LabError, LabName};

use super::bed::{self, Bed, Links, Losses};
use super::method::Method;
use super::options::Options;
use super::plan::{CALIBRATION_WEIGHT, Condition, LabPlan, Plan, TRAINING_WEIGHT, fitting, weight};
use super::report::{self, Cell, Measured, Report, Trained, Training};
use super::tail::Calibration;
use super::workers::{Ran, SILENCE, Stage, Workers, operations, slowest};
use crate::exit::{Exit, InputErrors as _};
use ultima_console::output;

/// Operations before those that count: Ultima learns its bounds, TCP its window.
const WARM_UP: u32 = 10;
/// One part in so many of a cell's time is for them.
const WARM_UP_SHARE: u32 = 4;
/// Operations and training steps without background traffic, from which Ultima learns its usual times: a few more than it needs.
const USUAL: u32 = 24;
/// Turns of a method even if there is no time.
const LEAST_ROUNDS: u32 = 2;
/// Time to start a lab and its ranks.
const LAB_START: Duration = Duration::from_secs(8);
/// Training steps of a turn; the model is tested after each.
const TURN: u32 = 5;
/// Turns of a training even if there is no time left.
const LEAST_TURNS: u32 = 4;

/// Runs the bench. Ctrl-C ends it with all its processes and its lab, with exit code 130.
pub fn run(options: &Options) -> Result<ExitCode> {
    if !Uid::effective().is_root() {
        return Err(LabError::NotRoot.into());
    }
    let plan = Plan::new(options);
    let versions = versions(options).input()?;
    let out = &options.out;
    let created = std::fs::create_dir_all(out).with_context(|| out.display().to_string());
    created.input()?;
    let mut report = Report::new(options, &plan, versions);
    let bar = progress_bar(&plan);
    let runtime = crate::runtime::runtime()?;
    let mut scene = Scene::new(options)?;
    let measured = runtime.block_on(async {
        let measured = tokio::select! {
            measured = measure(options, &plan, &mut scene, &mut report, &bar) => Some(measured),
            () = crate::runtime::interrupted() => None,
        };
        let struck = scene.strike().await;
        bar.finish_and_clear();
        match measured {
            Some(measured) => measured.and(struck).map(|()| true),
            None => struck.map(|()| false),
        }
    });
    scene.clear();
    if !measured? {
        eprintln!("error: interrupted; the lab was removed again");
        return Ok(Exit::Interrupted.into());
    }
    report.finish();
    report::write(&report, &options.out)?;
    output::print(&report.summary(&options.out))?;
    Ok(Exit::failure_if(report.is_failed()).into())
}

/// Asks Python for the versions of what the bench needs.
fn versions(options: &Options) -> Result<BTreeMap<String, String>> {
    const PROGRAM: &str = "
import importlib.metadata as m, importlib.util as u, json, platform, shutil, subprocess, sys
if u.find_spec('torch') is None: sys.exit('torch')
if u.find_spec('ultima') is None: sys.exit('ultima')
v = {'python': platform.python_version()}
for name in ('torch', 'ultima', 'numpy', 'mpi4py'):
    if u.find_spec(name): v[name] = m.version(name)
if shutil.which('mpirun'):
    v['mpirun'] = subprocess.run(['mpirun', '--version'], capture_output=True, text=True).stdout.split('\\n')[0]
print(json.dumps(v))";
    let python = options.python.display();
    let output = Command::new(&options.python)
        .args(["-c", PROGRAM])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("--python {python}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let hint = match errors.lines().last().map(str::trim) {
        None if output.status.success() => {
            let versions = serde_json::from_slice(&output.stdout);
            return versions.with_context(|| format!("--python {python} is not a Python 3"));
        }
        Some("torch") => "has no PyTorch: `apt install python3-torch` or `pip install torch`",
        Some("ultima") => "has no package ultima: `pip install ./python` in Ultima's repository",
        said => {
            let said = said.unwrap_or("it printed nothing");
            anyhow::bail!("--python {python} does not run: {said}")
        }
    };
    anyhow::bail!("--python {python} {hint}, and pass that Python")
}

fn progress_bar(plan: &Plan) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len}, {elapsed}: {msg}");
    let weight = u64::from(plan.weight(&plan.labs) + plan.calibration_weight());
    let bar = ProgressBar::new(weight).with_style(style.expect("a valid template"));
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// All that a run has to remove at its end, however it ends.
struct Scene {
    stage: Stage,
    lab: LabName,
    cancel: Cancel,
    making: Option<JoinHandle<Result<ultima_lab::Plan>>>,
    workers: Vec<Workers>,
}

impl Scene {
    fn new(options: &Options) -> Result<Scene> {
        Ok(Scene {
            stage: Stage::new(options.python.clone())?,
            lab: format!("bench-{}", std::process::id()).parse()?,
            cancel: Cancel::default(),
            making: None,
            workers: Vec::new(),
        })
    }

    /// Ends the workers and removes the lab, if there is one.
    async fn strike(&mut self) -> Result<()> {
        self.cancel.set();
        if let Some(making) = self.making.take() {
            // Fails if it was cancelled; then nothing is left.
            let _ = making.await;
        }
        for workers in &mut self.workers {
            workers.stop().await;
        }
        self.workers.clear();
        self.cancel = Cancel::default();
        if ultima_lab::names()?.contains(&self.lab) {
            ultima_lab::down(&self.lab)?;
        }
        Ok(())
    }

    /// Removes the temporary files.
    fn clear(&self) {
        // They are in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.stage.folder);
    }
}

/// The answer to requests without a result.
#[derive(Deserialize)]
struct Done {}

#[derive(Deserialize)]
struct Made {
    bytes: u64,
}

async fn measure(
    options: &Options,
    plan: &Plan,
    scene: &mut Scene,
    report: &mut Report,
    bar: &ProgressBar,
) -> Result<()> {
    let mut budget = Budget {
        end: Instant::now() + plan.time,
        labs: u32::try_from(plan.labs.len())?,
        weight: plan.weight(&plan.labs) + plan.calibration_weight(),
    };
    for lab in &plan.labs {
        budget.labs -= 1;
        let measured = measure_lab(options, plan, lab, &mut budget, scene, report, bar).await;
        if let Err(error) = measured {
            // The cells measured before are worth a report.
            if report.cells.is_empty() {
                return Err(error);
            }
            eprintln!("error: {error:#}");
            report.failed(&format!(
                "A lab of {} hosts ended early: {error:#}",
                lab.ranks
            ));
        }
        scene.strike().await?;
    }
    Ok(())
}

/// The time that is left, and what it is for.
struct Budget {
    end: Instant,
    /// Labs that have not started.
    labs: u32,
    /// Weight of the measurements that have not started.
    weight: u32,
}

impl Budget {
    /// The time for a measurement of this weight.
    fn take(&mut self, weight: u32) -> Duration {
        let left = self.end.saturating_duration_since(Instant::now());
        let share = left.saturating_sub(LAB_START * self.labs) * weight / self.weight.max(1);
        self.weight -= weight;
        share
    }
}

async fn measure_lab(
    options: &Options,
    plan: &Plan,
    lab: &LabPlan,
    budget: &mut Budget,
    scene: &mut Scene,
    report: &mut Report,
    bar: &ProgressBar,
) -> Result<()> {
    say(bar, &format!("starting a lab of {} hosts", lab.ranks));
    let (name, cancel) = (scene.lab.clone(), scene.cancel.clone());
    let (made, switch) = (lab.clone(), options.switch);
    let making = tokio::task::spawn_blocking(move || bed::up(&name, &made, switch, &cancel));
    let making = scene.making.insert(making);
    let made = making.await?;
    scene.making = None;
    let mut bed = Bed::connect(&scene.lab, &made?, switch).await?;
    let torch = Workers::torch(&scene.stage, &scene.lab, lab.ranks).await?;
    scene.workers.push(torch);
    let mut methods = plan.methods.clone();
    methods.retain(|method| method.takes(lab.ranks));
    if methods.contains(&Method::OpenMpi) && report.has_mpi() {
        match Workers::mpi(&scene.stage, &scene.lab, lab.ranks).await {
            Ok(workers) => scene.workers.push(workers),
            Err(error) => report.note(&format!("Open MPI was left out: {error:#}")),
        }
    }
    if scene.workers.len() < 2 {
        methods.retain(|method| *method != Method::OpenMpi);
    }
    if methods.is_empty() {
        report.note(&format!("No method was measured with {} ranks.", lab.ranks));
        return Ok(());
    }
    if let Some(rate) = lab.rate {
        for tail in plan.tails() {
            if report.tails.iter().any(|it| it.tail == tail) {
                continue;
            }
            say(bar, &format!("calibrating tail {tail}"));
            let calibration = Calibration {
                delay: options.delay,
                rate,
                ranks: lab.ranks,
                bytes: plan.calibrated,
                measurements: plan.calibrations,
                time: budget.take(CALIBRATION_WEIGHT),
            };
            let found = calibration.find(tail, &bed, &mut scene.workers).await?;
            report.tails.push(found);
            bar.inc(u64::from(CALIBRATION_WEIGHT));
        }
    }
    for (condition, sizes) in &lab.conditions {
        let links = report.links(*condition);
        bed.set(links).await?;
        let deadline_factor = options.deadline_factor().filter(|_| condition.tail > 1.0);
        if methods.iter().any(|method| method.is_ultima()) {
            join(&mut bed, deadline_factor, &mut scene.workers[0]).await?;
        }
        for &bytes in sizes {
            let cell = Cell::new(lab, *condition, bytes);
            say(bar, &cell.to_string());
            let weight = weight(*condition, bytes);
            let time = budget.take(weight);
            let subject = Subject {
                bytes,
                methods: &methods,
                links,
                learns_usual_time: deadline_factor.is_some(),
            };
            let measured = cell_of(plan, time, &subject, &bed, &mut scene.workers).await?;
            report.cells.push(cell.with(measured));
            bar.inc(u64::from(weight));
        }
        leave(&mut bed, &mut scene.workers[0]).await?;
    }
    if lab.trainings.is_empty() {
        return Ok(());
    }
    let weight = TRAINING_WEIGHT * u32::try_from(lab.trainings.len())?;
    for seed in 1..=plan.seeds {
        say(bar, &format!("training, seed {seed}"));
        let of_tail = |&tail: &f64| {
            let links = report.links(Condition { tail, loss: 0.0 });
            Training::new(lab, tail, seed, links)
        };
        let mut group = Group {
            trainings: lab.trainings.iter().map(of_tail).collect(),
            digits: scene.stage.file("digits.csv.gz").display().to_string(),
            bed: &mut bed,
            workers: &mut scene.workers[0],
            deadline_factor: options.deadline_factor(),
        };
        let time = budget.take(weight);
        group.train(plan, time).await?;
        report.trainings.extend(group.trainings);
        bar.inc(u64::from(weight));
    }
    Ok(())
}

fn say(bar: &ProgressBar, text: &str) {
    match bar.is_hidden() {
        true => eprintln!("{text}"),
        false => bar.set_message(text.to_owned()),
    }
}

/// Starts Ultima's part in a new job, which serves all its methods. With a deadline factor, the job recycles, so that later
/// steps deliver late packets' values.
async fn join(bed: &mut Bed, deadline_factor: Option<f64>, workers: &mut Workers) -> Result<()> {
    let job = bed.create_job().await?;
    let settings = match deadline_factor {
        Some(factor) => json!({ "recycling": true, "deadline_factor": factor }),
        None => json!({}),
    };
    let request = json!({ "do": "join", "job": job, "settings": settings });
    workers.ask::<Done>(&request, SILENCE).await?;
    Ok(())
}

async fn leave(bed: &mut Bed, workers: &mut Workers) -> Result<()> {
    let request = json!({ "do": "leave" });
    workers.ask::<Done>(&request, SILENCE).await?;
    bed.delete_jobs().await
}

/// The subject of a cell.
struct Subject<'a> {
    bytes: u64,
    methods: &'a [Method],
    links: Links,
    /// True if Ultima has a deadline factor, and so must know its usual times.
    learns_usual_time: bool,
}

async fn cell_of(
    plan: &Plan,
    time: Duration,
    subject: &Subject<'_>,
    bed: &Bed,
    workers: &mut [Workers],
) -> Result<Vec<Measured>> {
    let Subject { bytes, methods, .. } = *subject;
    let each = time / u32::try_from(methods.len())?;
    let (warm_up_time, measured_time) = (each / WARM_UP_SHARE, each - each / WARM_UP_SHARE);
    let mut means = Vec::new();
    let mut measured: Vec<Measured> = methods.iter().map(|it| Measured::new(*it)).collect();
    for &method in methods {
        if method.is_ultima() && subject.learns_usual_time {
            bed.set(subject.links.without_traffic()).await?;
            operations(workers, method, bytes, USUAL, Duration::ZERO).await?;
            bed.set(subject.links).await?;
        }
        let first = operations(workers, method, bytes, 1, Duration::ZERO).await?;
        let mut mean = slowest(&first)[0];
        let warm_up = fitting(warm_up_time, mean).min(WARM_UP);
        if warm_up > 0 {
            let expected = Duration::from_secs_f64(mean);
            let times = slowest(&operations(workers, method, bytes, warm_up, expected).await?);
            mean = times.iter().sum::<f64>() / f64::from(warm_up);
        }
        means.push(mean);
    }
    // Slow operations have fewer turns.
    let longest = means.iter().copied().fold(0.0, f64::max);
    let rounds = fitting(measured_time, longest).clamp(LEAST_ROUNDS, plan.rounds);
    let most = plan.operations / rounds;
    let count = |mean| fitting(measured_time / rounds, mean).clamp(1, most);
    for round in 0..rounds {
        // Every other round in the opposite order.
        let mut order: Vec<usize> = (0..methods.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (count, mean) = (count(means[index]), Duration::from_secs_f64(means[index]));
            let before = bed.losses(methods[index], 0).await?;
            let ranks = operations(workers, methods[index], bytes, count, mean).await?;
            let lost = since(&bed.losses(methods[index], 0).await?, &before);
            add(&mut measured[index], &ranks, &lost);
        }
    }
    Ok(measured)
}

fn since(after: &Losses, before: &Losses) -> Losses {
    let of = |name: &String| before.get(name).copied().unwrap_or_default();
    let grown = after
        .iter()
        .map(|(name, count)| (name.clone(), count.saturating_sub(of(name))));
    grown.filter(|(_, count)| *count > 0).collect()
}

/// Adds a turn to what was measured of a method.
fn add(measured: &mut Measured, ranks: &[Ran], lost: &Losses) {
    measured.seconds.extend(slowest(ranks));
    for rank in ranks {
        measured.cpu_s += rank.cpu;
        measured.owed += rank.owed;
        measured.not_in_time += rank.lost.values().sum::<u64>();
        measured.largest_error = measured.largest_error.max(rank.error);
    }
    let deadlines = ranks.iter().filter_map(|rank| rank.deadline);
    measured.deadline_s = deadlines.max_by(f64::total_cmp).or(measured.deadline_s);
    for (place, packets) in lost {
        *measured.lost.entry(place.clone()).or_default() += packets;
    }
}

/// Trainings from the same seed, one for each tail, that take turns: so the machine is as fast for one as for the others.
struct Group<'a> {
    trainings: Vec<Training>,
    /// The file of images.
    digits: String,
    bed: &'a mut Bed,
    workers: &'a mut Workers,
    /// See [`Options::deadline_factor`].
    deadline_factor: Option<f64>,
}

impl Group<'_> {
    /// Makes a new model for a method in training number `of`; returns the bytes of its gradient.
    async fn model(&mut self, method: Method, of: usize) -> Result<u64> {
        let seed = self.trainings[of].seed;
        let request = json!({
            "do": "model", "method": method.name(), "training": of, "seed": seed, "digits": self.digits
        });
        let made: Vec<Made> = self.workers.ask(&request, SILENCE).await?;
        Ok(made[0].bytes)
    }

    /// Trains a method's model in training number `of` by `count` steps.
    async fn steps(&mut self, method: Method, of: usize, count: u32) -> Result<Vec<Ran>> {
        let request =
            json!({ "do": "train", "method": method.name(), "training": of, "count": count });
        self.workers.ask(&request, SILENCE).await
    }

    /// Trains each of Ultima's models without background traffic, so that all have learned the usual times.
    async fn learn(&mut self, method: Method) -> Result<()> {
        self.bed
            .set(self.trainings[0].links.without_traffic())
            .await?;
        for of in 0..self.trainings.len() {
            self.model(method, of).await?;
            self.steps(method, of, USUAL).await?;
        }
        Ok(())
    }

    async fn train(&mut self, plan: &Plan, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let ultima = Method::UltimaMulticast;
        if plan.methods.contains(&ultima) {
            for _ in &self.trainings {
                join(self.bed, self.deadline_factor, self.workers).await?;
            }
            if self.deadline_factor.is_some() {
                self.learn(ultima).await?;
            }
        }
        for of in 0..self.trainings.len() {
            for method in plan.methods.iter().copied().filter(|it| it.trains()) {
                self.trainings[of].bytes = self.model(method, of).await?;
                self.trainings[of].methods.push(Trained::new(method));
            }
        }
        for turn in 0..plan.steps / TURN {
            if turn >= LEAST_TURNS && Instant::now() > end {
                break;
            }
            let mut order: Vec<(usize, usize)> = Vec::new();
            for (of, training) in self.trainings.iter().enumerate() {
                order.extend((0..training.methods.len()).map(|index| (of, index)));
            }
            if turn % 2 == 1 {
                order.reverse();
            }
            for (of, index) in order {
                self.bed.set(self.trainings[of].links).await?;
                let method = self.trainings[of].methods[index].measured.method;
                let before = self.bed.losses(method, of).await?;
                let ranks = self.steps(method, of, TURN).await?;
                let lost = since(&self.bed.losses(method, of).await?, &before);
                let trained = &mut self.trainings[of].methods[index];
                add(&mut trained.measured, &ranks, &lost);
                let accuracies = ranks.iter().map(|rank| rank.accuracy);
                trained.tested(accuracies.fold(1.0, f64::min));
            }
        }
        leave(self.bed, self.workers).await
    }
}
