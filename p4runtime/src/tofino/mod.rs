//! A program for Tofino: packing of the compiler's output into one `p4_device_config`, and the chips' numbers ([`Chip`]).
//!
//! Stratum takes a [`BfPipelineConfig`]. Servers on PI, such as the SDE's P4Runtime agent, take name, binary and context in
//! a row, each with its length in front.

mod chip;

use prost::Message as _;

pub use chip::{Chip, MAX_DIGEST_BITS, METER, MeterPrecision, PortFault, TOFINO, TOFINO2, pipe_of};

use crate::stratum::barefoot::BfPipelineConfig;
use crate::stratum::barefoot::bf_pipeline_config::Profile;

/// A compiled program of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TofinoProgram {
    /// The program's name.
    pub name: String,
    /// The name of the program's `Pipeline` instance.
    pub pipeline: String,
    /// The compiler's `bfrt.json`.
    pub bfrt: Vec<u8>,
    /// The assembler's `context.json`.
    pub context: Vec<u8>,
    /// The assembler's `tofino.bin` or `tofino2.bin`.
    pub binary: Vec<u8>,
}

/// The form in which a server takes a program for Tofino.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Stratum's: a [`BfPipelineConfig`].
    #[default]
    Stratum,
    /// PI's: name, binary and context, each with its length in front (four bytes, little-endian).
    Pi,
}

/// The pipes that the pipeline runs on: all pipes of the largest chips, as in the compiler's configuration for any chip.
const PIPE_SCOPE: [u32; 4] = [0, 1, 2, 3];

/// Why bytes are not a program for Tofino.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// Not Stratum's message.
    #[error("p4_device_config: {0}; expected a BfPipelineConfig")]
    Message(String),
    /// Not one pipeline.
    #[error("BfPipelineConfig: {0} profiles, expected 1")]
    Profiles(usize),
    /// An empty field.
    #[error("BfPipelineConfig: {0} is empty, expected a value")]
    Empty(&'static str),
}

impl TofinoProgram {
    /// Returns the program in the form of a server, for all pipes.
    pub fn pack(&self, packing: Packing) -> Vec<u8> {
        match packing {
            Packing::Stratum => BfPipelineConfig {
                p4_name: self.name.clone(),
                bfruntime_info: self.bfrt.clone(),
                profiles: vec![Profile {
                    profile_name: self.pipeline.clone(),
                    context: self.context.clone(),
                    binary: self.binary.clone(),
                    pipe_scope: PIPE_SCOPE.to_vec(),
                }],
            }
            .encode_to_vec(),
            Packing::Pi => {
                let parts = [self.name.as_bytes(), &self.binary, &self.context];
                let part = |part: &[u8]| {
                    // The compiler's files have a few megabytes.
                    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
                    [&length.to_le_bytes(), part].concat()
                };
                parts.map(part).concat()
            }
        }
    }

    /// Reads the program in Stratum's message.
    ///
    /// # Errors
    /// The bytes are not a BfPipelineConfig, or a field that every chip needs is empty.
    pub fn unpack(device_config: &[u8]) -> Result<Self, UnpackError> {
        let config = BfPipelineConfig::decode(device_config)
            .map_err(|error| UnpackError::Message(error.to_string()))?;
        let count = config.profiles.len();
        let [profile] =
            <[Profile; 1]>::try_from(config.profiles).map_err(|_| UnpackError::Profiles(count))?;
        let program = TofinoProgram {
            name: config.p4_name,
            pipeline: profile.profile_name,
            bfrt: config.bfruntime_info,
            context: profile.context,
            binary: profile.binary,
        };
        for (part, is_empty) in [
            ("p4_name", program.name.is_empty()),
            ("bfruntime_info", program.bfrt.is_empty()),
            ("profile_name", program.pipeline.is_empty()),
            ("context", program.context.is_empty()),
            ("binary", program.binary.is_empty()),
            ("pipe_scope", profile.pipe_scope.is_empty()),
        ] {
            if is_empty {
                return Err(UnpackError::Empty(part));
            }
        }
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> TofinoProgram {
        TofinoProgram {
            name: "up".into(),
            pipeline: "pipe".into(),
            bfrt: b"{}".to_vec(),
            context: b"[]!".to_vec(),
            binary: vec![0xB1, 0x00],
        }
    }

    /// Written out by hand from the numbers in bf.proto: 0x0A is field 1 as bytes, and so on.
    #[test]
    fn stratum_gets_its_message() {
        let expected = [
            &[0x0A, 2][..], // p4_name
            b"up",
            &[0x12, 2], // bfruntime_info
            b"{}",
            &[0x1A, 21], // a profile of 21 bytes
            &[0x0A, 4],  // profile_name
            b"pipe",
            &[0x12, 3], // context
            b"[]!",
            &[0x1A, 2, 0xB1, 0x00], // binary
            &[0x22, 4, 0, 1, 2, 3], // pipe_scope, packed
        ]
        .concat();
        assert_eq!(program().pack(Packing::Stratum), expected);
        assert_eq!(TofinoProgram::unpack(&expected), Ok(program()));
    }

    #[test]
    fn pi_gets_three_parts_with_their_lengths() {
        let expected = [
            &[2, 0, 0, 0][..],
            b"up",
            &[2, 0, 0, 0, 0xB1, 0x00],
            &[3, 0, 0, 0],
            b"[]!",
        ]
        .concat();
        assert_eq!(program().pack(Packing::Pi), expected);
    }

    #[test]
    fn incomplete_programs_are_rejected() {
        let with = |change: fn(&mut TofinoProgram)| {
            let mut program = program();
            change(&mut program);
            TofinoProgram::unpack(&program.pack(Packing::Stratum))
        };
        assert_eq!(
            with(|program| program.binary.clear()),
            Err(UnpackError::Empty("binary"))
        );
        assert_eq!(
            with(|program| program.context.clear()),
            Err(UnpackError::Empty("context"))
        );
        let mut message = program().pack(Packing::Stratum);
        let mut nowhere = BfPipelineConfig::decode(&message[..]).unwrap();
        nowhere.profiles[0].pipe_scope.clear();
        message = nowhere.encode_to_vec();
        assert_eq!(
            TofinoProgram::unpack(&message),
            Err(UnpackError::Empty("pipe_scope"))
        );
        assert_eq!(TofinoProgram::unpack(&[]), Err(UnpackError::Profiles(0)));
        let json = TofinoProgram::unpack(b"{ \"program\": 1 }").unwrap_err();
        assert!(matches!(json, UnpackError::Message(_)), "{json}");
    }
}
