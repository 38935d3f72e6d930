//! The programs that inputs meet: this project's test programs, and the one it is made for.

use std::sync::LazyLock;

use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::text;
use ultima_p4runtime::v1::WriteRequest;
use ultima_switch::ProgramFiles;

/// A program, and what is in its tables.
pub struct Program {
    pub json: &'static [u8],
    pub p4info_text: &'static str,
    /// A WriteRequest in text format.
    entries: &'static str,
    parsed: LazyLock<P4Info>,
}

impl Program {
    pub fn p4info(&self) -> P4Info {
        self.parsed.clone()
    }

    pub fn files(&self) -> ProgramFiles {
        ProgramFiles {
            json: self.json.to_vec(),
            p4info: Some(self.p4info_text.to_owned()),
        }
    }

    pub fn entries(&self) -> WriteRequest {
        text::parse(self.entries).expect("the entries are a WriteRequest")
    }
}

macro_rules! programs {
    ($($path:literal: $entries:literal,)*) => {
        pub static PROGRAMS: [Program; [$($path),*].len()] = [$(Program {
            json: include_bytes!(concat!("../../", $path, ".json")),
            p4info_text: include_str!(concat!("../../", $path, ".p4info.txtpb")),
            entries: include_str!(concat!("entries/", $entries, ".txtpb")),
            parsed: LazyLock::new(|| {
                text::parse(include_str!(concat!("../../", $path, ".p4info.txtpb")))
                    .expect("the compiler's P4Info")
            }),
        }),*];
    };
}

programs! {
    "switch/tests/programs/copies": "copies",
    "switch/tests/programs/testbed": "testbed",
    "switch/tests/programs/parsing": "none",
    "switch/tests/programs/lookups": "none",
    "switch/tests/programs/arithmetic": "none",
    "switch/tests/programs/value_sets": "none",
    "switch/tests/programs/profiles": "none",
    "switch/tests/programs/controller": "none",
    "p4/compiled/v1model/ultima": "none",
    "switch/tests/programs/translated": "none",
    "switch/tests/programs/tables": "none",
    "switch/tests/programs/hashes": "none",
}
