use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableTable as _, StorageBackend, TableDefinition};
use serde_json::{Value, json};
use ultima_grpc::tls::{ClientTls, IdentityFiles};
use ultima_testing::etcd::{Etcd, Tls};
use ultima_wire::Key;

use super::embedded::{FORM, NUMBERS};
use super::etcd::testing::Cluster;
use super::etcd::{Secret, SecretError};
use super::*;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Longer than any wait in these tests, even on a busy machine.
const WAIT: Duration = Duration::from_secs(60);

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
        request: 3,
        uid: 4,
        client: "operator alice".into(),
        key: (!id.is_multiple_of(2)).then_some(Key([id as u8; 16])),
        members: vec![MemberRecord {
            host: "h1".into(),
            udp_port: 9000,
            source: 1,
            seat: SeatRecord::Joined,
            attempt: id.into(),
            suspected: true,
        }],
        shares: vec![ShareRecord {
            switch: "s1".into(),
            port: 1,
            index: 2,
        }],
        origin: None,
    }
}

/// A kind of store, for the suite.
trait Kind {
    /// Opens the store, as after a restart.
    async fn open(&self) -> Arc<dyn Store>;
    /// Writes a job's record as another version did. The store must be opened again.
    async fn put(&self, id: u16, record: &Value);
    /// A job's record.
    async fn get(&self, id: u16) -> Value;
}

/// A file, which is closed between two calls.
struct InFile(tempfile::TempDir);

const JOBS: TableDefinition<u16, &[u8]> = TableDefinition::new("jobs");

impl InFile {
    fn embedded(&self) -> Embedded {
        Embedded::open(&self.0.path().join("state")).unwrap()
    }
}

impl Kind for InFile {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.embedded())
    }

    async fn put(&self, id: u16, record: &Value) {
        put(&self.embedded(), id, record);
    }

    async fn get(&self, id: u16) -> Value {
        get(&self.embedded(), id)
    }
}

/// A store in memory, which stays open.
struct InMemory(Embedded);

impl Kind for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn put(&self, id: u16, record: &Value) {
        put(&self.0, id, record);
    }

    async fn get(&self, id: u16) -> Value {
        get(&self.0, id)
    }
}

fn put(store: &Embedded, id: u16, record: &Value) {
    let text = record.to_string();
    let written = store.write(|changes| {
        let mut jobs = changes.open_table(JOBS)?;
        Ok(jobs.insert(id, text.as_bytes()).map(drop)?)
    });
    written.unwrap();
}

fn get(store: &Embedded, id: u16) -> Value {
    let text = store.write(|changes| {
        let jobs = changes.open_table(JOBS)?;
        Ok(jobs.get(id)?.map(|text| text.value().to_vec()))
    });
    serde_json::from_slice(&text.unwrap().unwrap()).unwrap()
}

/// Each time another controller leads.
impl Kind for Cluster {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.elected().await)
    }

    async fn put(&self, id: u16, record: &Value) {
        self.put(&format!("jobs/{id:05}"), record.to_string()).await;
    }

    async fn get(&self, id: u16) -> Value {
        serde_json::from_slice(&self.record(id).await).unwrap()
    }
}

/// The changes of the property, with ids from 1 to 5.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    let job = || (1u16..6, 1u16..4).prop_map(|(id, epoch)| record(id, epoch));
    // A record of each id once.
    let jobs = || {
        prop::collection::vec(job(), 0..4).prop_map(|mut jobs| {
            let mut ids = BTreeSet::new();
            jobs.retain(|job| ids.insert(job.id));
            jobs
        })
    };
    let change = prop_oneof![
        jobs().prop_map(Change::Put),
        jobs().prop_map(Change::Update),
        prop::collection::btree_set(1u16..6, 0..4)
            .prop_map(|ids| Change::Remove(ids.into_iter().collect())),
        (prop::sample::select(&["s1", "s1/9-s2/9"]), any::<bool>()).prop_map(
            |(element, drained)| {
                let element = element.to_owned();
                Change::Drain { element, drained }
            }
        ),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(Change::Events),
    ];
    prop::collection::vec(change, 0..16)
}

