//! Labs that end with their test, and what is left of them.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use crate::common;

/// A lab that is up; it ends with this.
pub struct Lab {
    pub name: String,
    ended: bool,
}

/// What a command printed where it succeeded.
pub fn printed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// A name that no other lab of this machine has.
pub fn name(of: &str) -> String {
    static LABS: AtomicU32 = AtomicU32::new(0);
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    format!("t{}-{number}-{of}", std::process::id())
}

/// The file of a shipped topology.
pub fn topology(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../topologies")
        .join(file)
}

impl Lab {
    /// Makes a lab of a file.
    pub fn of_file(file: &Path, options: &[&str]) -> Lab {
        let stem = file.file_stem().expect("a name").to_string_lossy();
        let lab = Lab {
            name: name(&stem),
            ended: false,
        };
        let file = file.to_string_lossy();
        let up = ["lab", "up", &file, "--name", &lab.name];
        printed(&common::output(&[&up, options].concat()));
        lab
    }

    /// Makes a lab of a fabric's text.
    pub fn of_text(text: &str, options: &[&str]) -> Lab {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("fabric.yaml");
        fs::write(&file, text).expect("written");
        Lab::of_file(&file, options)
    }

    /// Runs a command on a host.
    pub fn exec(&self, host: &str, command: &[&str]) -> Output {
        let exec = ["lab", "exec", "--name", &self.name, host, "--"];
        common::output(&[&exec, command].concat())
    }

    /// Starts a command on a host; what it prints can be read.
    pub fn start(&self, host: &str, command: &[&str]) -> Child {
        let exec = ["lab", "exec", "--name", &self.name, host, "--"];
        let mut command = common::ultima(&[&exec, command].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }

    /// Creates a job, written in YAML.
    pub fn create(&self, job: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.yaml");
        fs::write(&file, job).expect("written");
        let create = ["job", "create", "-f", &file.to_string_lossy()];
        printed(&self.controlled(&create).output().expect("it runs"));
    }

    /// A job as it is shown.
    pub fn job(&self, name: &str) -> Value {
        let mut show = self.controlled(&["job", "show", name, "--output=json"]);
        let shown = show.output().expect("it runs");
        serde_json::from_str(&printed(&shown)).expect("one JSON object")
    }

    /// A command of ours that speaks to this lab's controller.
    pub fn controlled(&self, arguments: &[&str]) -> Command {
        let controller = format!("unix:/run/ultima/labs/{}/controller.sock", self.name);
        let mut command = common::ultima(arguments);
        command.env("ULTIMA_CONTROLLER", controller);
        command
    }

    /// Runs one agent on each of these hosts, with so many ranks each; what they report.
    pub fn agents(&self, hosts: &[(&str, u16)], options: &[&str]) -> Vec<Value> {
        let agents: Vec<Child> = hosts
            .iter()
            .map(|(host, ranks)| {
                let ranks = ranks.to_string();
                let agent = [env!("CARGO_BIN_EXE_ultima"), "agent", "--ranks", &ranks];
                self.start(host, &[&agent, options].concat())
            })
            .collect();
        let reports = agents.into_iter().map(|agent| {
            let output = agent.wait_with_output().expect("it ends");
            serde_json::from_str(&printed(&output)).expect("one JSON object")
        });
        reports.collect()
    }

    /// Whether one of five pings from one host reaches another, by name: links and BMv2 may lose some.
    pub fn pings(&self, from: &str, to: &str) -> bool {
        let ping = ["ping", "-n", "-c", "1", "-W", "2", to];
        (0..5).any(|_| self.exec(from, &ping).status.success())
    }

    /// Its status as JSON, and the exit code.
    pub fn status(&self) -> (Value, Option<i32>) {
        let output = common::output(&["lab", "status", &self.name, "--output=json"]);
        let labs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (labs[0].clone(), output.status.code())
    }

    /// The names and addresses of its hosts.
    pub fn hosts(&self) -> Vec<(String, Ipv4Addr)> {
        let (status, _) = self.status();
        let hosts = status["plan"]["hosts"].as_array().expect("hosts");
        let host = |host: &Value| {
            let text = |field: &str| host[field].as_str().expect(field).to_owned();
            (text("name"), text("ip").parse().expect("an address"))
        };
        hosts.iter().map(host).collect()
    }

    /// The names of its hosts, and how many ranks of one job have room there.
    pub fn places(&self) -> Vec<(String, u16)> {
        let (status, _) = self.status();
        let hosts = status["plan"]["hosts"].as_array().expect("hosts");
        let place = |host: &Value| {
            let ranks = host["ranks"].as_u64().expect("ranks");
            let name = host["name"].as_str().expect("a name").to_owned();
            (name, u16::try_from(ranks).expect("few"))
        };
        hosts.iter().map(place).collect()
    }

    /// The processes that it has started: what they do, and their numbers.
    pub fn processes(&self) -> Vec<(String, i32)> {
        let (status, _) = self.status();
        let processes = status["processes"].as_array().expect("processes");
        let process = |process: &Value| {
            let pid = process["process"]["pid"].as_i64().expect("a number");
            let role = process["role"].as_str().expect("a role").to_owned();
            (role, i32::try_from(pid).expect("a process's number"))
        };
        processes.iter().map(process).collect()
    }

    /// Runs `work` on a thread in a host's namespace.
    pub fn within<T: Send + 'static>(
        &self,
        host: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let namespace = fs::File::open(format!("/run/netns/ultima:{}:{host}", self.name));
        let namespace = namespace.expect("the host's namespace");
        thread::spawn(move || {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).expect("root may");
            work()
        })
    }

    /// Ends it; nothing is left.
    pub fn down(mut self) -> String {
        self.ended = true;
        let pids = self.processes();
        let said = printed(&common::output(&["lab", "down", &self.name]));
        self.is_gone(&pids);
        said
    }

    /// Nothing of it is left: no process of these, no namespace, no folder.
    pub fn is_gone(&self, processes: &[(String, i32)]) {
        for (role, pid) in processes {
            // A process that nobody has waited for yet is a zombie.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            assert!(
                stat.is_empty() || stat.contains(") Z "),
                "{role} still runs: {stat}"
            );
        }
        assert_eq!(namespaces(&self.name), Vec::<String>::new());
        assert!(!Path::new("/run/ultima/labs").join(&self.name).exists());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.ended {
            // The test has failed already, or looked itself.
            let _ = common::output(&["lab", "down", &self.name]);
        }
    }
}

/// The namespaces of a lab.
pub fn namespaces(lab: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let own = format!("ultima:{lab}");
    names
        .filter(|name| *name == own || name.starts_with(&format!("{own}:")))
        .collect()
}
