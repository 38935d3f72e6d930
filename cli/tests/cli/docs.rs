//! The commands in README.md and docs/guide.md run as they are written, and their YAML is accepted.
//!
//! The word after `sh` in a fenced block says what its commands need: `test` nothing, `root` root, `bmv2` and `mininet` root and that
//! program, `hardware` what no test has. The blocks of one page and one need run in one shell, in their order, in a folder with the
//! shipped topologies and the page's first fabric.yaml and job.yaml. As root, they run in namespaces of their own.
//!
//! A block `python p4runtime-shell` runs with the blocks `sh test` of its page if p4runtime-shell is installed; `python/tests` has the
//! lines of blocks `python torch`. `cargo run` and `cargo test --workspace` are stubs: the first runs the binary that is already
//! built, the second does nothing, because this test is a part of it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, Uid};
use ultima_planner::{fabric, job};
use ultima_tests::needs;

/// Time limits of a script in seconds, in a quick and in a full run. A page takes ten seconds on an idle machine, minutes with whole demos.
const LIMITS: [u64; 2] = [120, 600];
/// The needs that a block may name.
const NEEDS: [&str; 5] = ["test", "root", "bmv2", "mininet", "hardware"];

/// A fenced block of a page.
struct Block {
    line: usize,
    /// The words behind the fence, such as `sh test`.
    info: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The fenced blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(page)).expect(page);
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (line, text) in (1..).zip(text.lines()) {
        match (text.strip_prefix("```"), is_open) {
            (Some(info), false) => {
                let info = info.to_owned();
                let text = String::new();
                blocks.push(Block { line, info, text });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => {
                let block = blocks.last_mut().expect("an open block");
                block.text += &format!("{text}\n");
            }
            (None, false) => assert!(
                !text.starts_with("    ") && !text.starts_with('\t'),
                "{page}:{line}: an indented block, which no test runs; use ```sh test, or as cli/tests/cli/docs.rs says"
            ),
        }
    }
    assert!(!is_open, "{page}: a block that does not end");
    blocks
}

/// The first block of a page with these words.
fn first<'a>(blocks: &'a [Block], info: &str) -> Option<&'a Block> {
    blocks.iter().find(|block| block.info == info)
}

/// The blocks of a page with a need, as one script.
fn script(page: &str, need: &str) -> String {
    let info = format!("sh {need}");
    let commands = |Block {
                        line,
                        info: of,
                        text,
                    }: Block| {
        let text = match of.as_str() {
            "python p4runtime-shell" if need == "test" => in_p4runtime_shell(&text)?,
            of if of == info => text,
            _ => return None,
        };
        Some(format!("echo '{page}:{line}' >&2\n{text}"))
    };
    blocks(page).into_iter().filter_map(commands).collect()
}

