//! Comparison of two `bfrt.json` by meaning. The compiler numbers and orders the chip's snapshot tables by the addresses of
//! its ingress and egress objects, so their order differs between runs.

use std::collections::BTreeMap;

use serde_json::Value;

/// End of the name of the table for both snapshots. It takes its id from the snapshot that the compiler met first.
const SNAPSHOTS: &str = ".snapshot.cfg";

/// True if both are JSON with the same tables in any order, and equal otherwise.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    matches!((read(one), read(other)), (Some(one), Some(other)) if one == other)
}

/// Returns the tables by name and the rest of the document, or `None` if the text is not a `bfrt.json`.
fn read(text: &[u8]) -> Option<(BTreeMap<String, Value>, Value)> {
    let mut schema: Value = serde_json::from_slice(text).ok()?;
    let Value::Array(tables) = schema.get_mut("tables")?.take() else {
        return None;
    };
    let count = tables.len();
    let mut by_name = BTreeMap::new();
    for mut table in tables {
        let name = table.get("name")?.as_str()?.to_owned();
        if name.ends_with(SNAPSHOTS) {
            table.as_object_mut()?.remove("id")?;
            let depends_on = table.get_mut("depends_on")?.as_array_mut()?;
            depends_on.sort_by_key(Value::as_u64);
        }
        by_name.insert(name, table);
    }
    (by_name.len() == count).then_some((by_name, schema))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = r#"{"tables":[
        {"name":"pipe.share","id":1,"depends_on":[7,8]},
        {"name":"pipe.snapshot.cfg","id":2,"depends_on":[3,4]},
        {"name":"pipe.snapshot.ingress","id":3},
        {"name":"pipe.snapshot.egress","id":4}],"schema_version":"1"}"#;

    fn with(from: &str, to: &str) -> bool {
        assert!(PRINTED.contains(from));
        is_same(PRINTED.as_bytes(), PRINTED.replace(from, to).as_bytes())
    }

    #[test]
    fn order_and_snapshot_ids_make_no_difference() {
        let swapped = r#"{"schema_version":"1","tables":[
            {"name":"pipe.share","id":1,"depends_on":[7,8]},
            {"name":"pipe.snapshot.cfg","id":5,"depends_on":[4,3]},
            {"name":"pipe.snapshot.egress","id":4},
            {"name":"pipe.snapshot.ingress","id":3}]}"#;
        assert!(is_same(PRINTED.as_bytes(), swapped.as_bytes()));
    }

    #[test]
    fn any_other_change_makes_a_difference() {
        assert!(!with(r#""id":1"#, r#""id":9"#));
        assert!(!with(r#""id":3}"#, r#""id":9}"#));
        assert!(!with("[7,8]", "[8,7]"));
        assert!(!with("[3,4]", "[3,5]"));
        assert!(!with("pipe.share", "pipe.shares"));
        assert!(!with(r#""1""#, r#""2""#));
        assert!(!is_same(b"{", b"{"));
    }
}
