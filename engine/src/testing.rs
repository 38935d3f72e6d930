//! A program with one of each array, for unit tests.

use std::collections::HashMap;

use super::TableInfo;
use super::{ActionInfo, ActionScope, ArrayInfo, Engine, FieldInfo, Limits, MatchKind, P4Info};

/// `copies.p4` with arrays of this many cells.
pub(super) fn engine(cells: u64) -> Engine {
    let json = include_bytes!("../../switch/tests/programs/copies.json");
    let mut json: serde_json::Value = serde_json::from_slice(json).expect("JSON");
    for kind in ["counter_arrays", "meter_arrays", "register_arrays"] {
        let arrays = json[kind].as_array_mut().into_iter().flatten();
        for array in arrays.filter(|array| array["is_direct"] != true) {
            array["size"] = cells.into();
        }
    }
    let json = serde_json::to_vec(&json).expect("JSON");
    Engine::load(&json, &p4info(cells), Limits::default()).expect("loads")
}

fn p4info(cells: u64) -> P4Info {
    let array = |name: &str, id| {
        let (size, signed) = (cells, false);
        HashMap::from([(name.to_owned(), ArrayInfo { id, size, signed })])
    };
    let action = |name: &str, params| ActionInfo {
        name: name.to_owned(),
        params,
    };
    let marks = TableInfo {
        id: 1,
        fields: vec![FieldInfo {
            id: 1,
            name: "hdr.orders.argument".into(),
            kind: MatchKind::Exact,
            width: 8,
        }],
        actions: vec![(1, ActionScope::Everywhere), (2, ActionScope::Everywhere)],
        size: 4,
        ..TableInfo::default()
    };
    P4Info {
        tables: HashMap::from([("Serve.marks".into(), marks)]),
        actions: HashMap::from([
            (1, action("Serve.mark", vec![(1, "kept".into())])),
            (2, action("NoAction", Vec::new())),
        ]),
        counters: array("Serve.seen", 1),
        meters: array("Serve.speed", 1),
        registers: array("Serve.memory", 1),
        direct: HashMap::from([("Serve.matched".into(), 1), ("Serve.pace".into(), 1)]),
        ..P4Info::default()
    }
}
