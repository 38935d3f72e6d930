//! The HTTP server for metrics.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use ultima_grpc::metrics;
use ultima_grpc::server::{Certificates, Listener};

use crate::metrics::Metrics;

/// Serves `GET /metrics` until it is dropped.
pub struct Exporter {
    address: SocketAddr,
    /// Dropping it ends the server.
    _stop: watch::Sender<()>,
}

impl Exporter {
    /// Serves `metrics` at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The kernel rejects the address.
    pub async fn serve(address: SocketAddr, metrics: Arc<Metrics>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(());
        tokio::spawn(Listener::from(listener).serve(
            Certificates::default(),
            metrics::PROTOCOL,
            metrics::Metrics::new(move || metrics.text()),
            metrics::connections(),
            stopped,
        ));
        let _stop = stop;
        Ok(Self { address, _stop })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
