//! A lab that ends with its test.

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

/// A running lab. Dropping it ends the lab.
pub struct Lab {
    pub name: String,
    ended: bool,
}

/// Checks that a command succeeded; returns its output.
pub fn printed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// A lab's name that is unique on this machine.
pub fn name(of: &str) -> String {
    static LABS: AtomicU32 = AtomicU32::new(0);
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    format!("t{}-{number}-{of}", std::process::id())
}

/// The path of a file in `topologies/`.
pub fn topology(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../topologies")
        .join(file)
}

impl Lab {
    /// Starts a lab of a fabric's file.
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

    /// Starts a lab of a fabric's text.
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

    /// Starts a command on a host, with pipes for its output.
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

    /// A job's document of `ultima job show`.
    pub fn job(&self, name: &str) -> Value {
        let mut show = self.controlled(&["job", "show", name, "--output=json"]);
        let shown = show.output().expect("it runs");
        serde_json::from_str(&printed(&shown)).expect("one JSON object")
    }

    /// The address of the lab's controller.
    pub fn controller(&self) -> String {
        format!("unix:/run/ultima/labs/{}/controller.sock", self.name)
    }

    /// A command of `ultima` for this lab's controller.
    pub fn controlled(&self, arguments: &[&str]) -> Command {
        let mut command = common::ultima(arguments);
        command.env("ULTIMA_CONTROLLER", self.controller());
        command
    }

    /// Runs an agent on each of these hosts, with this number of ranks; returns the reports.
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

    /// True if one of five pings from one host reaches another. Links and BMv2 may lose some.
    pub fn pings(&self, from: &str, to: &str) -> bool {
        let ping = ["ping", "-n", "-c", "1", "-W", "2", to];
        (0..5).any(|_| self.exec(from, &ping).status.success())
    }

    /// The document of `ultima lab status`, and the exit code.
    pub fn status(&self) -> (Value, Option<i32>) {
        let output = common::output(&["lab", "status", &self.name, "--output=json"]);
        let labs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (labs[0].clone(), output.status.code())
    }

    /// The names and addresses of the hosts.
    pub fn hosts(&self) -> Vec<(String, Ipv4Addr)> {
        let (status, _) = self.status();
        let hosts = status["plan"]["hosts"].as_array().expect("hosts");
        let host = |host: &Value| {
            let text = |field: &str| host[field].as_str().expect(field).to_owned();
            (text("name"), text("ip").parse().expect("an address"))
        };
        hosts.iter().map(host).collect()
    }

    /// The names of the hosts, and the number of ranks that a job may have there.
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

    /// The roles and ids of the lab's processes.
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

    /// Runs `work` on a thread in a host's network namespace.
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

    /// Ends the lab and checks that nothing is left; returns the command's output.
    pub fn down(mut self) -> String {
        self.ended = true;
        let pids = self.processes();
        let said = printed(&common::output(&["lab", "down", &self.name]));
        self.is_gone(&pids);
        said
    }

    /// Checks that no process of these, no namespace and no folder is left.
    pub fn is_gone(&self, processes: &[(String, i32)]) {
        for (role, pid) in processes {
            // An ended process is a zombie until its parent waits for it.
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
            // An error means that the test has failed or ended the lab already.
            let _ = common::output(&["lab", "down", &self.name]);
        }
    }
}

/// The existing namespaces of a lab.
pub fn namespaces(lab: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let own = format!("ultima:{lab}");
    names
        .filter(|name| *name == own || name.starts_with(&format!("{own}:")))
        .collect()
}
