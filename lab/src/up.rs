//! Creation of a lab.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ultima_planner::fabric;

use crate::error::LabError;
use crate::folder::{Folder, Lock};
use crate::name::LabName;
use crate::plan::{HOST_INTERFACE, Plan, PlannedFlow, PlannedSwitch, PlannedWire};
use crate::process::ProcessId;
use crate::state::{Started, State};
use crate::switch_kind::SwitchKind;
use crate::{down, ip, namespace, offload, sysctl};

/// Time for a process to become ready. BMv2 on a busy machine needs seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The controller's timeout for switches that are up.
const CONTROLLER_TIMEOUT: &str = "30s";
/// The program name of BMv2's switch with P4Runtime.
pub const BMV2: &str = "simple_switch_grpc";

/// The programs that a lab runs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The `ultima` binary.
    pub ultima: PathBuf,
    /// The kind of switches.
    pub switch: SwitchKind,
}

/// A flag that cancels the creation of a lab.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels the creation.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), LabError> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(LabError::Interrupted),
            false => Ok(()),
        }
    }
}

/// Creates the lab `name` of the fabric in `text`, which was read from `file`: namespaces and links, then
/// wires, switches and controller, waiting for each to be ready, and the fabric's background traffic.
///
/// # Errors
/// Any failure; then nothing of the lab is left.
pub fn up(
    name: &LabName,
    file: &Path,
    text: &str,
    programs: &Programs,
    cancel: &Cancel,
) -> Result<Plan, LabError> {
    let fabric = fabric::parse(text, &file.display().to_string())?;
    let plan = Plan::new(name, &fabric)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    if programs.switch == SwitchKind::Bmv2 && !is_on_path(BMV2) {
        return Err(LabError::NoProgram {
            program: BMV2,
            hint: "build BMv2 with P4Runtime, or omit --switch bmv2",
        });
    }
    let lock = Lock::take()?;
    let folder = Folder::of(name);
    if folder.exists() || !namespace::all_of(name)?.is_empty() {
        let name = name.clone();
        return Err(match folder.state() {
            Some(state) if state.complete => LabError::Up {
                name,
                file: state.file,
                switch: state.switch,
                runs: state
                    .processes
                    .iter()
                    .filter(|it| it.process.runs())
                    .count(),
                started: state.processes.len(),
            },
            _ => LabError::Incomplete { name },
        });
    }
    let state = State {
        file: file.to_owned(),
        switch: programs.switch,
        since: SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.as_secs()),
        complete: false,
        processes: Vec::new(),
    };
    let mut maker = Maker {
        plan: &plan,
        lock: &lock,
        folder,
        programs,
        cancel,
        state,
        children: Vec::new(),
    };
    if let Err(error) = maker.make(text) {
        // The first error is the useful one.
        let _ = down::remove(name, &lock);
        maker.children.iter_mut().for_each(|child| {
            let _ = child.wait();
        });
        return Err(error);
    }
    Ok(plan)
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The sign that a process is ready.
enum Ready {
    /// A line of its log with this prefix.
    Line(&'static str),
    /// A connection to this address in the switches' namespace succeeds.
    Listens(SocketAddr),
    /// None is needed.
    Started,
}

struct Maker<'a> {
    plan: &'a Plan,
    lock: &'a Lock,
    folder: Folder,
    programs: &'a Programs,
    cancel: &'a Cancel,
    state: State,
    children: Vec<Child>,
}

