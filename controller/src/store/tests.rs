use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn record(id: u16, epoch: u16) -> JobRecord {
    JobRecord {
        id,
        name: format!("job{id}"),
        epoch,
        seed: 7,
        counter: id,
        multicast: id.is_multiple_of(2).then(|| MulticastRecord {
            group: id,
            tree: vec![("s1".into(), 9)],
        }),
        loss_threshold: 1,
        weight: 1,
        members: vec![MemberRecord {
            host: "h1".into(),
            udp_port: 9000,
            source: 1,
            seat: SeatRecord::Joined,
        }],
        shares: vec![ShareRecord {
            switch: "s1".into(),
            port: 1,
            index: 2,
        }],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn what_is_put_in_is_there_again(changes in prop::collection::vec((1u16..6, 0u16..4), 0..12)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut jobs, mut last_id) = (BTreeMap::new(), 0);
        for (id, epoch) in changes {
            // Opened for each change, as if the controller had ended in between.
            let store = Store::open(&path).unwrap();
            match epoch {
                0 => {
                    store.remove(JobId(id)).unwrap();
                    jobs.remove(&id);
                }
                epoch => {
                    store.put(&record(id, epoch)).unwrap();
                    last_id = id;
                    jobs.insert(id, record(id, epoch));
                }
            }
        }
        let stored = Store::open(&path).unwrap().read().unwrap();
        prop_assert_eq!(stored, Stored { last_id, jobs: jobs.into_values().collect(), drained: vec![] });
    }
}

#[test]
fn what_is_drained_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    for (part, drained) in [
        ("s1", true),
        ("s1/9-s2/9", true),
        ("s1", true),
        ("s1", false),
    ] {
        Store::open(&path).unwrap().drain(part, drained).unwrap();
    }
    let stored = Store::open(&path).unwrap().read().unwrap();
    assert_eq!(stored.drained, ["s1/9-s2/9"]);
}

#[test]
fn files_that_are_none_of_ours_are_one_line_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let held = Store::open(&path).unwrap();
    let line = |path: &Path| Store::open(path).map(drop).unwrap_err().to_string();
    let shown = path.display();
    assert_eq!(
        line(&path),
        format!(
            "{shown} is open in another process; stop the other controller, or give this one another --state"
        )
    );
    held.change(|changes| Ok(changes.open_table(NUMBERS)?.insert(FORM, 2).map(drop)?))
        .unwrap();
    drop(held);
    assert_eq!(
        line(&path),
        format!(
            "{shown} has form 2, and this controller knows form 1; start the version that wrote it"
        )
    );
    std::fs::write(&path, "jobs: []\n".repeat(1000)).unwrap();
    let text = line(&path);
    assert!(
        text.starts_with(&format!("cannot open {shown}: ")) && !text.contains('\n'),
        "{text}"
    );
    let nowhere = folder.path().join("none/state");
    assert!(
        line(&nowhere).starts_with("cannot open "),
        "{}",
        line(&nowhere)
    );
}

#[test]
fn a_job_that_has_gone_does_not_come_back() {
    let store = Store::in_memory().unwrap();
    store.put(&record(1, 1)).unwrap();
    store.update(&[record(1, 2)]).unwrap();
    assert_eq!(store.read().unwrap().jobs, [record(1, 2)]);
    store.remove(JobId(1)).unwrap();
    store.update(&[record(1, 3)]).unwrap();
    assert_eq!(store.read().unwrap().jobs, []);
}