/// The expected content of a store after these changes.
fn expected(changes: &[Change]) -> Stored {
    let (mut jobs, mut drained, mut last_id) = (BTreeMap::new(), BTreeSet::new(), 0);
    let mut events = Vec::new();
    for change in changes {
        match change.clone() {
            Change::Put(all) => {
                last_id = all.last().map_or(last_id, |job| job.id);
                jobs.extend(all.into_iter().map(|job| (job.id, job)));
            }
            Change::Update(all) => {
                for job in all {
                    jobs.entry(job.id).and_modify(|stored| *stored = job);
                }
            }
            Change::Remove(ids) => jobs.retain(|id, _| !ids.contains(id)),
            Change::Drain {
                element,
                drained: true,
            } => drop(drained.insert(element)),
            Change::Drain { element, .. } => drop(drained.remove(&element)),
            Change::Events(recent) => events = recent,
        }
    }
    Stored {
        id: 0,
        last_id,
        jobs: jobs.into_values().collect(),
        drained: drained.into_iter().collect(),
        events,
    }
}

/// Every store passes this suite.
async fn conforms<K: Kind>(cases: u32, new: impl Fn() -> K) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..cases {
        let changes = changes().new_tree(&mut runner).unwrap().current();
        let kind = new();
        let mut store = kind.open().await;
        let id = store.load().await.unwrap().id;
        assert_ne!(id, 0);
        let new = Stored {
            id,
            ..Stored::default()
        };
        assert_eq!(store.load().await.unwrap(), new);
        for (at, change) in changes.iter().enumerate() {
            store.apply(change).await.unwrap();
            if at % 3 == 0 {
                drop(store);
                store = kind.open().await;
            }
        }
        let stored = store.load().await.unwrap();
        let expected = Stored {
            id,
            ..expected(&changes)
        };
        assert_eq!(stored, expected, "{changes:?}");
        drop(store);
        assert_eq!(kind.open().await.load().await.unwrap(), stored);
    }
    // Ids are given out in the order of the records, and not again after a removal.
    let kind = new();
    let store = kind.open().await;
    let both = Change::Put(vec![record(7, 1), record(2, 1)]);
    store.apply(&both).await.unwrap();
    store.apply(&Change::Remove(vec![2, 7])).await.unwrap();
    let stored = store.load().await.unwrap();
    assert_eq!((stored.last_id, stored.jobs.len()), (2, 0));
    // Many records, as when a controller starts.
    let many: Vec<JobRecord> = (1..=300).map(|id| record(id, 1)).collect();
    for batch in many.chunks(100) {
        store.apply(&Change::Put(batch.to_vec())).await.unwrap();
    }
    let later: Vec<JobRecord> = (1..=300).map(|id| record(id, 2)).collect();
    store.apply(&Change::Update(later.clone())).await.unwrap();
    assert_eq!(store.load().await.unwrap().jobs, later);
    drop(store);
    unknown_fields_survive(new()).await;
}

/// The fields of a later version stay, also after this version has changed the record.
async fn unknown_fields_survive(kind: impl Kind) {
    let store = kind.open().await;
    store.apply(&Change::Put(vec![record(1, 1)])).await.unwrap();
    drop(store);
    let mut later = serde_json::to_value(record(1, 1)).unwrap();
    later["priority"] = json!({ "class": "low" });
    later["members"][0]["gpu"] = json!(3);
    kind.put(1, &later).await;
    let store = kind.open().await;
    assert_eq!(store.load().await.unwrap().jobs, [record(1, 1)]);
    let update = Change::Update(vec![record(1, 2)]);
    store.apply(&update).await.unwrap();
    drop(store);
    let keeps = |now: Value, epoch: u16| {
        assert_eq!(now["epoch"], epoch);
        assert_eq!(
            (&now["priority"], &now["members"][0]["gpu"]),
            (&later["priority"], &json!(3))
        );
    };
    keeps(kind.get(1).await, 2);
}

#[tokio::test]
async fn files_conform() {
    let new = || InFile(tempfile::tempdir().unwrap());
    conforms(ultima_testing::cases(4, 50), new).await;
}

