//! An etcd cluster for tests of the store.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use tokio::time::Instant;
use ultima_grpc::tls::ClientTls;
use ultima_testing::etcd::Etcd;

use super::client::Client;
use super::secret::opened;
use super::{Config, Election, Leader, Secret, Shared, read};
use crate::store::{StoreError, Stored};

/// A prefix of its own in an etcd cluster.
pub struct Cluster {
    config: Config,
}

impl Cluster {
    /// A prefix that no other test uses.
    pub fn new(etcd: &Etcd) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let prefix = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let text = format!("{}/{prefix}", etcd.endpoints().join(","));
        Cluster {
            config: Config {
                lease: Duration::from_secs(1),
                ..Config::parse(&text).unwrap()
            },
        }
    }

    /// The same with encrypted records.
    pub fn with_secret(&self, secret: Option<Secret>) -> Self {
        let config = Config {
            secret,
            ..self.config.clone()
        };
        Cluster { config }
    }

    /// The same with TLS and as a user.
    pub fn with(&self, tls: Option<ClientTls>, user: Option<(String, PathBuf)>) -> Self {
        let config = Config {
            tls,
            user,
            // Each leader logs in first.
            lease: Duration::from_secs(5),
            ..self.config.clone()
        };
        Cluster { config }
    }

    /// Another prefix of the same cluster.
    pub fn at(&self, prefix: &str) -> Self {
        let config = Config {
            prefix: prefix.to_owned(),
            ..self.config.clone()
        };
        Cluster { config }
    }

    /// Reads the content, as a standby does.
    pub async fn read(&self) -> Result<Stored, StoreError> {
        read(&Election::new(self.config.clone(), Leader::default())?).await
    }

    /// The store of a controller that leads, once there is no other leader.
    pub async fn elected(&self) -> Shared {
        let election = Election::new(self.config.clone(), Leader::default()).unwrap();
        let leadership = election.win().await;
        Shared::new(&election, leadership)
    }

    /// Writes a key.
    pub async fn put(&self, rest: &str, value: impl Into<Vec<u8>>) {
        self.execute(TxnOp::put(self.config.key(rest), value, None))
            .await;
    }

    /// Deletes a key.
    pub async fn delete(&self, rest: &str) {
        self.execute(TxnOp::delete(self.config.key(rest), None))
            .await;
    }

    async fn execute(&self, operation: TxnOp) {
        let transaction = Txn::new().and_then([operation]);
        self.client().txn(transaction).await.unwrap();
    }

    /// Reads a key.
    pub async fn get(&self, rest: &str) -> Option<Vec<u8>> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let client = self.client();
        let keys = client.get(self.config.key(rest), None, deadline).await;
        Some(keys.unwrap().first()?.value().to_vec())
    }

    /// Reads a job's record.
    pub async fn record(&self, id: u16) -> Vec<u8> {
        let rest = format!("jobs/{id:05}");
        let value = self.get(&rest).await.unwrap();
        opened(self.config.secret.as_ref(), &self.config.key(&rest), value).unwrap()
    }

    fn client(&self) -> Arc<Client> {
        Arc::new(Client::new(self.config.clone()).unwrap())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Another one may lead then.
        self.leadership.end();
    }
}
