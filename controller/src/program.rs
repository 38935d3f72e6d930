//! The program that the controller puts on its switches.

use std::path::{Path, PathBuf};

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::{Names, P4InfoError};
use ultima_p4runtime::text;

/// A compiled program and its names.
#[derive(Clone, Debug)]
pub struct Program {
    device_config: Vec<u8>,
    names: Names,
    cookie: u64,
}

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The P4Info is none.
    #[error("{source_name}: {error}")]
    Text {
        /// The file.
        source_name: String,
        /// What is wrong.
        error: text::TextError,
    },
    /// The P4Info contradicts itself.
    #[error("{source_name}: {error}")]
    P4Info {
        /// The file.
        source_name: String,
        /// What is wrong.
        error: P4InfoError,
    },
}

impl Program {
    /// The program in `device_config` (for v1model p4c's BMv2 JSON) and `p4info` (protobuf text
    /// format), which errors call `source_name`.
    ///
    /// # Errors
    /// The P4Info is none. Whether it fits the program is for the switch to say.
    pub fn new(
        device_config: Vec<u8>,
        p4info: &str,
        source_name: &str,
    ) -> Result<Self, ProgramError> {
        let source_name = || source_name.to_owned();
        let p4info: P4Info = text::parse(p4info).map_err(|error| ProgramError::Text {
            source_name: source_name(),
            error,
        })?;
        let names = Names::new(p4info).map_err(|error| ProgramError::P4Info {
            source_name: source_name(),
            error,
        })?;
        let cookie = cookie(&device_config, names.p4info());
        Ok(Program {
            device_config,
            names,
            cookie,
        })
    }

    /// The program in two files.
    ///
    /// # Errors
    /// A file cannot be read, or the P4Info is none.
    pub fn load(device_config: &Path, p4info: &Path) -> Result<Self, ProgramError> {
        let failed = |path: &Path, source| ProgramError::Read {
            path: path.to_owned(),
            source,
        };
        let config = std::fs::read(device_config).map_err(|error| failed(device_config, error))?;
        let text = std::fs::read_to_string(p4info).map_err(|error| failed(p4info, error))?;
        Program::new(config, &text, &p4info.display().to_string())
    }

    /// Ultima's own for v1model, embedded in this binary.
    ///
    /// # Errors
    /// None as long as what is embedded is what p4c printed.
    pub fn v1model() -> Result<Self, ProgramError> {
        let ultima_p4::Program {
            device_config,
            p4info,
        } = ultima_p4::v1model();
        Program::new(device_config.to_vec(), p4info, "ultima.p4info.txtpb")
    }

    /// What the target is given.
    pub fn device_config(&self) -> &[u8] {
        &self.device_config
    }

    /// Its tables, actions and counters by name.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What a switch that has this program says that it has (P4Runtime §7.1): a digest of the program and its P4Info, so that
    /// whoever comes to a switch knows the program again, and takes another version for another.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

fn cookie(device_config: &[u8], p4info: &P4Info) -> u64 {
    let digest = Sha256::new()
        .chain_update(Sha256::digest(device_config))
        .chain_update(p4info.encode_to_vec())
        .finalize();
    let first: [u8; 8] = digest[..8].try_into().expect("a digest has 32 bytes");
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_that_of_one_program() {
        let program = Program::v1model().unwrap();
        assert_eq!(program.cookie(), Program::v1model().unwrap().cookie());
        let mut other = program.device_config().to_vec();
        other.push(b' ');
        assert_ne!(program.cookie(), cookie(&other, program.names().p4info()));
        let mut p4info = program.names().p4info().clone();
        p4info.tables[0].size += 1;
        assert_ne!(program.cookie(), cookie(program.device_config(), &p4info));
    }
}