#[tokio::test]
async fn memory_conforms() {
    let new = || InMemory(Embedded::in_memory().unwrap());
    conforms(ultima_testing::cases(20, 200), new).await;
}

#[tokio::test]
async fn etcd_conforms() {
    let Some(etcd) = Etcd::start(1) else { return };
    let new = || Cluster::new(&etcd);
    conforms(ultima_testing::cases(4, 50), new).await;
}

/// A secret in a file that only its owner reads.
fn secret(folder: &Path, name: &str, text: &str) -> Result<Secret, SecretError> {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    Secret::load(&path)
}

#[tokio::test]
async fn etcd_with_a_secret_conforms_and_has_no_key() {
    let Some(etcd) = Etcd::start(1) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str| secret(folder.path(), name, &name.repeat(SECRET_BYTES)).unwrap();
    let (ours, other) = (secret("a"), secret("b"));
    conforms(1, || Cluster::new(&etcd).with_secret(Some(ours.clone()))).await;

    let plain = Cluster::new(&etcd);
    let sealed = plain.with_secret(Some(ours));
    let put = async |cluster: &Cluster, id| {
        let store = cluster.elected().await;
        store.load().await.unwrap();
        store
            .apply(&Change::Put(vec![record(id, 1)]))
            .await
            .unwrap();
    };
    // A record from before the secret is encrypted when a leader reads it.
    put(&plain, 1).await;
    assert_eq!(plain.get("jobs/00001").await.unwrap().first(), Some(&b'{'));
    put(&sealed, 3).await;
    assert_ne!(plain.get("jobs/00001").await.unwrap().first(), Some(&b'{'));
    let jobs = sealed.read().await.unwrap().jobs;
    assert_eq!(jobs, [record(1, 1), record(3, 1)]);
    let stored = sealed.get("jobs/00003").await.unwrap();
    for leak in ["job3", "030303"] {
        let mut windows = stored.windows(leak.len());
        assert!(!windows.any(|it| it == leak.as_bytes()), "{leak}");
    }
    for cluster in [plain.with_secret(Some(other)), plain.with_secret(None)] {
        let error = cluster.read().await.unwrap_err().to_string();
        let advice = "job 1 is encrypted; pass the --etcd-secret with which it was stored";
        assert!(error.ends_with(advice), "{error}");
    }
    // A record is bound to its id.
    sealed.put("jobs/00004", stored).await;
    assert!(matches!(
        sealed.read().await,
        Err(StoreError::Secret { id: 4, .. })
    ));
}

#[test]
fn unusable_secrets_give_one_line_errors() {
    let folder = tempfile::tempdir().unwrap();
    let short = secret(folder.path(), "short", "only a word\n").unwrap_err();
    let missing = Secret::load(&folder.path().join("missing")).unwrap_err();
    let long = folder.path().join("open");
    std::fs::write(&long, "x".repeat(SECRET_BYTES)).unwrap();
    std::fs::set_permissions(&long, Permissions::from_mode(0o644)).unwrap();
    let open = Secret::load(&long).unwrap_err();
    for (error, says) in [
        (short, "a secret of 11 bytes is too short"),
        (missing, "No such file"),
        (
            open,
            "other users can read this secret; run chmod 600 on it",
        ),
    ] {
        let error = error.to_string();
        assert!(
            error.contains(says) && error.lines().count() == 1,
            "{error}"
        );
    }
}

