//! A TCP proxy that can break all connections at once, or hold back their bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy to a server.
pub struct Wire {
    address: SocketAddr,
    cuts: watch::Sender<u32>,
    /// True if new connections are closed at once.
    refuses: Arc<AtomicBool>,
    /// True if bytes are held back.
    hole: watch::Sender<bool>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Wire {
    /// Starts a proxy to `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = watch::Sender::new(0);
        let refuses = Arc::new(AtomicBool::new(false));
        let hole = watch::Sender::new(false);
        let refused = Arc::clone(&refuses);
        let (subscriber, holes) = (cuts.clone(), hole.clone());
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if refused.load(Ordering::SeqCst) {
                    continue;
                }
                let mut cut = subscriber.subscribe();
                let (to_server, to_client) = (holes.subscribe(), holes.subscribe());
                let (of_client, of_server) = (cut.clone(), cut.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else {
                        return;
                    };
                    let (from_client, client) = client.into_split();
                    let (from_server, server) = server.into_split();
                    tokio::select! {
                        // Closes both directions when one ends, even if the other one is held back.
                        () = pass(from_client, server, to_server, of_client) => {}
                        () = pass(from_server, client, to_client, of_server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Wire {
            address,
            cuts,
            refuses,
            hole,
            acceptor,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes new connections at once, or accepts them again. Existing connections break.
    pub fn refuse(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
        self.cut();
    }

    /// Holds back all bytes without closing connections, or delivers them.
    pub fn swallow(&self, swallow: bool) {
        self.hole.send_replace(swallow);
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

/// Copies bytes until the end or a cut, and holds them back while there is a hole.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut hole: watch::Receiver<bool>,
    cut: watch::Receiver<u32>,
) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut bytes).await;
        let is_cut = || cut.has_changed().unwrap_or(true);
        if hole.wait_for(|hole| !*hole).await.is_err() || is_cut() {
            return;
        }
        match read {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                if to.write_all(&bytes[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut();
    }
}
