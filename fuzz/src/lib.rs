//! The fuzz targets, one function for each.
//!
//! None of them may panic, whatever the input is; sanitizers and libFuzzer's limits watch memory
//! and time. The seeds, and what was found before, are also this crate's test, with a stable
//! toolchain; and the targets, built without cargo-fuzz, run over files (see [`target`]).

mod p4runtime;
mod packets;
mod programs;
pub mod target;
mod updates;

pub use p4runtime::p4runtime;
pub use packets::packets;

use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::text;
use ultima_switch::engine::Limits;

use packets::{agree, send};
use programs::PROGRAMS;

/// BMv2 JSON, as anyone may send it in a forwarding pipeline config. The first byte chooses the
/// P4Info that comes with it. What loads also runs a few frames.
pub fn bmv2_json(data: &[u8]) {
    let Some((first, json)) = data.split_first() else {
        return;
    };
    let program = &PROGRAMS[usize::from(*first) % PROGRAMS.len()];
    let load = || ultima_switch::p4info::load(json, &program.p4info(), Limits::default());
    if let (Ok(mut plain), Ok(mut recorded)) = (load(), load()) {
        for frame in [
            &[][..],
            &[0; 60],
            &[0xff; 200],
            json.get(..100).unwrap_or(json),
        ] {
            agree((&mut plain, &mut recorded), 1, frame, 0);
        }
    }
}

/// P4Info in text format. What is P4Info is looked up by name and loaded with a program that may
/// not be its own; the first byte chooses that.
pub fn p4info(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let Ok(written) = std::str::from_utf8(rest) else {
        return;
    };
    let Ok(p4info) = text::parse::<P4Info>(written) else {
        return;
    };
    let printed = text::print(&p4info);
    let again = text::parse::<P4Info>(&printed).expect("what is printed can be read");
    assert!(again == p4info, "what is printed is what was read");
    let _ = Names::new(p4info.clone());
    let program = &PROGRAMS[usize::from(*first) % PROGRAMS.len()];
    if let Ok(mut engine) = ultima_switch::p4info::load(program.json, &p4info, Limits::default()) {
        send(&mut engine, 1, &[0; 60], 0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// Runs every file of a target's folder.
    fn run(target: &str, run: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
        let files = fs::read_dir(folder.join(target)).expect("the target has seeds");
        let mut count = 0;
        for file in files {
            let path = file.expect("a file").path();
            // A panic names the file that it is about.
            println!("{}", path.display());
            run(&fs::read(&path).expect("it can be read"));
            count += 1;
        }
        assert!(count >= 3, "{target} has {count} seeds");
    }

    #[test]
    fn bmv2_json() {
        run("bmv2_json", super::bmv2_json);
    }

    #[test]
    fn p4info() {
        run("p4info", super::p4info);
    }

    #[test]
    fn packets() {
        run("packets", super::packets);
    }

    #[test]
    fn p4runtime() {
        run("p4runtime", super::p4runtime);
    }
}
