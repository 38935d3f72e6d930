//! The two files of a program.

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result};
use ultima_switch::ProgramFiles;

use ultima_console::input::{name_of, read_text};

/// Where a program and its P4Info are.
#[derive(Clone, Copy)]
pub struct ProgramPaths<'a> {
    json: &'a Path,
    p4info: &'a Path,
}

impl<'a> ProgramPaths<'a> {
    /// Both, if they are given.
    pub fn given(json: Option<&'a Path>, p4info: Option<&'a Path>) -> Option<Self> {
        let (json, p4info) = json.zip(p4info)?;
        Some(ProgramPaths { json, p4info })
    }

    /// Reads both.
    pub fn read(self) -> Result<ProgramFiles> {
        Ok(ProgramFiles {
            json: fs::read(self.json).with_context(|| name_of(self.json))?,
            p4info: read_text(self.p4info)?,
        })
    }

    /// An error in the program, with its file.
    pub fn in_json(self, error: impl Into<Error>) -> Error {
        error.into().context(name_of(self.json))
    }

    /// An error in the P4Info, with its file.
    pub fn in_p4info(self, error: impl Into<Error>) -> Error {
        error.into().context(name_of(self.p4info))
    }
}
