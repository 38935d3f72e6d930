//! Access to the control API from the command line: TLS, addresses other than loopback, and idle connections.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use ultima_tests::{needs, netns};

use crate::common::{Switch, output, refused, refused_with, ultima};

const LOOPBACK: &str = "127.0.0.1:0";

/// A running `ultima controller serve` with its switch. Dropping it ends both.
struct Controller {
    child: Child,
    address: String,
    _switch: Switch,
}

impl Controller {
    /// Starts it, after a command of the shell such as `ulimit` if that is given.
    fn start(folder: &Path, listen: &str, limit: Option<&str>, options: &[&str]) -> Self {
        let switch = Switch::start(&[]);
        let text = include_str!("../../../topologies/star4.yaml");
        let fabric = folder.join("fabric.yaml");
        fs::write(&fabric, text.replace("127.0.0.1:9559", &switch.address)).expect("written");
        let mut command = ultima(&[
            "controller",
            "serve",
            "--state",
            "memory",
            "--listen",
            listen,
            "--fabric",
        ]);
        command.arg(&fabric).args(options).stdout(Stdio::piped());
        if let Some(limit) = limit {
            let limited = format!("{limit} && exec \"$0\" \"$@\"");
            let mut shell = Command::new("sh");
            shell.args(["-c", &limited]).arg(command.get_program());
            shell.args(command.get_args()).stdout(Stdio::piped());
            command = shell;
        }
        let mut child = command.spawn().expect("the controller starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.expect("it listens").to_owned();
        Controller {
            child,
            address,
            _switch: switch,
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with an authority, and the paths of its files.
struct Certs(TempDir);

impl Certs {
    fn new() -> Self {
        let certs = Certs(tempfile::tempdir().expect("a folder"));
        certs.done(&["init"]);
        certs
    }

    fn dir(&self) -> &str {
        self.0.path().to_str().expect("UTF-8")
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = output(&[&["certs"], arguments, &["--dir", self.dir()]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn path(&self, file: &str) -> String {
        format!("{}/{file}", self.dir())
    }

    /// The options of a client with this certificate.
    fn client(&self, holder: &str) -> Vec<String> {
        let (cert, key) = (format!("{holder}.pem"), format!("{holder}.key"));
        let options = [
            ("--tls-ca", "ca.pem"),
            ("--tls-cert", &cert),
            ("--tls-key", &key),
        ];
        let option = |(name, file): (&str, &str)| [name.to_owned(), self.path(file)];
        options.into_iter().flat_map(option).collect()
    }
}

#[test]
fn certificates_of_the_command_let_each_role_do_its_work() {
    let certs = Certs::new();
    certs.done(&["issue", "controller", "c1", "--address", "127.0.0.1"]);
    for role in ["operator", "viewer"] {
        certs.done(&["issue", role, "a"]);
    }
    let [cert, key, ca] =
        ["controller-c1.pem", "controller-c1.key", "ca.pem"].map(|it| certs.path(it));
    let tls = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ];
    let controller = Controller::start(certs.0.path(), LOOPBACK, None, &tls);
    let job = certs.path("job.yaml");
    fs::write(&job, "{ name: train, members: [h1, h2] }").expect("written");
    let run = |holder: &str, command: &[&str]| {
        let options = certs.client(holder);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let all = [command, &["--controller", &controller.address], &options].concat();
        let output = output(&all);
        let errors = String::from_utf8(output.stderr).expect("text");
        (output.status.code(), errors)
    };
    let create = ["job", "create", "-f", &job];
    let (code, errors) = run("viewer-a", &create);
    assert_eq!(code, Some(2), "{errors}");
    assert_eq!(
        errors.trim(),
        "error: viewer a may not call CreateJob; use a certificate with the role operator"
    );
    assert_eq!(run("operator-a", &create).0, Some(0));
    assert_eq!(run("viewer-a", &["job", "list"]).0, Some(0));
    // A controller's certificate is none of a client, and a client without one is not served.
    assert_eq!(run("controller-c1", &["job", "list"]).0, Some(2));
    let list = ["job", "list", "--controller", &controller.address];
    let plain = refused_with(3, &list);
    assert!(plain.contains("; pass --tls-ca, "), "{plain}");
    // Nor is one with a certificate of another authority.
    let strangers = Certs::new();
    strangers.done(&["issue", "operator", "a"]);
    let stranger = strangers.client("operator-a");
    let stranger: Vec<&str> = stranger.iter().map(String::as_str).collect();
    for authority in [strangers.path("ca.pem"), ca.clone()] {
        let options = [&["--tls-ca", &authority], &stranger[2..]].concat();
        let other = refused_with(3, &[&list, &options[..]].concat());
        assert!(other.contains("; pass --tls-ca, "), "{other}");
        let several = format!("{0},{0}", controller.address).replacen("127.0.0.1", "localhost", 1);
        let list = ["job", "list", "--controller", &several];
        let other = refused_with(3, &[&list, &options[..]].concat());
        assert!(other.contains("; pass --tls-ca, "), "{other}");
    }
    let half = refused(&["job", "list", "--tls-ca", &ca]);
    assert!(half.contains("--tls-cert"), "{half}");
}

#[test]
fn keys_are_private_and_nothing_is_overwritten_without_force() {
    let certs = Certs::new();
    let mode = |file: &str| {
        let metadata = fs::metadata(certs.path(file)).expect("it exists");
        metadata.permissions().mode() & 0o777
    };
    let issue = ["issue", "agent", "h1"];
    let paths = certs.done(&issue);
    let expected = [certs.path("agent-h1.pem"), certs.path("agent-h1.key")];
    assert_eq!(paths.lines().collect::<Vec<_>>(), expected);
    for file in ["ca.key", "agent-h1.key"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    let key = || fs::read(certs.path("agent-h1.key")).expect("it exists");
    let ca = || fs::read(certs.path("ca.key")).expect("it exists");
    let (old, authority) = (key(), ca());
    let again =
        |arguments: &[&str]| refused(&[&["certs"], arguments, &["--dir", certs.dir()]].concat());
    assert!(again(&issue).contains("agent-h1.key exists; pass --force"));
    assert!(again(&["init"]).contains("ca.key exists; pass --force"));
    assert_eq!((key(), ca()), (old.clone(), authority.clone()));
    certs.done(&["issue", "agent", "h1", "--force"]);
    assert_ne!(key(), old);
    assert_eq!((mode("agent-h1.key"), ca()), (0o600, authority));
    for (arguments, said) in [
        (&["issue", "agent", "../h1"][..], "letters, digits"),
        (&["issue", "controller", "c1"], "--address"),
        (
            &["issue", "agent", "h2", "--address", "10.0.0.2"],
            "--address",
        ),
    ] {
        assert!(again(arguments).contains(said), "{arguments:?}");
    }
    let none = tempfile::tempdir().expect("a folder");
    let none = none.path().to_str().expect("UTF-8");
    let missing = refused(&["certs", "issue", "agent", "h1", "--dir", none]);
    assert!(missing.contains("ultima certs init"), "{missing}");
}

#[test]
fn only_insecure_serves_other_addresses_without_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/star4.yaml");
    let open = [
        "controller",
        "serve",
        "--fabric",
        fabric,
        "--listen",
        "0.0.0.0:0",
    ];
    let said = refused(&open);
    assert!(
        said.contains("--tls-cert") && said.contains("--insecure"),
        "{said}"
    );
    let controller = Controller::start(folder.path(), "0.0.0.0:0", None, &["--insecure"]);
    assert!(controller.address.starts_with("0.0.0.0:"));
}

#[test]
fn a_unix_socket_is_open_to_its_owner_only_whatever_the_umask_is() {
    for limit in ["umask 0", "umask 077"] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listen = format!("unix:{}", socket.display());
        // From its first moment.
        let mode = thread::spawn(move || {
            loop {
                if let Ok(file) = socket.symlink_metadata() {
                    return file.permissions().mode() & 0o777;
                }
            }
        });
        let controller = Controller::start(folder.path(), &listen, Some(limit), &[]);
        assert_eq!(mode.join().expect("it looks"), 0o600, "{limit}");
        let list = output(&["job", "list", "--controller", &controller.address]);
        assert!(list.status.success());
    }
}

#[test]
fn idle_connections_keep_no_client_out_and_use_no_time() {
    // This process holds the other ends. Where it may not, a connection fails below.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("Linux has it");
    let _ = setrlimit(Resource::RLIMIT_NOFILE, most.min(4096), most);
    // At 32 open files, as many as the kernel queues; at Linux's default nearly all.
    for (files, connections) in [(32, 60), (1024, 1020)] {
        idle_connections_are_harmless(files, connections);
    }
}

fn idle_connections_are_harmless(files: u64, connections: u16) {
    let folder = tempfile::tempdir().expect("a folder");
    let limit = format!("ulimit -n {files}");
    let controller = Controller::start(folder.path(), LOOPBACK, Some(&limit), &[]);
    let address: SocketAddr = controller.address.parse().expect("an address");
    // From several addresses: the connections of one have a limit, too.
    let connect = |nth: u16| {
        let from = Ipv4Addr::new(127, 0, 1, 1 + (nth / 60) as u8);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect(&address.into())?;
        Ok::<_, std::io::Error>(socket)
    };
    let idle: Vec<Socket> = (0..connections)
        .map(|nth| connect(nth).expect("the kernel accepts"))
        .collect();
    for _ in 0..3 {
        let list = output(&["job", "list", "--controller", &controller.address]);
        assert!(
            list.status.success(),
            "{}",
            String::from_utf8_lossy(&list.stderr)
        );
    }
    // Time for the process: a controller that spins uses all of it, one that pauses next to nothing.
    let started = cpu_time(controller.child.id());
    let mut used = Duration::ZERO;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(100));
        used = cpu_time(controller.child.id()) - started;
    }
    assert!(used < Duration::from_millis(500), "{used:?} of 1 s");
    drop(idle);
}

/// In a namespace whose loopback interface has h1's address, too: connections to it come from it.
#[test]
fn keys_cross_no_network_in_plain_text() {
    if !needs::interfaces() {
        return;
    }
    netns::within(|| {
        let address = ["address", "add", "10.0.0.1/32", "dev", "lo"];
        assert!(
            Command::new("ip")
                .args(address)
                .status()
                .expect("starts")
                .success()
        );
        let folder = tempfile::tempdir().expect("a folder");
        let any = ["--insecure"];
        let controller = Controller::start(folder.path(), "0.0.0.0:0", None, &any);
        let (_, port) = controller.address.rsplit_once(':').expect("a port");
        let [remote, local] = ["10.0.0.1", "127.0.0.1"].map(|ip| format!("{ip}:{port}"));
        for (job, sealed) in [("a", true), ("b", false)] {
            let file = folder.path().join(job);
            let text = format!("{{ name: {job}, members: [h1, h2], sealed: {sealed} }}");
            fs::write(&file, text).expect("written");
            let file = file.to_str().expect("UTF-8");
            let create = ["job", "create", "-f", file, "--controller", &remote];
            assert!(output(&create).status.success());
        }
        let agent = ["agent", "--host", "h1", "--join-timeout", "100ms", "--job"];
        let joins =
            |job, at: &str| refused_with(6, &[&agent[..], &[job, "--controller", at]].concat());
        let refused = refused_with(2, &[&agent[..], &["a", "--controller", &remote]].concat());
        assert!(
            refused.contains("crosses no network in plain text"),
            "{refused}"
        );
        for (job, at) in [("a", &local), ("b", &remote)] {
            let errors = joins(job, at);
            assert!(
                errors.contains("rank 1 on h2"),
                "only the other one is missing: {errors}"
            );
        }
    });
}

/// The CPU time that a process has used, to 10 ms (`proc_pid_stat(5)`, fields 14 and 15).
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>().expect("a number"));
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
