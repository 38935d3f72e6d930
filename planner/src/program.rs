//! The P4 program that the controller installs on switches.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::text;
use ultima_p4runtime::tofino::{Packing, TofinoProgram};

use crate::fabric::Fabric;
use crate::target::ProgramForm;

/// A compiled program and its names.
#[derive(Clone, Debug)]
pub struct Program {
    form: ProgramForm,
    code: Code,
    names: Names,
    cookie: u64,
}

/// A program's code for its target.
#[derive(Clone, Debug)]
enum Code {
    /// p4c's BMv2 JSON.
    Bmv2(Vec<u8>),
    /// Tofino's binary, context and BfRt schema.
    Tofino(TofinoProgram),
}

/// A reason why a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProgramError(String);

/// The file name of a compiled Tofino program, and the name of its pipeline: the `Pipeline`
/// instance of `ultima_tna.p4`.
const TOFINO_NAME: &str = "ultima";
const TOFINO_PIPELINE: &str = "pipe";

impl Program {
    /// The v1model program in `device_config` (p4c's BMv2 JSON) and `p4info` (protobuf text
    /// format), which errors call `source_name`.
    ///
    /// # Errors
    /// The P4Info is invalid. The switch checks later that it fits the program.
    pub fn new(
        device_config: Vec<u8>,
        p4info: &str,
        source_name: &str,
    ) -> Result<Self, ProgramError> {
        let code = Code::Bmv2(device_config);
        Program::of(ProgramForm::Bmv2, code, p4info, source_name)
    }

    /// The program for the Tofino that `form` names, and its P4Info.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn tofino(
        form: ProgramForm,
        program: TofinoProgram,
        p4info: &str,
        source_name: &str,
    ) -> Result<Self, ProgramError> {
        Program::of(form, Code::Tofino(program), p4info, source_name)
    }

    fn of(
        form: ProgramForm,
        code: Code,
        p4info: &str,
        source_name: &str,
    ) -> Result<Self, ProgramError> {
        let p4info: P4Info =
            text::parse(p4info).map_err(|error| ProgramError(format!("{source_name}: {error}")))?;
        let names =
            Names::new(p4info).map_err(|error| ProgramError(format!("{source_name}: {error}")))?;
        let cookie = cookie(&code, names.p4info());
        Ok(Program {
            form,
            code,
            names,
            cookie,
        })
    }

    /// Loads a program from the folder of a compiler's output, or from p4c's BMv2 JSON and a P4Info
    /// file.
    ///
    /// # Errors
    /// A file is missing or cannot be read, or the P4Info is invalid.
    pub fn load(program: &Path, p4info: Option<&Path>) -> Result<Self, ProgramError> {
        match p4info {
            None => match std::fs::metadata(program) {
                Ok(it) if it.is_dir() => Program::load_folder(program),
                Ok(_) => Err(ProgramError(format!(
                    "{}: the program needs its P4Info; pass it with --p4info, or pass the folder of the compiler's output",
                    program.display()
                ))),
                Err(error) => Err(unreadable(program, error)),
            },
            Some(p4info) => Program::new(
                read(program)?,
                &read_text(p4info)?,
                &p4info.display().to_string(),
            ),
        }
    }

    /// Loads a program from a folder. The name of the binary identifies the chip; without a binary, the
    /// program is for v1model. The Tofino compiler puts binary and context into a folder named
    /// after the pipeline.
    fn load_folder(folder: &Path) -> Result<Self, ProgramError> {
        let p4info = only(folder, ".p4info.txtpb")?;
        let (text, source) = (read_text(&p4info)?, p4info.display().to_string());
        let in_folder = |name: &str| {
            let places = [folder.join(name), folder.join(TOFINO_PIPELINE).join(name)];
            places.into_iter().find(|path| path.is_file())
        };
        let forms = [
            (ProgramForm::Tofino, "tofino.bin"),
            (ProgramForm::Tofino2, "tofino2.bin"),
        ];
        let binary = forms
            .into_iter()
            .find_map(|(form, name)| Some((form, in_folder(name)?)));
        let missing = |pattern| not_one(folder, pattern, 0);
        let Some((form, binary)) = binary else {
            // Files that only the Tofino compiler writes.
            if ["bfrt.json", "context.json"]
                .into_iter()
                .any(|it| in_folder(it).is_some())
            {
                return Err(missing("tofino.bin or tofino2.bin"));
            }
            return Program::new(read(&only(folder, ".json")?)?, &text, &source);
        };
        let part = |name: &'static str| json(&in_folder(name).ok_or(missing(name))?);
        let program = TofinoProgram {
            name: TOFINO_NAME.into(),
            pipeline: TOFINO_PIPELINE.into(),
            bfrt: part("bfrt.json")?,
            context: part("context.json")?,
            binary: whole(&binary)?,
        };
        Program::tofino(form, program, &text, &source)
    }

    /// Ultima's embedded program for a fabric: the one for the first switch's target. The plan
    /// rejects switches that run another program.
    ///
    /// # Errors
    /// None, as long as the embedded files are the compilers' output.
    pub fn own(fabric: &Fabric) -> Result<Self, ProgramError> {
        let first = fabric.switches().first();
        let form = first.map_or(ProgramForm::Bmv2, |switch| switch.target.program);
        let own = match form {
            ProgramForm::Bmv2 => return Program::v1model(),
            ProgramForm::Tofino => ultima_p4::tofino(),
            ProgramForm::Tofino2 => ultima_p4::tofino2(),
        };
        let program = TofinoProgram {
            name: TOFINO_NAME.into(),
            pipeline: TOFINO_PIPELINE.into(),
            bfrt: own.bfrt,
            context: own.context,
            binary: own.binary,
        };
        Program::tofino(form, program, own.p4info, "ultima.p4info.txtpb")
    }

    /// Ultima's embedded program for v1model.
    ///
    /// # Errors
    /// None, as long as the embedded files are p4c's output.
    pub fn v1model() -> Result<Self, ProgramError> {
        let ultima_p4::Program {
            device_config,
            p4info,
        } = ultima_p4::v1model();
        Program::new(device_config.to_vec(), p4info, "ultima.p4info.txtpb")
    }

    /// The targets that run the program.
    pub fn form(&self) -> ProgramForm {
        self.form
    }

    /// The `p4_device_config` for a switch whose server takes Tofino programs in this packing.
    pub fn device_config(&self, packing: Packing) -> Vec<u8> {
        match &self.code {
            Code::Bmv2(json) => json.clone(),
            Code::Tofino(program) => program.pack(packing),
        }
    }

    /// The program's tables, actions and counters by name.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The pipeline's cookie (P4Runtime §7.1): a digest of the program and its P4Info, by which a
    /// controller recognises the program on a switch.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

