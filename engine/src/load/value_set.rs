//! Loads parser value sets: names from the file, everything else from P4Info.

use super::super::bits::MAX_KEY_BITS;
use super::super::error::LoadError;
use super::super::json;
use super::super::limits::Limits;
use super::super::p4info::P4Info;
use super::super::value_set::ValueSet;
use super::check_size;

/// The value sets of the file, empty.
pub(super) fn value_sets(
    file: &json::Program,
    p4info: Option<&P4Info>,
    limits: &Limits,
) -> Result<Vec<ValueSet>, LoadError> {
    let sets = file.parse_vsets.iter().map(|set| {
        let (name, at) = (&set.name, format!("value set {}", set.name));
        let Some(p4info) = p4info else {
            return Ok(ValueSet::new(0, name.clone(), 0, &[]));
        };
        let listed = p4info.value_sets.get(name);
        let listed = listed
            .ok_or_else(|| LoadError::p4info(format!("the P4Info has no value set {name}")))?;
        check_size("number of members", listed.size, limits.table_entries, &at)?;
        let bits: u64 = listed
            .fields
            .iter()
            .map(|field| u64::from(field.width))
            .sum();
        LoadError::check("width in bits", bits, MAX_KEY_BITS, &at)?;
        if bits != set.compressed_bitwidth {
            let have = set.compressed_bitwidth;
            let what = format!("{at} has {have} bits, {bits} in the P4Info");
            return Err(LoadError::p4info(what));
        }
        Ok(ValueSet::new(
            listed.id,
            name.clone(),
            listed.size as usize,
            &listed.fields,
        ))
    });
    sets.collect()
}
