//! The ranks' processes: one per rank for everything in torch, one per rank for Open MPI. They do what they read from a Unix socket.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use ultima_lab::LabName;

use super::bed::{Losses, address, host};
use super::method::Method;

/// The worker's program.
const PROGRAM: &str = include_str!("worker.py");
/// How long processes may take to start and to meet.
const START: Duration = Duration::from_secs(120);
/// How long an answer may take beyond the expected time.
pub const SILENCE: Duration = Duration::from_secs(90);
/// Options of `mpirun`: TCP over the hosts' only interface, processes that yield when they poll.
const MPI: [&str; 13] = [
    "--allow-run-as-root",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "tcp,self",
    "--mca",
    "btl_tcp_if_include",
    "eth0",
    "--mca",
    "mpi_yield_when_idle",
    "1",
];

/// The folder of a run's temporary files, and what starts processes.
pub struct Stage {
    pub folder: PathBuf,
    pub python: PathBuf,
    ultima: PathBuf,
}

impl Stage {
    /// Writes the worker's program to a new folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn new(python: PathBuf) -> Result<Stage> {
        let folder = std::env::temp_dir().join(format!("ultima-bench-{}", std::process::id()));
        let ultima =
            std::env::current_exe().context("cannot determine the path of this program")?;
        let made = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("worker.py"), PROGRAM))
            .and_then(|()| fs::write(folder.join("digits.csv.gz"), ultima_digits::data::CSV));
        made.with_context(|| folder.display().to_string())?;
        Ok(Stage {
            folder,
            python,
            ultima,
        })
    }

    /// The path of a file of the run.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command on a host of the lab, with its output in `log`.
    fn command(&self, lab: &LabName, host: &str, log: &Path) -> Result<Command> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(&self.ultima);
        command
            .args(["lab", "exec", "--name", lab.as_str(), host, "--"])
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-C reaches only the bench, which ends its children.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }
}

/// One process per rank, connected.
pub struct Workers {
    children: Vec<Child>,
    /// By rank.
    ranks: Vec<Connection>,
    logs: Vec<PathBuf>,
}

struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

#[derive(Deserialize)]
struct Hello {
    rank: usize,
}

impl Workers {
    /// Starts the processes of torch.
    ///
    /// # Errors
    /// A process does not start or ends early; with its last line.
    pub async fn torch(stage: &Stage, lab: &LabName, ranks: u16) -> Result<Workers> {
        let (path, listener) = listen(stage, "torch")?;
        let (mut children, mut logs) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let log = stage.file(&format!("torch{rank}.log"));
            let mut command = stage.command(lab, &host(rank), &log)?;
            command.arg(&stage.python).arg(stage.file("worker.py"));
            command.arg(&path).arg("torch");
            command.args([rank.to_string(), ranks.to_string(), address(0)]);
            children.push(command.spawn().context("cannot start a rank")?);
            logs.push(log);
        }
        Self::accept(listener, children, logs, ranks).await
    }

    /// Starts `mpirun` on the first host, which starts a process on each.
    ///
    /// # Errors
    /// As [`torch`](Self::torch).
    pub async fn mpi(stage: &Stage, lab: &LabName, ranks: u16) -> Result<Workers> {
        let (path, listener) = listen(stage, "mpi")?;
        // mpirun calls it as it calls ssh: HOST COMMAND.
        let agent = stage.file("agent.sh");
        let text = format!(
            "#!/bin/sh\nhost=$1\nshift\nexec '{}' lab exec --name {lab} \"$host\" -- sh -c \"$*\"\n",
            stage.ultima.display()
        );
        fs::write(&agent, text)
            .and_then(|()| fs::set_permissions(&agent, fs::Permissions::from_mode(0o700)))
            .with_context(|| agent.display().to_string())?;
        let log = stage.file("mpi.log");
        let mut command = stage.command(lab, &host(0), &log)?;
        let hosts: Vec<String> = (0..ranks).map(host).collect();
        command
            .arg("mpirun")
            .args(MPI)
            .args(["--mca", "oob_tcp_if_include", "eth0"])
            .args(["--mca", "plm_rsh_no_tree_spawn", "1"])
            .args(["--mca", "plm_rsh_agent"])
            .arg(&agent)
            .args(["--host", &hosts.join(",")])
            .arg(&stage.python)
            .arg(stage.file("worker.py"))
            .arg(&path)
            .arg(OsString::from("mpi"));
        let child = command.spawn().context("cannot start mpirun")?;
        Self::accept(listener, vec![child], vec![log], ranks).await
    }

    async fn accept(
        listener: UnixListener,
        children: Vec<Child>,
        logs: Vec<PathBuf>,
        ranks: u16,
    ) -> Result<Workers> {
        let mut workers = Workers {
            children,
            ranks: Vec::new(),
            logs,
        };
        let mut met = Vec::new();
        let mut meet = async || -> Result<()> {
            while met.len() < usize::from(ranks) {
                let (stream, _) = listener.accept().await?;
                met.push(hello(stream).await?);
            }
            Ok(())
        };
        let waited = tokio::select! {
            result = timeout(START, meet()) => result,
            () = ended(&mut workers.children) => Ok(Err(anyhow::anyhow!("it ended"))),
        };
        let result = match waited {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("the ranks did not meet within {START:?}")),
        };
        if let Err(error) = result {
            bail!(workers.failure(&error.to_string()));
        }
        met.sort_by_key(|(hello, _)| hello.rank);
        workers.ranks = met.into_iter().map(|(_, connection)| connection).collect();
        Ok(workers)
    }

    /// Sends a request to all ranks; returns their answers in the order of ranks.
    ///
    /// # Errors
    /// A rank fails or does not answer within `limit`.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        request: &serde_json::Value,
        limit: Duration,
    ) -> Result<Vec<T>> {
        let line = format!("{request}\n");
        let mut answers = Vec::with_capacity(self.ranks.len());
        let asked = timeout(limit, async {
            for rank in &mut self.ranks {
                rank.write.write_all(line.as_bytes()).await?;
            }
            for rank in &mut self.ranks {
                let line = rank.lines.next_line().await?;
                let line = line.context("it ended")?;
                answers.push(serde_json::from_str(&line)?);
            }
            anyhow::Ok(())
        });
        match asked.await {
            Ok(Ok(())) => Ok(answers),
            Ok(Err(error)) => bail!(self.failure(&error.to_string())),
            Err(_) => bail!(self.failure(&format!("no answer within {limit:?}"))),
        }
    }

    /// The error of a rank: the last line that one of them printed, or `otherwise`.
    fn failure(&self, otherwise: &str) -> String {
        let last = |log: &PathBuf| {
            let bytes = fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let line = text.lines().rev().find(|line| line.contains("Error"));
            Some(line?.trim().to_owned())
        };
        let said = self.logs.iter().find_map(last);
        format!("a rank failed: {}", said.as_deref().unwrap_or(otherwise))
    }

    /// Kills the processes and waits for their end.
    pub async fn stop(&mut self) {
        for child in &mut self.children {
            // Fails if it has ended.
            let _ = child.kill().await;
        }
    }
}

