//! A forwarding thread and the gRPC server beside it, until they end.

use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use ultima_grpc::connections::{Connections, Limits};
use ultima_grpc::server::{Certificates, Listener, Protocol, Services, Version};

use crate::error::SwitchError;
use crate::forward::{Forwarder, Handle};
use crate::grpc::Service;

/// The time that clients have to end their calls when the server ends.
const GRACE: Duration = Duration::from_millis(500);

/// HTTP of the server. The keepalive frees the election id of a controller whose machine is gone.
const PROTOCOL: Protocol = Protocol {
    version: Version::Http2,
    keepalive: Duration::from_secs(10),
};
/// Longest time of a connection without a call.
const IDLE: Duration = Duration::from_secs(300);

/// A running switch or link. Dropping it stops forwarding without waiting.
pub struct Running {
    forwarder: Handle,
    ended: Option<oneshot::Receiver<io::Result<()>>>,
    grpc: Option<Grpc>,
}

struct Grpc {
    address: SocketAddr,
    service: Service,
    /// Dropping it ends the server.
    stop: watch::Sender<()>,
    server: JoinHandle<()>,
}

/// A socket for gRPC, and where it listens.
pub(crate) async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), SwitchError> {
    let failed = |source| SwitchError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

impl Running {
    pub(crate) fn start(forwarder: Forwarder, handle: Handle) -> Result<Running, SwitchError> {
        let (sender, ended) = oneshot::channel();
        let thread = thread::Builder::new().name("ultima-forward".to_owned());
        // A dropped switch has no receiver.
        let run = move || drop(sender.send(forwarder.run()));
        thread.spawn(run).map_err(SwitchError::Forwarding)?;
        Ok(Running {
            forwarder: handle,
            ended: Some(ended),
            grpc: None,
        })
    }

    pub(crate) fn serve(
        &mut self,
        (listener, address): (TcpListener, SocketAddr),
        certificates: Certificates,
        services: Services,
        service: Service,
    ) {
        let (stop, stopped) = watch::channel(());
        let connections = Connections::new(Limits::of_process(), IDLE);
        let listener = Listener::from(listener);
        let server = listener.serve(certificates, PROTOCOL, services, connections, stopped);
        let server = tokio::spawn(server);
        self.grpc = Some(Grpc {
            address,
            service,
            stop,
            server,
        });
    }

    /// Returns the address of the gRPC server, if there is one.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|grpc| grpc.address)
    }

    /// Returns a handle that sends commands to the forwarding thread.
    pub(crate) fn handle(&self) -> Handle {
        self.forwarder.clone()
    }

    /// Runs until `end` is ready. Then it stops forwarding, flushes captures and removes socket files.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn run_until(mut self, end: impl Future<Output = ()>) -> Result<(), SwitchError> {
        let Some(mut ended) = self.ended.take() else {
            return Ok(());
        };
        let by_itself = tokio::select! {
            () = end => None,
            result = &mut ended => Some(result),
        };
        self.forwarder.stop();
        let result = match by_itself {
            Some(result) => result,
            None => ended.await,
        };
        if let Some(mut grpc) = self.grpc.take() {
            grpc.service.close_streams();
            drop(grpc.stop);
            if tokio::time::timeout(GRACE, &mut grpc.server).await.is_err() {
                grpc.server.abort();
            }
        }
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SwitchError::Forwarding(error)),
            // The thread panicked and has printed that to standard error.
            Err(_) => Err(SwitchError::Forwarding(io::Error::other(
                "the thread ended unexpectedly",
            ))),
        }
    }

    /// Stops forwarding.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn stop(self) -> Result<(), SwitchError> {
        self.run_until(ready(())).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.forwarder.stop();
        if let Some(grpc) = &self.grpc {
            grpc.server.abort();
        }
    }
}