impl Maker<'_> {
    fn make(&mut self, text: &str) -> Result<(), LabError> {
        self.folder.make()?;
        self.folder.put(&self.state)?;
        self.folder.write(&self.folder.fabric(), text)?;
        self.folder
            .write(&self.folder.hosts(), &hosts_file(self.plan))?;
        self.network()?;

        let mut waiting = Vec::new();
        for wire in self.plan.links.iter().filter_map(|link| link.wire.as_ref()) {
            let role = format!("{}-{}", wire.interfaces[0], wire.interfaces[1]);
            let command = self.wire(wire);
            waiting.push((self.start(&role, command)?, role, Ready::Line("joined ")));
        }
        for switch in &self.plan.switches {
            let role = format!("switch-{}", switch.name);
            let (command, ready) = match self.programs.switch {
                SwitchKind::Embedded => (self.embedded(switch), Ready::Line("listening on ")),
                SwitchKind::Bmv2 => (self.bmv2(switch), Ready::Listens(switch.grpc)),
            };
            waiting.push((self.start(&role, command)?, role, ready));
        }
        for (child, role, ready) in waiting {
            self.wait(child, &role, &ready)?;
        }
        let role = "controller";
        let command = self.controller();
        let child = self.start(role, command)?;
        self.wait(child, role, &Ready::Line("listening on "))?;
        self.traffic()?;
        self.state.complete = true;
        self.folder.put(&self.state)
    }

    fn network(&self) -> Result<(), LabError> {
        ip::add_namespaces(self.plan, self.lock)?;
        for name in self.plan.namespaces() {
            namespace::within(name, sysctl::turn_ipv6_off)?;
        }
        self.cancel.check()?;
        ip::add_links(self.plan, self.lock)?;
        // BMv2 reads frames unchanged. The embedded switch splits GSO frames.
        if self.state.switch == SwitchKind::Bmv2 {
            namespace::within(&self.plan.namespace, || {
                ip::switch_side(self.plan).try_for_each(offload::turn_off)
            })?;
        }
        for host in &self.plan.hosts {
            namespace::within(&host.namespace, || {
                offload::turn_off(HOST_INTERFACE)?;
                sysctl::accept_local(HOST_INTERFACE)
            })?;
        }
        self.cancel.check()?;
        self.wait_for_links()
    }

    /// Waits for links to be up. The kernel processes an interface's state change with a delay, and drops
    /// packets until then.
    fn wait_for_links(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + TIMEOUT;
        for namespace in self.plan.namespaces() {
            while let Some(interface) = ip::not_up(namespace)? {
                self.cancel.check()?;
                if Instant::now() > deadline {
                    return Err(LabError::Ip {
                        said: format!("{interface} in {namespace} was not up after {TIMEOUT:?}"),
                    });
                }
                thread::sleep(CHECK_INTERVAL);
            }
        }
        Ok(())
    }

    fn traffic(&mut self) -> Result<(), LabError> {
        let plan = self.plan;
        for (index, flow) in plan.traffic.iter().enumerate() {
            let role = format!("traffic{index}-to-{}", flow.to);
            let command = self.flow("receive", flow);
            let child = self.start_in(&flow.to, &role, command)?;
            self.wait(child, &role, &Ready::Line("receiving"))?;
            let role = format!("traffic{index}-from-{}", flow.from);
            let command = self.flow("send", flow);
            let child = self.start_in(&flow.from, &role, command)?;
            self.wait(child, &role, &Ready::Started)?;
        }
        Ok(())
    }

    fn ultima<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(&self.programs.ultima);
        command.args(arguments);
        command
    }

    fn wire(&self, wire: &PlannedWire) -> Command {
        let [a, b] = &wire.interfaces;
        let mut command = self.ultima(["wire", "-i", a, "-i", b]);
        command
            .args(["--a-to-b", &wire.a_to_b.to_string()])
            .args(["--b-to-a", &wire.b_to_a.to_string()])
            .args(["--seed", &wire.seed.to_string()])
            .args(["--grpc", &wire.grpc.to_string()]);
        command
    }

    fn embedded(&self, switch: &PlannedSwitch) -> Command {
        let mut command = self.ultima(["switch", "--grpc", &switch.grpc.to_string()]);
        command.args(["--device-id", &switch.device_id.to_string()]);
        for (port, interface) in &switch.ports {
            command.args(["-i", &format!("{port}@{interface}")]);
        }
        command
    }

    fn bmv2(&self, switch: &PlannedSwitch) -> Command {
        let mut command = Command::new(BMV2);
        command
            .arg("--no-p4")
            .args(["--device-id", &switch.device_id.to_string()])
            .args(["--thrift-port", &switch.thrift_port.to_string()]);
        // BMv2's default is one name for all switches of the machine. The kernel limits a socket's path to 107
        // bytes, too few for the longest names of a lab and a switch.
        let notifications = self.folder.notifications(switch);
        command.args([
            "--notifications-addr",
            &format!("ipc://{}", notifications.display()),
        ]);
        for (port, interface) in &switch.ports {
            command.args(["-i", &format!("{port}@{interface}")]);
        }
        command.args(["--", "--grpc-server-addr", &switch.grpc.to_string()]);
        command
    }

    fn controller(&self) -> Command {
        let mut command = self.ultima([
            "controller",
            "serve",
            "--state",
            "memory",
            "--startup-timeout",
            CONTROLLER_TIMEOUT,
        ]);
        command.arg("--fabric").arg(self.folder.fabric());
        let listen = format!("unix:{}", self.folder.controller().display());
        command.args(["--listen", &listen]);
        command
    }

    fn flow(&self, role: &str, flow: &PlannedFlow) -> Command {
        let mut command = self.ultima(["lab-traffic", role, &flow.address.to_string()]);
        if let Some(rate) = flow.udp_rate {
            command.args(["--udp-rate", &rate.to_string()]);
        }
        command
    }

    /// Starts a process in the switches' namespace. Returns its index in [`Self::children`].
    fn start(&mut self, role: &str, command: Command) -> Result<usize, LabError> {
        let plan = self.plan;
        self.launch(&plan.namespace, role, command)
    }

    /// Starts a process on a host.
    fn start_in(&mut self, host: &str, role: &str, command: Command) -> Result<usize, LabError> {
        let plan = self.plan;
        let namespace = plan.namespace_of(host).unwrap_or(&plan.namespace);
        self.launch(namespace, role, command)
    }

    fn launch(
        &mut self,
        namespace: &str,
        role: &str,
        mut command: Command,
    ) -> Result<usize, LabError> {
        self.cancel.check()?;
        let path = self.folder.log(role);
        let log = File::create(&path).map_err(LabError::file(&path))?;
        let errors = log.try_clone().map_err(LabError::file(&path))?;
        // In its own process group, so that Ctrl-C at `lab up` reaches only this process; in the root folder,
        // so that it keeps no other folder busy.
        command
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let program = command.get_program().display().to_string();
        let spawned = namespace::within(namespace, || Ok(command.spawn()))?;
        let child = spawned.map_err(LabError::system(format!("cannot start {program}")))?;
        // An ended process need not be stopped.
        if let Some(process) = ProcessId::of(child.id().cast_signed()) {
            self.state.processes.push(Started {
                role: role.to_owned(),
                process,
                log: path,
            });
            self.folder.put(&self.state)?;
        }
        self.children.push(child);
        Ok(self.children.len() - 1)
    }

    fn wait(&mut self, child: usize, role: &str, ready: &Ready) -> Result<(), LabError> {
        let log = self.folder.log(role);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.cancel.check()?;
            let ended = self.children[child]
                .try_wait()
                .map_err(LabError::system(format!("cannot wait for {role}")))?;
            if let Some(status) = ended {
                let said = last_line(&log)
                    .unwrap_or_else(|| format!("ended with {status} without a message"));
                let role = role.to_owned();
                return Err(LabError::Process { role, said });
            }
            let is_ready = match ready {
                Ready::Started => true,
                Ready::Line(start) => {
                    let text = fs::read_to_string(&log).map_err(LabError::file(&log))?;
                    text.lines().any(|line| line.starts_with(start))
                }
                Ready::Listens(address) => namespace::within(&self.plan.namespace, || {
                    Ok(TcpStream::connect(address).is_ok())
                })?,
            };
            if is_ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                let role = role.to_owned();
                let said = format!("not ready after {TIMEOUT:?}");
                return Err(LabError::Process { role, said });
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// The last line of a log, without the prefix of our own errors.
fn last_line(log: &Path) -> Option<String> {
    let text = fs::read_to_string(log).ok()?;
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.strip_prefix("error: ").unwrap_or(line).to_owned())
}

/// The names of all hosts, in the format of hosts(5).
fn hosts_file(plan: &Plan) -> String {
    let hosts = plan
        .hosts
        .iter()
        .map(|host| format!("{} {}\n", host.ip, host.name));
    std::iter::once("127.0.0.1 localhost\n".to_owned())
        .chain(hosts)
        .collect()
}