/// A cluster that serves only clients with a certificate and a password.
#[tokio::test]
async fn etcd_with_tls_and_users_conforms() {
    let Some(mut etcd) = Etcd::start(1) else {
        return;
    };
    etcd.require_user("ultima", "secret", ["test", "tesu"]);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = write(name, params.self_signed(&key).unwrap().pem());
        (ca, Issuer::new(params, key))
    };
    let (ca, issuer) = authority("ca.pem");
    let issue = |name: &str| {
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &issuer).unwrap().pem();
        let key = write(&format!("{name}.key"), key.serialize_pem());
        IdentityFiles {
            cert: write(&format!("{name}.pem"), cert),
            key,
        }
    };
    let IdentityFiles { cert, key } = issue("etcd");
    let tls = Tls {
        cert,
        key,
        ca: ca.clone(),
    };
    etcd.secure(tls);
    let identity = issue("controller");
    let tls = ClientTls::load(&ca, Some(&identity)).unwrap();
    let user = |password: &str| {
        let file = write(password, format!("{password}\n"));
        Some(("ultima".to_owned(), file))
    };
    let new = || Cluster::new(&etcd).with(Some(tls.clone()), user("secret"));
    conforms(1, new).await;

    let (stranger, _) = authority("stranger.pem");
    let other = ClientTls::load(&stranger, Some(&identity)).unwrap();
    let open = ClientTls::load(&ca, None).unwrap();
    for (cluster, why) in [
        (
            new().with(Some(tls.clone()), user("wrong")),
            "invalid user ID or password",
        ),
        (new().with(Some(tls.clone()), None), "permission denied"),
        (new().at("other"), "permission denied"),
        (
            new().with(Some(other), user("secret")),
            "invalid peer certificate",
        ),
        // With TLS 1.3 the alert may arrive after the first request.
        (new().with(Some(open), user("secret")), "does not answer"),
        (new().with(None, user("secret")), "does not answer"),
    ] {
        let error = cluster.read().await.unwrap_err().to_string();
        assert!(
            error.contains(why) && error.lines().count() == 1,
            "{why}: {error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
}

/// A second controller can write only after the lease of the first one has ended.
#[tokio::test]
async fn a_deposed_leader_cannot_write_to_etcd() {
    let Some(etcd) = Etcd::start(1) else { return };
    let cluster = Cluster::new(&etcd);
    let first = cluster.elected().await;
    first.load().await.unwrap();
    first.apply(&Change::Put(vec![record(1, 1)])).await.unwrap();
    // etcd ends the lease, which the first one does not know.
    cluster.delete("leader").await;
    let second = cluster.elected().await;
    assert!(first.election_id() < second.election_id());
    let stored = second.load().await.unwrap();
    assert_eq!(stored.jobs, [record(1, 1)]);
    let error = first.apply(&Change::Remove(vec![1])).await.unwrap_err();
    assert!(matches!(error, StoreError::NotLeader), "{error}");
    assert!(matches!(first.load().await, Err(StoreError::NotLeader)));
    second
        .apply(&Change::Put(vec![record(2, 1)]))
        .await
        .unwrap();
    assert_eq!(
        second.load().await.unwrap().jobs,
        [record(1, 1), record(2, 1)]
    );
    // The second one renews its lease, but its key is gone: it steps down before the lease's end.
    cluster.delete("leader").await;
    tokio::time::timeout(WAIT, second.ended())
        .await
        .expect("it steps down");
    let second = cluster.elected().await;
    second.load().await.unwrap();
    // Another program's write is noticed before anything is overwritten.
    cluster.put("change", "theirs").await;
    let error = second.apply(&Change::Remove(vec![1])).await.unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
}

#[tokio::test]
async fn unusable_clusters_give_one_line_errors() {
    let Some(mut etcd) = Etcd::start(1) else {
        return;
    };
    let cluster = Cluster::new(&etcd);
    let store = cluster.elected().await;
    // More operations than etcd allows by default: nothing is stored.
    let many = (1..=200).map(|id| record(id, 1)).collect();
    let error = store
        .apply(&Change::Put(many))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("start etcd with a larger --max-txn-ops"),
        "{error}"
    );
    assert_eq!(store.load().await.unwrap().jobs, []);
    cluster.put("form", "9").await;
    let error = store.load().await.unwrap_err().to_string();
    assert!(error.contains("store format 9 is unknown"), "{error}");
    etcd.kill(0);
    let error = store.load().await.unwrap_err().to_string();
    assert!(error.contains("does not answer: 127.0.0.1:"), "{error}");
    // The lease may have ended.
    let error = store.apply(&Change::Remove(vec![1])).await.unwrap_err();
    assert!(
        matches!(error, StoreError::NotLeader | StoreError::Unknown),
        "{error}"
    );
}

