//! What a test needs of its machine. Where it is missing the test says so and ends.

use std::env;
use std::path::PathBuf;

use nix::unistd::Uid;

/// BMv2's switch with P4Runtime.
pub const BMV2: &str = "simple_switch_grpc";

/// Whether this process may make network namespaces and interfaces; says so if not.
pub fn root() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Where BMv2 is; says so if it is nowhere.
pub fn bmv2() -> Option<PathBuf> {
    let found = on_path(BMV2);
    if found.is_none() {
        println!("skipped: {BMV2} is not on the PATH");
    }
    found
}

/// The first executable called `name` on the PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
