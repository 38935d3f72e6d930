//! What a test needs of its machine. Where it is missing the test says so, and ends.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::Uid;

use crate::netns;

/// BMv2's switch with P4Runtime.
const BMV2: &str = "simple_switch_grpc";

/// Whether this process may make network namespaces and interfaces; says so if not.
pub fn interfaces() -> bool {
    static PROBLEM: OnceLock<Option<String>> = OnceLock::new();
    let problem = PROBLEM.get_or_init(|| {
        if !Uid::effective().is_root() {
            return Some("needs root".into());
        }
        // Root in a container may be less than that.
        netns::check().err()
    });
    match problem {
        None => true,
        Some(problem) => {
            skipped(problem);
            false
        }
    }
}

/// Where BMv2 is; says so if it is nowhere, or cannot be given interfaces.
pub fn bmv2() -> Option<PathBuf> {
    let found = on_path(BMV2);
    if found.is_none() {
        skipped(&format!("{BMV2} is not on the PATH"));
    }
    found.filter(|_| interfaces())
}

/// The Python that Debian's packages, Mininet and PyTorch among them, are installed for.
pub const DEBIAN_PYTHON: &str = "/usr/bin/python3";

/// Whether Mininet can be run; says so if not.
pub fn mininet() -> bool {
    package("mininet", on_path("mnexec").is_some() && imports("mininet")) && interfaces()
}

/// Whether there is `iperf3`; says so if not.
pub fn iperf3() -> bool {
    package("iperf3", on_path("iperf3").is_some())
}

/// Whether there is `prlimit`; says so if not.
pub fn prlimit() -> bool {
    package("util-linux", on_path("prlimit").is_some())
}

/// Whether there is PyTorch with Gloo; says so if not.
pub fn torch() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    // It is large: importing it takes seconds.
    let found = *FOUND.get_or_init(|| imports("torch.distributed"));
    package("python3-torch", found)
}

fn imports(module: &str) -> bool {
    let tried = Command::new(DEBIAN_PYTHON)
        .args(["-c", &format!("import {module}")])
        .output();
    tried.is_ok_and(|output| output.status.success())
}

/// Says that a package of Debian's is missing where it is.
///
/// # Panics
/// If it is, and `ULTIMA_REQUIRE_PACKAGES=1`.
fn package(name: &str, installed: bool) -> bool {
    if !installed {
        let required = env::var("ULTIMA_REQUIRE_PACKAGES").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{name} is not installed, and ULTIMA_REQUIRE_PACKAGES=1 requires it"
        );
        skipped(&format!(
            "{name} is not installed; on Debian: apt install {name}"
        ));
    }
    installed
}

/// The Python that runs clients: `ULTIMA_PYTHON`, or `python3`.
pub fn python() -> String {
    env::var("ULTIMA_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// The Python that runs p4runtime-shell, which wants an older p4runtime than the newest:
/// `ULTIMA_SHELL_PYTHON`, or the same.
pub fn shell_python() -> String {
    env::var("ULTIMA_SHELL_PYTHON").unwrap_or_else(|_| python())
}

/// The Python that runs finsy, whose protobuf is newer than others will have beside them:
/// `ULTIMA_FINSY_PYTHON`, or the same.
pub fn finsy_python() -> String {
    env::var("ULTIMA_FINSY_PYTHON").unwrap_or_else(|_| python())
}

/// The Python that runs pygnmi: `ULTIMA_GNMI_PYTHON`, or the same.
pub fn gnmi_python() -> String {
    env::var("ULTIMA_GNMI_PYTHON").unwrap_or_else(|_| python())
}

/// The program of PTF, the framework that `p4/ptf/` is for: `ULTIMA_PTF`, or `ptf` on the PATH, with interfaces; says so if
/// there is none. Its Python has p4runtime, too.
///
/// # Panics
/// If it is missing and `ULTIMA_REQUIRE_PYTHON=1`.
pub fn ptf() -> Option<PathBuf> {
    let found = env::var_os("ULTIMA_PTF").map(PathBuf::from);
    let found = found.or_else(|| on_path("ptf"));
    if found.is_none() {
        python_missing("PyPI's ptf is not on the PATH, nor named by ULTIMA_PTF");
    }
    found.filter(|_| interfaces())
}

/// Says that Python or a package is missing.
///
/// # Panics
/// If `ULTIMA_REQUIRE_PYTHON=1`.
pub(crate) fn python_missing(missing: &str) {
    let required = env::var("ULTIMA_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "{missing}, and ULTIMA_REQUIRE_PYTHON=1 requires it"
    );
    skipped(&format!(
        "{missing}; pip install p4runtime, p4runtime-shell, finsy, pygnmi, and ptf with p4runtime in a virtual environment each, \
         and set ULTIMA_PYTHON, ULTIMA_SHELL_PYTHON, ULTIMA_FINSY_PYTHON, ULTIMA_GNMI_PYTHON and ULTIMA_PTF"
    ));
}

/// Says why a test ends early. Written past `println!`, whose output the test harness hides when a test passes.
fn skipped(reason: &str) {
    // There is nobody to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}

/// The first file called `name` in the folders of the PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
