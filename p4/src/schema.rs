//! Whether two `bfrt.json` say the same. The compiler numbers and orders the chip's snapshots by where in memory it has ingress and egress,
//! which is another from run to run.

use std::collections::BTreeMap;

use serde_json::Value;

/// The table of both snapshots, which has its number of whichever the compiler came upon first.
const SNAPSHOTS: &str = ".snapshot.cfg";

/// Whether they are JSON with the same tables, in whatever order, and the same of everything else.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    matches!((read(one), read(other)), (Some(one), Some(other)) if one == other)
}

/// The tables by name, and all else; none where it is no such file.
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
    fn what_differs_from_run_to_run_is_the_same() {
        let swapped = r#"{"schema_version":"1","tables":[
            {"name":"pipe.share","id":1,"depends_on":[7,8]},
            {"name":"pipe.snapshot.cfg","id":5,"depends_on":[4,3]},
            {"name":"pipe.snapshot.egress","id":4},
            {"name":"pipe.snapshot.ingress","id":3}]}"#;
        assert!(is_same(PRINTED.as_bytes(), swapped.as_bytes()));
    }

    #[test]
    fn all_else_is_another() {
        assert!(!with(r#""id":1"#, r#""id":9"#));
        assert!(!with(r#""id":3}"#, r#""id":9}"#));
        assert!(!with("[7,8]", "[8,7]"));
        assert!(!with("[3,4]", "[3,5]"));
        assert!(!with("pipe.share", "pipe.shares"));
        assert!(!with(r#""1""#, r#""2""#));
        assert!(!is_same(b"{", b"{"));
    }
}