fn cookie(code: &Code, p4info: &P4Info) -> u64 {
    let digest = match code {
        Code::Bmv2(json) => Sha256::digest(json),
        // The digest does not depend on the server's packing.
        Code::Tofino(program) => Sha256::digest(program.pack(Packing::Stratum)),
    };
    let digest = Sha256::new()
        .chain_update(digest)
        .chain_update(p4info.encode_to_vec())
        .finalize();
    let first: [u8; 8] = digest[..8].try_into().expect("a digest has 32 bytes");
    u64::from_be_bytes(first)
}

fn read(path: &Path) -> Result<Vec<u8>, ProgramError> {
    std::fs::read(path).map_err(|source| unreadable(path, source))
}

/// Reads a file that must not be empty.
fn whole(path: &Path) -> Result<Vec<u8>, ProgramError> {
    let bytes = read(path)?;
    match bytes.is_empty() {
        true => Err(bad_part(path, "the file is empty")),
        false => Ok(bytes),
    }
}

/// Reads a file that must be JSON.
fn json(path: &Path) -> Result<Vec<u8>, ProgramError> {
    let bytes = whole(path)?;
    let parsed: Result<serde::de::IgnoredAny, _> = serde_json::from_slice(&bytes);
    match parsed {
        Ok(_) => Ok(bytes),
        Err(error) => Err(bad_part(path, format!("the file is not JSON: {error}"))),
    }
}

fn bad_part(path: &Path, reason: impl Display) -> ProgramError {
    ProgramError(format!(
        "{}: {reason}; compile the program again, or pass a folder such as p4/compiled/tofino",
        path.display()
    ))
}

fn read_text(path: &Path) -> Result<String, ProgramError> {
    std::fs::read_to_string(path).map_err(|source| unreadable(path, source))
}

