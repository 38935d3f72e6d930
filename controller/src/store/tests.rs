use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use redb::StorageBackend;
use ultima_wire::Key;

use super::*;

/// The term of a controller without peers.
const ALONE: Term = Term { number: 0, by: 1 };

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
        evict_after_s: 0,
        created_at: 1_700_000_000,
        key: (!id.is_multiple_of(2)).then_some(Key([id as u8; 16])),
        members: vec![MemberRecord {
            host: "h1".into(),
            udp_port: 9000,
            source: 1,
            seat: SeatRecord::Joined,
            attempt: id.into(),
        }],
        shares: vec![ShareRecord {
            switch: "s1".into(),
            port: 1,
            index: 2,
        }],
        origin: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(4, 50)))]
    #[test]
    fn reopened_stores_have_all_changes(changes in prop::collection::vec((1u16..6, 0u16..4), 0..12)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut jobs, mut last_id) = (BTreeMap::new(), 0);
        for (id, epoch) in changes {
            // Reopened for each change, as after a restart.
            let store = Store::open(&path).unwrap();
            match epoch {
                0 => {
                    store.commit(ALONE, &Change::Remove(vec![id])).unwrap();
                    jobs.remove(&id);
                }
                epoch => {
                    store.commit(ALONE, &Change::Put(vec![record(id, epoch)])).unwrap();
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
fn keys_are_stored_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let sealed = JobRecord {
        key: Some(Key(*b"\x01\xab is the key...")),
        ..record(1, 1)
    };
    let store = Store::open(&path).unwrap();
    store
        .commit(ALONE, &Change::Put(vec![sealed.clone()]))
        .unwrap();
    assert_eq!(store.read().unwrap().jobs.first(), Some(&sealed));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others read it");
    let printed = format!("{sealed:?} {:#?}", Change::Put(vec![sealed.clone()]));
    assert!(printed.contains("Key(..)"));
    assert!(
        !printed.contains("171") && !printed.contains("01ab"),
        "{printed}"
    );

    let mut text = serde_json::to_value(&sealed).unwrap();
    assert_eq!(text["key"], "01ab20697320746865206b65792e2e2e");
    text["key"] = serde_json::Value::Null;
    let open: JobRecord = serde_json::from_value(text.clone()).unwrap();
    assert_eq!(
        open,
        JobRecord {
            key: None,
            ..sealed
        }
    );
    assert_eq!(serde_json::to_value(&open).unwrap(), text);
    for wrong in ["", "01ab", "+1ab20697320746865206b65792e2e2e"] {
        text["key"] = wrong.into();
        let error = serde_json::from_value::<JobRecord>(text.clone()).unwrap_err();
        assert_eq!(error.to_string(), "a key has 32 hexadecimal digits");
    }
}

#[test]
fn drained_elements_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    for (part, drained) in [
        ("s1", true),
        ("s1/9-s2/9", true),
        ("s1", true),
        ("s1", false),
    ] {
        let part = part.to_owned();
        let change = Change::Drain { part, drained };
        Store::open(&path).unwrap().commit(ALONE, &change).unwrap();
    }
    let stored = Store::open(&path).unwrap().read().unwrap();
    assert_eq!(stored.drained, ["s1/9-s2/9"]);
}

#[test]
fn foreign_files_give_one_line_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let held = Store::open(&path).unwrap();
    let line = |path: &Path| Store::open(path).map(drop).unwrap_err().to_string();
    let shown = path.display();
    assert_eq!(
        line(&path),
        format!(
            "{shown}: open in another process; stop the other controller, or pass another file with --state"
        )
    );
    held.write(|changes| Ok(changes.open_table(NUMBERS)?.insert(FORM, 2).map(drop)?))
        .unwrap();
    drop(held);
    assert_eq!(
        line(&path),
        format!(
            "{shown}: store format 2 is unknown (this controller reads format 1); start the version that wrote the file, or pass another --state"
        )
    );
    std::fs::write(&path, "jobs: []\n".repeat(1000)).unwrap();
    let text = line(&path);
    assert_eq!(
        text,
        format!(
            "{shown} is not a store of Ultima; pass --state with a controller's store or a new file"
        )
    );
    let nowhere = folder.path().join("none/state");
    assert!(
        line(&nowhere).starts_with("cannot open "),
        "{}",
        line(&nowhere)
    );
}

#[test]
fn updates_do_not_add_removed_jobs() {
    let store = Store::in_memory().unwrap();
    let commit = |change| store.commit(ALONE, &change).unwrap();
    commit(Change::Put(vec![record(1, 1)]));
    commit(Change::Update(vec![record(1, 2)]));
    assert_eq!(store.read().unwrap().jobs, [record(1, 2)]);
    commit(Change::Remove(vec![1]));
    commit(Change::Update(vec![record(1, 3)]));
    assert_eq!(store.read().unwrap().jobs, []);
    // The removed job's id is not given out a second time.
    commit(Change::Put(vec![record(2, 1)]));
    commit(Change::Restore(record(1, 2)));
    let stored = store.read().unwrap();
    assert_eq!(
        (stored.last_id, stored.jobs),
        (2, vec![record(1, 2), record(2, 1)])
    );
}

#[test]
fn one_change_adds_several_jobs() {
    let store = Store::in_memory().unwrap();
    let both = Change::Put(vec![record(7, 1), record(2, 1)]);
    let at = store.commit(ALONE, &both).unwrap();
    assert_eq!(at.changes, 1);
    // The ids were given out in that order.
    let stored = store.read().unwrap();
    assert_eq!((stored.last_id, stored.jobs.len()), (2, 2));
    let at = store.commit(ALONE, &Change::Remove(vec![2, 7])).unwrap();
    assert_eq!((at.changes, store.read().unwrap().jobs), (2, vec![]));
}

