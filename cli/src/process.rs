//! Child processes of this binary that never outlive their parent.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use command_fds::{CommandFdExt, FdMapping};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedSender;

use crate::exit::Exit;

/// The hidden option that makes a process of this binary die with its parent.
pub const DIE_WITH_PARENT: &str = "--die-with-parent";

/// How long a server may take to print its address.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for a server to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Descriptors that a child inherits, with their numbers in the child.
pub type Descriptors = Vec<(i32, OwnedFd)>;

/// Asks the kernel to kill this process when its parent ends.
pub fn die_with_parent() -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie this process to its parent")?;
    // The parent may have ended before the call.
    if getppid().as_raw() == 1 {
        bail!("the parent process has ended");
    }
    Ok(())
}

/// Starts another process of this binary, which inherits `descriptors` and is killed with this process.
pub fn spawn(name: &str, arguments: Vec<OsString>, descriptors: Descriptors) -> Result<Child> {
    command(arguments, descriptors)?
        .spawn()
        .with_context(|| format!("cannot start the {name}"))
}

/// A server of this binary that listens.
pub struct Server {
    name: &'static str,
    child: Child,
    /// The address that it printed.
    pub address: String,
}

impl Server {
    /// Starts a server, writes `input` to its standard input, and waits for the line `listening on ADDRESS` on its standard output. When the
    /// server ends later, `ended` receives its name.
    ///
    /// # Errors
    /// The server's own error, if it ends before that.
    pub async fn start(
        name: &'static str,
        arguments: Vec<OsString>,
        descriptors: Descriptors,
        input: &str,
        ended: UnboundedSender<&'static str>,
    ) -> Result<Self> {
        let mut command = command(arguments, descriptors)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;

        let mut stdin = child.stdin.take().expect("piped");
        // A server that rejects its command line closes the pipe early; its own error follows.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
        let first = tokio::time::timeout(START_TIMEOUT, lines.next_line())
            .await
            .with_context(|| format!("the {name} did not start within {START_TIMEOUT:?}"))??;
        let Some(address) = first
            .as_deref()
            .and_then(|line| line.strip_prefix("listening on "))
        else {
            let mut said = String::from("ended without an error message");
            while let Some(line) = errors.next_line().await? {
                said = line;
            }
            child.wait().await?;
            let said = said.strip_prefix("error: ").unwrap_or(&said);
            // It ended before it listened: nothing was done.
            bail!(Exit::InvalidInput.because(format!("{name}: {said}")));
        };
        let address = address.to_owned();
        // Passes later messages on to the user.
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                eprintln!("{name}: {line}");
            }
        });
        tokio::spawn(async move {
            while let Ok(Some(_)) = lines.next_line().await {}
            // The receiver is gone when the demo itself has ended.
            let _ = ended.send(name);
        });
        Ok(Self {
            name,
            child,
            address,
        })
    }

    /// Asks the server to end, which completes its captures, and kills it if it does not.
    pub async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid
            && kill(Pid::from_raw(pid), Signal::SIGTERM).is_ok()
            && tokio::time::timeout(STOP_TIMEOUT, self.child.wait())
                .await
                .is_ok()
        {
            return Ok(());
        }
        self.child
            .kill()
            .await
            .with_context(|| format!("cannot stop the {}", self.name))
    }
}

fn command(mut arguments: Vec<OsString>, descriptors: Descriptors) -> Result<Command> {
    let binary = std::env::current_exe().context("cannot determine the path of this program")?;
    arguments.push(DIE_WITH_PARENT.into());
    let mut command = Command::new(binary);
    // In a process group of its own: Ctrl-C reaches only the parent, which stops its children in order.
    command.args(arguments).kill_on_drop(true).process_group(0);
    let numbers: Vec<i32> = descriptors.iter().map(|(number, _)| *number).collect();
    let mappings = descriptors
        .into_iter()
        .map(|(child_fd, parent_fd)| FdMapping {
            parent_fd,
            child_fd,
        })
        .collect();
    command
        .as_std_mut()
        .fd_mappings(mappings)
        .map_err(|_| anyhow!("internal error: duplicate descriptor number in {numbers:?}"))?;
    Ok(command)
}
