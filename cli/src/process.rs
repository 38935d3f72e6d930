//! Child processes that never outlive the one that started them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use command_fds::{CommandFdExt, FdMapping};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedSender;

/// The hidden option that makes a process of this binary die with its parent.
pub const DIE_WITH_PARENT: &str = "--die-with-parent";

/// How long a server may take to say where it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// What a child inherits, by the number under which it finds it.
pub type Descriptors = Vec<(i32, OwnedFd)>;

/// Has the kernel kill this process when the one that started it ends, however it ends.
pub fn die_with_parent() -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie this process to its parent")?;
    // The parent may have ended before the call.
    if getppid().as_raw() == 1 {
        bail!("the process that started this one is gone");
    }
    Ok(())
}

/// Another process of this binary. Descriptors are handed over under the numbers given; it dies with us.
pub fn spawn(name: &str, arguments: Vec<OsString>, descriptors: Descriptors) -> Result<Child> {
    command(arguments, descriptors)?
        .spawn()
        .with_context(|| format!("cannot start the {name}"))
}

/// A server of this binary, up and listening.
pub struct Server {
    name: &'static str,
    child: Child,
    /// Where it listens, as it printed it.
    pub address: String,
}

impl Server {
    /// Starts a server, feeds it `input`, and waits for the line `listening on ADDRESS` on its standard output. When it
    /// ends later on, by itself or not, its name comes through `ended`.
    ///
    /// # Errors
    /// What the server itself said, if it ends before that.
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
        // A server that refuses its command line closes this early; its own words say why.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
        let first = tokio::time::timeout(START_TIMEOUT, lines.next_line())
            .await
            .with_context(|| format!("the {name} said nothing for {START_TIMEOUT:?}"))??;
        let Some(address) = first
            .as_deref()
            .and_then(|line| line.strip_prefix("listening on "))
        else {
            let mut said = String::from("it ended without a word");
            while let Some(line) = errors.next_line().await? {
                said = line;
            }
            child.wait().await?;
            bail!("{name}: {}", said.strip_prefix("error: ").unwrap_or(&said));
        };
        let address = address.to_owned();
        // Nobody reads what it says from here on but the user.
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                eprintln!("{name}: {line}");
            }
        });
        tokio::spawn(async move {
            while let Ok(Some(_)) = lines.next_line().await {}
            // Where nobody listens any more the demo itself has ended.
            let _ = ended.send(name);
        });
        Ok(Self {
            name,
            child,
            address,
        })
    }

    /// Ends the server and waits until it is gone.
    pub async fn stop(mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .with_context(|| format!("cannot stop the {}", self.name))
    }
}

fn command(mut arguments: Vec<OsString>, descriptors: Descriptors) -> Result<Command> {
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    arguments.push(DIE_WITH_PARENT.into());
    let mut command = Command::new(binary);
    // In a group of its own, so that Ctrl-C reaches us alone and we say what is to happen.
    command.args(arguments).kill_on_drop(true).process_group(0);
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
        .map_err(|_| anyhow!("two descriptors under one number"))?;
    Ok(command)
}
