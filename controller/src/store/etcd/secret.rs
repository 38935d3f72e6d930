//! Encryption of jobs' records in etcd, because they have the keys of sealed jobs.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

/// The shortest file: 256 bits.
const SHORTEST: usize = 32;
/// The first byte of an encrypted record. JSON does not begin with it.
const FORM: u8 = 1;

/// A secret that all controllers of a fabric share. `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(Arc<LessSafeKey>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The reason that a file is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret in {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// Others may read it.
    #[error("{}: other users can read this secret; run chmod 600 on it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// It can be guessed.
    #[error("{}: a secret of {bytes} bytes is too short; expected at least {SHORTEST}, such as from `openssl rand -base64 32`", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
}

impl Secret {
    /// Reads a secret: any file of at least 32 bytes that only its owner can read.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        let failed = |reason| SecretError::Read {
            path: path.to_owned(),
            reason,
        };
        let bytes = fs::read(path).map_err(failed)?;
        if fs::metadata(path).map_err(failed)?.mode() & 0o077 != 0 {
            return Err(SecretError::Open {
                path: path.to_owned(),
            });
        }
        let material = bytes.trim_ascii_end();
        if material.len() < SHORTEST {
            return Err(SecretError::Short {
                path: path.to_owned(),
                bytes: material.len(),
            });
        }
        let drawn = Salt::new(HKDF_SHA256, b"").extract(material);
        let drawn = drawn.expand(&[b"Ultima: records in etcd"], &AES_256_GCM);
        let key = UnboundKey::from(drawn.expect("the length is the cipher's"));
        Ok(Secret(Arc::new(LessSafeKey::new(key))))
    }

    /// Encrypts the value of a key of etcd: AES-256-GCM with a random nonce, bound to the key's name.
    pub(super) fn seal(&self, name: &[u8], value: &[u8]) -> Vec<u8> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut sealed = value.to_vec();
        let of = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .0
            .seal_in_place_separate_tag(of, Aad::from(name), &mut sealed);
        let tag = tag.expect("a record is short");
        [&[FORM], &nonce[..], &sealed, tag.as_ref()].concat()
    }

    /// Decrypts a value. None if it was encrypted with another secret or for another key.
    fn open(&self, name: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk()?;
        let mut value = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::from(name), &mut value);
        let length = opened.ok()?.len();
        value.truncate(length);
        Some(value)
    }
}

/// True if `value` is a record that is not encrypted.
pub(super) fn is_plain(value: &[u8]) -> bool {
    value.first() != Some(&FORM)
}

/// The record that `value` is, encrypted or not. None if it needs another secret.
pub(super) fn opened(secret: Option<&Secret>, name: &[u8], value: Vec<u8>) -> Option<Vec<u8>> {
    match value.split_first() {
        Some((&FORM, sealed)) => secret?.open(name, sealed),
        _ => Some(value),
    }
}