fn unreadable(path: &Path, error: std::io::Error) -> ProgramError {
    ProgramError(format!(
        "cannot read {}: {error}; pass the folder of the compiler's output, or p4c's BMv2 JSON file and its P4Info with --p4info",
        path.display()
    ))
}

fn not_one(folder: &Path, pattern: &str, found: usize) -> ProgramError {
    ProgramError(format!(
        "{}: found {found} files named {pattern}, expected one; pass the folder of the compiler's output, such as p4/compiled/tofino",
        folder.display()
    ))
}

/// Finds the only file in a folder whose name ends in `pattern`. Ignores Ultima's own manifest.
fn only(folder: &Path, pattern: &'static str) -> Result<PathBuf, ProgramError> {
    let entries = std::fs::read_dir(folder).map_err(|source| unreadable(folder, source))?;
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let name = entry
            .map_err(|source| unreadable(folder, source))?
            .file_name();
        let is_one = name.to_string_lossy().ends_with(pattern) && name != "manifest.json";
        found.extend(is_one.then(|| folder.join(name)));
    }
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(found) => Err(not_one(folder, pattern, found.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_identify_programs() {
        let program = Program::v1model().unwrap();
        assert_eq!(program.cookie(), Program::v1model().unwrap().cookie());
        let mut other = program.device_config(Packing::Stratum);
        other.push(b' ');
        let p4info = program.names().p4info();
        assert_ne!(program.cookie(), cookie(&Code::Bmv2(other), p4info));
        let mut p4info = p4info.clone();
        p4info.tables[0].size += 1;
        assert_ne!(program.cookie(), cookie(&program.code, &p4info));
    }

    #[test]
    fn missing_programs_are_named() {
        let said = |program: &str| {
            let error = Program::load(Path::new(program), None).unwrap_err();
            error.to_string()
        };
        let missing = said("/nosuch/program");
        assert!(
            missing.starts_with("cannot read /nosuch/program: No such file")
                && missing.contains("; pass the folder of the compiler's output, or "),
            "{missing}"
        );
        let alone = said("Cargo.toml");
        assert!(
            alone.starts_with("Cargo.toml: the program needs its P4Info; "),
            "{alone}"
        );
    }

    /// A folder as the Tofino compiler leaves it: binary and context in the pipeline's folder, or
    /// next to the others.
    #[test]
    fn compiler_output_folders_are_programs() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
        let error = |pattern| {
            let error = Program::load(folder.path(), None).unwrap_err().to_string();
            let folder = folder.path().display();
            let expected = format!("{folder}: found 0 files named {pattern}, expected one;");
            assert!(error.starts_with(&expected), "{error}");
        };
        error(".p4info.txtpb");
        write("ultima.p4info.txtpb", ultima_p4::v1model().p4info);
        error(".json");
        std::fs::create_dir(at("pipe")).unwrap();
        write("bfrt.json", "{}");
        error("tofino.bin or tofino2.bin");
        write("pipe/tofino.bin", "");
        error("context.json");
        write("pipe/context.json", "{");
        let part = |name: &str, reason: &str| {
            let error = Program::load(folder.path(), None).unwrap_err().to_string();
            let expected = format!("{}: {reason}", at(name).display());
            assert!(error.starts_with(&expected), "{error}");
        };
        part("pipe/context.json", "the file is not JSON: EOF");
        write("pipe/context.json", "[]");
        part("pipe/tofino.bin", "the file is empty;");
        write("pipe/tofino.bin", "binary");
        let program = Program::load(folder.path(), None).unwrap();
        assert_eq!(program.form(), ProgramForm::Tofino);
        let unpacked = TofinoProgram::unpack(&program.device_config(Packing::Stratum)).unwrap();
        let expected = TofinoProgram {
            name: "ultima".into(),
            pipeline: "pipe".into(),
            bfrt: b"{}".to_vec(),
            context: b"[]".to_vec(),
            binary: b"binary".to_vec(),
        };
        assert_eq!(unpacked, expected);

        let v1model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4/compiled/v1model");
        let program = Program::load(&v1model, None).unwrap();
        assert_eq!(program.cookie(), Program::v1model().unwrap().cookie());
        let json = v1model.join("ultima.json");
        let error = Program::load(&json, None).unwrap_err().to_string();
        assert!(error.contains("pass it with --p4info"), "{error}");
    }
}
