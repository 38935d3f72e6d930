//! The connections to a server, through something that can break them all at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to a server.
pub struct Wire {
    address: SocketAddr,
    cuts: watch::Sender<u32>,
    /// Whether new connections are closed at once.
    refuses: Arc<AtomicBool>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Wire {
    /// Starts passing connections on to `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = watch::Sender::new(0);
        let refuses = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&refuses);
        let subscriber = cuts.clone();
        let acceptor = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if refused.load(Ordering::SeqCst) {
                    continue;
                }
                let mut cut = subscriber.subscribe();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Wire {
            address,
            cuts,
            refuses,
            acceptor,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nobody answers, or somebody does again. What there is of connections breaks.
    pub fn refuse(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
        self.cut();
    }

    /// Breaks all connections that there are.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}
