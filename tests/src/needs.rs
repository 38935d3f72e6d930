//! The requirements of tests: root, a package, a full run. A test without one of them prints the reason and ends.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::Uid;
pub use ultima_testing::full_run;
use ultima_testing::skipped;

use crate::netns;

/// The program of BMv2's switch with P4Runtime.
const BMV2: &str = "simple_switch_grpc";

/// True if this process can make network namespaces and interfaces.
pub fn interfaces() -> bool {
    static PROBLEM: OnceLock<Option<String>> = OnceLock::new();
    let problem = PROBLEM.get_or_init(|| {
        if !Uid::effective().is_root() {
            return Some("needs root".into());
        }
        // Root in a container may lack capabilities.
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

/// The path of BMv2 in a full run, as [`bmv2_installed`].
pub fn bmv2() -> Option<PathBuf> {
    full_run().then(bmv2_installed).flatten()
}

/// The path of BMv2, if it is installed and can have interfaces.
pub fn bmv2_installed() -> Option<PathBuf> {
    let found = on_path(BMV2);
    if found.is_none() {
        skipped(&format!("{BMV2} is not on the PATH"));
    }
    found.filter(|_| interfaces())
}

/// The Python of Debian's packages, such as Mininet and PyTorch.
pub const DEBIAN_PYTHON: &str = "/usr/bin/python3";

/// True if Mininet can run.
pub fn mininet() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = || on_path("mnexec").is_some() && has_module("mininet");
    package("mininet", *FOUND.get_or_init(found)) && interfaces()
}

/// True if `iperf3` is installed.
pub fn iperf3() -> bool {
    package("iperf3", on_path("iperf3").is_some())
}

/// True if `prlimit` is installed.
pub fn prlimit() -> bool {
    package("util-linux", on_path("prlimit").is_some())
}

/// libfaketime for processes with threads, which sets a program's clock.
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    let library = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    let found = folders.map(library).find(|path| path.exists());
    package("faketime", found.is_some());
    found
}

/// True if PyTorch is installed. Debian's has Gloo.
pub fn torch() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| has_module("torch"));
    package("python3-torch", found)
}

/// The Python with PyTorch and this repository's package: `ULTIMA_BENCH_PYTHON`. Needs interfaces.
pub fn bench_python() -> Option<PathBuf> {
    let found = env::var_os("ULTIMA_BENCH_PYTHON").map(PathBuf::from);
    if found.is_none() {
        skipped(
            "ULTIMA_BENCH_PYTHON is not set: the Python of a virtual environment with PyTorch and `pip install ./python`",
        );
    }
    found.filter(|_| interfaces())
}

/// The path of Chromium.
pub fn chromium() -> Option<PathBuf> {
    let found = on_path("chromium").or_else(|| on_path("chromium-headless-shell"));
    package("chromium-headless-shell", found.is_some());
    found
}

/// True if Debian's Python has a module. Does not import it: PyTorch takes seconds.
fn has_module(module: &str) -> bool {
    let find =
        "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)";
    let tried = Command::new(DEBIAN_PYTHON)
        .args(["-c", find, module])
        .output();
    tried.is_ok_and(|output| output.status.success())
}

/// Returns `installed`; if it is false, prints the name of the missing Debian package.
///
/// # Panics
/// If `installed` is false and `ULTIMA_REQUIRE_PACKAGES=1`.
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

/// The Python with PyPI's p4runtime: `ULTIMA_PYTHON`, or `python3`.
pub fn python() -> String {
    env::var("ULTIMA_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// The Python with p4runtime-shell, which needs an older p4runtime: `ULTIMA_SHELL_PYTHON`, or [`python`].
pub fn shell_python() -> String {
    env::var("ULTIMA_SHELL_PYTHON").unwrap_or_else(|_| python())
}

/// The Python with finsy, which needs a newer protobuf than others: `ULTIMA_FINSY_PYTHON`, or [`python`].
pub fn finsy_python() -> String {
    env::var("ULTIMA_FINSY_PYTHON").unwrap_or_else(|_| python())
}

/// The Python with pygnmi: `ULTIMA_GNMI_PYTHON`, or [`python`].
pub fn gnmi_python() -> String {
    env::var("ULTIMA_GNMI_PYTHON").unwrap_or_else(|_| python())
}

/// The path of PTF, which runs `p4/ptf/`: `ULTIMA_PTF`, or `ptf` on the PATH. Needs interfaces. PTF's Python has p4runtime.
///
/// # Panics
/// If PTF is missing and `ULTIMA_REQUIRE_PYTHON=1`.
pub fn ptf() -> Option<PathBuf> {
    let found = env::var_os("ULTIMA_PTF").map(PathBuf::from);
    let found = found.or_else(|| on_path("ptf"));
    if found.is_none() {
        python_missing("PyPI's ptf is not on the PATH, and ULTIMA_PTF is not set");
    }
    found.filter(|_| interfaces())
}

/// Prints that Python or a package from PyPI is missing.
///
/// # Panics
/// If `ULTIMA_REQUIRE_PYTHON=1`.
pub fn python_missing(missing: &str) {
    let required = env::var("ULTIMA_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "{missing}, and ULTIMA_REQUIRE_PYTHON=1 requires it"
    );
    skipped(&format!(
        "{missing}; pip install p4runtime, p4runtime-shell, finsy, pygnmi, and ptf with p4runtime, each in its own virtual \
         environment, and set ULTIMA_PYTHON, ULTIMA_SHELL_PYTHON, ULTIMA_FINSY_PYTHON, ULTIMA_GNMI_PYTHON and ULTIMA_PTF"
    ));
}

/// The first file called `name` in the folders of the PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
