//! The files of a P4 program: compiled JSON and P4Info.

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result};
use ultima_switch::ProgramFiles;

use ultima_console::input::{name_of, read_text};

/// The paths of a program and its P4Info.
#[derive(Clone, Copy)]
pub struct ProgramPaths<'a> {
    json: &'a Path,
    p4info: &'a Path,
}

impl<'a> ProgramPaths<'a> {
    /// The paths, if both are given.
    pub fn given(json: Option<&'a Path>, p4info: Option<&'a Path>) -> Option<Self> {
        let (json, p4info) = json.zip(p4info)?;
        Some(ProgramPaths { json, p4info })
    }

    /// Reads both files.
    pub fn read(self) -> Result<ProgramFiles> {
        Ok(ProgramFiles {
            json: fs::read(self.json).with_context(|| name_of(self.json))?,
            p4info: Some(read_text(self.p4info)?),
        })
    }

    /// Adds the program's path to an error.
    pub fn in_json(self, error: impl Into<Error>) -> Error {
        error.into().context(name_of(self.json))
    }

    /// Adds the P4Info's path to an error.
    pub fn in_p4info(self, error: impl Into<Error>) -> Error {
        error.into().context(name_of(self.p4info))
    }
}
