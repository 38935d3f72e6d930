//! The connections to a server, through something that can break them all at once, or swallow what they carry.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to a server.
pub struct Wire {
    address: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
    cuts: watch::Sender<u32>,
    /// Whether new connections are closed at once.
    refuses: Arc<AtomicBool>,
    /// Whether nothing comes through, and nobody is told.
    hole: watch::Sender<bool>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Wire {
    /// Starts passing connections on to `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = watch::Sender::new(0);
        let refuses = Arc::new(AtomicBool::new(false));
        let hole = watch::Sender::new(false);
        let server = Arc::new(Mutex::new(server));
        let refused = Arc::clone(&refuses);
        let (subscriber, holes, target) = (cuts.clone(), hole.clone(), Arc::clone(&server));
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if refused.load(Ordering::SeqCst) {
                    continue;
                }
                let mut cut = subscriber.subscribe();
                let (to_server, to_client) = (holes.subscribe(), holes.subscribe());
                let server = *target.lock().unwrap();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else {
                        return;
                    };
                    let (from_client, client) = client.into_split();
                    let (from_server, server) = server.into_split();
                    tokio::select! {
                        // Either end's end is both's, also where the other way is swallowed.
                        () = pass(from_client, server, to_server) => {}
                        () = pass(from_server, client, to_client) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Wire {
            address,
            server,
            cuts,
            refuses,
            hole,
            acceptor,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections go to another server.
    pub fn redirect(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = server;
    }

    /// From now on nobody answers, or somebody does again. What there is of connections breaks.
    pub fn refuse(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
        self.cut();
    }

    /// From now on nothing comes through and no connection ends, or all that waits does.
    pub fn swallow(&self, swallow: bool) {
        self.hole.send_replace(swallow);
    }

    /// Breaks all connections that there are.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

/// Passes bytes on while there is no hole, to the end.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut hole: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut bytes).await;
        if hole.wait_for(|hole| !*hole).await.is_err() {
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