/// A command that runs Python statements as p4runtime-shell does: at the switch of the page, as a client that only reads. None if
/// p4runtime-shell is not installed.
fn in_p4runtime_shell(statements: &str) -> Option<String> {
    let python = needs::shell_python();
    let mut import = Command::new(&python);
    let import = import.args(["-c", "import p4runtime_sh.shell"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        needs::python_missing("PyPI's p4runtime-shell is not installed");
        return None;
    }
    Some(format!(
        "'{python}' - > printed <<'END'\n\
         import p4runtime_sh.shell as sh\n\
         sh.setup(device_id=1, grpc_addr='127.0.0.1:9559', election_id=(0, 1), verbose=False)\n\
         builder = sh.P4RuntimeEntityBuilder\n\
         counter_entry = builder(sh.P4Type.counter, sh.P4RuntimeEntity.counter_entry, sh.CounterEntry)\n\
         {statements}sh.teardown()\n\
         END\n\
         grep -q 'counter_id: .*UltimaIngress.admission.received' printed\n"
    ))
}

/// A folder as a reader has it, with an `ultima` and a `cargo` on its PATH.
fn folder(page: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for shipped in ["topologies", "examples"] {
        symlink(root().join(shipped), at(shipped)).expect("a link");
    }
    let blocks = blocks(page);
    for kind in ["fabric", "job"] {
        let block = first(&blocks, &format!("yaml {kind}"));
        let block = block.unwrap_or_else(|| panic!("{page} has no block `yaml {kind}`"));
        fs::write(at(&format!("{kind}.yaml")), &block.text).expect("written");
    }
    fs::create_dir(at("bin")).expect("a folder");
    let program = |name: &str, text: &str| {
        let file = at("bin").join(name);
        fs::write(&file, format!("#!/bin/bash\n{text}")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
    };
    let steps = match ultima_testing::full() {
        true => "",
        // Each demo trains for seconds otherwise.
        false => "[ \"$1\" = demo ] && set -- \"$@\" --steps 4",
    };
    let ultima = env!("CARGO_BIN_EXE_ultima");
    // Shells hide the failure of what runs in the background, or in front of a pipe. `until` waits for `controller status`.
    program(
        "ultima",
        &format!(
            "{steps}\n\"{ultima}\" \"$@\"\ncode=$?\n\
             case \"$code $1 $2\" in 0*|*' controller status') ;; *) echo \"ultima $*: exit code $code\" >> {} ;; esac\n\
             exit $code\n",
            at("failed").display()
        ),
    );
    // `cargo test` runs this test; what `cargo run` builds is there.
    program(
        "cargo",
        "case \"$*\" in\n\
         'run --release -- '*) shift 3; exec ultima \"$@\" ;;\n\
         'test --workspace') ;;\n\
         *) echo \"cargo $*: unknown to cli/tests/cli/docs.rs\"; exit 1 ;;\n\
         esac\n",
    );
    program("sudo", "exec \"$@\"\n");
    folder
}

/// Starts a script, as root in namespaces of its own: what it leaves there goes with it.
fn start(folder: &Path, script: &str) -> Child {
    let path = std::env::var("PATH").unwrap_or_default();
    let prelude = match Uid::effective().is_root() {
        true => "mount -t tmpfs tmpfs /run && ip link set lo up\n",
        false => "",
    };
    let script = format!("set -e\n{prelude}set -o pipefail\n{script}");
    let output = fs::File::create(folder.join("output")).expect("a file");
    let mut command = match Uid::effective().is_root() {
        true => {
            let mut command = Command::new("unshare");
            command.args([
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ]);
            command.arg("bash");
            command
        }
        false => Command::new("bash"),
    };
    command
        .args(["-c", &script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .env_remove("ULTIMA_CONTROLLER")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a file"))
        .stderr(output);
    command.spawn().expect("bash")
}

/// Runs the blocks of a page that have this need.
fn run(page: &str, need: &str) {
    let script = script(page, need);
    assert!(!script.is_empty(), "{page} has no block `sh {need}`");
    run_script(page, &script, &format!("{page}, blocks `sh {need}`"));
}

/// Runs a script in the folder of a page. Fails if a command fails, or if the script exceeds its time limit; errors name the script `name`.
fn run_script(page: &str, script: &str, name: &str) {
    let folder = folder(page);
    let mut child = start(folder.path(), script);
    let group = Pid::from_raw(child.id().cast_signed());
    let limit = Duration::from_secs(ultima_testing::per_run(LIMITS[0], LIMITS[1]));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            None if begun.elapsed() < limit => thread::sleep(Duration::from_millis(20)),
            status => break status,
        }
    };
    // Servers that a block leaves in the background; without any the group is gone.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
    let output = fs::read_to_string(folder.path().join("output")).expect("text");
    let failed = fs::read_to_string(folder.path().join("failed")).unwrap_or_default();
    let ended = status.is_some_and(|status| status.success());
    assert!(
        ended && failed.is_empty(),
        "{name}: {status:?} after {:?}\n{failed}{output}",
        begun.elapsed()
    );
}

#[test]
fn every_block_says_what_it_needs() {
    for page in ["README.md", "docs/guide.md"] {
        for Block { line, info, .. } in blocks(page) {
            let known = match info.split_once(' ') {
                Some(("sh", need)) => NEEDS.contains(&need),
                Some(("yaml", kind)) => ["fabric", "job", "contexts"].contains(&kind),
                Some(("python", with)) => ["p4runtime-shell", "torch"].contains(&with),
                _ => info == "text",
            };
            assert!(known, "{page}:{line}: unknown block `{info}`");
        }
    }
}

#[test]
fn fabrics_jobs_and_contexts_are_accepted() {
    for page in ["README.md", "docs/guide.md"] {
        for Block { line, info, text } in blocks(page) {
            let place = format!("{page}:{line}");
            match info.as_str() {
                "yaml fabric" => drop(fabric::parse(&text, &place).expect("a fabric")),
                "yaml job" => drop(job::parse(&text, &place).expect("a job")),
                "yaml contexts" => {
                    let folder = tempfile::tempdir().expect("a folder");
                    let file = folder.path().join("config.yaml");
                    fs::write(&file, text).expect("written");
                    let mut get = crate::common::ultima(&["get", "jobs"]);
                    let output = get
                        .env("ULTIMA_CONFIG", file)
                        .env_remove("ULTIMA_CONTROLLER")
                        .output();
                    let errors = String::from_utf8(output.expect("it runs").stderr).expect("text");
                    // The context's controller does not run.
                    assert!(
                        errors.contains("/run/ultima/labs/lab/"),
                        "{place}: {errors}"
                    );
                }
                _ => {}
            }
        }
    }
}

#[test]
fn commands_of_the_readme_run() {
    run("README.md", "test");
}

#[test]
fn commands_of_the_guide_run() {
    run("docs/guide.md", "test");
}

#[test]
fn labs_of_the_readme_run() {
    if needs::interfaces() {
        run("README.md", "root");
    }
}

#[test]
fn labs_of_the_guide_run() {
    if needs::interfaces() {
        run("docs/guide.md", "root");
    }
}

#[test]
fn labs_of_the_guide_run_on_bmv2() {
    if needs::bmv2().is_some() {
        run("docs/guide.md", "bmv2");
    }
}

#[test]
fn mininet_runs_as_the_guide_says() {
    if needs::mininet() {
        run("docs/guide.md", "mininet");
    }
}

#[test]
fn the_walkthrough_runs() {
    if needs::interfaces() {
        let script = "examples/walkthrough.sh";
        run_script("README.md", script, script);
    }
}

/// The words in backticks outside of fenced blocks that are paths of this repository: they end with `/`, have a file extension, or
/// begin with a folder of the repository. `NAME` stands for a name in paths of files that a reader adds: their folder must exist.
fn paths(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).expect(page);
    let outside: String = text.split("```").step_by(2).collect();
    let is_path = |word: &&str| {
        let is_relative = word.contains('/') && !word.starts_with('/');
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./".contains(it);
        let (first, _) = word.split_once('/').unwrap_or((*word, ""));
        let (_, last) = word.rsplit_once('/').unwrap_or(("", *word));
        let is_file_or_folder =
            last.is_empty() || last.contains('.') || root().join(first).is_dir();
        is_relative && word.chars().all(is_plain) && is_file_or_folder && first != "target"
    };
    let spans = outside.split('`').skip(1).step_by(2);
    let words = spans.flat_map(str::split_whitespace).filter(is_path);
    words.map(str::to_owned).collect()
}

#[test]
fn paths_in_the_text_exist() {
    for (page, least) in [
        ("README.md", 15),
        ("CONTRIBUTING.md", 15),
        ("docs/guide.md", 4),
    ] {
        let paths = paths(page);
        assert!(paths.len() >= least, "{page}: only {paths:?}");
        for path in paths {
            let existing = match path.rsplit_once('/') {
                Some((folder, file)) if file.contains("NAME") => folder,
                _ => path.as_str(),
            };
            assert!(
                root().join(existing).exists(),
                "{page}: `{path}` does not exist"
            );
        }
    }
}

/// The last cell of a claim has files, each with its tests: `FILE`: `test`, `test`; `FILE`: `test`.
#[test]
fn the_tests_of_each_security_claim_exist() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("text");
    let (_, claims) = page.split_once("| claim | how | test |").expect("a table");
    let (claims, _) = claims.split_once("\n\n").expect("its end");
    let mut tests = 0;
    for claim in claims.lines().skip(2) {
        let cells = claim.trim_end_matches(" |").rsplit_once("| ");
        let (_, cell) = cells.unwrap_or_else(|| panic!("{claim}"));
        for of_file in cell.split("; ") {
            let spans: Vec<&str> = of_file.split('`').skip(1).step_by(2).collect();
            let [file, names @ ..] = &spans[..] else {
                panic!("{claim}")
            };
            let path = root().join(file);
            let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(!names.is_empty(), "{claim}");
            for name in names {
                let is_there = text.contains(&format!("fn {name}("));
                assert!(is_there, "docs/security.md: {file} has no test {name}");
                tests += 1;
            }
        }
    }
    assert!(tests > 15, "only {tests}");
}

/// A heading as the part of a link behind `#`.
fn anchor(heading: &str) -> String {
    let text = heading.trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut pages = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "examples/README.md",
    ]
    .map(|page| root().join(page))
    .to_vec();
    let docs = fs::read_dir(root().join("docs")).expect("docs");
    pages.extend(docs.map(|entry| entry.expect("an entry").path()));
    pages.retain(|page| page.extension().is_some_and(|it| it == "md"));
    for page in pages {
        let text = fs::read_to_string(&page).expect("text");
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.with_file_name("").join(file),
            };
            let place = page.display();
            assert!(target.exists(), "{place}: {link} leads nowhere");
            if !part.is_empty() {
                let text = fs::read_to_string(&target).expect("text");
                let mut headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                let found = headings.any(|line| anchor(line.trim_start_matches('#')) == part);
                assert!(found, "{place}: {link}: no such heading");
            }
        }
    }
}