/// Returns when one of the processes has ended.
async fn ended(children: &mut [Child]) {
    let waits = children.iter_mut().map(|child| Box::pin(child.wait()));
    let _ = futures_util::future::select_all(waits).await;
}

fn listen(stage: &Stage, name: &str) -> Result<(PathBuf, UnixListener)> {
    let path = stage.file(&format!("{name}.sock"));
    // That of an earlier lab.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
    Ok((path, listener))
}

async fn hello(stream: UnixStream) -> Result<(Hello, Connection)> {
    let (read, write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let line = lines.next_line().await?.context("it ended")?;
    Ok((serde_json::from_str(&line)?, Connection { lines, write }))
}

/// A rank's answer to a run of operations or of training steps.
#[derive(Deserialize)]
pub(super) struct Ran {
    pub seconds: Vec<f64>,
    /// Ultima's only: the deadline of the last step, in seconds.
    pub deadline: Option<f64>,
    /// CPU seconds.
    pub cpu: f64,
    /// Packets that other ranks owed it, and those lost, by cause. Ultima's only.
    pub owed: u64,
    pub lost: Losses,
    /// The largest error of the last result, relative to its largest value.
    #[serde(default)]
    pub error: f64,
    /// Share of test images that the model recognises.
    #[serde(default)]
    pub accuracy: f64,
}

/// Runs operations of a method; returns its ranks' answers.
pub(super) async fn operations(
    workers: &mut [Workers],
    method: Method,
    bytes: u64,
    count: u32,
    expected: Duration,
) -> Result<Vec<Ran>> {
    let request = json!({ "do": "run", "method": method.name(), "bytes": bytes, "count": count });
    let of = usize::from(method == Method::OpenMpi);
    let answers = workers[of]
        .ask(&request, SILENCE + 4 * count * expected)
        .await;
    answers.with_context(|| format!("{}, {bytes} bytes", method.name()))
}

/// Times of operations: each is that of its slowest rank, in seconds.
pub(super) fn slowest(ranks: &[Ran]) -> Vec<f64> {
    let count = ranks.iter().map(|rank| rank.seconds.len()).min();
    let of = |index: usize| {
        let times = ranks.iter().map(|rank| rank.seconds[index]);
        times.fold(0.0, f64::max)
    };
    (0..count.unwrap_or_default()).map(of).collect()
}