#[tokio::test]
async fn keys_are_stored_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let sealed = JobRecord {
        key: Some(Key(*b"\x01\xab is the key...")),
        ..record(1, 1)
    };
    let store = Embedded::open(&path).unwrap();
    let change = Change::Put(vec![sealed.clone()]);
    store.apply(&change).await.unwrap();
    assert_eq!(store.load().await.unwrap().jobs.first(), Some(&sealed));
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
fn foreign_files_give_one_line_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let held = Embedded::open(&path).unwrap();
    let line = |path: &Path| Embedded::open(path).map(drop).unwrap_err().to_string();
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
            "{shown}: store format 2 is unknown (this controller reads format 1); start the version that wrote it, or pass another --state"
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

/// A disk in memory that can run out of space.
#[derive(Debug, Default)]
struct Disk {
    bytes: InMemoryBackend,
    is_full: AtomicBool,
    /// The number of flushes from here to the one that reports an error although it has written all; 0 for none.
    failing_flush: AtomicUsize,
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
        self.0.bytes.sync_data()?;
        let left = &self.0.failing_flush;
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| it.checked_sub(1));
        match before {
            Ok(1) => Err(io::Error::other("on purpose")),
            _ => Ok(()),
        }
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.is_full.load(Ordering::SeqCst) {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => self.0.bytes.write(offset, data),
        }
    }
}

fn mounted(disk: &Arc<Disk>) -> Embedded {
    let mount = Arc::clone(disk);
    let open = move || {
        let backend = Mounted(Arc::clone(&mount));
        let database = Database::builder().create_with_backend(backend);
        database.map_err(|error| StoreError::Open {
            path: "disk".into(),
            reason: error.to_string(),
        })
    };
    Embedded::with(Box::new(open), "disk".into()).unwrap()
}

#[tokio::test]
async fn a_change_is_applied_if_and_only_if_the_store_says_so() {
    let mut applied_all_the_same = 0;
    for flush in 1..=4 {
        let disk = Arc::new(Disk::default());
        let store = mounted(&disk);
        disk.failing_flush.store(flush, Ordering::SeqCst);
        let applied = store.apply(&Change::Put(vec![record(1, 1)])).await;
        let has_failed = disk.failing_flush.swap(0, Ordering::SeqCst) == 0;
        let known = store.load().await.unwrap();
        drop(store);
        let stored = mounted(&disk).load().await.unwrap();
        assert_eq!(known, stored, "flush {flush}");
        assert_eq!(
            stored.jobs.len(),
            usize::from(applied.is_ok()),
            "flush {flush}"
        );
        applied_all_the_same += usize::from(has_failed && applied.is_ok());
    }
    assert!(
        applied_all_the_same > 0,
        "no commit has failed that is on the disk"
    );
}

#[tokio::test]
async fn the_store_recovers_from_a_full_disk() {
    let disk = Arc::new(Disk::default());
    let store = mounted(&disk);
    store.apply(&Change::Put(vec![record(1, 1)])).await.unwrap();
    disk.is_full.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        store
            .apply(&Change::Put(vec![record(2, 1)]))
            .await
            .unwrap_err();
    }
    disk.is_full.store(false, Ordering::SeqCst);
    assert_eq!(store.load().await.unwrap().jobs, [record(1, 1)]);
    store.apply(&Change::Put(vec![record(2, 1)])).await.unwrap();
    assert_eq!(
        store.load().await.unwrap().jobs,
        [record(1, 1), record(2, 1)]
    );
}

/// Truncated files give a one-line error at every length.
#[tokio::test]
async fn truncated_files_do_not_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let store = Embedded::open(&path).unwrap();
    store.apply(&Change::Put(vec![record(1, 1)])).await.unwrap();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut");
    for len in [1, 100, 320, 5000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&cut, &whole[..len]).unwrap();
        let error = Embedded::open(&cut).map(drop).unwrap_err().to_string();
        assert!(error.contains(&cut.display().to_string()), "{len}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