#[test]
fn a_copy_has_the_same_content_and_history() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy");
    let (store, copy) = (Store::in_memory().unwrap(), Store::open(&path).unwrap());
    copy.commit(ALONE, &Change::Put(vec![record(9, 1)]))
        .unwrap();
    let (first, second) = (Term { number: 1, by: 7 }, Term { number: 2, by: 3 });
    let drain = |drained| Change::Drain {
        part: "s1".into(),
        drained,
    };
    store
        .commit(first, &Change::Put(vec![record(1, 1)]))
        .unwrap();
    store.commit(first, &drain(true)).unwrap();
    store.commit(second, &Change::Update(vec![])).unwrap();
    let (at, stored) = store.snapshot().unwrap();
    assert_eq!(
        at,
        History {
            term: second,
            changes: 3
        }
    );
    copy.replace(second, at, &stored).unwrap();
    drop(copy);
    let copy = Store::open(&path).unwrap();
    assert_eq!(copy.snapshot().unwrap(), (at, stored));
    for change in [
        Change::Put(vec![record(2, 1)]),
        drain(false),
        Change::Remove(vec![1]),
    ] {
        // The form in which changes travel.
        let text = serde_json::to_vec(&change).unwrap();
        let same: Change = serde_json::from_slice(&text).unwrap();
        let at = store.commit(second, &change).unwrap();
        assert!(copy.follow(at, &same).unwrap());
        assert!(!copy.follow(at, &same).unwrap(), "once");
        assert_eq!(copy.snapshot().unwrap(), store.snapshot().unwrap());
    }
    // A copy that was sent before these changes and arrives after them.
    let late = Stored::default();
    let error = copy.replace(second, at, &late).unwrap_err().to_string();
    assert!(error.contains("change 3 of term 2"), "{error}");
    assert_eq!(copy.snapshot().unwrap(), store.snapshot().unwrap());
    assert_ne!(copy.controller(), store.controller());
}

#[test]
fn terms_are_accepted_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let term = |number, by| Term { number, by };
    for (number, by, accepted) in [(1, 2, true), (1, 2, false), (1, 1, false), (2, 1, true)] {
        let store = Store::open(&path).unwrap();
        assert_eq!(store.accept(term(number, by)).unwrap(), accepted);
    }
    let store = Store::open(&path).unwrap();
    assert_eq!(store.accepted().unwrap(), term(2, 1));
    let before = store.snapshot().unwrap();
    let (at, stored) = before.clone();
    let late = |term| History { term, ..at };
    let nothing = Change::Update(vec![]);
    let outdated = [
        store.commit(term(1, 9), &nothing).map(drop),
        store.follow(late(term(1, 9)), &nothing).map(drop),
        store.replace(term(1, 9), at, &stored),
    ];
    for error in outdated {
        let text = error.unwrap_err().to_string();
        assert!(
            text.ends_with("the controllers are in term 2 of controller 00000001"),
            "{text}"
        );
    }
    // A term that is too far ahead would leave no later one to claim.
    let absurd = term(u64::MAX, 1);
    for error in [
        store.accept(absurd).map(drop),
        store.replace(absurd, late(absurd), &stored),
        store.follow(late(absurd), &nothing).map(drop),
    ] {
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("is too far ahead of the accepted term 2"),
            "{text}"
        );
    }
    assert_eq!(store.accepted().unwrap(), term(2, 1));
    assert_eq!(store.snapshot().unwrap(), before);
    store.commit(term(2, 1), &nothing).unwrap();
}

/// A disk in memory that can run out of space.
#[derive(Debug, Default)]
struct Disk {
    bytes: InMemoryBackend,
    is_full: AtomicBool,
}

#[derive(Debug)]
struct Mounted(Arc<Disk>);

impl StorageBackend for Mounted {
    fn len(&self) -> io::Result<u64> {
        self.0.bytes.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.bytes.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.bytes.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.bytes.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.is_full.load(Ordering::SeqCst) {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => self.0.bytes.write(offset, data),
        }
    }
}

#[test]
fn the_store_recovers_from_a_full_disk() {
    let disk = Arc::new(Disk::default());
    let mount = Arc::clone(&disk);
    let open = move || {
        let backend = Mounted(Arc::clone(&mount));
        let database = Database::builder().create_with_backend(backend);
        database.map_err(|error| StoreError::Open {
            path: "disk".into(),
            reason: error.to_string(),
        })
    };
    let store = Store::with(Box::new(open), "disk".into()).unwrap();
    store
        .commit(ALONE, &Change::Put(vec![record(1, 1)]))
        .unwrap();
    disk.is_full.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        store
            .commit(ALONE, &Change::Put(vec![record(2, 1)]))
            .unwrap_err();
    }
    disk.is_full.store(false, Ordering::SeqCst);
    assert_eq!(store.read().unwrap().jobs, [record(1, 1)]);
    store
        .commit(ALONE, &Change::Put(vec![record(2, 1)]))
        .unwrap();
    assert_eq!(store.read().unwrap().jobs, [record(1, 1), record(2, 1)]);
}

/// Truncated files give a one-line error at every length.
#[test]
fn truncated_files_do_not_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let store = Store::open(&path).unwrap();
    store
        .commit(ALONE, &Change::Put(vec![record(1, 1)]))
        .unwrap();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut");
    for len in [1, 100, 320, 5000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&cut, &whole[..len]).unwrap();
        let error = Store::open(&cut).map(drop).unwrap_err().to_string();
        assert!(error.contains(&cut.display().to_string()), "{len}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
