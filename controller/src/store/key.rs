//! The stored form of a sealed job's key.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ultima_wire::Key;

/// Writes a key as 32 hexadecimal digits, for `#[serde(with)]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(key: &Option<Key>, serializer: S) -> Result<S::Ok, S::Error> {
    let digits = key.map(|Key(key)| format!("{:032x}", u128::from_be_bytes(key)));
    digits.serialize(serializer)
}

/// Reads a key that [`serialize`] wrote.
///
/// # Errors
/// The text is not a key. The error does not repeat it.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Key>, D::Error> {
    let Some(digits) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let all = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let key = all
        .then(|| u128::from_str_radix(&digits, 16).ok())
        .flatten();
    match key {
        Some(key) => Ok(Some(Key(key.to_be_bytes()))),
        None => Err(D::Error::custom("a key has 32 hexadecimal digits")),
    }
}
